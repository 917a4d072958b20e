"""The colours of pictures: one palette for every writer.

A test checks its contrasts, and the distance of its colours for each kind of colour blindness.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flowgraph.diagrams.model.charts import BarKind
from flowgraph.diagrams.model.picture import ArrowStyle, BoxKind, FrameKind, Status
from flowgraph.language.graph import NodeKind


@dataclass(frozen=True)
class Ink:
    """The colours of one kind of box, as `#rrggbb`: its fill, and its border. Its text is `TEXT`."""

    fill: str
    border: str


TEXT = "#1a1a1a"  # on every fill below: a contrast of at least 8 to 1 (WCAG 2.2 AAA asks for 7)

# Hues of Okabe and Ito (2008), "Color universal design". The lightness and strength of the fills come from a search:
# any two kinds differ by at least 10 (CIE76) for every kind of eye, and by 2.5 in lightness (L*) on a grey print.
# Borders are the hue itself, darkened to 3 to 1 on white. Shapes and a written kind say the same without colour.
INKS: Mapping[BoxKind, Ink] = {
    "data": Ink("#f2f2f2", "#6b6b6b"),
    "model": Ink("#bdd9fe", "#0072b2"),
    "generate": Ink("#fdc572", "#b87700"),
    "score": Ink("#fef2ac", "#8f8500"),
    "logprob": Ink("#67bff3", "#2e86b8"),
    "advantage": Ink("#8bd4b5", "#007d5b"),
    "update": Ink("#fbab7c", "#c25000"),
    "host": Ink("#fcd4e8", "#a9588a"),
    "arithmetic": Ink("#ffffff", "#6b6b6b"),
    "result": Ink("#ffffff", "#1a1a1a"),
    "device": Ink("#f2f2f2", "#6b6b6b"),
}

# Arrows of data keep the page's own ink; these are read on white and on black alike (3 to 1 on both).
ARROW_INKS: Mapping[ArrowStyle, str] = {
    ArrowStyle.WEIGHTS: "#2e86c1",
    ArrowStyle.STALE: "#b87700",
    ArrowStyle.CARRY: "#d55e00",
    ArrowStyle.TRANSFER: "#0b8a64",
    ArrowStyle.SYNC: "#2e86c1",
}

# Borders of frames, each with its line; they have no fill, so that the page's own shows.
FRAME_LINES: Mapping[FrameKind, str] = {
    "frame": "stroke:#808080;stroke-dasharray:4 4",
    "pool": "stroke:#6b6b6b;stroke-width:2px",
    "home": "stroke:#2e86c1",
    "anywhere": "stroke:#808080;stroke-dasharray:4 4",
}

# Bars of a timeline: a node's kind; transfers and syncs are white with the border of their arrow, idle time is grey.
_NODES: tuple[NodeKind, ...] = ("generate", "score", "logprob", "advantage", "update", "host")
BAR_INKS: Mapping[BarKind, Ink] = {
    **{kind: INKS[kind] for kind in _NODES},
    "sync": Ink("#ffffff", "#2e86c1"),
    "transfer": Ink("#ffffff", "#0b8a64"),
    "offload": Ink("#ffffff", "#6b6b6b"),
    "idle": Ink("#e6e6e6", "#9a9a9a"),
}

# The status of a thing in a diff; a sign before its label says the same.
STATUS_INKS: Mapping[Status, str] = {"added": "#0b8a64", "removed": "#c0392b", "changed": "#b87700"}

# Of things that have a name of a user, such as roles in memory, in this order; their number or name stands in them.
TONES: tuple[Ink, ...] = tuple(
    INKS[kind] for kind in ("model", "update", "score", "logprob", "advantage", "host", "generate", "data")
)

WARNING = "#c0392b"  # of what does not fit; words say the same
