"""What every host and advantage node of ours promises by its traits and by the rules of the house, found by its ports.

Inputs are built by the types of ports; a new node joins by itself. Formulas are held in tests/parity/formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import nodes
from flowgraph import By, Key, Kind, Loss, Metric, State, Value, node, op_of
from flowgraph.language.graph import Op, Port
from flowgraph.language.rows import leaves, take
from flowgraph.language.values import Group, Lengths, Mask, Measure, Model, Record, Sample, Tokens, Trajectory, fields
from nodes import (
    Advantages,
    Chosen,
    Entropy,
    ImportanceWeights,
    KLWeight,
    LogProbs,
    Returns,
    Rewards,
    Scores,
    SquaredProbs,
    TokenAdvantages,
    TokenKL,
    Values,
)
from tests.parity.formulas.batches import Batch, batches

EXAMPLES = settings(max_examples=12)
KEY = Key(4, 2, "node")
PROMPTS = 4  # that a Batch may hold: ports of other rows have one row of each
INSIDE = 1e-9  # rounding, of sums taken in another order

# What a node's settings must be where they have no default, and others under which it takes another way.
VARIANTS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "overlong_penalty": ({"max_tokens": 5, "buffer": 3},),
    "normalized_weights": ({"level": "token"}, {"level": "sequence"}),
    "rejected": tuple(
        {"test": test, "high": 1.0 if test.endswith("k3") else 3.0}
        for test in ("token_k1", "token_k3", "seq_sum_k1", "seq_mean_k2", "seq_max_k3")
    ),
    "importance_weights": ({}, {"level": "sequence"}, {"cap": None, "low": 0.5, "high": 3.0}),
    "group_normalize": ({}, {"deviation": False}),
    "pass_at_k_advantages": ({}, {"deviation": False}),
    "optimal_token_baseline": ({}, {"zero_tail": False}),
    "entropy_shaped": ({}, {"between": (1, 2)}),
    "gae": ({"gamma": 0.9, "lam": 0.8},),
    "discounted_returns": ({"gamma": 0.9},),
    "whiten": ({}, {"shift_mean": False}),
    "top_covariance": ({"fraction": 0.3},),
    "high_covariance": ({"fraction": 0.3, "low": -1.0},),
    "kl_estimate": tuple({"estimator": each} for each in ("k1", "k2", "k3", "abs")),
}


# ------------------------------------------------------------------------------------------- inputs by type


Build = Callable[[Batch, str], Value]


def _column(kind: Callable[[Any], Value], low: float, high: float) -> Build:
    return lambda batch, name: kind(torch.from_numpy(batch.column(name, low, high)))


def _tokens(batch: Batch, name: str) -> Tokens:
    return Tokens(torch.from_numpy(np.random.default_rng(batch.seed).integers(1, 4, batch.shape)))


def _chosen(batch: Batch, name: str) -> Chosen:
    return Chosen(torch.from_numpy(np.where(batch.mask > 0, batch.column(name) > 0.5, np.nan)))


# The numbers that a port of a type is given, by the port's name; NaN where the mask is 0.
BUILD: Mapping[type[Value], Build] = {
    Mask: lambda batch, name: batch.masks(),
    Group: lambda batch, name: batch.groups(),
    Lengths: lambda batch, name: batch.row_lengths(),
    Sample: lambda batch, name: Sample(torch.arange(len(batch.group))),
    Trajectory: lambda batch, name: Trajectory(torch.zeros(len(batch.group), dtype=torch.int64)),
    Scores: lambda batch, name: Scores(torch.from_numpy(batch.scores(name))),
    Advantages: lambda batch, name: Advantages(torch.from_numpy(batch.row(name))),
    TokenAdvantages: _column(TokenAdvantages, -2.0, 2.0),
    Tokens: _tokens,
    Chosen: _chosen,
    LogProbs: _column(LogProbs, -4.0, -0.05),
    Entropy: _column(Entropy, 0.0, 2.0),
    SquaredProbs: _column(SquaredProbs, 0.0, 1.0),
    Values: _column(Values, -2.0, 2.0),
    Returns: _column(Returns, -2.0, 2.0),
    Rewards: _column(Rewards, -2.0, 2.0),
    TokenKL: _column(TokenKL, -1.0, 1.0),
    ImportanceWeights: _column(ImportanceWeights, 0.1, 3.0),
    KLWeight: lambda batch, name: KLWeight(0.3),
}


def build(kind: type[Value], batch: Batch, name: str, parts: Sequence[str] = ()) -> Value:
    """Give what a port takes; a record has the parts that it names. Raise TypeError for a type that is not known."""
    if issubclass(kind, Record):
        wanted = {part: each for part, each in fields(kind).items() if not parts or part in parts}
        return kind.of({part: build(each, batch, f"{name}.{part}") for part, each in wanted.items()})
    if kind not in BUILD:
        raise TypeError(f"no numbers are known for {kind.__name__}, which port `{name}` takes: add it to BUILD")
    return BUILD[kind](batch, name)


@dataclass(frozen=True)
class Case:
    """A node under some settings; `optional` says whether optional ports are filled, `per_token` advantages' kind."""

    made: Callable[..., Any]
    op: Op
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    optional: bool = False
    per_token: bool = False

    def __str__(self) -> str:
        said = [f"{name}={value}" for name, value in self.settings.items()]
        return f"{self.op.name}({', '.join(said + ['optional'] * self.optional + ['tokens'] * self.per_token)})"

    def inputs(self, batch: Batch) -> dict[str, Value]:
        """Build what its ports take."""
        ports = (port for port in self.op.ports if self.optional or not port.optional)
        return {port.name: self._input(port, batch) for port in ports}

    def _input(self, port: Port, batch: Batch) -> Value:
        kind = port.value_type
        if port.other_rows:
            each = np.ones((PROMPTS, 1))
            batch = Batch(each, each[:, 0].astype(np.int64), np.arange(PROMPTS), batch.seed)
        if kind is Advantages and self.per_token:
            kind = TokenAdvantages
        return build(kind, batch, port.name, port.parts)

    def run(self, inputs: Mapping[str, Value]) -> Results:
        """Run the node and lay out what it gives."""
        extra = {self.op.key: KEY} if self.op.key else {}
        return Results.of(self.made(**inputs, **self.settings, **extra))

    @property
    def own(self) -> set[str]:
        """Name the inputs whose rows are those of the result."""
        return {port.name for port in self.op.ports if not port.other_rows}


