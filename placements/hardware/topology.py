"""Classes of equal devices, the sizes that a pool of a class may have, and the choice of devices for each pool.

A search only counts devices; `realise` chooses them afterwards. Not here: the needs of a pool, and its costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from flowgraph.cluster.cluster import Cluster, Device, DeviceKind
from flowgraph.cluster.plan import Pool
from flowgraph.errors import ResourceError
from placements.hardware.device_profiles import Place, PoolLinks, domain_of, domains, network_share, profile_of


@dataclass(frozen=True)
class DeviceClass:
    """Equal devices on equal machines. A number that neither the cluster nor a profile contains is None."""

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
        """Return the number of devices of the class in the whole cluster."""
        return self.node_devices * len(self.nodes)

    @property
    def reach(self) -> int:
        """Return the maximum size of a tensor-parallel group: the devices of a domain, or of a machine without one."""
        return self.domain if self.domain > 1 else self.node_devices

    def links(self, devices: int) -> PoolLinks | None:
        """Return the links of a pool of `devices` such devices; None if the pool needs a network of unknown speed.

        If the pool fills its last domain or machine only in part, the links have the smaller number of devices there. A
        pool inside one machine with a network of unknown speed gets the speed of the host's link.
        """
        if self.network_bytes_per_s is None and devices > self.node_devices:
            return None
        profile = profile_of(Device(kind=self.kind, memory_bytes=self.memory_bytes, model=self.model))
        per_node = min(devices, self.node_devices)
        within = self.domain if devices <= self.domain else devices % self.domain or self.domain
        return PoolLinks(
            device=replace(profile, memory_bytes=self.memory_bytes),
            domain=within,
            node_devices=devices % per_node or per_node,
            network_bytes_per_s=self.network_bytes_per_s or profile.host_bytes_per_s,
        )


@dataclass(frozen=True)
class PoolDemand:
    """A request for a pool of `devices` devices, in which each group of `tensor` consecutive devices is in one domain.

    `model` is the device model; "" allows any. `of` fixes the class of devices if several classes have that model.
    `synced_with` names the pools with which this one exchanges weights.
    """

    name: str
    devices: int
    model: str = ""
    tensor: int = 1
    synced_with: tuple[str, ...] = ()
    of: DeviceClass | None = None


def classes(cluster: Cluster) -> tuple[DeviceClass, ...]:
    """Return the classes of equal devices in a cluster, in the order of the cluster's machines."""
    return tuple(dict.fromkeys(of for by_device in _classes_of_nodes(cluster) for of in by_device.values()))


def sizes(device_class: DeviceClass) -> tuple[int, ...]:
    """Return the pool sizes, in devices, that a search tries for a class of devices, in ascending order.

    They are the powers of two smaller than a machine, whole numbers of machines, and all devices. Numbers of machines
    are powers of two times 1, 3, 5, 9, 15 or 45, so that degrees of parallelism divide them (49 numbers up to 1,280).
    """
    machine, machines = device_class.node_devices, len(device_class.nodes)
    parts = {2**i for i in range(machine.bit_length()) if 2**i < machine}
    numbers = {2**i * factor for i in range(machines.bit_length()) for factor in (1, 3, 9, 5, 15, 45)}
    complete = {machine * number for number in numbers if number <= machines}
    return tuple(sorted(parts | complete | {device_class.count}))


def realise(cluster: Cluster, demands: Sequence[PoolDemand]) -> tuple[Pool, ...]:
    """Choose the devices of each requested pool, and return the pools in the order of `demands`.

    Equal arguments give equal choices. Whole machines are assigned first, and large pools before small ones. A
    remainder smaller than a machine is taken from the smallest free piece of a machine in which it fits. If a pool does
    not fit in this order, pools with the largest tensor groups choose first instead. Pools that sync with each other
    share a leaf switch if one has enough devices. Each demand must have 1 or more devices. Raises ResourceError if a
    pool does not fit: no device has its model, no domain holds its tensor groups, or too few devices are free.
    """
    assert all(pool.devices > 0 and pool.tensor > 0 for pool in demands), "a pool has devices"
    groups = _groups(classes(cluster), demands)
    places = _placed(_units(cluster), demands, groups, by_tensor=False)
    if isinstance(places, PoolDemand):  # the other order cuts machines apart, but finds room for large tensor groups
        places = _placed(_units(cluster), demands, groups, by_tensor=True)
    if isinstance(places, PoolDemand):
        raise _no_room(places, "its free devices are too scattered")
    return tuple(Pool(name=pool.name, devices=tuple(places[pool.name])) for pool in demands)


