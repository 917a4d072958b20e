"""Counts of devices become devices: classes, sizes, and places that keep what talks together close."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowgraph.cluster.cluster import Cluster, Device, Machine
from flowgraph.cluster.plan import Pool
from flowgraph.cluster.short_form import read_cluster
from flowgraph.cluster.this_machine import laptop
from flowgraph.errors import ResourceError
from placements.hardware.device_profiles import domains, known_devices
from placements.hardware.topology import PoolDemand, classes, realise, sizes
from tests.looped import looped
from tests.unit.placements.links import links_of

GIB = 2**30


def cluster(text: str) -> Cluster:
    return read_cluster(text, laptop, known_devices())


def on_leaves(text: str, leaves: str) -> Cluster:
    """Return a cluster whose machines hang on these leaves, a letter each."""
    nodes = cluster(text).nodes
    return Cluster(nodes=tuple(n.model_copy(update={"leaf": leaf}) for n, leaf in zip(nodes, leaves, strict=True)))


def shape_of(pool: Pool) -> list[int]:
    """Return how many devices a pool has on each machine, the most first."""
    return sorted(Counter(name for name, _ in pool.devices).values(), reverse=True)


def in_one_domain(of: Cluster, devices: Sequence[tuple[str, int]]) -> bool:
    """Return whether devices lie in one domain, or where there is none, on one machine."""
    numbers = domains(of.nodes)
    single = all(list(numbers.values()).count(numbers[place]) == 1 for place in devices)
    return len({name if single else numbers[name, index] for name, index in devices}) == 1


# ---------------------------------------------------------------------------------------------------------- classes


def test_equal_devices_on_equal_machines_are_a_class() -> None:
    mixed = cluster("2x8xh100,4xh100,8xh100-64GiB,8xa40")
    told = [
        (each.model, each.memory_bytes // GIB, each.node_devices, each.count, each.nodes) for each in classes(mixed)
    ]
    assert told == [
        ("h100-sxm-80g", 79, 8, 16, ("node-1", "node-2")),
        ("h100-sxm-80g", 79, 4, 4, ("node-3",)),
        ("h100-sxm-80g", 64, 8, 8, ("node-4",)),
        ("a40-48g", 44, 8, 8, ("node-5",)),
    ]
    assert [each.domain for each in classes(mixed)] == [8, 4, 8, 1]
    assert [each.network_bytes_per_s for each in classes(mixed)] == [50e9, 50e9, 50e9, None]


def test_network_price_and_domain_tell_classes_apart_and_a_leaf_does_not() -> None:
    (node,) = cluster("8xh100").nodes
    told: list[dict[str, Any]] = [
        {},
        {"network_bytes_per_s": 80e9},
        {"price_per_hour": 16.0},
        {"domain": 4},
        {"leaf": "a"},
    ]
    nodes = [node.model_copy(update={"name": f"n{i}", **each}) for i, each in enumerate(told)]
    found = classes(Cluster(nodes=tuple(nodes)))
    assert [each.nodes for each in found] == [("n0", "n4"), ("n1",), ("n2",), ("n3",)]
    assert [each.network_bytes_per_s for each in found] == [50e9, 10e9, 50e9, 50e9]
    assert [each.price_per_hour for each in found] == [None, None, 2.0, None]
    assert [each.domain for each in found] == [8, 8, 8, 4]


def test_this_machine_is_one_class_of_cpu_devices_with_nominal_rates() -> None:
    (found,) = classes(laptop(2, 10))
    assert (found.kind, found.model, found.count, found.domain) == ("cpu", "", 2, 2)
    links = found.links(2)
    assert found.price_per_hour is None
    assert links is not None and links.device.nominal


def test_devices_of_two_kinds_on_one_machine_are_two_classes() -> None:
    gpu, cpu = Device(kind="gpu", memory_bytes=GIB), Device(kind="cpu", memory_bytes=GIB)
    node = Machine(name="a", devices=(gpu, cpu, gpu), host_memory_bytes=GIB, cores=2)
    assert [(each.kind, each.count) for each in classes(Cluster(nodes=(node,)))] == [("gpu", 2), ("cpu", 1)]
    (pool,) = realise(Cluster(nodes=(node,)), [PoolDemand("a", 2)])
    assert pool.devices == (("a", 0), ("a", 2))


@looped(
    "text, wanted",
    [
        ("1xh100", (1,)),
        ("8xh100", (1, 2, 4, 8)),
        ("6xh100", (1, 2, 4, 6)),
        ("3x4xgb200", (1, 2, 4, 8, 12)),
        ("7x8xh100", (1, 2, 4, 8, 16, 24, 32, 40, 48, 56)),
        ("11x8xh100", (1, 2, 4, 8, 16, 24, 32, 40, 48, 64, 72, 80, 88)),
    ],
)
def test_a_pool_is_part_of_a_machine_or_machines_whose_number_has_small_factors(
    text: str, wanted: tuple[int, ...]
) -> None:
    assert sizes(classes(cluster(text))[0]) == wanted


@pytest.mark.parametrize(("machines", "count"), [(8, 7), (32, 17), (128, 29), (1280, 49)])
def test_there_are_few_sizes_however_large_the_cluster(machines: int, count: int) -> None:
    found = sizes(classes(cluster(f"{machines}x8xh100"))[0])
    assert len([size for size in found if size >= 8]) == count


# ----------------------------------------------------------------------------------------------------------- places


def test_the_largest_pools_get_whole_machines_and_small_ones_share_aligned_parts() -> None:
    """8 | 4 2 1 1 on two machines."""
    wanted = [
        PoolDemand("one", 1),
        PoolDemand("two", 2),
        PoolDemand("four", 4, tensor=4),
        PoolDemand("all", 8),
        PoolDemand("more", 1),
    ]
    found = {pool.name: pool.devices for pool in realise(cluster("2x8xh100"), wanted)}
    assert list(found) == ["one", "two", "four", "all", "more"]
    assert found["all"] == tuple(("node-1", i) for i in range(8))
    assert found["four"] == tuple(("node-2", i) for i in range(4))
    assert found["two"] == (("node-2", 4), ("node-2", 5))
    assert [found["one"], found["more"]] == [(("node-2", 6),), (("node-2", 7),)]


def test_a_small_pool_takes_the_fullest_machine_that_has_room() -> None:
    found = realise(
        cluster("3x8xh100"), [PoolDemand("a", 6), PoolDemand("b", 5), PoolDemand("c", 2), PoolDemand("d", 3)]
    )
    assert [pool.devices[0][0] for pool in found] == ["node-1", "node-2", "node-1", "node-2"]


def test_a_part_goes_where_it_leaves_the_largest_piece() -> None:
    """After 4 and 1, a pair takes the half-machine's other half, not a piece of the free one."""
    found = realise(cluster("8xh100"), [PoolDemand("a", 4), PoolDemand("b", 1), PoolDemand("c", 2)])
    assert [[index for _, index in pool.devices] for pool in found] == [[0, 1, 2, 3], [6], [4, 5]]


