"""One change of a problem, as a user writes it for `--what-if`: lengths, batch, network, staleness, devices, ..."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import get_args

from flowgraph.cluster.cluster import Cluster, amount_bytes_per_s
from flowgraph.cluster.plan import Precision
from flowgraph.errors import SettingError, UnknownNameError
from placements.workload.lengths import LengthDistribution
from placements.workload.planning_problem import PlanningProblem

WHERE = "--what-if"
DEVICES = "devices"
LENGTHS = ("length", "prompt")  # changes that have quantities


def changed(problem: PlanningProblem, text: str, clusters: Callable[[str], Cluster] | None = None) -> PlanningProblem:
    """Return a copy of a problem with one change, given as text such as `batch=1024`.

    The changes are `length.QUANTITY=N` and `prompt.QUANTITY=N` in tokens (mean by default, sigma, max, or a percentile
    such as p50), `batch=N` prompts, `network=400Gbps` of each whole machine to others, `staleness=N` updates,
    `ratio=G:T` of rollout to training devices, `precision=fp8` of the weights that generate, and `devices=4x8xh200` if
    `clusters` is given to read the cluster. Raises UnknownNameError for an unknown change or precision, and for a
    quantity of anything but lengths; SettingError for a missing or invalid value or quantity. Lets errors of `clusters`
    through.
    """
    name, equals, value = text.partition("=")
    head, _, quantity = name.partition(".")
    names = [*_CHANGES, *([DEVICES] if clusters is not None else [])]
    if head not in names or (name != head and head not in LENGTHS):
        raise UnknownNameError.of("change", name, names, f"{WHERE} {text}")
    if not equals:
        raise SettingError.refused(WHERE, name, "", "has no value: write it as in batch=1024")
    if clusters is not None and head == DEVICES:
        return replace(problem, cluster=clusters(value))
    return _CHANGES[head](problem, quantity, value)


def _length(problem: PlanningProblem, quantity: str, value: str) -> PlanningProblem:
    response = problem.response or LengthDistribution.fixed(max(load.response.most for load in problem.loads))
    return replace(problem, response=response.with_changes({quantity or "mean": value}))


def _staleness(problem: PlanningProblem, value: str) -> PlanningProblem:
    staleness, bound = _whole_number("staleness", value, 0), problem.staleness_bound
    if bound and staleness > bound:
        why = f"{problem.graph.name} corrects for {bound} at most: stale(…, at_most={bound})"
        raise SettingError.refused(WHERE, "staleness", staleness, why)
    return replace(problem, staleness=staleness)


def _network(problem: PlanningProblem, value: str) -> PlanningProblem:
    try:
        rate = float(amount_bytes_per_s(value))
    except ValueError as error:
        raise SettingError.refused(WHERE, "network", value, str(error)) from None
    nodes = tuple(node.model_copy(update={"network_bytes_per_s": rate}) for node in problem.cluster.nodes)
    return replace(problem, cluster=problem.cluster.model_copy(update={"nodes": nodes}))


def _ratio(problem: PlanningProblem, value: str) -> PlanningProblem:
    rollout, colon, training = value.partition(":")
    if not colon:
        raise SettingError.refused(WHERE, "ratio", value, "should be two whole numbers, as in 3:1")
    return replace(problem, ratio=(_whole_number("ratio", rollout, 1), _whole_number("ratio", training, 1)))


def _precision(problem: PlanningProblem, value: str) -> PlanningProblem:
    precisions: tuple[Precision, ...] = get_args(Precision)
    precision = next((precision for precision in precisions if precision == value), None)
    if precision is None:
        raise UnknownNameError.of("precision", value, precisions, WHERE)
    return replace(problem, sampling=precision)


def _whole_number(name: str, text: str, minimum: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text) >= minimum):
        raise SettingError.refused(WHERE, name, text, f"should be a whole number from {minimum}")
    return int(text)


_CHANGES: Mapping[str, Callable[[PlanningProblem, str, str], PlanningProblem]] = {
    "length": _length,
    "prompt": lambda old, quantity, value: replace(old, prompt=old.prompt.with_changes({quantity or "mean": value})),
    "batch": lambda old, _, value: replace(old, prompts=_whole_number("batch", value, 1)),
    "network": lambda old, _, value: _network(old, value),
    "staleness": lambda old, _, value: _staleness(old, value),
    "ratio": lambda old, _, value: _ratio(old, value),
    "precision": lambda old, _, value: _precision(old, value),
}
