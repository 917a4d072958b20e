"""Which devices a count of them is: classes of equal devices, the sizes that a pool of a class may have, and places.

A search counts devices; `realise` says afterwards which they are. Not here: what a pool needs, and what it costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from flowgraph.cluster.cluster import Cluster, Device, DeviceKind
from flowgraph.cluster.plan import Pool
from flowgraph.errors import ResourceError
from placements.profiles import Links, Place, domain_of, domains, network_share, profile_of


@dataclass(frozen=True)
class DeviceClass:
    """Equal devices on equal machines. A number that nobody tells and no profile has is None."""

    kind: DeviceKind
    model: str  # "" where the cluster names none
    memory_bytes: int
    node_devices: int  # of this class on each machine
    domain: int  # devices that NVLink joins; of a rack, more than a machine has; 1: none
    network_bytes_per_s: float | None  # per device, between machines
    price_per_hour: float | None  # per device: its share of what its machine costs
    host_memory_bytes: int  # of a machine
    nodes: tuple[str, ...]

    @property
    def count(self) -> int:
        """Return the number of its devices."""
        return self.node_devices * len(self.nodes)

    @property
    def reach(self) -> int:
        """Return the most devices of one tensor group: those of a domain, or where there is none, of a machine."""
        return self.domain if self.domain > 1 else self.node_devices

    def links(self, devices: int) -> Links | None:
        """Return what a pool of so many devices talks over; None where that is not known."""
        if self.network_bytes_per_s is None and devices > self.node_devices:
            return None
        known = profile_of(Device(kind=self.kind, memory_bytes=self.memory_bytes, model=self.model))
        per_node = min(devices, self.node_devices)
        within = self.domain if devices <= self.domain else devices % self.domain or self.domain
        return Links(
            device=replace(known, memory_bytes=self.memory_bytes),
            domain=within,
            node_devices=devices % per_node or per_node,
            network_bytes_per_s=self.network_bytes_per_s or known.host_bytes_per_s,
        )


@dataclass(frozen=True)
class Wanted:
    """A pool by count. Each `tensor` devices after each other talk much: they lie in one domain.

    `model` names what its devices are; "" for any one class. Where several classes have that model, `of` says which.
    `synced_with` names pools that it sends weights to or gets them from.
    """

    name: str
    devices: int
    model: str = ""
    tensor: int = 1
    synced_with: tuple[str, ...] = ()
    of: DeviceClass | None = None


def classes(cluster: Cluster) -> tuple[DeviceClass, ...]:
    """Return the classes of a cluster's devices, in the order of its nodes."""
    return tuple(dict.fromkeys(found for each in _classes_of_nodes(cluster) for found in each.values()))


def sizes(device_class: DeviceClass) -> tuple[int, ...]:
    """Return the sizes that a pool of this class may have: powers of two below a machine, some machines, all of them.

    Numbers of machines are powers of two times 1, 3 or 9 and 1 or 5, so that degrees of parallelism divide them; of
    1,280 machines that are 49.
    """
    machine, machines = device_class.node_devices, len(device_class.nodes)
    parts = {2**i for i in range(machine.bit_length()) if 2**i < machine}
    numbers = {2**i * factor for i in range(machines.bit_length()) for factor in (1, 3, 9, 5, 15, 45)}
    whole = {machine * number for number in numbers if number <= machines}
    return tuple(sorted(parts | whole | {device_class.count}))


def realise(cluster: Cluster, wanted: Sequence[Wanted]) -> tuple[Pool, ...]:
    """Return the devices of each wanted pool, in the order wanted; the same for the same cluster.

    Whole machines go first, to the largest pools first. What is less than a machine is put where it fits best, on
    aligned powers of two, so that what is left stays in large pieces. Pools that sync with each other hang on one leaf
    where one has room. Raises ResourceError for a pool that has no room.
    """
    assert all(each.devices > 0 and each.tensor > 0 for each in wanted), "a pool has devices"
    groups = _groups(classes(cluster), wanted)
    found = _placed(_Board.of(cluster), wanted, groups, by_tensor=False)
    if isinstance(found, Wanted):  # the other way cuts machines apart, but finds room for large tensor groups
        found = _placed(_Board.of(cluster), wanted, groups, by_tensor=True)
    if isinstance(found, Wanted):
        raise _no_room(found, "what is left lies apart")
    return tuple(Pool(name=each.name, devices=tuple(found[each.name])) for each in wanted)