@dataclass(frozen=True)
class Results:
    """What a node gave: columns of rows [B] and of tokens [B, T], numbers, and the means of its metrics."""

    rows: list[torch.Tensor]
    tokens: list[torch.Tensor]
    numbers: list[float]
    means: dict[str, float]
    value: Any

    @classmethod
    def of(cls, value: Any) -> Results:
        made = [each for one in (value if isinstance(value, tuple) else (value,)) for each in leaves([one])]
        columns = [each for each in made if not isinstance(each, Loss)]
        terms = [term.values for each in made if isinstance(each, Loss) for term in each.terms]
        measures: list[Measure] = [each for one in made for each in one.measures]
        return cls(
            rows=[each.data for each in columns if each.kind is Kind.ROW],
            tokens=[each.data for each in columns if each.kind is Kind.TOKEN]
            + [each for each in terms if each is not None],
            numbers=[float(each.data) for each in columns if each.kind in (Kind.SCALAR, Kind.STATE)],
            means={each.name: each.total / each.count for each in measures if each.count},
            value=value,
        )

    def taken(self, rows: torch.Tensor) -> Results:
        return replace(self, rows=[each[rows] for each in self.rows], tokens=[each[rows] for each in self.tokens])

    def without(self, column: int) -> Results:
        """Leave a column of tokens out."""
        kept = [each for each in range(self.tokens[0].shape[1]) if each != column] if self.tokens else []
        return replace(self, tokens=[each[:, kept] for each in self.tokens])


def same(one: Results, other: Results, mask: torch.Tensor) -> None:
    """Compare what counts: rows, and tokens under the mask [B, T]."""
    assert [each.shape for each in one.tokens] == [each.shape for each in other.tokens]
    pairs = [(a, b) for a, b in zip(one.rows, other.rows, strict=True)]
    pairs += [(a[mask > 0], b[mask > 0]) for a, b in zip(one.tokens, other.tokens, strict=True)]
    for a, b in pairs:
        assert torch.allclose(a.double(), b.double(), rtol=INSIDE, atol=INSIDE), (a, b)
    assert one.numbers == pytest.approx(other.numbers, abs=INSIDE, rel=1e-12, nan_ok=True)
    assert one.means == pytest.approx(other.means, abs=INSIDE, rel=1e-12)


# ------------------------------------------------------------------------------------------- the nodes


