"""The laws: a table that says what holds each, and the checks of finished graphs and of results."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

import pytest
import torch

from examples.gpg import gpg
from examples.grpo import grpo
from flowgraph import Kind, Loss, Mask, Record, Value, flow, node, op_of
from flowgraph.checks.table import LAWS
from flowgraph.errors import LawError
from flowgraph.language.call_laws import bound_type, check_result
from flowgraph.language.call_site import Site
from flowgraph.language.graph import Node
from flowgraph.language.laws import STAGES, Law, check
from flowgraph.language.values import Group, Lengths
from flowgraph.lowering.check_program import STAGES as PASSES
from flowgraph.passes import compile_graph
from nodes import Advantages, LogProbs, Policy, policy_gradient, update


class Rows(Value):
    kind = Kind.ROW


class Pair(Record):
    group: Group
    mask: Mask


class Nest(Record):
    pair: Pair


@node
def one(rows: Rows) -> Mask:
    raise NotImplementedError


@node
def several(rows: Rows) -> tuple[Pair, Rows]:
    raise NotImplementedError


@node
def nested(rows: Rows) -> Nest:
    raise NotImplementedError


def made(fn: Any) -> Node:
    op = op_of(fn)
    assert op is not None
    returns = tuple(bound_type(each) for each in op.returns)
    return Node(op, (), op.settings(), (), returns, Site("mine.py", 7))


MASK, GROUP = Mask(torch.ones(2, 3)), Group(torch.arange(2))


ALL = [(stage, law) for stage, laws in LAWS.items() for law in laws]


def test_every_law_of_the_design_is_in_the_table_with_what_holds_it() -> None:
    assert sorted({law.number for _, law in ALL}) == list(range(15))
    assert all(law.name and law.says and law.held_by for _, law in ALL)
    assert len({law.name for _, law in ALL}) == len(ALL)
    assert list(LAWS) == ["call", *STAGES, "run"]


def found(dotted: str) -> Any:
    """Give what a name, as the table writes it, leads to."""
    words = dotted.split(".")
    for depth in range(len(words), 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(["flowgraph", *words[:depth]]))
        except ImportError:
            continue
        return functools.reduce(getattr, words[depth:], thing)
    raise AssertionError(dotted)


@pytest.mark.parametrize("law", [law for _, law in ALL], ids=lambda law: law.name)
def test_what_is_said_to_hold_a_law_is_there(law: Law) -> None:
    assert all(found(name) is not None for name in law.held_by.split(", "))


@pytest.mark.parametrize(("stage", "law"), [each for each in ALL if each[0] in STAGES])
def test_the_law_of_a_stage_is_a_function_that_gives_errors(stage: str, law: Law) -> None:
    assert inspect.isgeneratorfunction(law.holders) and found(law.held_by) is law.holders


def test_the_passes_of_lowering_know_from_which_of_them_on_each_law_holds() -> None:
    assert all(law.since in PASSES for law in LAWS["lowered"])
    assert not any(law.since for stage, law in ALL if stage != "lowered")


@pytest.mark.parametrize("fn", [grpo, gpg])
def test_the_shipped_flows_keep_the_laws_before_and_after_every_pass(fn: Any) -> None:
    graph = fn.graph()
    check("described", graph)
    for stage in ("described", "named"):
        check(stage, compile_graph(graph))


@pytest.mark.parametrize(
    ("fn", "result"),
    [
        (one, MASK),
        (several, (Pair(group=GROUP, mask=MASK), Rows(torch.ones(2)))),
        (nested, Nest(pair=Pair(group=GROUP, mask=MASK))),
        (one, Mask(torch.ones(0, 0))),
    ],
)
def test_a_result_of_the_declared_types_passes(fn: Any, result: Any) -> None:
    check_result(made(fn), result, {})


class MoreMask(Mask):
    """A mask of another kind."""


def test_a_subclass_of_what_is_declared_passes() -> None:
    check_result(made(one), MoreMask(torch.ones(1, 1)), {})


@pytest.mark.parametrize(
    ("fn", "result", "wanted"),
    [
        (one, None, "one returned NoneType, not Mask"),
        (one, torch.ones(2, 3), "one returned Tensor, not Mask"),
        (one, LogProbs(torch.ones(2, 3)), "one returned LogProbs, not Mask"),
        (one, (MASK, MASK), "one returned 2 values, not 1"),
        (several, Pair(group=GROUP, mask=MASK), "several returned 1 values, not 2"),
        (one, Mask(torch.ones(2)), "one returned a Mask of shape [2], not [rows, tokens]"),
        (one, Mask([[1.0]]), "one returned a Mask of a list, not [rows, tokens]"),
        (
            nested,
            Nest(pair=Pair(group=GROUP, mask=Mask(torch.ones(2)))),
            "nested returned a Mask of shape [2], not [rows, tokens]",
        ),
    ],
)
def test_another_result_is_refused_with_the_line_of_the_flow(fn: Any, result: Any, wanted: str) -> None:
    with pytest.raises(LawError) as raised:
        check_result(made(fn), result, {})
    assert str(raised.value) == f"mine.py:7: {wanted}"


def test_two_updates_in_sequence_are_legal_and_readers_of_each_version_are_too() -> None:
    @flow
    def steps(policy: Policy, lengths: Lengths) -> Policy:
        def loss(pi: Policy) -> Loss:
            return policy_gradient(look(pi, lengths), weigh(look(policy, lengths)), keep(lengths))

        return update(update(policy, loss), loss)

    graph = compile_graph(steps.graph())
    assert [each.name for each in graph.nodes if each.op.carries] == ["policy.update", "policy.update#2"]


@node
def look(model: Policy, lengths: Lengths) -> LogProbs:
    raise NotImplementedError


@node
def keep(lengths: Lengths) -> Mask:
    raise NotImplementedError


@node
def weigh(old: LogProbs) -> Advantages:
    raise NotImplementedError
