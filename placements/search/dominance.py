"""One option to run a role, as data: its seconds and bytes; and the options that no other dominates.

Not here: which options a role has (`role_options`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flowgraph.cluster.plan import Layout, RoleSettings


@dataclass(frozen=True)
class RoleOption:
    """One way to run a role: busy seconds by stage, and bytes on each device while others work and while it works.

    `wakes_bytes` come to the device before a sleeping role works. `context_bytes` are those of its process, which roles
    of one engine share. `host_bytes` are of each device's share of host memory.
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
    """The part of its seconds in which offloaded or sleeping state comes and goes: in the stage of its last load."""
    woken_s: float = 0.0
    """The part of `moved_s` in which sleeping state comes and goes: as it is played, not always in that stage."""
    ready_s: float = 0.0
    """Seconds besides, in which a rollout engine wakes and installs new weights; its layout decides them."""

    @property
    def last_stage(self) -> int:
        """Return the stage of its last load."""
        return max((stage for stage, seconds in enumerate(self.stages_s) if seconds), default=0)

    @property
    def over_bytes(self) -> int:
        """Return the bytes that it holds only while it works."""
        return self.peak_bytes - self.rest_bytes

    def dominates(self, option: RoleOption) -> bool:
        """Return whether this option is as good in every number, so that the other need not be considered."""
        return (
            not slower_somewhere(self.stages_s, option.stages_s)
            and self.ready_s <= option.ready_s
            and self.rest_bytes <= option.rest_bytes
            and self.over_bytes <= option.over_bytes
            and self.wakes_bytes <= option.wakes_bytes
            and self.host_bytes <= option.host_bytes
        )


@dataclass(frozen=True, eq=False)
class TimedLayout:
    """One layout of a role on an engine with all its state on its devices, and the seconds of each stage."""

    engine: str
    layout: Layout
    running: RoleSettings
    stages_s: tuple[float, ...]


def slower_somewhere(stages_s: Sequence[float], compared_s: Sequence[float]) -> bool:
    """Return whether the first takes longer in any stage."""
    return any(a > b for a, b in zip(stages_s, compared_s, strict=True))


def undominated(options: Iterable[RoleOption]) -> list[RoleOption]:
    """Return the options that no other dominates, the fastest first; of equals the first."""
    front = list[RoleOption]()
    for option in sorted(options, key=lambda option: (sum(option.stages_s), option.rest_bytes, option.peak_bytes)):
        if not any(better.dominates(option) for better in front):
            front.append(option)
    return front
