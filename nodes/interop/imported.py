"""What a command or configuration of another system says, in our words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flowgraph.analysis.roles import Use
from flowgraph.cluster.plan import Layout, RoleSettings

NEEDLESS = "no plan depends on it"  # why most keys are ignored
UNREAD = "it may change what is computed, and no flow that is shipped has it"
USUAL = 8  # devices of a machine, where a run does not say


@dataclass(frozen=True)
class SharedDevices:
    """Roles that share devices, how many, and how many of each machine."""

    roles: tuple[str, ...]
    devices: int
    devices_per_node: int


@dataclass(frozen=True)
class SystemRun:
    """Where and how a system runs roles: who shares devices, what runs them, how each is cut, and what it holds where.

    `lag` is how many updates old the weights may be that responses are drawn with. `rows_at_once` are those of roles
    whose micro-batches are so many rows without their padding: their tokens are as if all rows were as long as may be.
    """

    parts: tuple[SharedDevices, ...]
    engines: Mapping[Use, str] = field(hash=False)
    layouts: Mapping[str, Layout] = field(hash=False)
    running: Mapping[str, RoleSettings] = field(hash=False)
    lag: int = 0
    rows_at_once: Mapping[str, int] = field(default_factory=dict[str, int], hash=False)


@dataclass(frozen=True)
class Imported:
    """A run of another system as a flow that is shipped, its settings, models and batch, and where roles run.

    `settings` are texts for `--set`. `unused` are models that the flow has and the run does not. `placement` is the
    name of a placement with these `parts`, "" where none has them. `lag` is how many updates old the weights may be
    that responses are drawn with. `ignored` says of every key that nothing here depends on why, and names the nearest
    key for one that the system does not know. `told` has all keys as they were told, and `again` those words that no
    plan depends on, as a command of the system takes them.
    """

    system: str
    version: str
    flow: str
    settings: tuple[str, ...]
    models: Mapping[str, str] = field(hash=False)
    unused: tuple[str, ...]
    batch: int
    prompt_tokens: int
    response_tokens: int
    devices: int
    devices_per_node: int
    placement: str
    parts: tuple[SharedDevices, ...]
    engines: Mapping[Use, str] = field(hash=False)
    layouts: Mapping[str, Layout] = field(hash=False)
    running: Mapping[str, RoleSettings] = field(hash=False)
    lag: int
    ignored: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    told: Mapping[str, str] = field(hash=False)
    again: tuple[str, ...] = ()
    rows_at_once: Mapping[str, int] = field(default_factory=dict[str, int], hash=False)

    @property
    def as_run(self) -> SystemRun:
        """Give where and how its roles run."""
        return SystemRun(self.parts, self.engines, self.layouts, self.running, self.lag, self.rows_at_once)

    @property
    def machines(self) -> tuple[int, int]:
        """Give the machines that its parts lie on, and the devices of each."""
        return machines_of(self.parts)


def adapted(name: str, rank: int, alpha: int) -> str:
    """Give a model with adapters as `--model` takes it; alpha is told where it is not twice the rank, as it is there.

    >>> adapted("org/name", 8, 16), adapted("org/name", 8, 8), adapted("org/name", 0, 0)
    ('org/name+lora=8', 'org/name+lora=8,alpha=8', 'org/name')
    """
    told = "" if alpha == 2 * rank else f",alpha={alpha}"
    return f"{name}+lora={rank}{told}" if rank > 0 else name


def machines_of(parts: Sequence[SharedDevices]) -> tuple[int, int]:
    """Give equal machines for these parts, and the devices of each: those that leave the fewest unused.

    What a part has on one machine stays on one. Parts of few devices share machines of the usual size; a part's own
    machines are different ones.

    >>> machines_of([SharedDevices(("a",), 12, 6), SharedDevices(("b",), 4, 2)])
    (2, 8)
    >>> machines_of([SharedDevices(("a",), 16, 4)])
    (4, 4)
    """
    largest, total = max(part.devices_per_node for part in parts), sum(part.devices for part in parts)
    roomy = max(largest, USUAL)
    found = ((_machines(parts, size), size) for size in {largest, roomy, min(total, roomy)})
    return min(found, key=lambda each: (each[0] * each[1], each[0]))


def _machines(parts: Sequence[SharedDevices], size: int) -> int:
    """Count the machines of one size that parts need, the largest put down first, each where it fits best."""
    free = dict[int, int]()  # machines by how many of their devices are free
    pieces = [(part.devices_per_node, part.devices // part.devices_per_node) for part in parts]
    pieces += [(rest, 1) for part in parts if (rest := part.devices % part.devices_per_node)]
    for devices, count in sorted(pieces, reverse=True):
        after, left = dict[int, int](), count
        for room in sorted(free):
            taken = min(left, free[room]) if room >= devices else 0
            left -= taken
            for place, machines in ((room, free[room] - taken), (room - devices, taken)):
                after[place] = after.get(place, 0) + machines
        after[size - devices] = after.get(size - devices, 0) + left
        free = after
    return sum(free.values())