def _classes_of_nodes(cluster: Cluster) -> list[dict[Device, DeviceClass]]:
    by_node, names = list[dict[Device, DeviceClass]](), dict[DeviceClass, list[str]]()
    for node in cluster.nodes:
        of_node = dict[Device, DeviceClass]()
        for device, count in Counter(node.devices).items():
            of_node[device] = DeviceClass(
                kind=device.kind,
                model=device.model,
                memory_bytes=device.memory_bytes,
                node_devices=count,
                domain=domain_of(node, device, count),
                network_bytes_per_s=network_share(node, profile_of(device)),
                price_per_hour=None if node.price_per_hour is None else node.price_per_hour / len(node.devices),
                host_memory_bytes=node.host_memory_bytes,
                nodes=(),
            )
            names.setdefault(of_node[device], []).append(node.name)
        by_node.append(of_node)
    complete = {of: replace(of, nodes=tuple(nodes)) for of, nodes in names.items()}
    return [{device: complete[of] for device, of in of_node.items()} for of_node in by_node]


# ------------------------------------------------------------------------------------------- which class, which leaf


def _groups(device_classes: Sequence[DeviceClass], demands: Sequence[PoolDemand]) -> dict[str, int]:
    """Return the index of the class of each pool, those named first: the fullest class in which the pool fits."""
    free = [of.count for of in device_classes]
    groups = dict[str, int]()
    for pool in sorted(demands, key=lambda pool: (pool.of is None, not pool.model, -pool.devices)):
        named = [i for i, of in enumerate(device_classes) if pool.of in (None, of) and pool.model in ("", of.model)]
        if not named:
            models = ", ".join(dict.fromkeys(of.model or of.kind for of in device_classes))
            raise _no_room(pool, "the cluster has none", f"it has {models}" if models else "")
        reaching = [i for i in named if device_classes[i].reach >= pool.tensor]
        if not reaching:
            raise _no_room(pool, f"no domain has more than {max(device_classes[i].reach for i in named)} devices")
        fits = [i for i in reaching if free[i] >= pool.devices]
        if not fits:
            raise _no_room(pool, f"of one class at most {max(free[i] for i in reaching)} are left")
        groups[pool.name] = min(fits, key=lambda i: (free[i], i))
        free[groups[pool.name]] -= pool.devices
    return groups


def _no_room(pool: PoolDemand, available: str, hint: str = "") -> ResourceError:
    tensor_groups = f" in tensor groups of {pool.tensor}" if pool.tensor > 1 else ""
    devices = f"{pool.model or 'device'}{'s' if pool.devices > 1 and not pool.model else ''}"
    return ResourceError.not_here(f"pool `{pool.name}`", f"{pool.devices} {devices}{tensor_groups}", available, hint)


