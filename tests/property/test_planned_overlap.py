"""Every overlap that the planner writes runs as it is written, and is as late as was asked for at most.

For random flows whose weights may lag and random clusters of CPUs. An overlap that the flow does not allow is refused
with changes, each of which is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowgraph import Flow, Graph, Loss, flow, stale
from flowgraph.app.planning.overlap import with_overlap
from flowgraph.cluster.plan import Plan
from flowgraph.errors import PlanError, ResourceError
from flowgraph.lowering.lower import lower
from flowgraph.lowering.task_names import task_kind, task_names
from flowgraph.passes.verify import verified
from nodes import (
    Policy,
    Prompts,
    Reference,
    clipped,
    generate,
    group_normalize,
    importance_weights,
    kl_k3,
    logprobs,
    policy_gradient,
    score,
    update,
)
from nodes.mismatch import watch_engines
from placements.search.plan_request import PlanRequest
from placements.search.search import SearchResult, find
from placements.workload.planning_problem import PlanningProblem
from tests.unit.placements.small_problems import graph_of, problem_of

LATEST = (1, 2, 3, 5)
CLUSTERS = ("1xcpu-4GiB", "2xcpu-4GiB", "3xcpu-6GiB", "4xcpu-8GiB")


def with_a_reference(at_most: int) -> Flow[..., Policy]:
    """Return a flow with a frozen model that reads rows."""

    @flow
    def referred(prompts: Prompts, policy: Policy, ref: Reference) -> Policy:
        rollout = generate(stale(policy, at_most=at_most), prompts, n=2)
        advantages, far = group_normalize(score(rollout), rollout.group), logprobs(ref, rollout)

        def loss(pi: Policy) -> Loss:
            new = logprobs(pi, rollout)
            return clipped(new, advantages, rollout.mask, old=rollout.logprobs) + kl_k3(new, rollout.mask, ref=far)

        return update(policy, loss)

    return referred


def corrected(at_most: int) -> Flow[..., Policy]:
    """Return a flow that reads its rows with the newest weights before it trains."""

    @flow
    def decoupled(prompts: Prompts, policy: Policy) -> Policy:
        rollout = generate(stale(policy, at_most=at_most), prompts, n=2)
        advantages, proximal = group_normalize(score(rollout), rollout.group), logprobs(policy, rollout)
        weights = importance_weights(proximal, rollout.mask, behaviour=rollout.logprobs, cap=2.0)

        def loss(pi: Policy) -> Loss:
            return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=proximal, weights=weights)

        return update(policy, loss)

    return decoupled


def updated_twice(at_most: int) -> Flow[..., Policy]:
    """Return a flow with two updates in a step, so that a step ahead is two updates."""

    @flow
    def twice(prompts: Prompts, policy: Policy) -> Policy:
        rollout = generate(stale(policy, at_most=at_most, corrected=False), prompts, n=2)
        advantages = group_normalize(score(rollout), rollout.group)

        def loss(pi: Policy) -> Loss:
            return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

        return update(update(policy, loss), loss)

    return twice


FLOWS = (with_a_reference, corrected, updated_twice)


@cache
def of(flow: int, at_most: int) -> Flow[..., Policy]:
    """Return one of the flows, described once."""
    return FLOWS[flow](at_most)


@cache
def planned(
    flow: int, at_most: int, cluster: str, staleness: int, *, placement: str, ratio: str
) -> SearchResult | None:
    """Return what a search finds as the command line asks it, as `plan --staleness` does; None if nothing fits."""
    problem = problem_of(of(flow, at_most), cluster, model="tiny", prompts=4, prompt_tokens="16", response="8")
    shares = tuple(map(int, ratio.split(":"))) if ratio else None
    problem = replace(problem, ratio=None if shares is None else (shares[0], shares[1]), watched=watched(problem))
    try:
        request = PlanRequest.read(problem, placement=placement, staleness=str(staleness))
        return find(replace(problem, staleness=staleness), request)
    except (ResourceError, PlanError):
        return None


def watched(problem: PlanningProblem) -> Graph:
    """Return the graph that runs if one engine samples what another trains."""
    return watch_engines(problem.graph, ["policy"])


asked = st.fixed_dictionaries(
    {
        "flow": st.sampled_from(range(len(FLOWS))),
        "at_most": st.sampled_from(LATEST),
        "cluster": st.sampled_from(CLUSTERS),
        "placement": st.sampled_from(("", "split", "standalone")),
        "ratio": st.sampled_from(("", "1:1", "2:1")),
    }
)


def plans_of(search: SearchResult | None) -> Iterator[Plan]:
    """Yield the plans of a search, also those that are not the best."""
    for ranked in search.ranked[:4] if search is not None else ():
        try:
            yield ranked.plan()
        except ResourceError:
            continue


@given(asked, st.data())
def test_every_plan_with_a_lag_or_a_ratio_lowers_as_written_within_its_bound(
    options: dict[str, object], data: st.DataObject
) -> None:
    at_most = int(str(options["at_most"]))
    staleness = data.draw(st.integers(0, at_most))
    search = planned(**{**options, "staleness": staleness})  # type: ignore[arg-type]
    graph = graph_of(of(int(str(options["flow"])), at_most))
    for plan in plans_of(search):
        with verified():
            program = lower(graph, plan, watch=watch_engines)
        assert plan.step is not None
        lags = {placed.role: (placed.lag, placed.ahead) for placed in plan.placed}
        assert max(lag for lag, _ in lags.values()) <= staleness
        if program.pipeline is None:
            assert all(ahead == 0 for _, ahead in lags.values())
            continue
        assert [copy.bound for copy in program.pipeline.copies] == [lags["policy.sample"][0]]
        assert program.pipeline.depth == lags["policy.sample"][1]
        tasks = [turn.task for turn in program.pipeline.kernel]
        assert [task.name for task in plan.step.tasks] == list(task_names(tasks))
        assert [task.kind for task in plan.step.tasks] == [task_kind(task, program.graph) for task in tasks]
        (sync,) = (task for task in plan.step.tasks if task.kind == "sync")
        assert sync.every == program.pipeline.copies[0].sync_every


def test_steps_of_two_pools_overlap_wherever_the_flow_lets_them() -> None:
    """So that the property above is of something."""
    for flow_ in range(len(FLOWS)):
        search = planned(flow_, 5, "2xcpu-4GiB", 4, placement="split", ratio="")
        assert search is not None
        ahead = {home.role.name: home.ahead for home in search.best.homes}
        assert ahead["policy.sample"] and not ahead["policy.train"], search.best.homes


@given(st.sampled_from(range(len(FLOWS))), st.sampled_from(LATEST), st.integers(0, 4), st.integers(1, 4))
def test_an_overlap_beyond_the_bound_is_refused_with_changes_that_are_allowed(
    flow_: int, at_most: int, depth: int, every: int
) -> None:
    graph = graph_of(of(flow_, at_most))
    search = planned(flow_, at_most, "2xcpu-4GiB", 0, placement="split", ratio="")
    assert search is not None
    plan, updates = search.best.plan(), 2 if FLOWS[flow_] is updated_twice else 1
    bound = updates * (depth + every - 1)
    if bound <= at_most:
        program = lower(graph, with_overlap(plan, graph, depth, every), watch=watch_engines)
        assert program.pipeline is None if not depth else [copy.bound for copy in program.pipeline.copies] == [bound]  # type: ignore[union-attr]
        return
    with pytest.raises(PlanError) as refused:
        lower(graph, with_overlap(plan, graph, depth, every), watch=watch_engines)
    assert f"policy.sample: lag={bound}" in str(refused.value)
    if depth:
        assert f"at_most={bound}" in refused.value.hint
    for other in re.finditer(r"--depth (\d+)(?: --sync-every (\d+))?", refused.value.hint):
        changed = with_overlap(plan, graph, int(other[1]), int(other[2] or 1))
        lower(graph, changed, watch=watch_engines)
