"""Plans of several devices and pools: what each device holds, and that nothing counts twice or beside its pool."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowgraph import Graph
from flowgraph.cluster import Cluster, Device, Node
from flowgraph.errors import PlanError, ResourceError
from flowgraph.models import ModelShape
from flowgraph.plan import Layout, Placed, Plan, Pool
from flowgraph.store import structure_hash
from placements import Need, Workload, check_fits, forecast, forecast_plan, overflow, plan_text, search
from placements.fits import smallest_changes
from placements.memory import PROCESS_BYTES, gathered_bytes, shard_bytes
from placements.pools import RAY_BYTES

MIB, GIB = 2**20, 2**30
# The sizes of SmolLM2-135M.
SHAPE = ModelShape(
    parameters=134_515_008,
    hidden=576,
    layers=30,
    heads=9,
    kv_heads=3,
    head_dim=64,
    intermediate=1536,
    vocabulary=49152,
    tied=True,
)
WHOLE = 4 * 134_515_008  # bytes of all parameters
SHAPES = {"policy": SHAPE, "ref": SHAPE}
WORK = Workload(8, 64)


def laptop(devices: int, memory_bytes: int = 48 * GIB) -> Cluster:
    node = Node(
        name="laptop",
        devices=(Device(kind="cpu", memory_bytes=memory_bytes),) * devices,
        host_memory_bytes=devices * memory_bytes,
        cores=2,
    )
    return Cluster(nodes=(node,))


def colocated(graph: Graph, devices: int, workload: Workload = WORK) -> Plan:
    return search("colocated", graph, laptop(devices), SHAPES, workload).plan


def moved(plan: Plan, graph: Graph, role: str, workload: Workload = WORK, ranks: int = 1) -> Plan:
    """Move a role to a pool of its own, on devices added to the laptop."""
    before = len(plan.cluster.nodes[0].devices)
    there = Pool(name="apart", devices=tuple(("laptop", before + place) for place in range(ranks)))
    placed = [
        each.model_copy(update={"pool": "apart", "layout": each.layout.model_copy(update={"data": ranks})})
        if each.role == role
        else each
        for each in plan.placed
    ]
    edited = {"cluster": laptop(before + ranks), "pools": (*plan.pools, there), "placed": tuple(placed)}
    return forecast_plan(Plan.from_json(plan.model_copy(update=edited).to_json()), graph, SHAPES, workload)


def memory(plan: Plan, role: str) -> dict[str, int]:
    return next(each.memory for each in plan.placed if each.role == role)


def worst_bytes(plan: Plan, pool: str) -> int:
    return max(peak.memory_bytes for each in plan.forecast if each.pool == pool for peak in each.peaks)


@pytest.mark.parametrize("ranks", [2, 4])
def test_each_device_holds_its_share_of_what_is_sharded_and_the_whole_of_what_is_copied(
    graph: Graph, ranks: int
) -> None:
    plan = colocated(graph, ranks)
    trained, sampled, read = (memory(plan, role) for role in ("policy.train", "policy.sample", "ref.infer"))
    assert (trained["weights"], trained["gradients"], trained["optimizer"]) == (
        WHOLE // ranks,
        WHOLE // ranks,
        2 * WHOLE // ranks,
    )
    assert (sampled["weights"], sampled["sync"], read["weights"]) == (WHOLE, WHOLE, WHOLE)
    alone = memory(colocated(graph, 1), "policy.sample")
    assert sampled["rollout"] == alone["rollout"] // ranks


def test_a_prompt_s_group_stays_whole_so_the_fullest_rank_has_the_rounded_share(graph: Graph) -> None:
    three, two = (memory(colocated(graph, 2, Workload(prompts, 64)), "policy.sample") for prompts in (3, 4))
    assert three["rollout"] == two["rollout"] == 128 * 2 * 8 * 256


def test_budgets_of_tokens_hold_on_each_device(graph: Graph) -> None:
    work = Workload(64, 64, sample_rows=16, forward_tokens=4096)
    one, two = (colocated(graph, ranks, work) for ranks in (1, 2))
    for role, part in (("policy.sample", "kv_cache"), ("ref.infer", "logits"), ("policy.train", "logits")):
        assert memory(one, role)[part] == memory(two, role)[part]


def test_what_is_gathered_is_the_embeddings_and_layers_in_turn() -> None:
    layout, embeddings = Layout(data=2, sharding="full"), (49152 + 1) * 576
    layer = (134_515_008 - embeddings) // 30
    assert gathered_bytes(SHAPE, layout, backward=False) == 4 * (2 * embeddings + 2 * layer)
    assert gathered_bytes(SHAPE, layout, backward=True) == 4 * (2 * embeddings + 4 * layer)
    untied = replace(SHAPE, tied=False, parameters=134_515_008 + 49152 * 576)
    assert gathered_bytes(untied, layout, backward=False) == 4 * (2 * (2 * 49152 + 1) * 576 + 2 * layer)
    assert gathered_bytes(SHAPE, Layout(data=2), backward=True) == 0


def test_shards_that_do_not_divide_are_rounded_up() -> None:
    layout = Layout(data=3, sharding="full")
    assert shard_bytes(100, layout) == 4 * 34


def total(plan: Plan, graph: Graph, part: str) -> int:
    return sum(need.needed_bytes for need in forecast(plan, graph, SHAPES, WORK) if need.part == part)


def test_roles_that_share_a_home_share_its_weights(graph: Graph) -> None:
    """One model in one process has one copy; on another engine, in another layout or pool, it has one more."""
    assert total(colocated(graph, 1), graph, "weights") == 2 * WHOLE  # policy, ref
    assert total(colocated(graph, 2), graph, "weights") == WHOLE // 2 + 2 * WHOLE
    apart = moved(colocated(graph, 1), graph, "policy.sample")
    assert total(apart, graph, "weights") == 3 * WHOLE


def test_a_copy_in_another_pool_is_filled_from_weights_that_are_whole_on_both_sides(graph: Graph) -> None:
    assert total(colocated(graph, 1), graph, "sync") == 0
    assert total(colocated(graph, 2), graph, "sync") == WHOLE
    apart = moved(colocated(graph, 1), graph, "policy.sample")
    assert (memory(apart, "policy.train")["sync"], memory(apart, "policy.sample")["sync"]) == (WHOLE, WHOLE)


def test_a_sync_is_over_before_samples_are_drawn(graph: Graph) -> None:
    """The generate phase peaks at the larger of the two, not at their sum."""
    for prompts in (2, 64):
        work = Workload(prompts, 64)
        plan = colocated(graph, 2, work)
        needs = forecast(plan, graph, SHAPES, work)
        always = sum(need.needed_bytes for need in needs if need.phase is None)
        drawing = sum(n.needed_bytes for n in needs if n.phase == "generate" and n.part != "sync")
        assert plan.forecast[0].peaks[0].memory_bytes == (plan.forecast[0].process_bytes + always + max(drawing, WHOLE))


def test_each_pool_holds_its_own_roles_and_the_responses_that_they_read(graph: Graph) -> None:
    before, after = colocated(graph, 2), moved(colocated(graph, 2), graph, "ref.infer")
    assert [(each.pool, [peak.phase for peak in each.peaks]) for each in after.forecast] == [
        ("all", ["generate", "update"]),
        ("apart", ["logprob"]),
    ]
    assert "rollout" not in memory(before, "ref.infer")
    assert memory(after, "ref.infer")["rollout"] == 128 * 8 * 8 * 256  # one rank reads all rows
    assert memory(after, "policy.sample") == memory(before, "policy.sample")
    assert memory(after, "policy.train") == memory(before, "policy.train")


def test_responses_lie_where_they_are_trained_on_too(graph: Graph) -> None:
    apart = moved(colocated(graph, 2), graph, "policy.sample", ranks=2)
    assert memory(apart, "policy.sample")["rollout"] == memory(apart, "policy.train")["rollout"] == 128 * 4 * 8 * 256
    assert "rollout" not in memory(apart, "ref.infer")


def test_ray_is_shared_by_the_devices_of_a_machine_and_one_process_needs_none(graph: Graph) -> None:
    assert colocated(graph, 1).forecast[0].process_bytes == PROCESS_BYTES
    assert colocated(graph, 4).forecast[0].process_bytes == PROCESS_BYTES + RAY_BYTES // 4
    spread = Cluster(
        nodes=tuple(laptop(1).nodes[0].model_copy(update={"name": name}) for name in ("a", "b")),
    )
    plan = search("colocated", graph, spread, SHAPES, WORK).plan
    assert plan.forecast[0].process_bytes == PROCESS_BYTES + RAY_BYTES
    gpus = Node(name="a", devices=(Device(kind="gpu", memory_bytes=GIB),) * 2, host_memory_bytes=GIB, cores=2)
    plan = search("colocated", graph, Cluster(nodes=(gpus,)), SHAPES, WORK).plan
    assert plan.forecast[0].process_bytes == PROCESS_BYTES


def test_a_stale_forecast_is_not_believed(graph: Graph) -> None:
    plan = colocated(graph, 2)
    assert forecast_plan(plan.model_copy(update={"forecast": ()}), graph, SHAPES, WORK) == plan
    small = plan.model_copy(update={"cluster": laptop(2, GIB), "forecast": ()})
    assert overflow(small) is None
    with pytest.raises(ResourceError):
        check_fits(small, graph, SHAPES, WORK)


def test_a_plan_that_no_engine_runs_is_not_forecast(graph: Graph) -> None:
    plan = colocated(graph, 2)
    with pytest.raises(PlanError) as caught:
        forecast_plan(plan.model_copy(update={"placed": plan.placed[:2]}), graph, SHAPES, WORK)
    assert str(caught.value) == "plan of grpo: not placed: ref.infer\n  hint: each role of the flow is placed once"


def two_pools(graph: Graph, train_gib: int, frozen_gib: int) -> Plan:
    """The policy on two devices of one machine, the reference on one of another."""
    machines = [("train", 2, train_gib), ("frozen", 1, frozen_gib)]
    nodes = [laptop(count, gib * GIB).nodes[0].model_copy(update={"name": name}) for name, count, gib in machines]
    placed = (
        Placed(role="policy.train", pool="train", engine="fsdp", layout=Layout(data=2, sharding="full")),
        Placed(role="policy.sample", pool="train", engine="local", layout=Layout(data=2)),
        Placed(role="ref.infer", pool="frozen", engine="local"),
    )
    plan = Plan(
        flow=graph.name,
        structure_hash=structure_hash(graph),
        cluster=Cluster(nodes=tuple(nodes)),
        pools=(
            Pool(name="train", devices=(("train", 0), ("train", 1))),
            Pool(name="frozen", devices=(("frozen", 0),)),
        ),
        placed=placed,
    )
    return forecast_plan(plan, graph, SHAPES, WORK)


def refusal(plan: Plan, graph: Graph) -> str:
    with pytest.raises(ResourceError) as caught:
        check_fits(plan, graph, SHAPES, WORK, on="two machines")
    return str(caught.value)


def test_the_pool_that_overflows_is_named_with_what_it_alone_holds(
    graph: Graph, golden: Callable[[str, str], None]
) -> None:
    golden(refusal(two_pools(graph, 16, 64), graph), "plans/grpo_train_overflows.txt")
    golden(refusal(two_pools(graph, 64, 4), graph), "plans/grpo_frozen_overflows.txt")


def test_a_change_is_offered_only_if_every_pool_fits_after_it(graph: Graph) -> None:
    """Fewer tokens at once would fit the training pool, or the other, but not both."""
    only_train, only_frozen, both = (
        set(smallest_changes(two_pools(graph, *gib), graph, SHAPES, WORK)) for gib in ((16, 64), (64, 4), (16, 4))
    )
    assert only_train - both == {"policy.update.micro_batch_tokens=4096"}
    assert only_frozen - both == {"forward_tokens=4096"}
    assert both == {"policy.generate.n=2", "policy.generate.max_tokens=64", "batch=2"}


@given(
    prompts=st.integers(1, 64),
    tokens=st.integers(1, 512),
    ranks=st.tuples(st.integers(2, 64), st.integers(2, 64)),
    micro=st.integers(1, 65536),
)
def test_more_data_ranks_never_need_more_bytes_on_a_device(
    graph: Graph, prompts: int, tokens: int, ranks: tuple[int, int], micro: int
) -> None:
    """But for the heap, where the C library keeps less of larger blocks; and one rank is another layout."""
    work = Workload(prompts, tokens, sample_rows=micro, forward_tokens=micro)
    few, many = (held(colocated(graph, count, work), graph, work) for count in sorted(ranks))
    assert few.keys() == many.keys()
    assert all(many[key] <= few[key] for key in few if key[1] != "heap")


def held(plan: Plan, graph: Graph, workload: Workload) -> dict[tuple[str, str, str | None], int]:
    needs: tuple[Need, ...] = forecast(plan, graph, SHAPES, workload)
    return {(need.role, need.part, need.phase): need.needed_bytes for need in needs}


@given(
    role=st.sampled_from(["policy.sample", "ref.infer"]),
    prompts=st.integers(8, 64),
    tokens=st.integers(1, 512),
    ranks=st.tuples(st.integers(2, 8), st.integers(1, 8)),
    sample_rows=st.integers(1, 256),
)
def test_a_role_that_moves_to_another_pool_never_raises_the_peak_of_the_first(
    graph: Graph, role: str, prompts: int, tokens: int, ranks: tuple[int, int], sample_rows: int
) -> None:
    """From several devices on: a second device is what brings Ray in."""
    work = Workload(prompts, tokens, sample_rows=sample_rows)
    before = colocated(graph, ranks[0], work)
    after = moved(before, graph, role, work, ranks[1])
    assert worst_bytes(after, "all") <= worst_bytes(before, "all")


def test_a_plan_on_two_devices_prints_what_each_of_them_holds(graph: Graph, golden: Callable[[str, str], None]) -> None:
    golden(plan_text(colocated(graph, 2)), "plans/grpo_two_devices.txt")


def test_a_plan_of_two_pools_prints_both(graph: Graph, golden: Callable[[str, str], None]) -> None:
    golden(plan_text(two_pools(graph, 48, 4)), "plans/grpo_two_pools.txt")


def test_a_plan_s_lines_have_at_most_100_columns_and_long_rows_of_devices_are_ranges(graph: Graph) -> None:
    text = plan_text(colocated(graph, 64, Workload(64, 64)))
    assert max(map(len, text.splitlines())) <= 100
    assert text.splitlines()[1] == "pool all: laptop/0-63, 48.0 GiB each"
