"""Signatures: which parameters are ports, which are settings, and how a call is matched to them."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Literal, TypeVar

import pytest
from pydantic import Field

from flowgraph import Aggregation, Key, Kind, Loss, Mask, Trainable, Value, node, op_of
from flowgraph.errors import FlowTypeError, SettingError
from flowgraph.signature import defined_at, make_settings, read_signature, type_name
from nodes import Policy, generate, logprobs, score, update

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
    assert list(properties) == ["n", "temperature", "max_tokens"]
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


@pytest.mark.parametrize(
    ("hint", "name"),
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
