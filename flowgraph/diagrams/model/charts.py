"""Pictures that have a scale, as data: lanes over time, memory by phase, placements beside each other, a scatter.

Labels are a user's text as it came; every writer escapes them. Writers are elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flowgraph.cluster.plan import TaskKind
from flowgraph.diagrams.model.series import Series

BarKind = TaskKind | Literal["advantage", "idle"]
"""What a bar stands for: a task of this kind, or the time in which a lane has nothing to do."""

DotMark = Literal["best", "front", "other"]
"""The best candidate; one that no other beats in both measures; any other."""


@dataclass(frozen=True)
class Bar:
    """A span of a lane, in seconds from the picture's start; `step` is the step that it belongs to, from 0."""

    start_s: float
    end_s: float
    label: str
    kind: BarKind
    about: str = ""
    step: int = 0


@dataclass(frozen=True)
class Lane:
    """What one pool does over time, its bars by start, idle ones between; `measured`, or else as it is forecast."""

    label: str
    pool: str
    bars: tuple[Bar, ...]
    measured: bool = False


@dataclass(frozen=True)
class Lanes:
    """A timeline: lanes over the same seconds, from 0 to `end_s`; `about` says in sentences what is to be seen."""

    title: str
    lanes: tuple[Lane, ...]
    end_s: float
    about: str = ""


@dataclass(frozen=True)
class Phase:
    """What a device holds in one phase of a step: bytes by role (or by part), in all, and as measured if it was.

    A `transition` is on the way from one phase to the next: a role wakes while another is still there.
    """

    label: str
    held: tuple[tuple[str, int], ...]
    transition: bool = False
    measured_bytes: int | None = None

    @property
    def size_bytes(self) -> int:
        """Give the sum of what is held."""
        return sum(size for _, size in self.held)


@dataclass(frozen=True)
class PoolMemory:
    """The memory of each device of one pool, phase by phase, against `capacity_bytes`; a plan fills `room_bytes`."""

    label: str
    pool: str
    phases: tuple[Phase, ...]
    capacity_bytes: int
    room_bytes: int


@dataclass(frozen=True)
class MemoryChart:
    """A step in memory, pool by pool."""

    title: str
    stores: tuple[PoolMemory, ...]
    about: str = ""


@dataclass(frozen=True)
class PoolShare:
    """One pool of a placement: its devices, and the roles that share them, one a line."""

    pool: str
    devices: int
    roles: tuple[str, ...]


@dataclass(frozen=True)
class Strip:
    """One placement: its name, its seconds a step (None where it does not fit or they are not known), what it is.

    `why` says how it stands beside the best one. `chosen` is the plan that is drawn.
    """

    label: str
    seconds: float | None
    parts: tuple[PoolShare, ...]
    why: str = ""
    chosen: bool = False


@dataclass(frozen=True)
class Comparison:
    """Placements beside each other on `devices` in all, each as a strip that its pools share out."""

    title: str
    strips: tuple[Strip, ...]
    devices: int
    about: str = ""


@dataclass(frozen=True)
class Dot:
    """One candidate of a search: seconds a step, bytes on the fullest device, its name, and what it is.

    `why` says how it stands beside the best one.
    """

    seconds: float
    memory_bytes: int
    label: str
    mark: DotMark = "other"
    about: str = ""
    why: str = ""


@dataclass(frozen=True)
class Scatter:
    """Candidates of a search by seconds and memory, in the order in which the search ranks them."""

    title: str
    dots: tuple[Dot, ...]
    about: str = ""


@dataclass(frozen=True)
class Curves:
    """A run's numbers over its steps."""

    title: str
    series: tuple[Series, ...]
    about: str = ""
