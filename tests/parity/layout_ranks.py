"""Every loss node on one batch, built by the types of its ports; as a script, what one of several ranks makes of it.

The batch is a small model's own rollout, under other weights than drew it, so that ratios are not 1 and bounds hold.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import torch

import nodes
from flowgraph import Loss, Value, node
from flowgraph.engines.local.model import LocalModel
from flowgraph.language import Aggregation, BoundRegion, By, Key, op_of
from flowgraph.language.graph import Op, Port
from flowgraph.language.rows import take
from flowgraph.language.values import Mask, Trainable
from flowgraph.models import tiny
from flowgraph.models.heads import with_head
from flowgraph.runtime.row_identity import PLACE, rows_of_rank
from nodes import (
    Advantages,
    Chosen,
    Critic,
    Entropy,
    ImportanceWeights,
    KLWeight,
    LogProbs,
    Policy,
    Prompts,
    Returns,
    Rollout,
    SquaredProbs,
    TokenAdvantages,
    Values,
    critic_values,
    entropy,
    generate,
    logprobs,
    squared_probs,
    update,
)
from nodes.data.rows import row, table_of
from nodes.data.source import prompts_at

PROMPTS = ("7", "3+4=?", "999", "10-20-30=?", "42")
SAMPLES, TEMPERATURE, BUDGET = 3, 0.8, 90
STEP: Mapping[str, Any] = {"lr": 1.0, "optimizer": "sgd", "weight_decay": 0.0, "max_grad_norm": 0.0}
LEFT_OUT = (1, 8)  # rows, so that groups are uneven
SILENT = (4, 11)  # rows whose mask keeps nothing
AGGREGATIONS: Sequence[Aggregation | float] = (*Aggregation, 7.0)
READERS: Mapping[type[Value], Callable[[Any, Rollout], Value]] = {
    LogProbs: logprobs,
    Entropy: entropy,
    SquaredProbs: squared_probs,
    Values: critic_values,
}
# Settings, beside the defaults, under which the branches of a node are taken by some of the batch's tokens.
VARIANTS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "clipped": ({"eps": 0.05}, {"eps": 0.1, "eps_high": 0.3, "dual": 1.1}),
    "cispo_loss": ({"eps": 0.1, "eps_high": 0.05},),
    "dppo_loss": ({"eps": 0.01}, {"divergence": "kl", "eps": 0.001}, {"eps": 1.0, "most": 1.1}),
    "gspo_loss": ({"eps": 0.1, "eps_high": None},),
    "gmpo_loss": ({"eps": 0.05, "eps_high": 0.2},),
    "sapo_loss": ({"tau_pos": 0.5, "tau_neg": 3.0},),
    "clip_cov_loss": ({"eps": 0.05, "eps_high": 0.1},),
    "kl_cov_loss": ({"weight": 0.3},),
    "kl_k1": ({"straight_through": True},),
    "kl_k3": ({"straight_through": True},),
    "kl_abs": ({"straight_through": True},),
    "value_loss": ({"clip": None}, {"clip": 0.01}),
}


@dataclass(frozen=True)
class Batch:
    """A rollout and what losses read beside it, of the same rows; `given` is found by type, and by who made it."""

    rollout: Rollout
    given: Mapping[tuple[type[Value], By | None], Value]

    def taken(self, rows: torch.Tensor) -> Batch:
        """Return some of the rows, no wider than their longest."""
        width = max([1, *self.rollout.lengths.data[rows].tolist()])
        given = {name: take(each, rows, width) for name, each in self.given.items()}
        return Batch(take(self.rollout, rows, width), given)

    def prompts(self, groups: Sequence[int]) -> Batch:
        """Return the rows that answer these prompts."""
        return self.taken(torch.isin(self.rollout.group.data, torch.tensor(groups)).nonzero()[:, 0])

    def per_token(self) -> Batch:
        """Return an advantage of its own to each token."""
        return replace(self, given={**self.given, (Advantages, None): self.given[TokenAdvantages, None]})


@dataclass(frozen=True)
class Case:
    """A loss, by name: of a batch it gives the function of a model that `update` takes; `model` is what it trains."""

    name: str
    model: type[Trainable]
    of: Callable[[Batch], Callable[[Any], Loss]]


def loss_nodes() -> dict[str, tuple[Callable[..., Loss], Op]]:
    """Return every node that makes a term of a loss, by name."""
    found = ((name, getattr(nodes, name)) for name in nodes.__all__)
    ops = ((name, made, op_of(made)) for name, made in found)
    return {
        name: (made, op)
        for name, made, op in ops
        if op is not None and op.returns[0] is Loss and any(port.value_type is Mask for port in op.ports)
    }


def argument(port: Port, pi: Any, batch: Batch) -> Value:
    """Return what a port of a loss takes; raise KeyError for a type that no batch has yet."""
    if port.by is By.TRAINED:
        return READERS[port.value_type](pi, batch.rollout)
    if port.value_type is Mask:
        return batch.rollout.mask
    if (port.value_type, port.by) not in batch.given:
        raise KeyError(f"{port.name}: {port.value_type.__name__} is in no Batch of {__name__}: add it to `make_batch`")
    return batch.given[port.value_type, port.by]


def _case(name: str, settings: Mapping[str, Any], *, optional: bool = False, per_token: bool = False) -> Case:
    made, op = loss_nodes()[name]
    ports = [port for port in op.ports if optional or not port.optional]
    trained = {port.value_type for port in ports if port.by is By.TRAINED}

    def of(batch: Batch) -> Callable[[Any], Loss]:
        told = batch.per_token() if per_token else batch
        return lambda pi: made(**{port.name: argument(port, pi, told) for port in ports}, **settings)

    said = [f"{key}={value}" for key, value in settings.items()]
    said += ["optional ports"] * optional + ["token advantages"] * per_token
    return Case(f"{name}({', '.join(said)})", Critic if Values in trained else Policy, of)


def _node_cases() -> Iterator[Case]:
    for name, (_, op) in loss_nodes().items():
        if "aggregation" in op.settings.model_fields:
            yield from (_case(name, {"aggregation": how}) for how in AGGREGATIONS)
        else:
            yield _case(name, {})
        yield from (_case(name, settings) for settings in VARIANTS.get(name, ()))
        if any(port.optional for port in op.ports):
            yield _case(name, {}, optional=True)
        if any(port.value_type is Advantages for port in op.ports):
            yield _case(name, {}, per_token=True)


def _with_reference(batch: Batch) -> Callable[[Any], Loss]:
    rollout, given = batch.rollout, batch.given

    def loss(pi: Policy) -> Loss:
        new, other, advantages = logprobs(pi, rollout), given[Mask, None], given[Advantages, None]
        surrogate = nodes.clipped(new, advantages, rollout.mask, old=rollout.logprobs, aggregation="sequence-mean")
        near = nodes.kl_k3(new, other, ref=given[LogProbs, By.FIXED], aggregation=5.0)
        bonus = nodes.entropy_bonus(entropy(pi, rollout), rollout.mask, aggregation="sequence-sum")
        return surrogate + 0.3 * near - 0.1 * (bonus + 0.5 * nodes.cross_entropy(new, other))

    return loss


def _with_carried_weight(batch: Batch) -> Callable[[Any], Loss]:
    rollout, given = batch.rollout, batch.given

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        near = nodes.kl_k1(new, rollout.mask, ref=given[LogProbs, By.FIXED], straight_through=True)
        own = nodes.gspo_loss(new, given[Advantages, None], given[Mask, None], old=rollout.logprobs, eps=0.2)
        return own + nodes.weighted(near, given[KLWeight, None])

    return loss


SUMS = {_with_reference: "a sum over two masks", _with_carried_weight: "a sum with a carried weight"}
CASES = (*_node_cases(), *(Case(name, Policy, of) for of, name in SUMS.items()))


# ------------------------------------------------------------------------------------------- the batch


def _noise(shape: Sequence[int], seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def small(seed: int = 0, *, moved: float = 0.0, critic: bool = False) -> tuple[Any, Any]:
    """Return a small Llama in float64 and its tokenizer; `moved` is how far its weights are from those that drew."""
    model, tokenizer = tiny.build(0, tiny.TinySize(hidden=16, layers=2, heads=2, intermediate=32))
    model = (with_head(model, "values", "small", 0)[0] if critic else model).double()
    with torch.no_grad():
        for place, parameter in enumerate(model.parameters()):
            parameter.add_(moved * _noise(parameter.shape, 100 * seed + place))
    return model, tokenizer


def trained(kind: type[Trainable]) -> tuple[Any, Any]:
    """Return the model that a loss of this kind trains: not the one that drew the rows."""
    return small(1, moved=0.1, critic=kind is Critic)


@cache
def weights_of(kind: type[Trainable]) -> dict[str, torch.Tensor]:
    """Return the weights of what `trained` gives, by name."""
    return dict(trained(kind)[0].state_dict())


@cache
def make_batch() -> Batch:
    """Draw the batch: 13 rows of five prompts, with tokens that the mask leaves out and rows of which it keeps none."""
    asked = table_of([row("digits", text, "7", ability="copy", extra_info={"index": 0}) for text in PROMPTS])
    rollout = _holed(_drawn(prompts_at(asked, range(len(PROMPTS)))))
    shape, mask = rollout.mask.data.shape, rollout.mask.data
    reference = LocalModel(*small(2, moved=0.1))
    with torch.no_grad():
        near = logprobs(Policy(reference), rollout)
    positive, signs = _noise(shape, 1).abs() + 0.1, _noise(shape, 2)
    given: dict[tuple[type[Value], By | None], Value] = {
        (LogProbs, By.SAMPLER): rollout.logprobs,
        (LogProbs, By.FIXED): near,
        (Advantages, None): Advantages(_noise(shape[:1], 3)),
        (TokenAdvantages, None): TokenAdvantages(_noise(shape, 5)),
        (ImportanceWeights, None): ImportanceWeights(positive),
        (Chosen, None): Chosen((signs > 0.8).double() * mask),
        (Returns, None): Returns(signs),
        (Values, None): Values(signs / 2),
        (Mask, None): Mask(mask * (_noise(shape, 4) > -0.5)),
        (KLWeight, None): KLWeight(0.3),
    }
    return Batch(rollout, given)


def _drawn(prompts: Prompts) -> Rollout:
    handle, key = LocalModel(*small()), Key(3, 1, "policy.generate")
    rollout = generate(Policy(handle), prompts, n=SAMPLES, temperature=TEMPERATURE, max_tokens=7, key=key)
    rows = [each for each in range(len(rollout.lengths.data)) if each not in LEFT_OUT]
    return take(rollout, torch.tensor(rows))


def _holed(rollout: Rollout) -> Rollout:
    mask = rollout.mask.data.double() * (_noise(rollout.mask.data.shape, 6) > -1)
    mask[list(SILENT)] = 0
    parts = rollout.parts | {"mask": Mask(mask), "logprobs": LogProbs(rollout.logprobs.data.double())}
    return Rollout.of(parts)


# ------------------------------------------------------------------------------------------- one rank of several


def share(batch: Batch, rank: int, count: int) -> Batch:
    """Return one rank's rows, dealt as a run deals them."""
    table = pa.table({"#group": batch.rollout.group.data.numpy()})
    dealt = rows_of_rank(table, rank, count, "rollout")
    return batch.taken(torch.tensor(dealt.column(PLACE).to_pylist(), dtype=torch.int64)) if count > 1 else batch


