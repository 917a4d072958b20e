"""One picture as data: boxes, frames around them, arrows between them. Writers turn it into a format; none is here.

Ids are made here and never from a user's text; labels are a user's text as it came, and every writer escapes them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal

from flowgraph.language.graph import NodeKind

BoxKind = NodeKind | Literal["data", "model", "arithmetic", "result", "device"]
"""What a box stands for: a node of one of the graph's kinds, a parameter, arithmetic, a result, or devices."""

FrameKind = Literal["frame", "pool", "home", "anywhere"]
"""What a frame is around: a part of a flow, a pool's devices, a copy of weights, or what any machine runs."""


Status = Literal["same", "added", "removed", "changed"]
"""What became of a thing where two pictures are drawn as one; "same" in every other picture."""


class ArrowStyle(enum.StrEnum):
    """Say what travels: data or weights, weights that may lag, state carried to the next step.

    Between places data is transferred, and weights are synced.
    """

    DATA = "data"
    WEIGHTS = "weights"
    STALE = "stale"
    CARRY = "carry"
    TRANSFER = "transfer"
    SYNC = "sync"


@dataclass(frozen=True)
class Box:
    """One thing, its name first; `inside` is the id of the frame around it, `about` is told when it is pointed at."""

    id: str
    label: tuple[str, ...]
    kind: BoxKind
    inside: str | None = None
    about: str = ""
    status: Status = "same"


@dataclass(frozen=True)
class Frame:
    """A border around boxes and other frames; `pool` is the name of the pool that it stands for or lies in, if any."""

    id: str
    label: str
    parent: str | None = None
    kind: FrameKind = "frame"
    pool: str = ""
    status: Status = "same"


@dataclass(frozen=True)
class Arrow:
    """A way from one box to another, by their ids."""

    source: str
    target: str
    label: str
    style: ArrowStyle = ArrowStyle.DATA
    status: Status = "same"


@dataclass(frozen=True)
class Picture:
    """Everything a writer needs, in the order it is to be drawn; `about` says in sentences what is to be seen."""

    title: str
    boxes: tuple[Box, ...]
    frames: tuple[Frame, ...]
    arrows: tuple[Arrow, ...]
    about: str = ""
