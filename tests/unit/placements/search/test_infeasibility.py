"""Where nothing fits: the role, its bytes, what there is, and changes after which a plan does fit."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowgraph.cluster.cluster import Cluster
from flowgraph.errors import ResourceError
from placements.memory.footprint import FITS_SHARE
from placements.search.infeasibility import SmallestOption, larger_problems, smallest_option
from placements.search.memory_reductions import fewest, with_machines
from placements.search.plan_request import PlanRequest
from placements.search.search import find
from placements.workload.lengths import LengthDistribution
from placements.workload.planning_problem import PlanningProblem
from tests.examples.flows.parts import attempts
from tests.flows.ppo_shaped import ppo_shaped
from tests.looped import looped
from tests.unit.placements.small_problems import Of, cluster_of, problem_of


def refusal(problem: PlanningProblem, asked: PlanRequest | None = None) -> str:
    """Return the text of what is said when nothing fits."""
    with pytest.raises(ResourceError) as caught:
        find(problem, asked)
    return str(caught.value)


def test_a_model_that_no_device_holds_is_told_by_role_bytes_and_parts() -> None:
    """GRPO of an 8B model on one H100: 16 bytes a parameter are 122 GiB, and what little is left of the host is short.

    Two machines of one have the host memory of two, in which the optimizer lies.
    """
    text = refusal(problem_of("grpo", "1x1xh100", model="Qwen/Qwen3-8B"))
    first, layout, parts, hint = text.splitlines()
    assert first.startswith("no placement for grpo on 1 h100-sxm-80g: policy.train needs ")
    assert re.search(
        r"needs 1[0-9]{2}\.[0-9] GiB on its device, [0-9.]+ GiB more than the 71\.6 GiB that a plan may use$", first
    )
    assert layout.startswith("    data=1 tensor=1 sharding=full bfloat16 ")
    assert re.match(r"    weights 30\.5 GiB · gradients 30\.5 GiB · optimizer 91\.5 GiB · ", parts)
    assert hint == "  hint: smallest changes that fit: 2 h100-sxm-80g · 159.2 GiB of host memory"


def test_what_draws_is_named_where_its_weights_are_what_is_short() -> None:
    """A frozen flow only draws: 32 billion weights of two bytes on one L4."""
    text = refusal(problem_of(attempts, "1x1xl4", model="Qwen/Qwen3-32B"))
    assert "policy.sample needs " in text
    assert re.search(r"    weights 6[0-9]\.[0-9] GiB · ", text)
    assert "kv_cache" in text or "KV" in text


def test_a_response_that_no_cache_holds_asks_for_shorter_ones() -> None:
    text = refusal(replace(problem_of("grpo"), response=LengthDistribution.fixed(8_000_000)))
    assert "policy.train needs " in text
    assert "responses of at most 2,000,000 tokens" in text


def test_roles_that_fit_alone_and_not_together_are_each_told() -> None:
    """Five pools on four devices."""
    text = refusal(problem_of(ppo_shaped, "1x4xh100"), PlanRequest(placement="standalone"))
    first, alone, hint = text.splitlines()
    assert first == (
        "no placement for ppo_shaped on 4 h100-sxm-80g: each role fits alone, but not all of them together"
    )
    assert alone.count(" GiB on ") == 5
    assert hint == "  hint: smallest changes that fit: 8 h100-sxm-80g"


def test_what_nothing_helps_says_so() -> None:
    """671 billion parameters of two bytes are 1.3 TB; 32 machines of one A10 have 0.8 TB, and no domain to draw in."""
    text = refusal(problem_of("grpo", "1x1xa10", model="deepseek-ai/DeepSeek-V3"))
    assert text.endswith("  hint: no larger cluster of these machines, no larger batch and no shorter responses fit")


def test_a_host_without_room_for_what_is_offloaded_is_no_way_to_fit() -> None:
    problem = problem_of("grpo", "1x1xh100", model="Qwen/Qwen3-8B")
    role = next(each for each in problem.roles if each.name == "policy.train")
    found = smallest_option(problem, role)
    assert isinstance(found, SmallestOption)
    assert found.running.offload == ()
    assert found.over_bytes == found.footprint.peak_bytes - int(FITS_SHARE * found.group.of.memory_bytes) > 0
    nodes = tuple(each.model_copy(update={"host_memory_bytes": 2**40}) for each in problem.cluster.nodes)
    roomy = replace(problem, cluster=problem.cluster.model_copy(update={"nodes": nodes}))
    there = smallest_option(roomy, role)
    assert isinstance(there, SmallestOption)
    assert "optimizer" in there.running.offload
    assert there.over_bytes < 0


def test_devices_of_no_profile_are_planned_for_with_nominal_seconds() -> None:
    problem = problem_of("grpo", "1x8xgpu-80GiB")
    assert all(isinstance(smallest_option(problem, role), SmallestOption) for role in problem.roles)
    assert find(problem).best.step_s > 0


def test_an_engine_that_does_not_run_on_such_devices_is_named() -> None:
    problem = replace(problem_of("grpo", "1x4xcpu"), engines={"train": "megatron"})
    role = next(each for each in problem.roles if each.use == "train")
    assert smallest_option(problem, role) == role
    text = refusal(problem)
    assert text.startswith("no placement for grpo on 4 cpu: no engine runs policy.train on any number of its devices\n")
    assert text.endswith("hint: `megatron` runs on gpu: leave out --engine train=megatron")


SHORT: list[tuple[Of, str, str, PlanRequest]] = [
    ("grpo", "1x1xh100", "Qwen/Qwen3-8B", PlanRequest()),
    ("grpo", "1x8xh100", "Qwen/Qwen3-235B-A22B", PlanRequest()),
    ("ppo", "1x2xl4", "Qwen/Qwen3-8B", PlanRequest()),
    (ppo_shaped, "1x4xh100", "Qwen/Qwen3-0.6B", PlanRequest(placement="standalone")),
]


@pytest.mark.slow(group="planner")
@looped("of, cluster, model, asked", SHORT[1:3], slow=[SHORT[0], SHORT[3]])
def test_the_change_that_is_named_fits_and_one_machine_fewer_does_not(
    of: Of, cluster: str, model: str, asked: PlanRequest
) -> None:
    problem = problem_of(of, cluster, model=model)
    text = refusal(problem, asked)
    ((wanted, kind),) = re.findall(r"fit: ([0-9,]+) (\S+)(?: · .*)?$", text, re.MULTILINE)
    machines = int(wanted.replace(",", "")) // problem.classes[0].node_devices
    assert kind == problem.classes[0].model
    assert machines > 1
    larger = replace(problem, cluster=with_machines(problem.cluster, machines))
    assert find(larger, asked).best.devices <= int(wanted)
    with pytest.raises(ResourceError):
        find(replace(problem, cluster=with_machines(problem.cluster, machines - 1)), asked)


@given(st.integers(1, 5), st.integers(1, 4))
def test_a_larger_cluster_has_copies_of_its_machines_by_different_names(more: int, machines: int) -> None:
    cluster = cluster_of(f"{machines}x8xh100")
    found = with_machines(cluster, machines + more)
    names = [node.name for node in found.nodes]
    assert len(set(names)) == len(names) == machines + more
    assert found.nodes[:machines] == cluster.nodes
    assert len({node.name for node in with_machines(found, 2 * len(names)).nodes}) == 2 * len(names)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 64))
def test_the_fewest_is_the_first_of_all_that_fit(first: int, least: int, most: int) -> None:
    tried = list[int]()

    def fits(count: int) -> bool:
        tried.append(count)
        return count >= first

    expected = next((count for count in range(least, max(least, most) + 1) if count >= first), None)
    assert fewest(fits, least, max(least, most)) == expected
    assert len(tried) <= 14


def test_changes_get_larger_and_shorten_responses_to_no_less_than_a_token() -> None:
    problem = replace(problem_of("grpo"), response=LengthDistribution.fixed(5))
    kinds = [[text for text, _ in changes] for changes in larger_problems(problem)]
    assert ["responses of at most 2 tokens", "responses of at most 1 tokens"] in kinds


def test_what_offloads_fits_with_more_host_memory_and_the_hint_says_how_much() -> None:
    problem = problem_of("grpo", "1x1xh100", model="Qwen/Qwen3-8B")
    assert re.search(r"159\.2 GiB of host memory", refusal(problem))
    nodes = [
        node.model_copy(update={"host_memory_bytes": 2 * node.host_memory_bytes}) for node in problem.cluster.nodes
    ]
    assert find(replace(problem, cluster=Cluster(nodes=tuple(nodes)))).best.devices == 1


@pytest.mark.slow(group="planner")
def test_a_batch_of_fewer_prompts_than_devices_is_told_to_grow() -> None:
    problem = problem_of("grpo", "8x8xh100", model="Llama-3.1-70B", prompts=1, response="4k")
    (wanted,) = re.findall(r"--batch (\d+)", refusal(problem))
    assert find(replace(problem, prompts=int(wanted))).best.devices <= 64