M = TypeVar("M", bound=Trainable)
Sums = dict[tuple[str, str], tuple[float, float]]


class Caught(Value):
    """A region as an updating node gets it."""


@node
def catch(model: M, loss: Callable[[M], Loss]) -> Caught:
    """Return the region of a loss, bound to the values that it reads."""
    return Caught(loss)


def region_of(handle: Any, case: Case, batch: Batch) -> BoundRegion:
    """Bind a loss as a run does: with the ranks of the model that it trains."""
    model = case.model(handle, handle.version)
    return replace(catch(model, case.of(batch)).data, ranks=handle.ranks)


def stepped(handle: Any, case: Case, batch: Batch, budget: int = BUDGET) -> tuple[torch.Tensor, Sums]:
    """Return the gradient, as one step of `update` moves the weights by it, and the sums of metrics on the way."""
    region, body = region_of(handle, case, batch), op_of(update).body
    once = {"epochs": 1, "minibatch": 0, "start_step": 0, "micro_batch_tokens": budget}
    gradient = moved_by(handle, case, lambda model: body(model, region, **STEP, **once))
    return gradient, region.observed.sums


def descended(handle: Any, case: Case, batch: Batch, budget: int = BUDGET) -> torch.Tensor:
    """Return the gradient alone."""
    return stepped(handle, case, batch, budget)[0]


