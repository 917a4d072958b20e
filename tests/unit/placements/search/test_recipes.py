"""The fewest devices that verl publishes for a model: each has a plan that fits, by the search itself.

Source: verl, docs/perf/device_tuning.rst (2025-06) and docs/perf/dpsk.md (2025-08). No lengths are published there:
512 tokens of a prompt and 1,536 of a response.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from flowgraph.analysis.roles import Use
from flowgraph.cluster.cluster import Cluster
from flowgraph.cluster.plan import Layout
from placements.search.search import find
from placements.workload.lengths import LengthDistribution
from placements.workload.planning_problem import PlanningProblem
from tests.looped import looped
from tests.unit.placements.small_problems import problem_of

FSDP: Mapping[Use, str] = {}
MEGATRON: Mapping[Use, str] = {"train": "megatron", "infer": "megatron"}
HOST_BYTES = int(1.6e12)  # of each machine: what verl says that its largest recipes take


def recipe(model: str, cluster: str, engines: Mapping[Use, str]) -> PlanningProblem:
    """Return GRPO of a model on machines with 1.6 TB of host memory."""
    problem = problem_of("grpo", cluster, model=model)
    nodes = tuple(node.model_copy(update={"host_memory_bytes": HOST_BYTES}) for node in problem.cluster.nodes)
    return replace(
        problem, cluster=Cluster(nodes=nodes), engines=engines, prompts=256, response=LengthDistribution.fixed(1536)
    )


@pytest.mark.slow(group="planner")
@looped(
    "model, cluster, engines",
    [
        ("Qwen/Qwen2.5-7B", "1x2xh800", FSDP),
        ("Qwen/Qwen2.5-14B", "1x4xh800", FSDP),
        ("Qwen/Qwen2.5-32B", "1x8xh20", MEGATRON),
        ("Qwen/Qwen2.5-72B", "4x8xh20", FSDP),
        ("Qwen/Qwen2.5-72B", "4x8xh800", FSDP),
        ("Qwen/Qwen3-235B-A22B", "4x8xh20", MEGATRON),
        ("deepseek-ai/DeepSeek-V3", "12x8xh20", MEGATRON),
    ],
)
def test_a_published_recipe_fits(model: str, cluster: str, engines: Mapping[Use, str]) -> None:
    find(recipe(model, cluster, engines))


@pytest.mark.slow(group="planner")
def test_deepseek_v3_is_trained_as_published_with_an_optimizer_on_the_host() -> None:
    """Published: tensor 8, pipeline 12 (five layers in a stage, six in the last), 66 GB on each of 96 devices."""
    plan = find(recipe("deepseek-ai/DeepSeek-V3", "12x8xh20", MEGATRON)).best.plan()
    home = next(each for each in plan.placed if each.role == "policy.train")
    assert home.running.offload == ("optimizer",)
    assert home.layout == Layout(data=1, tensor=8, pipeline=12)
    update = next(peak for each in plan.forecast for peak in each.peaks if peak.phase == "update")
    assert 0.9 < update.memory_bytes / 66e9 < 1.25
