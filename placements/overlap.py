"""How to overlap generation and training on pools of their own: devices for each, how far ahead, how often to sync.

For flows whose sampling may be stale. Not here: which roles share a pool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd, inf, isfinite

from placements.schedule import Schedule, Task, Wait, unrolled

Cost = Callable[[int], float | None] | Mapping[int, float | None]


@dataclass(frozen=True)
class Overlap:
    """What to run asynchronously, with the seconds that it is predicted to take from step to step.

    Generation is `ahead` batches ahead of training (0 or 1), and weights are synced every `sync_every` updates.
    `by_staleness` gives the least period in seconds with each bound from 0 on, for any split.
    """

    generate_devices: int
    train_devices: int
    devices: int
    ahead: int
    sync_every: int
    generate_s: float
    train_s: float
    sync_s: float
    by_staleness: tuple[float, ...]

    @property
    def staleness(self) -> int:
        """Give how many updates old weights are at most when what they drew is trained on."""
        return self.ahead + self.sync_every - 1

    @property
    def queue(self) -> int:
        """Give the batches that are generated, waiting or in training at most: so long a queue makes none wait."""
        return self.staleness + 1

    @property
    def period_s(self) -> float:
        """Give the seconds from step to step."""
        return step_s(self.generate_s, self.train_s, self.sync_s, ahead=self.ahead, sync_every=self.sync_every)

    @property
    def on_policy_s(self) -> float:
        """Give the seconds from step to step on the same devices without staleness."""
        return step_s(self.generate_s, self.train_s, self.sync_s, ahead=0, sync_every=1)

    @property
    def ratio(self) -> tuple[int, int]:
        """Give devices of generation to devices of training, in lowest terms."""
        by = gcd(self.generate_devices, self.train_devices)
        return self.generate_devices // by, self.train_devices // by

    def __str__(self) -> str:
        split = f"{self.generate_devices} devices generate, {self.train_devices} train"
        idle = self.devices - self.generate_devices - self.train_devices
        often = "every update" if self.sync_every == 1 else f"every {self.sync_every} updates"
        return (
            f"{split}{f', {idle} idle' if idle else ''}; a sync after {often}, weights at most {self.staleness} "
            f"update{'' if self.staleness == 1 else 's'} old: {self.period_s:,.1f} s a step, "
            f"{self.on_policy_s:,.1f} s on-policy"
        )


def step_s(generate_s: float, train_s: float, sync_s: float, *, ahead: int, sync_every: int) -> float:
    """Give the seconds from step to step of two pools that stop for each sync, if tasks always take as long.

    Training on step i - `ahead` runs beside generation for step i, so weights are at most ahead + sync_every - 1 old.
    With `ahead=0` a sync waits for the batch just generated to be trained on, which costs the shorter of both once a
    sync; more than 1 ahead gains nothing. It is the period of `overlapped`.

    Source: maximum cycle ratio of that schedule: over m, sync_s + m generate_s + (sync_every - ahead + 1 - m) train_s,
    and the load of each pool, per `sync_every` steps.

    >>> step_s(458, 445, 0, ahead=0, sync_every=1), step_s(458, 445, 0, ahead=1, sync_every=1)
    (903.0, 458.0)
    """
    exposed_s = sync_s if ahead else sync_s + min(generate_s, train_s)
    return max(generate_s, train_s) + exposed_s / sync_every


def overlapped(
    generate: Task, train: Sequence[Task], sync: Task | None = None, *, ahead: int = 1, sync_every: int = 1
) -> Schedule:
    """Lay out generation and what trains on it, `ahead` batches apart, with a sync first in every so many steps.

    The sync has to occupy the pools that it stops. One step of the result is `sync_every` steps.
    """
    first = sync if sync is not None else Task("sync", "sync", (*generate.pools, *train[-1].pools), 0.0)
    chain = [Wait(each.name, then.name) for each, then in pairwise(train)]
    data, weights = Wait(generate.name, train[0].name, ahead), Wait(train[-1].name, first.name, 1)
    ready = Wait(first.name, generate.name)
    whole = Schedule((first, generate, *train), (data, *chain, weights, ready))
    return unrolled(whole, sync_every, once=(first.name,))


def choose(
    generate: Cost,
    train: Cost,
    devices: int,
    *,
    at_most: int,
    sync_s: float = 0.0,
    sizes: Sequence[int] | None = None,
    within: float = 0.01,
) -> Overlap:
    """Choose devices, staleness and sync period for two pools on at most `devices` devices.

    `generate` and `train` give the seconds of a step on so many devices, by function or by table; None where they do
    not fit or are not known. Of all splits and sync periods whose weights are at most `at_most` updates old it takes
    the least staleness that comes within a share `within` of the least period, and then the least period. Training gets
    what generation leaves as far as that makes it faster. Exact over all sizes (or `sizes`) and sync periods, whether
    times fall with devices or not: no period grows when one pool gets faster, so beside each size of generation only
    the fastest training is looked at.

    Raises ValueError if no split is possible.
    """
    if at_most < 0:
        raise ValueError(f"weights are 0 updates old or more, not {at_most}")
    generating, training = (_table(cost, devices, sizes) for cost in (generate, train))
    splits = _splits(generating, training, devices)
    if not splits:
        raise ValueError(_no_split(devices, generating, training))
    best = [min(_with(splits, sync_s, staleness)) for staleness in range(at_most + 1)]
    least = [min(each[0] for each in best[: bound + 1]) for bound in range(at_most + 1)]
    enough = next(bound for bound in range(at_most + 1) if best[bound][0] <= least[-1] * (1 + within))
    _, _, ahead, (generate_devices, train_devices) = best[enough]
    return Overlap(
        generate_devices=generate_devices,
        train_devices=train_devices,
        devices=devices,
        ahead=ahead,
        sync_every=enough - ahead + 1,
        generate_s=generating[generate_devices],
        train_s=training[train_devices],
        sync_s=sync_s,
        by_staleness=tuple(least),
    )


# Seconds of generation, seconds of training, devices of each.
_Split = tuple[float, float, tuple[int, int]]


def _table(cost: Cost, devices: int, sizes: Sequence[int] | None) -> dict[int, float]:
    """Give the known seconds by size, of sizes that leave a device for the other pool."""
    asked = sizes if sizes is not None else cost.keys() if isinstance(cost, Mapping) else range(1, devices)
    seconds = {n: cost.get(n) if isinstance(cost, Mapping) else cost(n) for n in sorted(asked) if 0 < n < devices}
    return {n: each for n, each in seconds.items() if each is not None and isfinite(each)}


def _splits(generate: Mapping[int, float], train: Mapping[int, float], devices: int) -> list[_Split]:
    """Pair each size of generation with the fastest training on what is left: no other pair can be better."""
    found = list[_Split]()
    for n, generate_s in generate.items():
        fastest = min(((train_s, m) for m, train_s in train.items() if m <= devices - n), default=(inf, 0))
        if fastest[1]:
            found.append((generate_s, fastest[0], (n, fastest[1])))
    return found


def _with(splits: Sequence[_Split], sync_s: float, staleness: int) -> list[tuple[float, int, int, tuple[int, int]]]:
    """Give (period, devices, ahead, split) of all that leads to just this staleness."""
    return [
        (step_s(g, t, sync_s, ahead=ahead, sync_every=staleness - ahead + 1), sum(split), ahead, split)
        for g, t, split in splits
        for ahead in (0, 1)
        if staleness >= ahead
    ]


def _no_split(devices: int, generate: Mapping[int, float], train: Mapping[int, float]) -> str:
    pools = (("generation", generate), ("training", train))
    sizes = [f"{what} on {', '.join(map(str, of)) or 'none'}" for what, of in pools]
    return f"no split of {devices} devices: seconds are known of {' and of '.join(sizes)}"