def moved_by(handle: Any, case: Case, step: Callable[[Trainable], object]) -> torch.Tensor:
    """Return how far a step of descent moves the weights, which are put back: [parameters], in the order of names."""
    before = weights_of(case.model)
    step(case.model(handle, handle.version))
    after = handle.weights()
    handle.load(before)
    return torch.cat([(before[name] - after[name]).flatten() for name in sorted(before)])


def few() -> list[Case]:
    """Return those cases that hold for the others where only the rows' layout differs: of a token, a row, and sums."""
    return [case for case in CASES if case.name in ("gmpo_loss()", "value_loss(clip=0.01)") or case.of in SUMS]


def one_of_each() -> list[Case]:
    """Return the first case of every loss node, and those of `few`."""
    first = {case.name.partition("(")[0]: case for case in reversed(CASES)}
    return [case for case in CASES if case in first.values() or case in few()]


def dealt(cases: Sequence[Case]) -> Mapping[str, tuple[Batch, Sequence[Case]]]:
    """Name what ranks are compared on: all rows; and one prompt's, which leaves a rank without any."""
    whole = make_batch()
    return {"all": (whole, cases), "one prompt": (whole.prompts([0]), few())}


def columns(sums: Sums) -> np.ndarray:
    """Lay sums of metrics out as (sum, count) each, in the order of their names: [metrics, 2]."""
    return np.array([sums[name] for name in sorted(sums)], dtype=np.float64).reshape(-1, 2)


