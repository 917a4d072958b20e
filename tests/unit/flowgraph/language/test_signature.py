"""Signatures: which parameters are ports, which are settings, and how a call is matched to them."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar, cast

import pytest
import torch
from pydantic import Field

from flowgraph import Loss, Mask, State, Trainable, Value, flow, node
from flowgraph.errors import FlowTypeError, LawError, SettingError
from flowgraph.flows.settings import parse_assignment
from flowgraph.language import Aggregation, By, Corrects, Key, Kind, op_of
from flowgraph.language.loss import How
from flowgraph.language.signature import (
    defined_at,
    initial_value_fault,
    make_settings,
    read_signature,
    type_name,
    unstorable_reason,
)
from nodes import KLWeight, LogProbs, Policy, Prompts, clipped, generate, logprobs, score, update
from tests.looped import looped

M = TypeVar("M", bound=Trainable)


class Rows(Value):
    kind = Kind.ROW


def everything(
    model: M,
    rows: Rows,
    loss: Callable[[M], Loss],
    *,
    mask: Mask | None = None,
    other: Annotated[Rows, "said"],
    eps: Annotated[float, Field(gt=0)] = 0.5,
    mode: Literal["a", "b"] = "a",
    kind: type[Rows] = Rows,
    by: str | Callable[[str], float] = "exact",
    needed: int,
    key: Key = Key(),
) -> tuple[M, Rows]:
    """Take one of everything."""
    return model, rows


def test_parameters_are_sorted_into_ports_settings_and_the_key() -> None:
    signature = read_signature(everything, "node")
    assert [port.name for port in signature.ports] == ["model", "rows", "loss", "mask", "other"]
    assert signature.positional == ("model", "rows", "loss")
    assert [port.name for port in signature.ports if port.optional] == ["mask"]
    assert [(port.name, port.region_returns) for port in signature.ports if port.region] == [("loss", Loss)]
    assert [port.value_type for port in signature.ports] == [Trainable, Rows, Trainable, Mask, Rows]
    assert list(signature.settings.model_fields) == ["eps", "mode", "kind", "by", "needed"]
    assert (signature.key, signature.returns) == ("key", (M, Rows))
    assert signature.at.line == inspect.getsourcelines(everything)[1]


def test_settings_take_their_ranges_from_the_annotations() -> None:
    model = read_signature(everything, "node").settings
    assert make_settings(model, {"needed": 1}, "f", "mine.py:1").model_dump() == {
        "eps": 0.5,
        "mode": "a",
        "kind": Rows,
        "by": "exact",
        "needed": 1,
    }
    with pytest.raises(SettingError, match=r"^mine.py:1: f.eps=0.0: should be greater than 0$"):
        make_settings(model, {"needed": 1, "eps": 0.0}, "f", "mine.py:1")
    with pytest.raises(FlowTypeError, match=r"^mine.py:1: f: lacks the setting `needed`$"):
        make_settings(model, {}, "f", "mine.py:1")
    with pytest.raises(SettingError, match=r"^mine.py:1: f has no setting `epz`\n  hint: did you mean `eps`\?$"):
        make_settings(model, {"needed": 1, "epz": 1.0}, "f", "mine.py:1")


def test_settings_have_a_json_schema_with_their_ranges() -> None:
    op = op_of(generate)
    assert op is not None
    properties = op.settings.model_json_schema()["properties"]
    assert list(properties)[:4] == ["n", "temperature", "max_tokens", "top_k"]
    assert (properties["n"]["minimum"], properties["n"]["default"]) == (1, 1)


def test_an_enumeration_may_be_given_by_its_value() -> None:
    op = op_of(node(mean))
    assert op is not None
    assert make_settings(op.settings, {"aggregation": "sequence-sum"}, "f", "").model_dump() == {
        "aggregation": Aggregation.SEQUENCE_SUM
    }


def mean(mask: Mask, *, aggregation: Aggregation = Aggregation.TOKEN_MEAN) -> Loss:
    raise NotImplementedError


def test_a_node_keeps_the_signature_the_words_and_the_name_of_its_function() -> None:
    made = node(everything)
    assert inspect.signature(made) == inspect.signature(everything)
    assert (made.__name__, made.__doc__, made.__module__) == ("everything", "Take one of everything.", __name__)
    assert typing.get_type_hints(made) == typing.get_type_hints(everything)
    op = op_of(made)
    assert op is not None
    assert (op.name, op.module, op.about) == ("everything", __name__, "Take one of everything.")


def test_a_plain_function_has_no_op() -> None:
    assert op_of(everything) is None


def test_what_draws_or_carries_is_not_pure() -> None:
    told = {fn.__name__: op.pure for fn in (generate, update, score, logprobs) if (op := op_of(fn)) is not None}
    assert told == {"generate": False, "update": False, "score": False, "logprobs": True}


def test_the_line_of_a_wrapped_function_is_its_own() -> None:
    assert defined_at(node(everything)).line == inspect.getsourcelines(everything)[1]


@looped(
    "hint, name",
    [
        (int, "int"),
        (Rows | None, "Rows | None"),
        (list[Rows], "list[Rows]"),
        (Callable[[Policy], Loss], "Callable[[Policy], Loss]"),
        (Sequence[tuple[Rows, int]], "Sequence[tuple[Rows, int]]"),
        (M, "Trainable"),
    ],
)
def test_types_are_named_as_a_person_writes_them(hint: object, name: str) -> None:
    assert type_name(hint) == name


# --------------------------------------------------------------------------------------------- aggregations


def lengths(mask: Mask, *, aggregation: How = Aggregation.TOKEN_MEAN) -> Loss:
    raise NotImplementedError


HOW = read_signature(lengths, "node").settings


@looped(
    "text, wanted",
    [
        ("token-mean", Aggregation.TOKEN_MEAN),
        ("sequence-mean", Aggregation.SEQUENCE_MEAN),
        ("sequence-sum", Aggregation.SEQUENCE_SUM),
        ('"sequence-sum"', Aggregation.SEQUENCE_SUM),
        ("16", 16.0),
        ("0.5", 0.5),
        ("1e300", 1e300),
    ],
)
def test_an_aggregation_is_read_from_text(text: str, wanted: Aggregation | float) -> None:
    name, value = parse_assignment(f"aggregation={text}")
    (found,) = vars(make_settings(HOW, {name: value}, "f", "--set")).values()
    assert (type(found), found) == (type(wanted), wanted)


@looped(
    "text",
    [
        *("0", "-0.0", "-1", "Infinity", "-Infinity", "NaN", "1e999", "true", "false", "null", "foo", "inf", "", "[]"),
        *('"16"', "Token-Mean", "token_mean", "TOKEN_MEAN", " token-mean", "[16]", "{}", "1" + "0" * 400),
    ],
)
def test_what_is_no_aggregation_is_refused_with_what_is_one(text: str) -> None:
    name, value = parse_assignment(f"aggregation={text}")
    with pytest.raises(SettingError) as raised:
        make_settings(HOW, {name: value}, "f", "--set")
    said = str(raised.value)
    assert said.startswith("--set: f.aggregation=")
    assert said.endswith(": should be token-mean, sequence-mean, sequence-sum, or a number above 0")


def test_a_default_that_is_no_aggregation_is_refused_when_the_node_is_made() -> None:
    def never(mask: Mask, *, aggregation: How = 0) -> Loss:
        raise NotImplementedError

    with pytest.raises(FlowTypeError, match="the default aggregation=0: should be token-mean, "):
        node(never)


@looped("how", ["mean", 0, -1.0, float("nan"), True, 10**400])
def test_a_body_that_aggregates_a_loss_by_none_of_these_is_refused(how: Any) -> None:
    values = torch.ones(1, 2)
    with pytest.raises(LawError, match=r"^a Loss is aggregated by .*: should be token-mean, .*, or a number above 0$"):
        Loss.of(values, Mask(values), how)


def test_a_body_may_aggregate_a_loss_by_a_name() -> None:
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    told = [Loss.of(values, Mask(torch.ones(2, 2)), how) for how in cast("list[Any]", ["sequence-sum", 2])]
    totals = [loss.total([term.counts() for term in loss.terms]).item() for loss in told]
    assert totals == [(3 + 7) / 2, (3 + 7) / 2 / 2]


# ------------------------------------------------------------------------------------- state with a default


class Level(State):
    """Carried data of any sort."""


class Levels(State):
    """Carried whole numbers."""

    dtype = "int64"


class Title(State):
    """A carried text."""

    dtype = "text"


NOTED = Level([1, None])


@flow
def inner(
    prompts: Prompts, policy: Policy, beta: KLWeight = KLWeight(0.05), *, level: Level = NOTED
) -> tuple[Policy, KLWeight, Level]:
    return policy, beta, level


def test_state_starts_from_the_default_of_a_flows_parameter() -> None:
    assert {port.name: port.initial for port in inner.signature.ports} == {
        "prompts": None,
        "policy": None,
        "beta": 0.05,
        "level": [1, None],
    }
    assert inner.signature.positional == ("prompts", "policy", "beta")
    assert {param.name: param.initial for param in inner.graph().params}["level"] == [1, None]


def test_a_flow_that_calls_another_carries_its_state_from_a_start_of_its_own() -> None:
    @flow
    def outer(
        prompts: Prompts, policy: Policy, level: Level, weight: KLWeight = KLWeight(0.5)
    ) -> tuple[Policy, KLWeight, Level]:
        return inner(prompts, policy, weight, level=level)

    graph = outer.graph()
    assert {param.name: param.initial for param in graph.params if param.name != "prompts"} == {
        "policy": None,
        "level": None,
        "weight": 0.5,
    }
    assert graph.carries() == {"policy": 0, "weight": 1, "level": 2}


def test_a_flow_called_on_real_values_is_given_its_state_too() -> None:
    with pytest.raises(FlowTypeError, match=r"inner: lacks `beta`, a KLWeight\n  hint: take `beta` as a parameter"):
        inner(Prompts.of({}), Policy(None))  # type: ignore[arg-type]


@looped(
    "kind, data",
    [(KLWeight, 1), (KLWeight, -0.5), (KLWeight, [0.5]), (Levels, 2), (Title, ""), (Level, True), (Level, [{"a": []}])],
)
def test_state_may_start_from_these(kind: type[State], data: object) -> None:
    assert initial_value_fault(kind, data) == ""


@looped(
    "kind, data, why",
    [
        (KLWeight, None, "it has no initial value"),
        (KLWeight, "0.5", "KLWeight is float64, not str"),
        (KLWeight, True, "KLWeight is float64, not bool"),
        (Levels, 0.5, "Levels is int64, not float"),
        (Title, 1, "Title is text, not int"),
        (Level, (1,), "a file cannot hold a tuple"),
        (Level, [1, {2}], "a file cannot hold a set"),
        (Level, {"a": b"b"}, "a file cannot hold a bytes"),
        (Level, {"a": {1: 2}}, "its keys must be strings"),
        (Level, [float("-inf")], "a file cannot hold -inf"),
        (Level, Aggregation.TOKEN_MEAN, "a file cannot hold an Aggregation"),
        (Level, len, "a file cannot hold a builtin_function_or_method"),
        (Level, 2**63, "a whole number has at most 64 bits"),
        (Level, "\ud800", "UTF-8 cannot hold it"),
    ],
)
def test_state_cannot_start_from_what_a_file_would_not_give_back(kind: type[State], data: object, why: str) -> None:
    assert initial_value_fault(kind, data) == why


@pytest.mark.parametrize("value", [[initial_value_fault], {"by": [Aggregation]}])
def test_a_function_among_other_values_is_no_setting_since_it_could_not_be_read_back(value: object) -> None:
    expected = "a function or class must be a setting of its own, not an entry of a list or dict"
    assert unstorable_reason(value) == expected
    assert unstorable_reason(initial_value_fault) == ""


# ---------------------------------------------------------------------------------------------- corrections


def test_a_port_says_which_other_one_it_corrects() -> None:
    op = op_of(clipped)
    assert op is not None
    assert {port.name: port.corrects for port in op.ports if port.corrects is not None} == {"weights": "old"}
    assert [port.name for port in op.ports if port.optional] == ["weights"]

    def alone(mask: Mask, *, new: LogProbs, weights: Annotated[Rows, Corrects(), By.FIXED]) -> Mask:
        raise NotImplementedError

    (port,) = (each for each in read_signature(alone, "node").ports if each.corrects is not None)
    assert (port.name, port.corrects, port.by) == ("weights", "", By.FIXED)
