"""One picture as data: boxes, frames around them, arrows between them. Writers turn it into a format; none is here.

Ids are made here and never from a user's text; labels are a user's text as it came, and every writer escapes them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from flowgraph.graph import NodeKind


class BoxKind(enum.StrEnum):
    """Say what a box stands for: a parameter, a node of one of the graph's kinds, arithmetic, or a result."""

    DATA = "data"
    MODEL = "model"
    GENERATE = "generate"
    SCORE = "score"
    LOGPROB = "logprob"
    ADVANTAGE = "advantage"
    UPDATE = "update"
    HOST = "host"
    ARITHMETIC = "arithmetic"
    RESULT = "result"

    @classmethod
    def of(cls, kind: NodeKind) -> BoxKind:
        """Give the kind of box that draws a node of this kind.

        >>> BoxKind.of(NodeKind.SCORE).name
        'SCORE'
        """
        return cls(kind.value)


class ArrowStyle(enum.StrEnum):
    """Say what travels: data, weights, weights that may lag, or state carried to the next step."""

    DATA = "data"
    WEIGHTS = "weights"
    STALE = "stale"
    CARRY = "carry"


@dataclass(frozen=True)
class Box:
    """One thing, its name first; `inside` is the id of the frame around it."""

    id: str
    label: tuple[str, ...]
    kind: BoxKind
    inside: str | None = None


@dataclass(frozen=True)
class Frame:
    """A border around boxes and other frames."""

    id: str
    label: str
    parent: str | None = None


@dataclass(frozen=True)
class Arrow:
    """A way from one box to another, by their ids."""

    source: str
    target: str
    label: str
    style: ArrowStyle = ArrowStyle.DATA


@dataclass(frozen=True)
class Picture:
    """Everything a writer needs, in the order it is to be drawn."""

    title: str
    boxes: tuple[Box, ...]
    frames: tuple[Frame, ...]
    arrows: tuple[Arrow, ...]


@dataclass(frozen=True)
class Ink:
    """The colours of one kind of box, as `#rrggbb`: its fill, and its border. Its text is `TEXT`."""

    fill: str
    border: str


TEXT = "#1a1a1a"  # on every fill below: a contrast of at least 11 to 1 (WCAG 2.2 AAA asks for 7)

# Hues of Okabe and Ito (2008), "Color universal design": told apart with each kind of colour blindness. Fills are pale, so
# that text is dark on light in print and on a dark page; borders are the hue itself, darkened to 3 to 1 on white.
# Colour is never alone: shapes and a written kind say the same, so a grey print loses nothing.
INKS: Mapping[BoxKind, Ink] = {
    BoxKind.DATA: Ink("#f2f2f2", "#6b6b6b"),
    BoxKind.MODEL: Ink("#cfe3f3", "#0072b2"),
    BoxKind.GENERATE: Ink("#ffe3b3", "#b87700"),
    BoxKind.SCORE: Ink("#fbf6bd", "#8f8500"),
    BoxKind.LOGPROB: Ink("#d9effb", "#2e86b8"),
    BoxKind.ADVANTAGE: Ink("#c8ebdd", "#007d5b"),
    BoxKind.UPDATE: Ink("#fbd5bd", "#c25000"),
    BoxKind.HOST: Ink("#f0dbe8", "#a9588a"),
    BoxKind.ARITHMETIC: Ink("#ffffff", "#6b6b6b"),
    BoxKind.RESULT: Ink("#ffffff", "#1a1a1a"),
}

# Arrows of data keep the page's own ink; these are read on white and on black alike (3 to 1 on both).
ARROW_INKS: Mapping[ArrowStyle, str] = {
    ArrowStyle.WEIGHTS: "#2e86c1",
    ArrowStyle.STALE: "#b87700",
    ArrowStyle.CARRY: "#d55e00",
}