def run(rank: int, count: int, folder: Path, cases: Sequence[Case]) -> dict[str, np.ndarray]:
    """Return each case's gradient and metrics, by batch and name, with models sharded over the ranks; and warnings."""
    from flowgraph.engines.fsdp.model import FsdpModel
    from flowgraph.engines.fsdp.ranks import join

    ranks = join(rank, count, folder / "meeting", limit_s=50)
    told = dict[str, np.ndarray]()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        handles = {kind: FsdpModel(*trained(kind), trainable=True, ranks=ranks) for kind in (Policy, Critic)}
        for name, (batch, asked) in dealt(cases).items():
            mine = share(batch, rank, count)
            for case in asked:
                gradient, sums = stepped(handles[case.model], case, mine)
                told[f"{name}: {case.name}"] = gradient.numpy()
                told[f"{name}, metrics: {case.name}"] = columns(sums)
        whole = make_batch()
        peers = {kind: FsdpModel(*trained(kind), trainable=True, ranks=ranks, sequence=count) for kind in handles}
        for case in few():  # all ranks have the same rows, and read a part of the tokens each
            gradient, sums = stepped(peers[case.model], case, whole)
            told[f"peers: {case.name}"] = gradient.numpy()
            told[f"peers, metrics: {case.name}"] = columns(sums)
        handle, mine, case = handles[Policy], share(make_batch(), rank, count), CASES[0]
        told["called"] = moved_by(handle, case, lambda model: update(model, case.of(mine), **STEP)).numpy()
    told["warned"] = np.array(sorted({str(each.message) for each in warned}), dtype=str)
    ranks.leave()
    return told


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(sys.argv[3])
    answer = run(int(sys.argv[1]), int(sys.argv[2]), place, CASES if sys.argv[4] == "every" else one_of_each())
    np.savez(place / f"{sys.argv[1]}.npz", **answer)