def _homes(
    units: Sequence[_MachineDevices], demands: Sequence[PoolDemand], groups: Mapping[str, int]
) -> dict[str, str]:
    """Choose a leaf for the pools that sync with each other, or for each of them: the fullest that has room."""
    free, homes = _free(units), dict[str, str]()
    leaves = list(dict.fromkeys(leaf for leaf, _ in free))
    # Pools that sync with each other, directly or through others; those with the most devices first.
    root = {pool.name: pool.name for pool in demands}
    for pool in demands:
        for name in pool.synced_with:
            if name in root:
                old, new = root[name], root[pool.name]
                root = {name: new if top == old else top for name, top in root.items()}
    synced = dict[str, list[PoolDemand]]()
    for pool in sorted(demands, key=lambda pool: -pool.devices):
        synced.setdefault(root[pool.name], []).append(pool)
    waiting = sorted(synced.values(), key=lambda pools: -sum(pool.devices for pool in pools))
    while waiting:
        pools = waiting.pop(0)
        needs = Counter[int]()
        for pool in pools:
            needs[groups[pool.name]] += pool.devices
        fits = [leaf for leaf in leaves if all(free[leaf, group] >= count for group, count in needs.items())]
        if fits:
            home = min(fits, key=lambda leaf: (sum(free[leaf, group] for group in needs), leaves.index(leaf)))
            homes |= {pool.name: home for pool in pools}
            free.subtract({(home, group): count for group, count in needs.items()})
        elif len(pools) > 1:
            waiting[:0] = [[pool] for pool in pools]
    return homes


# ---------------------------------------------------------------------------------------------------------- places


