"""The mismatch of two engines: measures of how far their log-probs differ, and the pass that adds them to a graph.

Corrections for the mismatch are in `correction.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from flowgraph import Metric, Value, node
from flowgraph.errors import LawError
from flowgraph.language import Measure, NodeName
from flowgraph.language.graph import Edge, Graph, Node, carried_from, newest
from flowgraph.language.values import Mask, fields
from nodes.likelihood import logprobs
from nodes.losses.terms import LIMIT, masked, mean_of, row_means
from nodes.values import LanguageModel, LogProbs, Responses

if TYPE_CHECKING:
    from torch import Tensor


class Mismatch(Value):
    """The k3 estimate of KL(behaviour, old), from the sampling engine to the training engine, in nats (float)."""

    dtype = "float64"


MAX_NATS = 0.5
"""Largest mismatch per token that a run accepts: rounding to bfloat16 causes 0.001 nats, another model 1 to 20."""

METRICS = (
    Metric("kl", "nats", about="mean over tokens of behaviour - old, an estimate of KL(behaviour, old)"),
    Metric("k3_kl", "nats", headline=True, about="k3 estimate of the same KL: mean of ratio - 1 - log ratio"),
    Metric("training_ppl", about="mean over rows of the perplexity under old"),
    Metric("rollout_ppl", about="mean over rows of the perplexity under behaviour"),
    Metric("ppl_ratio", about="mean over rows of the ratio of perplexities, old / behaviour"),
    Metric("log_ppl_diff", "nats", about="mean over rows of the difference of log perplexities, old - behaviour"),
    Metric("log_ppl_abs_diff", "nats", about="mean over rows of the absolute difference of log perplexities"),
    Metric("log_ppl_diff_max", "nats", about="largest difference of log perplexities of a row"),
    Metric("chi2_token", about="mean over tokens of ratio² - 1"),
    Metric("chi2_seq", about="mean over rows of (product of ratios)² - 1"),
    Metric("ess", about="effective sample size by the tokens' ratios, as a share of the tokens"),
    Metric("weight_high", about="share of tokens whose ratio is above the threshold"),
    Metric("weight_low", about="share of tokens whose ratio is below 1 / threshold"),
    Metric("untold", about="share of tokens without a log-prob in behaviour; all other metrics leave them out"),
)


@node(separable=False, metrics=METRICS)
def mismatch(
    old: LogProbs,
    mask: Mask,
    *,
    behaviour: LogProbs,
    threshold: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 2.0,
    most: Annotated[float | None, Field(gt=0)] = None,
    name: NodeName = "",
) -> Mismatch:
    """Return, in nats, how far an engine's log-probs `old` are from those of the engine that sampled, `behaviour`.

    With l = old - behaviour [B, T] under the mask, the ratio of a token is e^l, with l clamped to ±20; the product over
    a row is e^(sum of l), with the sum clamped to ±20. kl = mean(-l), k3_kl = mean(e^l - 1 - l), chi2 = mean(ratio²) -
    1, ess = mean(e^l)² / mean(e^2l). The perplexity of a row is e^-(mean of its log-probs). Tokens without a log-prob
    in `behaviour` are left out, and means over rows leave out rows without a token. The result is k3_kl, in float64, or
    NaN without tokens. `threshold` is the bound of the metrics weight_high and weight_low. Raises LawError if the
    result is above `most` nats, which means that the sampling engine has other weights; None turns this check off.
    Source: Liu, Li et al. 2025, "When Speed Kills Stability", and verl's notes on rollout correction; k3: Schulman
    2020, "Approximating KL divergence". Deviation: l is clamped to ±20 in k3_kl too; rows without a token are left out.

    >>> import torch
    >>> old, mask = LogProbs(torch.tensor([[-1.0, -2.0]])), Mask(torch.tensor([[1.0, 1.0]]))
    >>> mismatch(old, mask, behaviour=old).data
    0.0
    """
    import torch

    trained, sampled = old.data.detach().double(), behaviour.data
    if sampled is None or sampled.shape != trained.shape:
        sampled = torch.full_like(trained, torch.nan)
    sampled = sampled.double()
    counted = Mask((mask.data != 0).double() * sampled.isfinite())
    ratio = masked(trained - sampled, counted)
    clamped, tokens = ratio.clamp(-LIMIT, LIMIT), float(counted.data.sum())
    weights, k3 = clamped.exp(), mean_of("k3_kl", clamped.expm1() - clamped, counted)
    weight, squared = mean_of("weight", weights, counted).total, mean_of("squared", weights**2, counted).total
    measures = [
        mean_of("kl", -ratio, counted),
        k3,
        Measure("chi2_token", squared - tokens, tokens),
        Measure("ess", weight**2 / (squared * tokens) if tokens else 0.0, float(tokens > 0)),
        mean_of("weight_high", (weights > threshold).double(), counted),
        mean_of("weight_low", (weights < 1 / threshold).double(), counted),
        Measure("untold", float(mask.data.sum()) - tokens, float(mask.data.sum())),
    ]
    rows = counted.data.sum(1) > 0
    by_old, by_behaviour = (row_means(logprobs_, counted)[rows] for logprobs_ in (trained, sampled))
    products = ratio.sum(1)[rows].clamp(-LIMIT, LIMIT)
    nats = k3.total / tokens if tokens else float("nan")
    if most is not None and nats > most:
        what = f"the engine that samples and the one that trains differ by {nats:.3g} nats in the log-probs of tokens"
        raise LawError(what, hint=f"{most:g} are allowed; does it sample with the weights that were trained?")
    return Mismatch(nats, [*measures, *_row_measures(by_old, by_behaviour, products)])


def _row_measures(old: Tensor, behaviour: Tensor, products: Tensor) -> Iterator[Measure]:
    difference, count = behaviour - old, len(old)
    sums = {
        "training_ppl": (-old).exp(),
        "rollout_ppl": (-behaviour).exp(),
        "ppl_ratio": difference.exp(),
        "log_ppl_diff": difference,
        "log_ppl_abs_diff": difference.abs(),
        "chi2_seq": (2 * products).exp() - 1,
    }
    yield from (Measure(name, float(values.sum()), count) for name, values in sums.items())
    yield Measure("log_ppl_diff_max", float(difference.max()) if count else 0.0, float(count > 0))


def watch_engines(graph: Graph, params: Sequence[str]) -> Graph:
    """Return the graph with a further result for each node that samples from a model in `params`: its engine mismatch.

    `graph` must have named nodes, and `params` are names of parameters. For a node `policy.generate`, the result
    `policy.mismatch` compares the log-probs from sampling with those of a node `policy.logprobs`, which is added unless
    the flow has an equal one. That node reads the model version that sampled (the newest version if sampling may use
    stale copies). Greedy and penalized sampling are not measured, nor rollouts that the flow measures already.
    """
    for sampler in graph.nodes:
        model = sampler.model() if sampler.op.kind == "generate" else None
        if model is None or not issubclass(model.type, LanguageModel):
            continue
        param, temperature = carried_from(model), getattr(sampler.settings, "temperature", None)
        penalized = getattr(sampler.settings, "repetition_penalty", 1.0) != 1  # a forward pass computes none
        if param is None or param.name not in params or temperature == 0 or penalized:
            continue
        for i, kind in enumerate(sampler.returns):
            if issubclass(kind, Responses) and LogProbs in fields(kind).values():
                rollout = kind.at(Edge(sampler, kind, str(i) if len(sampler.returns) > 1 else ""))
                old = logprobs(model.type.at(newest(model)), rollout)
                graph = _with_mismatch(graph, sampler, rollout, old, param.name)
    return graph


def _with_mismatch(graph: Graph, sampler: Node, rollout: Responses, logprobs_: LogProbs, prefix: str) -> Graph:
    forward, edge = _node_of(logprobs_), rollout.edge
    assert edge is not None, "the rollout is an edge"
    equal = (node for node in graph.nodes if node.op is forward.op and node.inputs == forward.inputs)
    old = Edge(next(equal, None) or _named(forward, graph, sampler, f"{prefix}.logprobs"), LogProbs)
    parts = fields(type(rollout)).items()
    behaviour, mask = (edge.part(next(name for name, part in parts if part is kind), kind) for kind in (LogProbs, Mask))
    measure = _node_of(mismatch(LogProbs.at(old), Mask.at(mask), behaviour=LogProbs.at(behaviour), most=MAX_NATS))
    if any(node.op is measure.op and node.input("behaviour") == behaviour for node in graph.nodes):
        return graph
    named = _named(measure, graph, sampler, f"{prefix}.mismatch")
    return replace(graph, outputs=(*graph.outputs, Edge(named, Mismatch)))


def _node_of(result: Value) -> Node:
    assert result.edge is not None and isinstance(result.edge.source, Node), "called on edges, a node returns an edge"
    return result.edge.source


def _named(node: Node, graph: Graph, sampler: Node, name: str) -> Node:
    names = {node.name for node in graph.all_nodes}
    numbered = (name if i == 1 else f"{name}#{i}" for i in range(1, len(names) + 2))
    return replace(node, name=next(text for text in numbered if text not in names), at=sampler.at)
