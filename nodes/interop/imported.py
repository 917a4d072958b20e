"""A run of another system as a shipped flow: its settings, and where its roles run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flowgraph.analysis.roles import Use
from flowgraph.cluster.plan import Layout, RoleSettings

NEEDLESS = "no plan depends on it"  # why most keys are ignored
UNREAD = "it may change what is computed, and no shipped flow has it"
USUAL_DEVICES = 8  # of a machine, where a run does not say


@dataclass(frozen=True)
class SharedDevices:
    """Roles that share devices: the number of devices in all, and the number on each machine."""

    roles: tuple[str, ...]
    devices: int
    devices_per_node: int


@dataclass(frozen=True)
class SystemRun:
    """Where and how a system runs roles: the roles that share devices, and each role's engine, layout and settings.

    `lag` is the age of the weights that generate responses, in updates. `rows_at_once` has the rows per micro-batch of
    roles that count rows and pack them; their token budgets assume that all rows have the maximum length.
    """

    parts: tuple[SharedDevices, ...]
    engines: Mapping[Use, str] = field(hash=False)
    layouts: Mapping[str, Layout] = field(hash=False)
    running: Mapping[str, RoleSettings] = field(hash=False)
    lag: int = 0
    rows_at_once: Mapping[str, int] = field(default_factory=dict[str, int], hash=False)


@dataclass(frozen=True, kw_only=True)
class Imported(SystemRun):
    """A run of another system as a shipped flow, its settings, models and batch, and where its roles run.

    `settings` are texts for `--set`. `unused` are models of the flow that the run does not have. `placement` is the
    name of the placement with these `parts`, or "". `ignored` has the keys that do not affect the result, each with the
    reason, or with the nearest key if the system does not know it. `overrides` has all keys of the run with their
    texts. `again` has the command-line words of keys that no plan contains, to be passed on to the system.
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
    placement: str
    ignored: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    overrides: Mapping[str, str] = field(hash=False)
    again: tuple[str, ...] = ()

    @property
    def devices(self) -> int:
        """Return the total number of devices of all parts."""
        return sum(part.devices for part in self.parts)

    @property
    def machines(self) -> tuple[int, int]:
        """Return the number of machines that the parts need, and the number of devices of each machine."""
        return machines_of(self.parts)


def model_with_adapters(name: str, rank: int, alpha: int) -> str:
    """Return a model as text for `--model`, with the rank and alpha of its adapters; rank 0 means none.

    Alpha is left out if it is twice the rank, which is the default.

    >>> model_with_adapters("org/name", 8, 16), model_with_adapters("org/name", 8, 8), model_with_adapters("m", 0, 0)
    ('org/name+lora=8', 'org/name+lora=8,alpha=8', 'm')
    """
    suffix = "" if alpha == 2 * rank else f",alpha={alpha}"
    return f"{name}+lora={rank}{suffix}" if rank > 0 else name


def machines_of(parts: Sequence[SharedDevices]) -> tuple[int, int]:
    """Return the number of equal machines that these parts need, and the devices of each, with the fewest unused.

    A part keeps its `devices_per_node` on each of its machines. Parts may share a machine, which then has at most 8
    devices, or as many as the largest part has on one machine. Of equal choices, fewer machines win. Only a few sizes
    of machine are compared, and parts are placed greedily, so fewer machines may be possible.

    >>> machines_of([SharedDevices(("a",), 12, 6), SharedDevices(("b",), 4, 2)])
    (2, 8)
    >>> machines_of([SharedDevices(("a",), 16, 4)])
    (4, 4)
    """
    largest, total = max(part.devices_per_node for part in parts), sum(part.devices for part in parts)
    usual = max(largest, USUAL_DEVICES)
    choices = ((_machines(parts, size), size) for size in {largest, usual, min(total, usual)})
    return min(choices, key=lambda choice: (choice[0] * choice[1], choice[0]))


def _machines(parts: Sequence[SharedDevices], size: int) -> int:
    """Return how many machines of one size parts need: the largest first, each on the fullest machines with room."""
    free = dict[int, int]()  # number of machines by their free devices
    pieces = [(part.devices_per_node, part.devices // part.devices_per_node) for part in parts]
    pieces += [(rest, 1) for part in parts if (rest := part.devices % part.devices_per_node)]
    for devices, count in sorted(pieces, reverse=True):
        after, remaining = dict[int, int](), count
        for room in sorted(free):
            used = min(remaining, free[room]) if room >= devices else 0
            remaining -= used
            for new_room, machines in ((room, free[room] - used), (room - devices, used)):
                after[new_room] = after.get(new_room, 0) + machines
        after[size - devices] = after.get(size - devices, 0) + remaining
        free = after
    return sum(free.values())
