"""How far apart two engines are on the same tokens, and where a graph is watched for it.

What corrects for the difference is in `correction.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from flowgraph import Measure, Metric, Value, node
from flowgraph.errors import LawError
from flowgraph.language.graph import Edge, Graph, Node, carried_from, newest
from flowgraph.language.values import Mask, fields
from nodes.likelihood import logprobs
from nodes.terms import LIMIT, masked, mean_of, row_means
from nodes.values import LanguageModel, LogProbs, Responses

if TYPE_CHECKING:
    from torch import Tensor


class Mismatch(Value):
    """How far the engine that drew tokens is from the one that trains: the k3 estimate of KL(drew, trains) (float)."""

    dtype = "float64"


MOST = 0.5
"""Nats a token by which engines may differ in a run: rounding to bfloat16 gives 0.001, another model 1 to 20."""

METRICS = (
    Metric("kl", "nats", about="mean over tokens of behaviour - old, an estimate of KL(behaviour, old)"),
    Metric("k3_kl", "nats", headline=True, about="its k3 estimate, never negative: mean of ratio - 1 - log ratio"),
    Metric("training_ppl", about="mean over rows of the perplexity by old"),
    Metric("rollout_ppl", about="mean over rows of the perplexity by behaviour"),
    Metric("ppl_ratio", about="mean over rows of perplexity by old / by behaviour"),
    Metric("log_ppl_diff", "nats", about="mean over rows of log perplexity by old - by behaviour"),
    Metric("log_ppl_abs_diff", "nats", about="mean over rows of its size"),
    Metric("log_ppl_diff_max", "nats", about="its largest of any row"),
    Metric("chi2_token", about="mean over tokens of ratio² - 1"),
    Metric("chi2_seq", about="mean over rows of (product of ratios)² - 1"),
    Metric("ess", about="effective sample size of the tokens by their ratios, of 1"),
    Metric("weight_high", about="share of tokens whose ratio is above the threshold"),
    Metric("weight_low", about="share of tokens whose ratio is below 1 / threshold"),
    Metric("untold", about="share of tokens without a log-prob in behaviour, which are left out of all else"),
)


@node(separable=False, metrics=METRICS)
def mismatch(
    old: LogProbs,
    mask: Mask,
    *,
    behaviour: LogProbs,
    threshold: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 2.0,
    most: Annotated[float | None, Field(gt=0)] = None,
) -> Mismatch:
    """Measure how far the log-probs `old` of an engine are from those of another, `behaviour`, which drew the tokens.

    With l = old - behaviour [B, T] under the mask, the ratio of a token is e^l, l held within ±20; the product over a
    row is e^(sum of l), the sum held within ±20. kl = mean(-l), k3_kl = mean(e^l - 1 - l), chi2 = mean(ratio²) - 1,
    ess = mean(e^l)² / mean(e^2l). The perplexity of a row is e^-(mean of its log-probs). Means over rows are over those
    with a token that counts. Gives k3_kl, in float64; NaN where no token counts. Raises LawError where that is above
    `most` nats: then the engine that draws has other weights.
    Source: Liu, Li et al. 2025, "When Speed Kills Stability", and the notes of verl on rollout correction; k3: Schulman
    2020, "Approximating KL divergence". Deviation: l is held within ±20 in k3_kl too; rows without a token are no rows.

    >>> import torch
    >>> old, mask = LogProbs(torch.tensor([[-1.0, -2.0]])), Mask(torch.tensor([[1.0, 1.0]]))
    >>> mismatch(old, mask, behaviour=old).data
    0.0
    """
    counted, trained, told = _told(old, mask, behaviour)
    ratio = masked(trained - told, counted)
    share, tokens = ratio.clamp(-LIMIT, LIMIT), float(counted.data.sum())
    weights, k3 = share.exp(), mean_of("k3_kl", share.expm1() - share, counted)
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
    by_old, by_behaviour = (row_means(each, counted)[rows] for each in (trained, told))
    products = ratio.sum(1)[rows].clamp(-LIMIT, LIMIT)
    found = k3.total / tokens if tokens else float("nan")
    if most is not None and found > most:
        what = f"the engine that draws gives tokens other log-probs than the one that trains: {found:.3g} nats apart"
        raise LawError(what, hint=f"{most:g} are allowed; are its weights those that were trained?")
    return Mismatch(found, [*measures, *_row_measures(by_old, by_behaviour, products)])


def _told(old: LogProbs, mask: Mask, behaviour: LogProbs) -> tuple[Mask, Tensor, Tensor]:
    """Give the mask of the tokens whose log-prob is told, and both log-probs, in float64: [B, T] each."""
    import torch

    trained, told = old.data.detach().double(), behaviour.data
    told = torch.full_like(trained, torch.nan) if told is None or told.shape != trained.shape else told.double()
    return Mask((mask.data != 0).double() * told.isfinite()), trained, told


def _row_measures(old: Tensor, behaviour: Tensor, products: Tensor) -> Iterator[Measure]:
    """Report on rows: their mean log-probs by both engines, and the log of their products of ratios, [rows] each."""
    difference, count = behaviour - old, len(old)
    sums = {
        "training_ppl": (-old).exp(),
        "rollout_ppl": (-behaviour).exp(),
        "ppl_ratio": difference.exp(),
        "log_ppl_diff": difference,
        "log_ppl_abs_diff": difference.abs(),
        "chi2_seq": (2 * products).exp() - 1,
    }
    yield from (Measure(name, float(each.sum()), count) for name, each in sums.items())
    yield Measure("log_ppl_diff_max", float(difference.max()) if count else 0.0, float(count > 0))


def watch_engines(graph: Graph, params: Sequence[str]) -> Graph:
    """Give a named graph that also measures the mismatch of what models in `params` draw, one result more for each.

    Before: `policy.generate`, read by the flow. After: `policy.mismatch` too, of its log-probs and `policy.logprobs`,
    those by the version that it drew from (the newest, where the copy that draws may lag). A log-prob node that is
    there already is read instead. Greedy responses are left out: no engine draws them.
    """
    for drawer in graph.nodes:
        for rollout in _rollouts(drawer) if _draws(drawer, params) else ():
            graph = _watched(graph, drawer, rollout)
    return graph


def _draws(drawer: Node, params: Sequence[str]) -> bool:
    model = drawer.model() if drawer.op.kind == "generate" else None
    if model is None or not issubclass(model.type, LanguageModel):
        return False
    param, greedy = carried_from(model), getattr(drawer.settings, "temperature", None) == 0
    return param is not None and param.name in params and not greedy


def _rollouts(drawer: Node) -> Iterator[Edge]:
    """Give the records among a node's results that hold responses with the log-probs they were drawn with."""
    for i, kind in enumerate(drawer.returns):
        if issubclass(kind, Responses) and LogProbs in fields(kind).values():
            yield Edge(drawer, kind, str(i) if len(drawer.returns) > 1 else "")


