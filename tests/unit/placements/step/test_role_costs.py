"""What a load takes in a step of RL: a share of the rates of an engine, rows of several steps side by side."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flowgraph.cluster.plan import Layout, RoleSettings
from placements.hardware.engine_constants import host_constants
from placements.step.role_costs import passing_seconds, sampling_seconds
from placements.time.seconds import Seconds
from placements.time.training import forward_seconds, update_seconds
from placements.workload.node_workload import NodeWorkload
from placements.workload.planning_problem import PlanningProblem
from tests.unit.placements.small_problems import group_of, lagging, problem_of

LAYOUT = Layout(data=8, sharding="full")
EXPERTS, MICRO = "Qwen/Qwen3-30B-A3B", 512  # few tokens, so that a device waits for launches


def load_of(problem: PlanningProblem, name: str) -> NodeWorkload:
    """Return the load of a node."""
    return next(load for load in problem.loads if load.node == name)


def parts_of(found: Seconds) -> dict[str, float]:
    """Return the parts that are known."""
    return {name: value for name, value in found.parts.items() if value is not None}


def bare(problem: PlanningProblem, load: NodeWorkload, micro: int) -> Seconds:
    """Return the seconds of a pass at all that its engine attains."""
    group, constants = group_of("1x8xh100", 8), problem.training_of("fsdp")
    given = problem.shape(load.role), load.tokens_in(micro), LAYOUT, group.links, constants
    if load.phase == "update":
        return update_seconds(
            *given, micro_batch_tokens=micro, checkpointing="full", logits=RoleSettings().logits, steps=load.steps
        )
    return forward_seconds(*given, micro_batch_tokens=micro)


@pytest.mark.parametrize(("node", "share"), [("ref.logprobs", "forward_share"), ("policy.update", "update_share")])
@pytest.mark.parametrize("model", [EXPERTS, "Qwen/Qwen3-8B"])
def test_a_pass_has_a_share_of_the_rates_and_waits_for_launches_as_ever(node: str, share: str, model: str) -> None:
    problem = problem_of("grpo", model=model)
    load, attained = load_of(problem, node), getattr(host_constants(), share)
    assert attained < 1.0
    running = RoleSettings(checkpointing="full", micro_batch_tokens=MICRO)
    told = parts_of(passing_seconds(problem, group_of("1x8xh100", 8), "fsdp", LAYOUT, running, load))
    expected = {
        name: seconds if name == "launch" else seconds / attained
        for name, seconds in parts_of(bare(problem, load, MICRO)).items()
    }
    assert told == pytest.approx({"launch": 0.0} | expected)


def test_devices_wait_for_launches_in_the_test_above() -> None:
    """Else it would say nothing of them."""
    problem = problem_of("grpo", model=EXPERTS)
    assert parts_of(bare(problem, load_of(problem, "ref.logprobs"), MICRO))["launch"] > 0.0


def test_rates_of_a_cpu_are_those_of_steps_already() -> None:
    host = problem_of("grpo", "1x4xcpu-400GiB").host
    assert (host.forward_share, host.update_share, host.slowed_share) == (1.0, 1.0, 1.0)
    moved = problem_of("grpo").host
    assert (moved.forward_share, moved.update_share) == (host_constants().forward_share, host_constants().update_share)


def sampled_s(problem: PlanningProblem) -> float:
    """Return the seconds of drawing on one device with a cache that holds all rows."""
    load, running = load_of(problem, "policy.generate"), RoleSettings(precision="bfloat16", cache_share=0.9)
    found = sampling_seconds(problem, group_of("1x4xh100", 4), "sglang", Layout(data=4), running, load)
    assert found is not None and found.total_s is not None
    return found.total_s


def test_streamed_rows_of_the_steps_ahead_are_drawn_side_by_side() -> None:
    """Few rows: a step of the engine reads all weights for them, so more at a time take fewer steps."""
    problem = replace(problem_of(lagging, "1x4xh100", prompts=4), staleness=2)
    streamed = replace(problem, contract="ready")
    one = replace(streamed, staleness=1)
    assert sampled_s(streamed) < 0.8 * sampled_s(one)


def test_rows_that_wait_for_the_step_before_run_alone_however_late_weights_may_be() -> None:
    problem = problem_of(lagging, "1x4xh100", prompts=4)
    assert sampled_s(replace(problem, staleness=2)) == sampled_s(replace(problem, staleness=1))
