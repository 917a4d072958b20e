"""Pictures that have a scale, as data: lanes over time, memory by phase, placements compared, candidates, curves.

Labels are a user's text unchanged; every writer escapes them. Writers are elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flowgraph.cluster.plan import TaskKind
from flowgraph.diagrams.model.picture import Picture, SequenceDiagram
from flowgraph.diagrams.model.series import Series

BarKind = TaskKind | Literal["advantage", "idle"]
"""What a bar stands for: a task of this kind, or idle time."""

DotMark = Literal["best", "front", "other"]
"""The best candidate; a candidate that no other beats in both measures; any other."""


@dataclass(frozen=True)
class Bar:
    """A span of a lane, in seconds from the start of the timeline; `step` is the number of its step, from 0."""

    start_s: float
    end_s: float
    label: str
    kind: BarKind
    about: str = ""
    step: int = 0


@dataclass(frozen=True)
class Lane:
    """The work of one pool over time, measured or forecast: its bars by start, with idle bars between them."""

    label: str
    pool: str
    bars: tuple[Bar, ...]
    measured: bool = False


@dataclass(frozen=True)
class Lanes:
    """A timeline: lanes over the same seconds, from 0 to `end_s`; `about` describes it in sentences."""

    title: str
    lanes: tuple[Lane, ...]
    end_s: float
    about: str = ""


@dataclass(frozen=True)
class Phase:
    """The memory of a device in one phase of a step: (role or part, bytes) in `held`, and the measured peak if known.

    In a `transition` between two phases, a role wakes while the weights of another are still on the device.
    """

    label: str
    held: tuple[tuple[str, int], ...]
    transition: bool = False
    measured_bytes: int | None = None

    @property
    def size_bytes(self) -> int:
        """Return the forecast bytes that all roles or parts hold together in this phase."""
        return sum(size for _, size in self.held)


@dataclass(frozen=True)
class MemoryColumn:
    """The memory of each device of a pool, by phase; of `capacity_bytes`, a plan may fill `room_bytes`."""

    label: str
    pool: str
    phases: tuple[Phase, ...]
    capacity_bytes: int
    room_bytes: int


@dataclass(frozen=True)
class MemoryChart:
    """The memory of a step, pool by pool."""

    title: str
    stores: tuple[MemoryColumn, ...]
    about: str = ""


@dataclass(frozen=True)
class PoolShare:
    """One pool of a placement: its name, its number of devices, and the names of the roles that share the devices."""

    pool: str
    devices: int
    roles: tuple[str, ...]


@dataclass(frozen=True)
class Strip:
    """One placement: its name, its seconds a step, and its pools; `seconds` is None if it does not fit or is not known.

    `why` compares it with the best placement. `chosen` is True for the plan that is drawn.
    """

    label: str
    seconds: float | None
    parts: tuple[PoolShare, ...]
    why: str = ""
    chosen: bool = False


@dataclass(frozen=True)
class Comparison:
    """Placements of one flow on the same number of `devices`; each strip is divided among the placement's pools."""

    title: str
    strips: tuple[Strip, ...]
    devices: int
    about: str = ""


@dataclass(frozen=True)
class Dot:
    """One candidate of a search: seconds a step and bytes on the fullest device; `why` compares it with the best."""

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
    """A run's metrics over its steps, one series each; `about` describes them in sentences."""

    title: str
    series: tuple[Series, ...]
    about: str = ""


Drawing = Picture | SequenceDiagram | Lanes | MemoryChart | Comparison | Scatter | Curves
"""Every kind of picture: what writers take. Boxes and arrows are a `Picture`; the others have a layout of their own."""