def test_pools_that_sync_share_a_leaf_where_one_has_room() -> None:
    """The leaf `a` has one machine, `b` three, `c` two: train and rollout fill `c`, the judge takes `a`."""
    of = on_leaves("6x8xh100", "abbbcc")
    wanted = [
        PoolDemand("judge", 8),
        PoolDemand("rollout", 8, synced_with=("train",)),
        PoolDemand("train", 8, tensor=8),
    ]
    judge, rollout, train = realise(of, wanted)
    leaf = {node.name: node.leaf for node in of.nodes}
    assert {leaf[name] for name, _ in (*rollout.devices, *train.devices)} == {"c"}
    assert {leaf[name] for name, _ in judge.devices} == {"a"}


def test_pools_that_no_leaf_has_room_for_still_lie_on_few_leaves() -> None:
    of = on_leaves("6x8xh100", "abbbcc")
    (pool,) = realise(of, [PoolDemand("all", 32)])
    assert [name for name, index in pool.devices if index == 0] == ["node-2", "node-3", "node-4", "node-5"]


def test_a_tensor_group_may_be_as_large_as_a_rack_and_no_larger() -> None:
    of = cluster("18x4xgb200")
    (pool,) = realise(of, [PoolDemand("all", 72, tensor=36)])
    assert in_one_domain(of, pool.devices)
    assert refusal(of, PoolDemand("all", 144, tensor=144)) == (
        "pool `all`: the plan needs 144 devices in tensor groups of 144; no domain has more than 72 devices"
    )


def test_pairs_that_are_joined_by_nvlink_are_not_parted() -> None:
    (node,) = cluster("8xa40").nodes
    of = Cluster(nodes=(node.model_copy(update={"domain": 2}),))
    first, second, third = realise(of, [PoolDemand("a", 1), PoolDemand("b", 2, tensor=2), PoolDemand("c", 4, tensor=2)])
    assert [index for _, index in (*third.devices, *second.devices, *first.devices)] == [0, 1, 2, 3, 4, 5, 6]