def _classes_of_nodes(cluster: Cluster) -> list[dict[Device, DeviceClass]]:
    """Return for each node the class of each device it has."""
    found, names = list[dict[Device, DeviceClass]](), dict[DeviceClass, list[str]]()
    for node in cluster.nodes:
        here = dict[Device, DeviceClass]()
        for device, same in Counter(node.devices).items():
            share = network_share(node, profile_of(device))
            here[device] = DeviceClass(
                kind=device.kind,
                model=device.model,
                memory_bytes=device.memory_bytes,
                node_devices=same,
                domain=domain_of(node, device, same),
                network_bytes_per_s=share,
                price_per_hour=None if node.price_per_hour is None else node.price_per_hour / len(node.devices),
                host_memory_bytes=node.host_memory_bytes,
                nodes=(),
            )
            names.setdefault(here[device], []).append(node.name)
        found.append(here)
    whole = {each: replace(each, nodes=tuple(nodes)) for each, nodes in names.items()}
    return [{device: whole[each] for device, each in here.items()} for here in found]


# ------------------------------------------------------------------------------------------- which class, which leaf


def _groups(known: Sequence[DeviceClass], wanted: Sequence[Wanted]) -> dict[str, int]:
    """Choose the class of each pool, as its place among those known: the fullest that it fits, those named first.

    Raises ResourceError for a pool that no class has enough devices for.
    """
    left = [each.count for each in known]
    found = dict[str, int]()
    for pool in sorted(wanted, key=lambda each: (each.of is None, not each.model, -each.devices)):
        named = [i for i, each in enumerate(known) if pool.of in (None, each) and pool.model in ("", each.model)]
        if not named:
            models = ", ".join(dict.fromkeys(each.model or each.kind for each in known))
            raise _no_room(pool, "the cluster has none", f"it has {models}" if models else "")
        near = [i for i in named if known[i].reach >= pool.tensor]
        if not near:
            raise _no_room(pool, f"no domain has more than {max(known[i].reach for i in named)} devices")
        fits = [i for i in near if left[i] >= pool.devices]
        if not fits:
            raise _no_room(pool, f"of one class at most {max(left[i] for i in near)} are left")
        found[pool.name] = min(fits, key=lambda i: (left[i], i))
        left[found[pool.name]] -= pool.devices
    return found


def _no_room(pool: Wanted, there: str, hint: str = "") -> ResourceError:
    groups = f" in tensor groups of {pool.tensor}" if pool.tensor > 1 else ""
    counted = f"{pool.devices} {pool.model or 'device'}{'s' if pool.devices > 1 and not pool.model else ''}{groups}"
    return ResourceError.not_here(f"pool `{pool.name}`", counted, there, hint)


def _homes(board: _Board, wanted: Sequence[Wanted], groups: Mapping[str, int]) -> dict[str, str]:
    """Choose a leaf for the pools that sync with each other, or for each of them: the fullest that has room."""
    left, found = board.free(), dict[str, str]()
    leaves = list(dict.fromkeys(leaf for leaf, _ in left))
    waiting = _synced(wanted)
    while waiting:
        pools = waiting.pop(0)
        needs = Counter[int]()
        for each in pools:
            needs[groups[each.name]] += each.devices
        fits = [leaf for leaf in leaves if all(left[leaf, group] >= count for group, count in needs.items())]
        if fits:
            home = min(fits, key=lambda leaf: (sum(left[leaf, group] for group in needs), leaves.index(leaf)))
            found |= {each.name: home for each in pools}
            left.subtract({(home, group): count for group, count in needs.items()})
        elif len(pools) > 1:
            waiting[:0] = [(each,) for each in pools]
    return found


