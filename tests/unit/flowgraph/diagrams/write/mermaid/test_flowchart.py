"""The Mermaid text of a picture, whole."""

from __future__ import annotations

import re

from flowgraph.diagrams.model.picture import Arrow, ArrowStyle, Box, Frame, Picture
from flowgraph.diagrams.write.mermaid.flowchart import mermaid

BOXES = (
    Box("n0", ("prompts",), "data"),
    Box("n1", ("policy",), "model"),
    Box("n2", ("judge",), "model"),
    Box("n3", ("update", "lr=1e-6"), "update", inside="f1"),
)
FRAMES = (Frame("f0", "outer"), Frame("f1", "inner", parent="f0"))
ARROWS = (
    Arrow("n1", "n3", "Policy", ArrowStyle.WEIGHTS),
    Arrow("n0", "n3", "Prompts"),
    Arrow("n3", "n2", "next step", ArrowStyle.CARRY),
    Arrow("n3", "n1", "next step", ArrowStyle.CARRY),
    Arrow("n2", "n3", "Judge ≤ 1 update late", ArrowStyle.STALE),
)
TEXT = mermaid(Picture("small", BOXES, FRAMES, ARROWS))


def test_the_whole_text() -> None:
    assert (
        TEXT
        == """\
%%{init: {"layout": "dagre", "look": "classic", "flowchart": {"nodeSpacing": 60, "rankSpacing": 60}}}%%
flowchart TD
    accTitle: small
    n2{{"judge"}}:::model
    n1{{"policy"}}:::model
    n0[("prompts")]:::data
    subgraph f0["outer"]
        subgraph f1["inner"]
            n3("update<br/>lr=1e-6"):::update
        end
        class f1 frame
    end
    class f0 frame
    n2 ~~~ n1
    n1 ==>|"Policy"| n3
    n0 -->|"Prompts"| n3
    n3 -.->|"next step"| n2
    n3 -.->|"next step"| n1
    n2 -.->|"Judge ≤ 1 update late"| n3
    classDef data fill:#f2f2f2,stroke:#6b6b6b,color:#1a1a1a,stroke-width:1.5px
    classDef model fill:#bdd9fe,stroke:#0072b2,color:#1a1a1a,stroke-width:1.5px
    classDef update fill:#fbab7c,stroke:#c25000,color:#1a1a1a,stroke-width:1.5px
    linkStyle 1 stroke:#2e86c1,stroke-width:2px
    linkStyle 5 stroke:#b87700,stroke-width:2px
    linkStyle 3,4 stroke:#d55e00,stroke-width:3px
    classDef frame fill:none,stroke:#808080,stroke-dasharray:4 4
"""
    )


def test_what_is_carried_is_declared_first_so_that_only_ways_back_point_back() -> None:
    declared = re.findall(r"^ +(n\d)\W.*:::", TEXT, re.MULTILINE)
    assert declared == ["n2", "n1", "n0", "n3"]


def test_an_empty_picture_is_still_a_flowchart() -> None:
    assert mermaid(Picture("none", (), (), ())).splitlines()[1:] == ["flowchart TD", "    accTitle: none"]


def test_frames_around_what_is_carried_come_first_and_each_kind_of_frame_has_its_line() -> None:
    boxes = (Box("n0", ("score",), "score", inside="f0"), Box("n1", ("policy",), "model", inside="f2"))
    frames = (
        Frame("f0", "host", kind="anywhere"),
        Frame("f1", "all", kind="pool"),
        Frame("f2", "policy", "f1", "home"),
    )
    arrows = (
        Arrow("n0", "n1", "next step", ArrowStyle.CARRY),
        Arrow("n1", "n0", "Rollout", ArrowStyle.TRANSFER),
        Arrow("n1", "n1", "sync policy", ArrowStyle.SYNC),
    )
    assert (
        mermaid(Picture("placed", boxes, frames, arrows)).partition("TD\n")[2]
        == """\
    accTitle: placed
    subgraph f1["all"]
        subgraph f2["policy"]
            n1{{"policy"}}:::model
        end
        class f2 home
    end
    class f1 pool
    subgraph f0["host"]
        n0("score"):::score
    end
    class f0 anywhere
    n0 -.->|"next step"| n1
    n1 -->|"Rollout"| n0
    n1 ==>|"sync policy"| n1
    classDef model fill:#bdd9fe,stroke:#0072b2,color:#1a1a1a,stroke-width:1.5px
    classDef score fill:#fef2ac,stroke:#8f8500,color:#1a1a1a,stroke-width:1.5px
    linkStyle 0 stroke:#d55e00,stroke-width:3px
    linkStyle 1 stroke:#0b8a64,stroke-width:2px
    linkStyle 2 stroke:#2e86c1,stroke-width:5px
    classDef pool fill:none,stroke:#6b6b6b,stroke-width:2px
    classDef home fill:none,stroke:#2e86c1
    classDef anywhere fill:none,stroke:#808080,stroke-dasharray:4 4
"""
    )
