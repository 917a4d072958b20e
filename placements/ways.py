"""One way to run a role, as data: its seconds and bytes, and which ways no other beats.

Not here: which ways there are (`choices`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flowgraph.cluster.plan import Layout, RoleSettings
from placements.seconds import Seconds


@dataclass(frozen=True)
class Choice:
    """One way to run a role: busy seconds by stage, and bytes on each device while others work and while it works.

    `wakes_bytes` come to the device before the role works, where it sleeps; `context_bytes` are those of its process,
    which roles of one engine share. `host_bytes` are of each device's share of host memory.
    """

    engine: str
    layout: Layout
    running: RoleSettings
    stages_s: tuple[float, ...]
    rest_bytes: int
    peak_bytes: int
    host_bytes: int
    wakes_bytes: int = 0
    context_bytes: int = 0
    moved_s: float = 0.0
    """Of its seconds, those in which what it keeps off its devices comes and goes: in the stage of its last load."""
    woken_s: float = 0.0
    """Of these, those in which what sleeps comes and goes: as it is played, not always in that stage."""
    ready_s: float = 0.0
    """Besides its seconds, those of a rollout engine that its layout decides: to wake, and to install new weights."""

    @property
    def last_stage(self) -> int:
        """Return the stage of its last load."""
        return max((stage for stage, seconds in enumerate(self.stages_s) if seconds), default=0)

    @property
    def over_bytes(self) -> int:
        """Return what it holds more while it works."""
        return self.peak_bytes - self.rest_bytes


@dataclass(frozen=True, eq=False)
class Way:
    """One layout of a role on an engine, all that it holds on its devices, and the seconds of each of its loads."""

    engine: str
    layout: Layout
    running: RoleSettings
    told: tuple[Seconds, ...]
    stages_s: tuple[float, ...]


def slower_somewhere(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether the first takes longer in any stage."""
    return any(a > b for a, b in zip(one, other, strict=True))


def unbeaten(found: Sequence[Choice]) -> Iterator[Choice]:
    """Yield what no other beats in the seconds of each stage and in all bytes; of equals the first."""
    kept = list[Choice]()
    for each in sorted(found, key=lambda choice: (sum(choice.stages_s), choice.rest_bytes, choice.peak_bytes)):
        if not any(beats(other, each) for other in kept):
            kept.append(each)
    yield from kept


def beats(one: Choice, other: Choice) -> bool:
    """Return whether the first is as good in all, so that the other need not be looked at."""
    return (
        all(a <= b for a, b in zip(one.stages_s, other.stages_s, strict=True))
        and one.ready_s <= other.ready_s
        and one.rest_bytes <= other.rest_bytes
        and one.over_bytes <= other.over_bytes
        and one.wakes_bytes <= other.wakes_bytes
        and one.host_bytes <= other.host_bytes
    )
