"""Planning problems of small models on few devices, each of which a search is done with in a fraction of a second."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from flowgraph import Flow, Graph, Loss, flow, stale
from flowgraph.cluster.cluster import Cluster
from flowgraph.cluster.short_form import read_cluster
from flowgraph.cluster.this_machine import laptop
from flowgraph.files.shipped import flows_folder
from flowgraph.models import ModelShape
from flowgraph.models.sizes import shape
from flowgraph.models.sources import resolve
from flowgraph.passes import compile_graph
from flowgraph.runtime.hosting import heads_of
from nodes import Policy, Prompts, Reference, clipped, generate, group_normalize, kl_k3, logprobs, score, update
from placements.hardware.device_profiles import known_devices
from placements.hardware.topology import classes
from placements.search.search import SearchResult, find
from placements.step.role_costs import DeviceGroup
from placements.workload.lengths import LengthDistribution
from placements.workload.planning_problem import PlanningProblem

Of = str | Flow[..., Any]
"""A flow, or the name of a shipped one."""

SMALL = "Qwen/Qwen3-0.6B"
SHIPPED = tuple(sorted(path.stem for path in flows_folder().glob("*.py") if path.stem != "__init__"))


@flow
def lagging(prompts: Prompts, policy: Policy, ref: Reference) -> Policy:
    """Describe GRPO whose responses may be drawn by weights one update old."""
    rollout = generate(stale(policy, at_most=1), prompts, n=8)
    advantages, ref_logprobs = group_normalize(score(rollout), rollout.group), logprobs(ref, rollout)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        surrogate = clipped(new, advantages, rollout.mask, old=rollout.logprobs)
        return surrogate + 0.1 * kl_k3(new, rollout.mask, ref=ref_logprobs)

    return update(policy, loss)


@flow
def prompt(prompts: Prompts, policy: Policy, ref: Reference) -> Policy:
    """Describe the same with responses of the newest weights."""
    rollout = generate(policy, prompts, n=8)
    advantages, ref_logprobs = group_normalize(score(rollout), rollout.group), logprobs(ref, rollout)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        surrogate = clipped(new, advantages, rollout.mask, old=rollout.logprobs)
        return surrogate + 0.1 * kl_k3(new, rollout.mask, ref=ref_logprobs)

    return update(policy, loss)


def called(of: Of) -> str:
    """Return the name of a flow."""
    return of if isinstance(of, str) else of.name


@cache
def graph_of(of: Of) -> Graph:
    """Return the graph of a flow, or of the shipped flow of this name."""
    described: Flow[..., Any] = getattr(import_module(f"examples.{of}"), of) if isinstance(of, str) else of
    return compile_graph(described.graph())


@cache
def cluster_of(text: str) -> Cluster:
    """Read a cluster of known devices: `2x8xh100`."""
    return read_cluster(text, laptop, known_devices())


@cache
def shapes_of(graph: Graph, model: str) -> dict[str, ModelShape]:
    """Return the sizes of a graph's models, all of them the same model of the table."""
    source, heads = resolve(model, cache=Path("none")), heads_of(graph)
    return {name: shape(source, head) for name, head in heads.items()}


@cache
def problem_of(
    of: Of,
    cluster: str = "1x8xh100",
    *,
    model: str = SMALL,
    prompts: int = 64,
    prompt_tokens: str = "512",
    response: str | None = "mean=1k,max=4k",
) -> PlanningProblem:
    """Return the planning problem of a flow, as a command line would."""
    graph = graph_of(of)
    return PlanningProblem(
        graph=graph,
        cluster=cluster_of(cluster),
        shapes=shapes_of(graph, model),
        prompts=prompts,
        prompt=LengthDistribution.parse(prompt_tokens),
        response=None if response is None else LengthDistribution.parse(response),
    )


@cache
def found_of(of: Of, cluster: str = "1x8xh100", **parts: Any) -> SearchResult:
    """Return what is found for a problem, searched once for all tests of a process."""
    return find(problem_of(of, cluster, **parts))


def group_of(cluster: str, devices: int) -> DeviceGroup:
    """Return so many devices of the only class of a cluster."""
    (of,) = classes(cluster_of(cluster))
    links = of.links(devices)
    assert links is not None
    return DeviceGroup(of, devices, links)