def test_a_large_pool_that_needs_no_domain_makes_room_for_one_that_does() -> None:
    """Ten machines of eight, of which only the first nine are one rack's worth: the rack is for the tensor group."""
    of = on_leaves("11x8xgb200", "aaaaaaaaabc")
    wanted = [PoolDemand("wide", 16), PoolDemand("deep", 72, tensor=72)]
    wide, deep = realise(of, wanted)
    assert in_one_domain(of, deep.devices)
    assert {name for name, _ in wide.devices} == {"node-10", "node-11"}


def test_a_pool_without_a_model_takes_the_fullest_class_that_it_fits() -> None:
    first, second = realise(
        cluster("2x8xh100,8xa100"), [PoolDemand("any", 8), PoolDemand("fast", 16, model="h100-sxm-80g")]
    )
    assert {name for name, _ in first.devices} == {"node-3"}
    assert {name for name, _ in second.devices} == {"node-1", "node-2"}


def test_a_pool_may_say_which_of_the_classes_of_one_model_it_is_of() -> None:
    of = cluster("8xgpu-80GiB,8xgpu-40GiB,4xgpu-80GiB")
    large, small, few = classes(of)
    wanted = [PoolDemand("any", 4), PoolDemand("large", 8, of=large), PoolDemand("small", 8, of=small)]
    found = [{name for name, _ in pool.devices} for pool in realise(of, wanted)]
    assert found == [{"node-3"}, {"node-1"}, {"node-2"}]
    assert refusal(of, PoolDemand("a", 8, of=few)) == (
        "pool `a`: the plan needs 8 devices; of one class at most 4 are left"
    )


def refusal(of: Cluster, *wanted: PoolDemand) -> str:
    with pytest.raises(ResourceError) as caught:
        realise(of, wanted)
    return str(caught.value)


def test_what_has_no_room_is_refused_with_what_there_is() -> None:
    two = cluster("2x8xh100,4xa40")
    assert refusal(two, PoolDemand("a", 17)) == (
        "pool `a`: the plan needs 17 devices; of one class at most 16 are left"
    )
    assert refusal(two, PoolDemand("a", 12), PoolDemand("b", 5)) == (
        "pool `b`: the plan needs 5 devices; of one class at most 4 are left"
    )
    assert refusal(two, PoolDemand("a", 1, model="h200-sxm-141g")) == (
        "pool `a`: the plan needs 1 h200-sxm-141g; the cluster has none\n  hint: it has h100-sxm-80g, a40-48g"
    )
    assert refusal(two, PoolDemand("a", 16, tensor=16)) == (
        "pool `a`: the plan needs 16 devices in tensor groups of 16; no domain has more than 8 devices"
    )
    assert refusal(two, PoolDemand("a", 15, "h100-sxm-80g", tensor=5)) == (
        "pool `a`: the plan needs 15 h100-sxm-80g in tensor groups of 5; its free devices are too scattered"
    )
    assert refusal(
        Cluster(nodes=(Machine(name="bare", devices=(), host_memory_bytes=1, cores=1),)), PoolDemand("a", 1)
    ) == ("pool `a`: the plan needs 1 device; the cluster has none")


def test_ten_thousand_devices_are_placed_in_seconds() -> None:
    of = cluster("1280x8xh100")
    wanted = [
        PoolDemand("train", 5120, tensor=8),
        PoolDemand("rollout", 4096, tensor=4),
        PoolDemand("ref", 1020),
        PoolDemand("rm", 4),
    ]
    start = time.process_time()
    found = realise(of, wanted)
    assert sum(len(pool.devices) for pool in found) == 10240
    assert time.process_time() - start < 5


@looped("text", ["4x8xh100", "3x8xl40s", "20x4xgb200", "5x4xh100", "8xrtx4090"])
def test_a_class_says_what_a_pool_talks_over_before_it_has_places(text: str) -> None:
    of = cluster(text)
    (found,) = classes(of)
    for size in sizes(found):
        (pool,) = realise(of, [PoolDemand("one", size)])
        assert found.links(size) == links_of(of, pool.devices), size


# ------------------------------------------------------------------------------------------------- whatever is asked

MODELS = ["h100", "a40", "gb200", "gpu-80GiB"]
MACHINES = st.lists(
    st.tuples(st.sampled_from(MODELS), st.sampled_from([1, 2, 4, 6, 8]), st.integers(1, 4)), min_size=1, max_size=3
)


@st.composite
def any_cluster(draw: st.DrawFn) -> Cluster:
    text = ",".join(f"{count}x{devices}x{model}" for model, devices, count in draw(MACHINES))
    nodes = cluster(text).nodes
    leaves = draw(st.lists(st.sampled_from(["", "a", "b"]), min_size=len(nodes), max_size=len(nodes)))
    pairs = draw(st.booleans())
    told = [
        {"leaf": leaf} | ({"domain": 2} if pairs and len(node.devices) % 2 == 0 else {})
        for node, leaf in zip(nodes, leaves, strict=True)
    ]
    return Cluster(nodes=tuple(n.model_copy(update=each) for n, each in zip(nodes, told, strict=True)))


