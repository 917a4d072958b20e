"""Rows of 32,768 to 1,000,000 tokens: spread over devices where they fill one, and their logits whole or in chunks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from flowgraph.analysis.roles import Role, Use
from flowgraph.cluster.plan import Layout, RoleSettings
from flowgraph.models.sizes import shape
from flowgraph.models.sources import resolve
from placements.hardware.engine_constants import TrainingConstants, constants
from placements.memory.activations import EAGER, kept_numbers
from placements.memory.footprint import GIB, MemoryConstants, room_bytes
from placements.memory.training import TrainingSettings, training_bytes
from placements.report.search_report import relied_on, search_report
from placements.search.role_options import RoleOption, RoleOptions
from placements.search.search import find
from placements.step.role_costs import DeviceGroup, footprint, passing_seconds
from placements.time.training_layers import ring_seconds, sequence_seconds
from placements.workload.lengths import LengthDistribution
from placements.workload.planning_problem import PlanningProblem
from tests.unit.placements.small_problems import group_of, problem_of, shapes_of

MEGATRON: Mapping[Use, str] = {"train": "megatron", "infer": "megatron"}
QWEN_7B, QWEN_8B, LLAMA_8B = "Qwen/Qwen2.5-7B", "Qwen/Qwen3-8B", "meta-llama/Llama-3.1-8B"


def role_options(problem: PlanningProblem, role: Role, group: DeviceGroup) -> tuple[RoleOption, ...]:
    return RoleOptions(problem, role, group).undominated


def all_role_options(problem: PlanningProblem, role: Role, group: DeviceGroup) -> list[RoleOption]:
    return RoleOptions(problem, role, group, exhaustive=True).all


def long_problem(model: str, cluster: str, tokens: int, engines: Mapping[Use, str] | None = None) -> PlanningProblem:
    """Return GRPO of a model whose responses all have so many tokens."""
    problem = problem_of("grpo", cluster, model=model, prompts=16)
    return replace(problem, response=LengthDistribution.fixed(tokens), engines=engines or {})


def role_of(problem: PlanningProblem, name: str = "policy.train") -> Role:
    """Return a role by its name."""
    return next(role for role in problem.roles if role.name == name)


def fitting(
    model: str, cluster: str, devices: int, tokens: int, engines: Mapping[Use, str] | None = None
) -> list[RoleOption]:
    """Return the ways to train on rows of so many tokens that fit so many devices, fastest first, nothing offloaded."""
    problem, group = long_problem(model, cluster, tokens, engines), group_of(cluster, devices)
    room = room_bytes(group.of.memory_bytes)
    found = role_options(problem, role_of(problem), group)
    return [each for each in found if each.peak_bytes <= room and not each.running.offload]


# ------------------------------------------------------------------------------------------------ what is looked at


def test_short_rows_are_not_spread() -> None:
    problem = long_problem(QWEN_8B, "1x8xh100", 4000)
    assert {each.layout.sequence for each in all_role_options(problem, role_of(problem), group_of("1x8xh100", 8))} == {
        1
    }


def test_rows_that_fill_a_device_are_spread_as_far_as_ranks_divide_heads() -> None:
    """Qwen2.5-7B has 28 heads: 8 ranks cannot share them."""
    for model, most in ((QWEN_7B, 4), (QWEN_8B, 8)):
        problem = long_problem(model, "1x8xh100", 131_072)
        found = all_role_options(problem, role_of(problem), group_of("1x8xh100", 8))
        assert max(each.layout.sequence for each in found) == most
        assert all(each.layout.devices == 8 for each in found)


def test_rings_need_no_heads_and_stand_beside_tensor_ranks() -> None:
    problem = long_problem(QWEN_7B, "1x8xh100", 131_072, MEGATRON)
    layouts = {each.layout for each in all_role_options(problem, role_of(problem), group_of("1x8xh100", 8))}
    cuts = {(layout.tensor, layout.sequence) for layout in layouts}
    assert {(1, 8), (2, 4), (4, 2)} <= cuts


def test_rows_that_fit_no_domain_are_spread_over_several() -> None:
    """A row of 1,000,000 tokens of Qwen3-8B takes 9 GiB of inputs of layers on each of 64 devices, 72 on each of 8."""
    assert not fitting(QWEN_8B, "1x8xh100", 8, 1_000_000)
    found = fitting(QWEN_8B, "4x8xh100", 32, 1_000_000)
    assert found
    assert min(each.layout.sequence for each in found) > 8


def test_a_plan_spreads_rows_rather_than_offload_all_that_it_trains() -> None:
    plan = find(long_problem(QWEN_7B, "1x8xh100", 120_000)).best.plan()
    home = next(each for each in plan.placed if each.role == "policy.train")
    assert home.layout.sequence > 1
    assert home.running.offload == ()


def test_rows_are_spread_so_that_nothing_is_computed_again_where_that_is_faster() -> None:
    """Of 16,384 tokens on 8 devices: a share of a row fits with all that its backward pass wants."""
    fastest, *_ = fitting(QWEN_8B, "1x8xh200", 8, 32_768)
    assert fastest.layout.sequence > 1
    assert fastest.running.checkpointing == "none"


# -------------------------------------------------------------------------------------------------- what that takes


def test_ranks_of_a_sequence_divide_activations_and_logits_and_share_weights_as_data_ranks_do() -> None:
    (policy,) = {*shapes_of(problem_of("grpo").graph, QWEN_8B).values()}
    held = [
        training_bytes(
            policy,
            TrainingSettings(layout=Layout(data=8 // ranks, sequence=ranks, sharding="full"), logits="whole"),
            sequence_tokens=65_536,
        )
        for ranks in (1, 2, 4)
    ]
    assert len({each.resident["weights"] for each in held}) == 1
    for part in ("activations", "logits"):
        sizes = [each.working.get(part, 0) for each in held if part in each.working]
        assert len(sizes) >= 2
        assert all(before == pytest.approx(2 * after, rel=0.01) for before, after in pairwise(sizes))


def test_keys_of_few_heads_are_repeated_for_more_ranks() -> None:
    (policy,) = {*shapes_of(problem_of("grpo").graph, QWEN_8B).values()}
    assert policy.kv_heads == 8
    few, many = (kept_numbers(policy, Layout(sequence=ranks), EAGER) for ranks in (8, 16))
    assert many - few == EAGER.mixing * 8 * policy.head_dim


def test_attention_hides_a_ring_where_rows_are_long_and_never_the_trade_of_tokens_for_heads() -> None:
    (policy,) = {*shapes_of(problem_of("grpo").graph, QWEN_8B).values()}
    group, layout = group_of("2x8xh100", 16), Layout(sequence=16)
    assert ring_seconds(policy, layout, 8192, group.links) > 0

    def told(engine: str, tokens: int) -> float:
        problem = long_problem(QWEN_8B, "2x8xh100", tokens, {"train": engine})
        own = next(load for load in problem.loads if load.phase == "update")
        running = RoleSettings(precision="bfloat16", micro_batch_tokens=own.longest_tokens)
        return passing_seconds(problem, group, engine, layout, running, own).parts.get("sequence") or 0.0

    assert told("megatron", 4000) > 0.0
    assert told("megatron", 262_144) == 0.0
    assert told("fsdp", 262_144) > told("fsdp", 4000) > 0.0


def test_a_trade_of_tokens_for_heads_costs_more_where_keys_are_repeated() -> None:
    (policy,) = {*shapes_of(problem_of("grpo").graph, QWEN_8B).values()}
    links = group_of("1x8xh100", 8).links
    few = replace(policy, kv_heads=2)
    four = replace(policy, kv_heads=8)
    assert sequence_seconds(few, Layout(sequence=8), 8192, links) == sequence_seconds(
        four, Layout(sequence=8), 8192, links
    )


def test_only_megatron_passes_keys_around() -> None:
    found = {engine: constants(TrainingConstants, engine).ring for engine in ("fsdp", "megatron", "local")}
    assert found == {"fsdp": 0.0, "megatron": 1.0, "local": 0.0}


# ------------------------------------------------------------------------------------------------------------ logits


def test_our_engine_makes_logits_in_chunks_and_megatron_whole_until_they_take_much_of_a_device() -> None:
    def kinds(tokens: int, engines: Mapping[Use, str]) -> set[str]:
        problem = long_problem(QWEN_8B, "1x8xh100", tokens, engines)
        return {each.running.logits for each in all_role_options(problem, role_of(problem), group_of("1x8xh100", 8))}

    assert kinds(1000, {}) == kinds(65_536, {}) == {"chunked"}
    assert kinds(65_536, MEGATRON) == {"whole", "chunked"}
    problem = long_problem(QWEN_8B, "1x8xh100", 1000, MEGATRON)
    short = all_role_options(problem, role_of(problem), group_of("1x8xh100", 8))
    assert {each.running.logits for each in short if (each.running.micro_batch_tokens or 0) < 2000} == {"whole"}


def test_chunks_of_logits_hold_less_and_make_the_head_s_product_once_more() -> None:
    problem, group = long_problem(QWEN_8B, "1x8xh100", 65_536, MEGATRON), group_of("1x8xh100", 8)
    role, layout = role_of(problem), Layout(tensor=4, sequence=2)
    own = next(load for load in problem.loads_of(role) if load.phase == "update")
    whole = RoleSettings(
        precision="bfloat16", checkpointing="full", micro_batch_tokens=own.longest_tokens, logits="whole"
    )
    chunked = whole.model_copy(update={"logits": "chunked"})
    held = [footprint(problem, role, group, "megatron", layout, each) for each in (whole, chunked)]
    took = [passing_seconds(problem, group, "megatron", layout, each, own) for each in (whole, chunked)]
    entries = own.longest_tokens / 2 * problem.shape(role).outputs / 4
    assert held[0].working["logits"] == pytest.approx(MemoryConstants().whole_logit_bytes * entries, rel=1e-6)
    assert held[1].working.get("logits", 0) < GIB < held[0].working["logits"]
    again = (took[1].parts["matmul"] or 0.0) - (took[0].parts["matmul"] or 0.0)
    assert 0.0 < again < 0.1 * (took[0].parts["matmul"] or 0.0)


def test_log_probs_without_gradients_hold_whole_logits_where_a_plan_says_so() -> None:
    problem, group = long_problem(QWEN_8B, "1x8xh100", 65_536, MEGATRON), group_of("1x8xh100", 8)
    role = role_of(problem, "ref.infer")
    plain = RoleSettings(precision="bfloat16", micro_batch_tokens=66_048)
    found = [
        footprint(problem, role, group, "megatron", Layout(tensor=8), plain.model_copy(update={"logits": each}))
        for each in ("whole", "chunked")
    ]
    assert found[0].working["logits"] > 5 * GIB
    assert found[1].working.get("logits", 0) < GIB


# ------------------------------------------------------------------------------------------ what others have published


def test_llama_8b_trains_on_rows_of_208k_tokens_on_two_machines() -> None:
    """Fang and Zhao 2024, arXiv 2405.07719, abstract: 208K tokens, Llama 3 8B, two machines of eight A800."""
    assert fitting(LLAMA_8B, "2x8xa800", 16, 208_000)


def test_qwen3_8b_trains_on_rows_of_34k_tokens_with_whole_logits_on_eight_devices_of_64_gb() -> None:
    """verl, examples/grpo_trainer/run_qwen3_8b_grpo_sglang_32k_npu.sh: four Ulysses ranks, no fused kernels."""
    policy = shape(resolve(QWEN_8B, cache=Path("none")), "tokens")
    layout = Layout(data=2, sequence=4, sharding="full")
    held = training_bytes(policy, TrainingSettings(layout=layout, logits="whole"), sequence_tokens=34 * 1024)
    assert 30 * GIB < held.peak_bytes < room_bytes(64 * GIB)


def test_llama_8b_runs_out_of_memory_beyond_32k_tokens_with_whole_logits_and_no_ranks_of_a_sequence() -> None:
    """Bekman et al. 2025, arXiv 2506.13996, abstract: sequences over 32K run out of memory on H100 of 80 GB.

    Their remedies include logits in tiles and Ulysses, with which the same devices train on far longer rows.
    """
    policy = shape(resolve(LLAMA_8B, cache=Path("none")), "tokens")
    eight = Layout(data=8, sharding="full")
    room = room_bytes(group_of("1x8xh100", 8).of.memory_bytes)
    naive = TrainingSettings(layout=eight, logits="naive")
    assert training_bytes(policy, naive, sequence_tokens=65_536).peak_bytes > room
    chunked = replace(naive, logits="chunked", layout=Layout(sequence=8, sharding="full"))
    assert training_bytes(policy, chunked, sequence_tokens=524_288).peak_bytes < room


@pytest.mark.parametrize(("tokens", "tensor", "context"), [(131_072, 2, 4), (262_144, 4, 4), (524_288, 4, 8)])
def test_llama_3_8b_trains_in_the_layouts_of_context_parallelism_that_are_published(
    tokens: int, tensor: int, context: int
) -> None:
    """NVIDIA NeMo, performance of long sequences: Llama 3 8B on B200, and 1,024K tokens only with a context degree.

    Without one, tensor ranks are at most the 8 groups of queries, with all activations computed again.
    """
    policy = shape(resolve(LLAMA_8B, cache=Path("none")), "tokens")
    room = room_bytes(group_of("1x8xb200", 8).of.memory_bytes)
    layout = Layout(data=4, tensor=tensor, sequence=context, sharding="optimizer")
    held = training_bytes(policy, TrainingSettings(layout=layout, logits="whole"), sequence_tokens=tokens)
    assert held.peak_bytes <= room
    alone = TrainingSettings(layout=Layout(tensor=8, data=8, sharding="optimizer"), logits="whole")
    assert training_bytes(policy, alone, sequence_tokens=1_048_576).peak_bytes > room


def test_a_plan_says_where_it_fits_only_with_logits_in_chunks() -> None:
    long, short = find(long_problem(QWEN_8B, "1x8xh100", 65_536)), find(long_problem(QWEN_8B, "1x8xh100", 1000))
    assert relied_on(short.problem, short.best.plan()) == {}
    relied = relied_on(long.problem, long.best.plan())
    assert relied["policy.train"] > 20 * GIB
    text = search_report(long, long.best.plan())
    assert "logits are chunked by a fused loss: whole logits do not fit, policy.train takes " in text
    assert "in chunks" not in search_report(short, short.best.plan())
    assert max(map(len, text.splitlines())) <= 100
