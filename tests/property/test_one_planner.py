"""One planner: a plan that is found fits as it is forecast again, lowers, and names nothing that cannot run here.

On random flows, models, batches and clusters, and on the shipped flows on twelve clusters.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from flowgraph.analysis.roles import roles
from flowgraph.app import make_request
from flowgraph.app.planning.problem import PreparedProblem, prepare
from flowgraph.checks.placed import unsupported_parts
from flowgraph.cluster.plan import Plan
from flowgraph.errors import FlowError, ResourceError
from flowgraph.lowering.lower import lower
from flowgraph.lowering.task_names import task_names
from flowgraph.models.sizes import ModelShape, shape
from flowgraph.models.sources import resolve
from flowgraph.runtime.hosting import heads_of
from nodes.mismatch import watch_engines
from placements.search.infeasibility import overflows
from placements.search.named_placements import VARIANTS
from placements.search.plan_builder import forecast_again
from placements.search.plan_request import PlanRequest
from placements.search.search import find
from placements.workload.lengths import LengthDistribution
from placements.workload.planning_problem import PlanningProblem
from tests.looped import looped
from tests.property.random_flows import compiled
from tests.unit.placements.small_problems import SHIPPED, cluster_of

GPUS = ("1xh100", "1x8xh100", "2x8xh100", "4x8xa100-40g", "1x8xh20", "1x4xl40s", "1xgpu-80GiB", "2x8xgpu-40GiB")
CPUS = ("1xcpu-8GiB", "2xcpu-8GiB", "4xcpu-4GiB", "8xcpu-4GiB")
MODELS = ("Qwen/Qwen3-0.6B", "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen3-30B-A3B")


def refuse_nothing(problem: PlanningProblem, plan: Plan) -> None:
    """Assert all that is promised of a plan that a search gives."""
    again = forecast_again(problem, plan)
    assert (again.forecast, again.step) == (plan.forecast, plan.step), "what is run is forecast otherwise"
    assert list(overflows(plan, problem, "here")) == []
    assert unsupported_parts(plan) == []
    program = lower(problem.graph, plan, watch=watch_engines)
    assert plan.step is not None
    assert [each.name for each in plan.step.tasks] == list(task_names(program.tasks))


CLUSTERS = (*CPUS, *GPUS)
# Each flow on two of the clusters for each change, on the others in `make slow`.
FOR_EACH_CHANGE = [(flow, CLUSTERS[(i + half) % 12]) for i, flow in enumerate(SHIPPED) for half in (0, 6)]
OTHERS = [each for each in product(SHIPPED, CLUSTERS) if each not in FOR_EACH_CHANGE]


@looped("flow, cluster", FOR_EACH_CHANGE, slow=OTHERS)
def test_the_default_plan_of_every_shipped_flow_runs_as_written(flow: str, cluster: str) -> None:
    on_gpus = cluster in GPUS
    gpu_values = {"model": MODELS[0], "prompt_tokens": 512} if on_gpus else {}
    posed: PreparedProblem = prepare(make_request(flow=flow, cluster=cluster, **gpu_values))
    found = find(posed.problem)
    plan = found.best.plan(posed.assumed)
    refuse_nothing(posed.problem, plan)
    assert Plan.from_json(plan.to_json()) == plan


@cache
def sizes(model: str, head: str) -> ModelShape:
    """Return the sizes of a model of the table with a head."""
    return shape(resolve(model, cache=Path("none")), head)  # type: ignore[arg-type]


@pytest.mark.slow(group="planner")
@given(
    st.integers(0, 400),
    st.sampled_from((*CPUS, *GPUS)),
    st.sampled_from(MODELS),
    st.sampled_from((1, 3, 8, 64)),
    st.sampled_from((8, 512, 4096)),
    st.sampled_from(("", *(each.name for each in VARIANTS))),
)
def test_any_plan_that_is_found_fits_lowers_and_names_what_runs(
    seed: int, cluster: str, model: str, prompts: int, tokens: int, placement: str
) -> None:
    try:
        graph = compiled(seed, runs=True)
    except FlowError:
        assume(False)
        return
    heads = heads_of(graph)
    model = "tiny" if cluster in CPUS else model
    problem = PlanningProblem(
        graph=graph,
        cluster=cluster_of(cluster),
        shapes={name: sizes(model, head) for name, head in heads.items()},
        prompts=prompts,
        prompt=LengthDistribution.fixed(8 if cluster in CPUS else tokens),
        response=LengthDistribution.fixed(tokens if cluster in GPUS else 8),
    )
    assume(problem.roles)
    trained = [role.param for role in roles(graph) if role.use == "train"]
    problem = replace(problem, watched=watch_engines(graph, trained)) if trained and cluster != CPUS[0] else problem
    try:
        found = find(problem, PlanRequest(placement=placement))
    except ResourceError:
        event("nothing fits")
        return
    event("fits")
    for ranked in found.ranked[:3]:
        refuse_nothing(problem, ranked.plan())