@st.composite
def any_wanted(draw: st.DrawFn) -> list[PoolDemand]:
    count = draw(st.integers(1, 5))
    names = [f"p{i}" for i in range(count)]
    return [
        PoolDemand(
            name,
            draw(st.integers(1, 12)),
            draw(st.sampled_from(["", "", "h100-sxm-80g"])),
            draw(st.sampled_from([1, 1, 2, 3, 4, 8])),
            tuple(draw(st.lists(st.sampled_from(names), max_size=2))),
        )
        for name in names
    ]


def outcome(of: Cluster, wanted: Sequence[PoolDemand]) -> tuple[Pool, ...] | str:
    try:
        return realise(of, wanted)
    except ResourceError as error:
        return str(error)


@given(any_cluster(), any_wanted())
def test_every_pool_has_its_count_of_one_class_each_device_once_and_each_group_in_a_domain(
    of: Cluster, wanted: list[PoolDemand]
) -> None:
    found = outcome(of, wanted)
    if isinstance(found, str):
        assert found.startswith("pool `p")
        return
    places = [place for pool in found for place in pool.devices]
    assert len(places) == len(set(places))
    assert [(pool.name, len(pool.devices)) for pool in found] == [(each.name, each.devices) for each in wanted]
    for pool, each in zip(found, wanted, strict=True):
        devices = {of.device(*place) for place in pool.devices}
        assert len(devices) == 1
        assert None not in devices
        assert not each.model or {device.model for device in devices if device} == {each.model}
        starts = [*range(0, each.devices, each.tensor), each.devices]
        assert all(in_one_domain(of, pool.devices[start:end]) for start, end in pairwise(starts))


@given(any_cluster(), any_wanted())
def test_the_same_is_placed_the_same_whatever_machines_are_called(of: Cluster, wanted: list[PoolDemand]) -> None:
    called = {node.name: f"m{i * 7 % 13}-{i}" for i, node in enumerate(of.nodes)}
    other = Cluster(nodes=tuple(node.model_copy(update={"name": called[node.name]}) for node in of.nodes))
    found, again, renamed = outcome(of, wanted), outcome(of, wanted), outcome(other, wanted)
    assert found == again
    if isinstance(found, str) or isinstance(renamed, str):
        assert found == renamed
    else:
        assert [[(called[name], i) for name, i in pool.devices] for pool in found] == [
            list(pool.devices) for pool in renamed
        ]


@given(st.data(), st.integers(1, 6), st.sampled_from([2, 4, 8]), any_wanted())
def test_equal_machines_in_another_order_give_pools_of_the_same_shape(
    data: st.DataObject, machines: int, devices: int, wanted: list[PoolDemand]
) -> None:
    letters = data.draw(st.text("ab", min_size=machines, max_size=machines))
    of = on_leaves(f"{machines}x{devices}xh100", letters)
    other = Cluster(nodes=tuple(data.draw(st.permutations(of.nodes))))
    found, moved = outcome(of, wanted), outcome(other, wanted)
    if isinstance(found, str) or isinstance(moved, str):
        assert found == moved
    else:
        assert [shape_of(pool) for pool in found] == [shape_of(pool) for pool in moved]


@given(st.data(), st.integers(1, 8), st.sampled_from(["8xh100", "4xh100", "8xa40", "4xgb200"]))
def test_powers_of_two_that_are_no_more_than_there_is_always_have_room(
    data: st.DataObject, machines: int, machine: str
) -> None:
    of = cluster(f"{machines}x{machine}")
    (found,) = classes(of)
    left, wanted = found.count, list[PoolDemand]()
    while left and len(wanted) < 6:
        tensor = 2 ** data.draw(st.integers(0, min(3, left.bit_length() - 1)))
        tensor = min(tensor, 2 ** (min(found.reach, found.count).bit_length() - 1))
        devices = tensor * data.draw(st.integers(1, left // tensor))
        wanted.append(PoolDemand(f"p{len(wanted)}", devices, tensor=tensor))
        left -= devices
    assert [len(pool.devices) for pool in realise(of, wanted)] == [each.devices for each in wanted]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_pools_of_whole_machines_get_whole_machines(machines: list[int]) -> None:
    of = cluster(f"{sum(machines)}x8xh100")
    for pool, count in zip(
        realise(of, [PoolDemand(f"p{i}", 8 * n) for i, n in enumerate(machines)]), machines, strict=True
    ):
        assert shape_of(pool) == [8] * count