def _synced(wanted: Sequence[Wanted]) -> list[tuple[Wanted, ...]]:
    """Return the pools that sync with each other, directly or over others, together: the most devices first."""
    root = {each.name: each.name for each in wanted}
    for each in wanted:
        for other in each.synced_with:
            if other in root:
                old, new = root[other], root[each.name]
                root = {name: new if top == old else top for name, top in root.items()}
    together = dict[str, list[Wanted]]()
    for each in sorted(wanted, key=lambda each: -each.devices):
        together.setdefault(root[each.name], []).append(each)
    return sorted((tuple(each) for each in together.values()), key=lambda pools: -sum(each.devices for each in pools))


# ---------------------------------------------------------------------------------------------------------- places


@dataclass
class _Cell:
    """Devices of one class that a tensor group may lie in: those of a domain, or of a machine that has none."""

    places: list[Place] = field(default_factory=list[Place])
    taken: set[int] = field(default_factory=set[int])

    def room(self, tensor: int) -> int:
        """Return how many devices are free for whole groups of `tensor`."""
        return (len(self.places) - len(self.taken)) // tensor * tensor

    def take(self, count: int) -> list[int]:
        """Take so many, in aligned blocks of powers of two, each out of the smallest free block that has it."""
        got = list[int]()
        for size in (2**i for i in reversed(range(count.bit_length())) if count & 2**i):
            blocks = [block for block in self._free_blocks() if block[0] >= size]
            free = (i for i in range(len(self.places)) if i not in self.taken)
            _, start = min(blocks, default=(0, -1))
            got += range(start, start + size) if blocks else [next(free) for _ in range(size)]
            self.taken.update(got)
        return sorted(got)

    def _free_blocks(self) -> Iterator[tuple[int, int]]:
        """Return the largest aligned blocks that are free, each as size and start."""
        held = len(self.places)
        waiting = [(2 ** max(held - 1, 0).bit_length(), 0)]
        while waiting:
            size, start = waiting.pop()
            if start + size <= held and self.taken.isdisjoint(range(start, start + size)):
                yield size, start
            elif size > 1 and start < held:
                waiting += [(size // 2, start + size // 2), (size // 2, start)]


@dataclass
class _Unit:
    """A machine's devices of one class, or a whole rack's, on its leaf."""

    leaf: str
    group: int
    cells: list[_Cell] = field(default_factory=list[_Cell])

    @property
    def untouched(self) -> bool:
        """Say whether nothing of it is taken."""
        return not any(cell.taken for cell in self.cells)

    def room(self, tensor: int) -> int:
        """Return how many devices are free for whole groups of `tensor`."""
        return sum(cell.room(tensor) for cell in self.cells)

    def take(self, count: int, tensor: int) -> list[tuple[int, int]]:
        """Take so many, each as cell and place in it: of the cell that they fit best, or of those with most room."""
        rooms = [(cell.room(tensor), i) for i, cell in enumerate(self.cells)]
        best = min((each for each in rooms if each[0] >= count), default=None)
        got = list[tuple[int, int]]()
        for room, i in [best] if best else sorted(rooms, key=lambda each: (-each[0], each[1])):
            got += [(i, place) for place in self.cells[i].take(min(room, count - len(got)))]
        return got


@dataclass
class _Board:
    """What is free of a cluster, unit by unit."""

    units: list[_Unit]

    @classmethod
    def of(cls, cluster: Cluster) -> _Board:
        """Return a cluster of which nothing is taken."""
        known = {each: i for i, each in enumerate(classes(cluster))}
        numbers = domains(cluster.nodes)
        units, cells = dict[object, _Unit](), dict[object, _Cell]()
        for node, here in zip(cluster.nodes, _classes_of_nodes(cluster), strict=True):
            group_of = {device: (known[kind], kind) for device, kind in here.items()}
            for index, device in enumerate(node.devices):
                group, kind = group_of[device]
                cell = (group, numbers[node.name, index] if kind.domain > 1 else node.name)
                unit = cell if kind.domain > kind.node_devices else (group, node.name)
                if cell not in cells:
                    cells[cell] = _Cell()
                    units.setdefault(unit, _Unit(node.leaf, group)).cells.append(cells[cell])
                cells[cell].places.append((node.name, index))
        return cls(list(units.values()))

    def free(self) -> Counter[tuple[str, int]]:
        """Count what is free of each class on each leaf."""
        found = Counter[tuple[str, int]]()
        for unit in self.units:
            found[unit.leaf, unit.group] += unit.room(1)
        return found


def _placed(
    board: _Board, wanted: Sequence[Wanted], groups: Mapping[str, int], by_tensor: bool
) -> dict[str, list[Place]] | Wanted:
    """Place every pool, or give the first that has no room."""
    homes = _homes(board, wanted, groups)
    got = {each.name: list[tuple[int, int, int]]() for each in wanted}
    largest = sorted(wanted, key=lambda each: (-each.tensor if by_tensor else 0, -each.devices))
    for pool in [] if by_tensor else largest:
        got[pool.name] += _whole(board, _near(board, pool, groups, homes), pool, _in_groups(pool))
    for pool in sorted(largest, key=lambda each: (-each.tensor, len(got[each.name]) - each.devices)):
        near = _near(board, pool, groups, homes, got[pool.name])
        got[pool.name] += _rest(board, near, pool, _in_groups(pool) - len(got[pool.name]))
        got[pool.name].sort()
        if rest := pool.devices % pool.tensor:
            got[pool.name] += _rest(board, near, replace(pool, tensor=rest), rest)
        if len(got[pool.name]) < pool.devices:
            return pool
    return {name: [board.units[u].cells[c].places[i] for u, c, i in places] for name, places in got.items()}


def _in_groups(pool: Wanted) -> int:
    return pool.devices - pool.devices % pool.tensor


def _near(
    board: _Board,
    pool: Wanted,
    groups: Mapping[str, int],
    homes: Mapping[str, str],
    held: Sequence[tuple[int, int, int]] = (),
) -> list[tuple[int, int]]:
    """Return the units of a pool's class, each as the rank of its leaf and its place.

    The pool's home comes first, then leaves where it has devices, then those with most room.
    """
    group, free, own = groups[pool.name], board.free(), {board.units[unit].leaf for unit, _, _ in held}
    leaves = [leaf for leaf, of in free if of == group]
    order = sorted(leaves, key=lambda leaf: (leaf != homes.get(pool.name), leaf not in own, -free[leaf, group]))
    rank = {leaf: i for i, leaf in enumerate(order)}
    return [(rank[unit.leaf], i) for i, unit in enumerate(board.units) if unit.group == group]


def _whole(board: _Board, near: Iterable[tuple[int, int]], pool: Wanted, count: int) -> list[tuple[int, int, int]]:
    """Take untouched units that a pool of so many fills, the largest first, each device as unit, cell and place.

    None where a larger unit has room for all that is left: there it lies in one.
    """
    rooms = [(rank, -board.units[i].room(pool.tensor), i) for rank, i in near if board.units[i].untouched]
    most = max((-room for _, room, _ in rooms), default=0)
    got = list[tuple[int, int, int]]()
    for _, less, i in sorted(rooms):
        room, left = -less, count - len(got)
        if room == left or room <= most <= left:
            got += [(i, *place) for place in board.units[i].take(room, pool.tensor)]
    return got


def _rest(board: _Board, near: Iterable[tuple[int, int]], pool: Wanted, count: int) -> list[tuple[int, int, int]]:
    """Take so many of the unit that they fit best, or of those with most room; fewer where there is no room."""
    rooms = [(rank, board.units[i].room(pool.tensor), i) for rank, i in near]
    best = min((each for each in rooms if each[1] >= count), default=None)
    got = list[tuple[int, int, int]]()
    for _, room, i in [best] if best else sorted(rooms, key=lambda each: (each[0], -each[1], each[2])):
        got += [(i, *place) for place in board.units[i].take(min(room, count - len(got)), pool.tensor)]
    return got