def _watched(graph: Graph, drawer: Node, rollout: Edge) -> Graph:
    """Add the measurement of one rollout to a graph's results, unless the flow measures it already."""
    model = drawer.model()
    assert model is not None and issubclass(model.type, LanguageModel), "what draws reads a language model"
    assert issubclass(rollout.type, Responses), "what is drawn are responses"
    prefix = getattr(carried_from(model), "name", "")
    likely = _node_of(logprobs(model.type.at(newest(model)), rollout.type.at(rollout)))
    alike = (each for each in graph.nodes if each.op is likely.op and each.inputs == likely.inputs)
    old = Edge(next(alike, None) or _placed(likely, graph, drawer, f"{prefix}.logprobs"), LogProbs)
    behaviour, mask = (_part(rollout, kind) for kind in (LogProbs, Mask))
    made = _node_of(mismatch(LogProbs.at(old), Mask.at(mask), behaviour=LogProbs.at(behaviour), most=MOST))
    if any(each.op is made.op and each.input("behaviour") == behaviour for each in graph.nodes):
        return graph
    placed = _placed(made, graph, drawer, f"{prefix}.mismatch")
    return replace(graph, outputs=(*graph.outputs, Edge(placed, Mismatch)))


def _part(rollout: Edge, kind: type[Value]) -> Edge:
    assert issubclass(rollout.type, Responses), "what is drawn are responses"
    name = next(name for name, each in fields(rollout.type).items() if each is kind)
    return rollout.part(name, kind)


def _node_of(made: Value) -> Node:
    assert made.edge is not None and isinstance(made.edge.source, Node), "called on edges a node describes itself"
    return made.edge.source


def _placed(made: Node, graph: Graph, drawer: Node, name: str) -> Node:
    """Give a new node at the line of what draws, by a name of its own."""
    taken = {each.name for each in graph.all_nodes}
    numbered = (name if i == 1 else f"{name}#{i}" for i in range(1, len(taken) + 2))
    return replace(made, name=next(each for each in numbered if each not in taken), at=drawer.at)
