"""One planner: a plan that is found fits as it is forecast again, lowers, and names nothing that cannot run here.

On random flows, models, batches and clusters, and on the shipped flows on twelve clusters.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from flowgraph import Graph
from flowgraph.analysis.roles import roles
from flowgraph.checks.placed import unsupported
from flowgraph.cli.flow_request import FlowRequest
from flowgraph.cli.planning_request import PlanningProblem, PlanRequest, pose
from flowgraph.cluster.plan import Plan
from flowgraph.errors import FlowError, ResourceError
from flowgraph.lowering.lower import lower
from flowgraph.lowering.task_names import task_names
from flowgraph.models.sizes import ModelShape, shape
from flowgraph.models.sources import resolve
from flowgraph.passes import compile_graph
from flowgraph.runtime.hosting import heads_of
from nodes.mismatch import watch_engines
from placements.finding import Asked as Wanted
from placements.finding import find
from placements.lengths import Lengths
from placements.named import VARIANTS
from placements.placing import forecast_again, plan_of
from placements.setting import Setting
from placements.short import overflows
from tests.property.random_flows import flow_of, random_program
from tests.unit.placements.small_settings import SHIPPED, cluster_of

GPUS = ("1xh100", "1x8xh100", "2x8xh100", "4x8xa100-40g", "1x8xh20", "1x4xl40s", "1xgpu-80GiB", "2x8xgpu-40GiB")
CPUS = ("1xcpu-8GiB", "2xcpu-8GiB", "4xcpu-4GiB", "8xcpu-4GiB")
MODELS = ("Qwen/Qwen3-0.6B", "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen3-30B-A3B")


def refuse_nothing(setting: Setting, plan: Plan) -> None:
    """Assert all that is promised of a plan that a search gives."""
    again = forecast_again(setting, plan)
    assert (again.forecast, again.step) == (plan.forecast, plan.step), "what is run is forecast otherwise"
    assert list(overflows(plan, setting, "here")) == []
    assert unsupported(plan) == []
    program = lower(setting.graph, plan, watch=watch_engines)
    assert plan.step is not None
    assert [each.name for each in plan.step.tasks] == list(task_names(program.tasks))


@pytest.mark.parametrize("cluster", [*CPUS, *GPUS])
def test_the_default_plan_of_every_shipped_flow_runs_as_written(cluster: str) -> None:
    for flow in SHIPPED:
        on_gpus = cluster in GPUS
        asked = FlowRequest(flow, models=(MODELS[0],) if on_gpus else ())
        posed: PlanningProblem = pose(PlanRequest(asked, cluster, "512" if on_gpus else None))
        found = find(posed.setting)
        plan = plan_of(posed.setting, found.best.blocks, posed.assumed)
        refuse_nothing(posed.setting, plan)
        assert Plan.from_json(plan.to_json()) == plan


@cache
def sizes(model: str, head: str) -> ModelShape:
    """Return the sizes of a model of the table with a head."""
    return shape(resolve(model, cache=Path("none")), head)  # type: ignore[arg-type]


@cache
def random_graph(seed: int) -> Graph:
    """Return the graph of a random flow."""
    return compile_graph(flow_of(random_program(seed, runs=True)).graph())


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
        graph = random_graph(seed)
    except FlowError:
        assume(False)
        return
    heads = heads_of(graph)
    model = "tiny" if cluster in CPUS else model
    setting = Setting(
        graph=graph,
        cluster=cluster_of(cluster),
        shapes={name: sizes(model, head) for name, head in heads.items()},
        prompts=prompts,
        prompt=Lengths.fixed(8 if cluster in CPUS else tokens),
        response=Lengths.fixed(tokens if cluster in GPUS else 8),
    )
    assume(setting.roles)
    trained = [role.param for role in roles(graph) if role.use == "train"]
    setting = replace(setting, watched=watch_engines(graph, trained)) if trained and cluster != CPUS[0] else setting
    try:
        found = find(setting, Wanted(placement=placement))
    except ResourceError:
        event("nothing fits")
        return
    event("fits")
    for ranked in found.ranked[:3]:
        refuse_nothing(setting, ranked.plan())