def found() -> Iterator[tuple[Callable[..., Any], Op]]:
    """Give every host and advantage node that `nodes` exports and that reads no model."""
    for name in nodes.__all__:
        made = getattr(nodes, name)
        op = op_of(made)
        if op is None or op.kind not in ("host", "advantage") or op.rows != "kept":
            continue
        if not any(port.region or issubclass(port.value_type, Model | Loss) for port in op.ports):
            yield made, op


def cases() -> list[Case]:
    """Give each node under its settings, with optional ports and token advantages where it takes them."""
    made = list[Case]()
    for of, op in found():
        first = Case(of, op)
        made += [replace(first, settings=each) for each in VARIANTS.get(op.name, ({},))]
        last = made[-1]
        if any(port.optional for port in op.ports):
            made.append(replace(last, optional=True))
        if any(port.value_type is Advantages and port.kind in (None, Kind.TOKEN) for port in op.ports):
            made.append(replace(last, per_token=True))
    return made


CASES = cases()
each_node = pytest.mark.parametrize("case", CASES, ids=str)
each_separable = pytest.mark.parametrize("case", [each for each in CASES if each.op.separable], ids=str)


def test_the_nodes_are_found_by_what_they_are() -> None:
    names = {case.op.name for case in CASES}
    assert {"group_normalize", "gae", "whiten", "high_covariance", "clipped", "value_loss", "adaptive_kl"} <= names
    assert not {"generate", "update", "score", "logprobs", "reward"} & names
    assert {name for name in VARIANTS if name not in names} == set(), "these settings are for no node"


class Unheard(State):
    """A type that no test builds."""


@node(metrics=(Metric("share"),))
def of_unheard(unheard: Unheard, mask: Mask) -> Scores:
    raise NotImplementedError


def test_a_port_of_a_type_that_is_not_known_is_an_error_that_says_so() -> None:
    op = op_of(of_unheard)
    assert op is not None
    batch = Batch(np.ones((1, 1)), np.ones(1, dtype=np.int64), np.zeros(1, dtype=np.int64), 0)
    with pytest.raises(
        TypeError, match="no numbers are known for Unheard, which port `unheard` takes: add it to BUILD"
    ):
        Case(of_unheard, op).inputs(batch)


def tied(case: Case, inputs: Mapping[str, Value]) -> bool:
    """Say whether rounding decides: which of the tokens of equal covariance are chosen is told by nothing else."""
    if case.op.name != "top_covariance":
        return False
    mask = inputs["mask"].data > 0
    advantages: Any = inputs["advantages"]
    gains = advantages.per_token().expand(mask.shape)[mask].numpy()
    old = inputs["old"].data[mask].numpy()
    each = np.sort((gains - gains.mean()) * (old - old.mean())) if len(old) else np.zeros(0)
    return bool((np.diff(each) < 1e-9).any())


# ------------------------------------------------------------------------------------------- rows


@each_separable
@EXAMPLES
@given(batch=batches(), part=st.integers(1, 14))
def test_a_separable_node_gives_the_same_for_some_groups_as_for_all(case: Case, batch: Batch, part: int) -> None:
    groups = torch.from_numpy(batch.group)
    chosen = ((part >> groups) & 1).bool()
    assume(0 < int(chosen.sum()) < len(chosen))
    inputs = case.inputs(batch)
    whole = case.run(inputs)
    for rows in (chosen.nonzero()[:, 0], (~chosen).nonzero()[:, 0]):
        some = case.run({name: take(each, rows) if name in case.own else each for name, each in inputs.items()})
        alike = replace(whole.taken(rows), numbers=some.numbers, means=some.means)  # these are of the rows there are
        same(some, alike, inputs["mask"].data[rows] if "mask" in inputs else torch.from_numpy(batch.mask)[rows])


@pytest.mark.parametrize("case", [each for each in CASES if not each.op.separable], ids=str)
def test_a_node_that_says_that_it_reads_all_rows_does(case: Case) -> None:
    def differs(seed: int) -> bool:
        noise = np.random.default_rng(seed)
        mask, group = (noise.random((6, 4)) < 0.8).astype(np.float64), np.array([0, 0, 0, 1, 1, 1])
        inputs = case.inputs(Batch(mask, np.full(6, 4), group, seed))
        some = case.run(
            {name: take(each, torch.arange(3)) if name in case.own else each for name, each in inputs.items()}
        )
        whole = case.run(inputs).taken(torch.arange(3))
        try:
            same(replace(some, means={}), replace(whole, means={}), torch.from_numpy(mask)[:3])
        except AssertionError:
            return True
        return False

    assert any(differs(seed) for seed in range(20))


