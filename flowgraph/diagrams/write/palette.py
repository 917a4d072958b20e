"""The colours of pictures: one palette for every writer.

A test holds its contrasts, and how far apart its colours stay with each kind of colour blindness.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flowgraph.diagrams.model.charts import BarKind
from flowgraph.diagrams.model.picture import ArrowStyle, BoxKind, FrameKind, Status


@dataclass(frozen=True)
class Ink:
    """The colours of one kind of box, as `#rrggbb`: its fill, and its border. Its text is `TEXT`."""

    fill: str
    border: str


TEXT = "#1a1a1a"  # on every fill below: a contrast of at least 8 to 1 (WCAG 2.2 AAA asks for 7)

# Hues of Okabe and Ito (2008), "Color universal design". The lightness and strength of the fills were searched for, so
# that any two kinds differ by at least 10 (CIE76) to every kind of eye and by 2.5 in lightness (L*) on a grey print;
# borders are the hue itself, darkened to 3 to 1 on white. Shapes and a written kind say the same without colour.
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

# Bars of a timeline: a node's are of its kind; what moves is white with the border of its arrow, idle time is grey.
BAR_INKS: Mapping[BarKind, Ink] = {
    "generate": INKS["generate"],
    "score": INKS["score"],
    "logprob": INKS["logprob"],
    "advantage": INKS["advantage"],
    "update": INKS["update"],
    "host": INKS["host"],
    "sync": Ink("#ffffff", "#2e86c1"),
    "transfer": Ink("#ffffff", "#0b8a64"),
    "offload": Ink("#ffffff", "#6b6b6b"),
    "idle": Ink("#e6e6e6", "#9a9a9a"),
}

# What became of a thing between two pictures; a sign before its label says so too.
STATUS_INKS: Mapping[Status, str] = {"added": "#0b8a64", "removed": "#c0392b", "changed": "#b87700"}

# What is told apart by a name of a user's, such as roles in memory, in this order; its number or name stands in it too.
TONES: tuple[Ink, ...] = tuple(
    INKS[kind] for kind in ("model", "update", "score", "logprob", "advantage", "host", "generate", "data")
)

WARNING = "#c0392b"  # of what does not fit, which words say too
