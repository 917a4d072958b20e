"""Pictures without a scale as data: boxes, frames and arrows, or actors and their messages. Writers are elsewhere.

Ids are generated and never a user's text; labels are a user's text unchanged, and every writer escapes them.
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
"""How a thing differs where two pictures are drawn as one; "same" in every other picture."""


class ArrowStyle(enum.StrEnum):
    """What an arrow carries: data, weights, weights that may lag, or state; between places transfers and syncs."""

    DATA = "data"
    WEIGHTS = "weights"
    STALE = "stale"
    CARRY = "carry"
    TRANSFER = "transfer"
    SYNC = "sync"


@dataclass(frozen=True)
class Box:
    """One thing in a picture: the lines of its label, with its name in the first line.

    `inside` is the id of the frame around it, if any, and `about` its tooltip.
    """

    id: str
    label: tuple[str, ...]
    kind: BoxKind
    inside: str | None = None
    about: str = ""
    status: Status = "same"


@dataclass(frozen=True)
class Frame:
    """A border around boxes and other frames; `pool` is the name of the pool that it shows or is part of, if any."""

    id: str
    label: str
    parent: str | None = None
    kind: FrameKind = "frame"
    pool: str = ""
    status: Status = "same"


@dataclass(frozen=True)
class Arrow:
    """An arrow from one box to another, by their ids."""

    source: str
    target: str
    label: str
    style: ArrowStyle = ArrowStyle.DATA
    status: Status = "same"


@dataclass(frozen=True)
class Picture:
    """A picture of boxes, frames and arrows, in the order in which they are drawn; `about` has sentences about it."""

    title: str
    boxes: tuple[Box, ...]
    frames: tuple[Frame, ...]
    arrows: tuple[Arrow, ...]
    about: str = ""

    def boxes_in(self, frame: str | None) -> list[Box]:
        """Return the boxes directly inside the frame with id `frame`, or those outside of all frames for None."""
        return [box for box in self.boxes if box.inside == frame]

    def frames_in(self, frame: str | None) -> list[Frame]:
        """Return the frames directly inside the frame with id `frame`, or the outermost frames for None."""
        return [inner for inner in self.frames if inner.parent == frame]

    def frames_around(self, inside: str | None) -> tuple[Frame, ...]:
        """Return the frame with id `inside` and all frames around it, innermost first; empty for None.

        Raises KeyError if the picture lacks one of these frames.
        """
        frames, around = {frame.id: frame for frame in self.frames}, list[Frame]()
        while inside is not None:
            around.append(frames[inside])
            inside = frames[inside].parent
        return tuple(around)


ActorKind = Literal["driver", "model"]
MessageStyle = Literal["call", "reply", "transfer", "sync"]


@dataclass(frozen=True)
class Actor:
    """The driver, or a copy of a model in its pool; `label` has the lines of its label, its name first."""

    id: str
    label: tuple[str, ...]
    kind: ActorKind = "model"
    pool: str = ""


@dataclass(frozen=True)
class Message:
    """A message from one actor to another, by their ids; from an actor to itself, something that the actor does."""

    source: str
    target: str
    label: str
    style: MessageStyle = "call"


@dataclass(frozen=True)
class SequenceDiagram:
    """Actors from left to right, messages from top to bottom; `about` describes them in sentences."""

    title: str
    actors: tuple[Actor, ...]
    messages: tuple[Message, ...]
    about: str = ""