@each_node
@EXAMPLES
@given(batch=batches(), data=st.data())
def test_rows_in_another_order_give_the_same_rows_in_that_order(case: Case, batch: Batch, data: st.DataObject) -> None:
    order = torch.tensor(data.draw(st.permutations(range(len(batch.group)))))
    inputs = case.inputs(batch)
    assume(not tied(case, inputs))
    moved = {name: take(each, order) if name in case.own else each for name, each in inputs.items()}
    same(case.run(moved), case.run(inputs).taken(order), torch.from_numpy(batch.mask)[order])


# ------------------------------------------------------------------------------------------- what the mask leaves out


@each_node
@EXAMPLES
@given(batch=batches(), at=st.integers(0, 6))
def test_a_masked_column_of_what_is_no_number_changes_nothing(case: Case, batch: Batch, at: int) -> None:
    width = batch.shape[1]
    if case.op.key or any(port.value_type is Lengths for port in case.op.ports):
        at = width  # draws are named by a token's place, and lengths count what is in the middle
    at = min(at, width)
    inputs = case.inputs(batch)
    assume(not tied(case, inputs))
    wide = {name: widened(each, at) if name in case.own else each for name, each in inputs.items()}
    one, other = case.run(inputs), case.run(wide)
    same(one, other.without(at), torch.from_numpy(batch.mask))
    for each in (*one.rows, *(tokens[batch.mask > 0] for tokens in one.tokens)):
        assert each.isfinite().all()


def widened(value: Any, at: int) -> Any:
    """Put a column before column `at`: masked, NaN in what are numbers, and a token."""
    if isinstance(value, Record):
        return type(value).of({name: widened(part, at) for name, part in value.parts.items()})
    if value.kind is not Kind.TOKEN:
        return value
    data = value.data
    filler = 0.0 if isinstance(value, Mask) else math.nan if data.is_floating_point() else 2
    column = torch.full((len(data), 1), filler, dtype=data.dtype)
    return type(value)(torch.cat([data[:, :at], column, data[:, at:]], 1))


@each_node
@EXAMPLES
@given(batch=batches())
def test_what_stands_under_the_mask_reaches_neither_value_nor_metric_nor_gradient(case: Case, batch: Batch) -> None:
    inputs = case.inputs(batch)
    clean = {name: filled(each) for name, each in inputs.items()}
    mask = torch.from_numpy(batch.mask)
    told = []
    for each in (inputs, clean):
        trained = leaves_of(case.op, each)
        results = case.run(each)
        same(results, case.run(clean), mask)
        if isinstance(results.value, Loss) and trained:
            total = results.value.total([term.counts() for term in results.value.terms])
            told.append(torch.autograd.grad(total, trained))
    for spoilt, plain in zip(*told, strict=True) if told else ():
        assert torch.equal(spoilt, plain)
        assert not spoilt[mask == 0].any()


def filled(value: Any) -> Any:
    """Put a number where there is none."""
    if isinstance(value, Record):
        return type(value).of({name: filled(part) for name, part in value.parts.items()})
    plain = value.kind is not Kind.TOKEN or not value.data.is_floating_point()
    return value if plain else type(value)(value.data.nan_to_num(0.5))


def leaves_of(op: Op, inputs: Mapping[str, Value]) -> list[torch.Tensor]:
    """Let what the loss trains take a gradient, and give it."""
    ports = [port.name for port in op.ports if port.by is By.TRAINED]
    return [inputs[name].data.requires_grad_() for name in ports]


# ------------------------------------------------------------------------------------------- dtypes


@each_node
@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=str)
def test_numbers_keep_their_dtype(case: Case, kind: torch.dtype) -> None:
    mask = np.array([[1.0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
    batch = Batch(mask, np.array([4, 1, 0, 4]), np.array([0, 1, 0, 0]), 3)
    results = case.run({name: cast_to(each, kind) for name, each in case.inputs(batch).items()})
    columns = [*results.rows, *results.tokens]
    assert columns or results.numbers
    assert [each.dtype for each in columns if each.is_floating_point()] == [kind] * len(columns)


def cast_to(value: Any, kind: torch.dtype) -> Any:
    if isinstance(value, Record):
        return type(value).of({name: cast_to(part, kind) for name, part in value.parts.items()})
    floats = isinstance(value.data, torch.Tensor) and value.data.is_floating_point()
    return type(value)(value.data.to(kind)) if floats else value