@dataclass
class _TensorGroupSpace:
    """Devices of one class that a tensor group may lie in: those of a domain, or of a machine without one."""

    places: list[Place] = field(default_factory=list[Place])
    used: set[int] = field(default_factory=set[int])

    def room(self, tensor: int) -> int:
        return (len(self.places) - len(self.used)) // tensor * tensor

    def take(self, count: int) -> list[int]:
        """Take devices in aligned blocks of powers of two, each out of the smallest free block that has it."""
        chosen = list[int]()
        for size in (2**i for i in reversed(range(count.bit_length())) if count & 2**i):
            blocks = [block for block in self._free_blocks() if block[0] >= size]
            free = (i for i in range(len(self.places)) if i not in self.used)
            _, start = min(blocks, default=(0, -1))
            chosen += range(start, start + size) if blocks else [next(free) for _ in range(size)]
            self.used.update(chosen)
        return sorted(chosen)

    def _free_blocks(self) -> Iterator[tuple[int, int]]:
        total = len(self.places)
        waiting = [(2 ** max(total - 1, 0).bit_length(), 0)]
        while waiting:
            size, start = waiting.pop()
            if start + size <= total and self.used.isdisjoint(range(start, start + size)):
                yield size, start
            elif size > 1 and start < total:
                waiting += [(size // 2, start + size // 2), (size // 2, start)]


@dataclass
class _MachineDevices:
    """A machine's devices of one class, or a whole rack's, on its leaf."""

    leaf: str
    group: int
    cells: list[_TensorGroupSpace] = field(default_factory=list[_TensorGroupSpace])

    def room(self, tensor: int) -> int:
        return sum(cell.room(tensor) for cell in self.cells)

    def take(self, count: int, tensor: int) -> list[tuple[int, int]]:
        rooms = [(0, cell.room(tensor), i) for i, cell in enumerate(self.cells)]
        return [(i, place) for i, part in _fitting(rooms, count) for place in self.cells[i].take(part)]


def _fitting(rooms: Sequence[tuple[int, int, int]], count: int) -> Iterator[tuple[int, int]]:
    """Yield (place, count): the best fitting of the rooms (rank, size, place), or else the largest ones."""
    best = min((room for room in rooms if room[1] >= count), default=None)
    for _, size, place in [best] if best else sorted(rooms, key=lambda room: (room[0], -room[1], room[2])):
        part = min(size, count)
        count -= part
        yield place, part


def _units(cluster: Cluster) -> list[_MachineDevices]:
    groups = {device_class: i for i, device_class in enumerate(classes(cluster))}
    numbers = domains(cluster.nodes)
    units, cells = dict[object, _MachineDevices](), dict[object, _TensorGroupSpace]()
    for node, of_node in zip(cluster.nodes, _classes_of_nodes(cluster), strict=True):
        for index, device in enumerate(node.devices):
            of = of_node[device]
            group = groups[of]
            cell = (group, numbers[node.name, index] if of.domain > 1 else node.name)
            unit = cell if of.domain > of.node_devices else (group, node.name)
            if cell not in cells:
                cells[cell] = _TensorGroupSpace()
                units.setdefault(unit, _MachineDevices(node.leaf, group)).cells.append(cells[cell])
            cells[cell].places.append((node.name, index))
    return list(units.values())


def _free(units: Iterable[_MachineDevices]) -> Counter[tuple[str, int]]:
    free = Counter[tuple[str, int]]()
    for unit in units:
        free[unit.leaf, unit.group] += unit.room(1)
    return free


DeviceIndex = tuple[int, int, int]
"""A device by its unit, its cell there, and its place in the cell."""


def _placed(
    units: Sequence[_MachineDevices], demands: Sequence[PoolDemand], groups: Mapping[str, int], by_tensor: bool
) -> dict[str, list[Place]] | PoolDemand:
    homes = _homes(units, demands, groups)
    chosen = {pool.name: list[DeviceIndex]() for pool in demands}
    largest = sorted(demands, key=lambda pool: (-pool.tensor if by_tensor else 0, -pool.devices))
    for pool in [] if by_tensor else largest:
        chosen[pool.name] += _whole_units(units, _nearest(units, pool, groups, homes), pool)
    for pool in sorted(largest, key=lambda pool: (-pool.tensor, len(chosen[pool.name]) - pool.devices)):
        ranked = _nearest(units, pool, groups, homes, chosen[pool.name])
        chosen[pool.name] += _best_fit(units, ranked, pool.tensor, _in_groups(pool) - len(chosen[pool.name]))
        chosen[pool.name].sort()
        if rest := pool.devices % pool.tensor:
            chosen[pool.name] += _best_fit(units, ranked, rest, rest)
        if len(chosen[pool.name]) < pool.devices:
            return pool
    return {name: [units[u].cells[c].places[i] for u, c, i in places] for name, places in chosen.items()}


def _in_groups(pool: PoolDemand) -> int:
    return pool.devices - pool.devices % pool.tensor


def _nearest(
    units: Sequence[_MachineDevices],
    pool: PoolDemand,
    groups: Mapping[str, int],
    homes: Mapping[str, str],
    chosen: Sequence[DeviceIndex] = (),
) -> list[tuple[int, int]]:
    """Return (rank of leaf, index) for each unit of a pool's class: its home first, then leaves with its devices."""
    group, free, used = groups[pool.name], _free(units), {units[unit].leaf for unit, _, _ in chosen}
    leaves = [leaf for leaf, leaf_group in free if leaf_group == group]
    order = sorted(leaves, key=lambda leaf: (leaf != homes.get(pool.name), leaf not in used, -free[leaf, group]))
    rank = {leaf: i for i, leaf in enumerate(order)}
    return [(rank[unit.leaf], i) for i, unit in enumerate(units) if unit.group == group]


def _whole_units(
    units: Sequence[_MachineDevices], ranked: Iterable[tuple[int, int]], pool: PoolDemand
) -> list[DeviceIndex]:
    """Take untouched units that a pool fills, the largest first; none if a larger unit has room for the rest."""
    untouched = [(rank, i) for rank, i in ranked if not any(cell.used for cell in units[i].cells)]
    rooms = sorted((rank, -units[i].room(pool.tensor), i) for rank, i in untouched)
    largest = max((-negative for _, negative, _ in rooms), default=0)
    chosen = list[DeviceIndex]()
    for _, negative, i in rooms:
        room, missing = -negative, _in_groups(pool) - len(chosen)
        if room == missing or room <= largest <= missing:
            chosen += [(i, *place) for place in units[i].take(room, pool.tensor)]
    return chosen


def _best_fit(
    units: Sequence[_MachineDevices], ranked: Iterable[tuple[int, int]], tensor: int, count: int
) -> list[DeviceIndex]:
    rooms = [(rank, units[i].room(tensor), i) for rank, i in ranked]
    return [(i, *place) for i, part in _fitting(rooms, count) for place in units[i].take(part, tensor)]
