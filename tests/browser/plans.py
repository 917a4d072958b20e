"""A plan as `flowgraph draw ppo --cluster 2x8xh100` searches it, to be driven in a browser."""

from __future__ import annotations

from functools import cache

from flowgraph.cli.draw_target import DrawTarget, subject_of
from flowgraph.cli.flow_request import FlowRequest
from flowgraph.cli.plan_result import PlanTarget
from flowgraph.cli.planning_request import PlanRequest

CLUSTER = "2x8xh100"


@cache
def planned_on_two_machines() -> DrawTarget:
    """Search the plan; of several pools, so that there is something to filter."""
    question = PlanRequest(FlowRequest("ppo", models=("Qwen/Qwen2.5-7B",)), CLUSTER, "512", "mean=1k,max=4k")
    return subject_of(question, PlanTarget(CLUSTER, placement="split:openrlhf"))
