"""Values: an edge while a flow is described, data while a node runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from flowgraph import Kind, Linear, Mask, Measure, Model, Record, State, Trainable, Value
from flowgraph.errors import FlowTypeError, LawError
from flowgraph.language.call_site import Site
from flowgraph.language.graph import Edge, Param
from flowgraph.language.values import Context, Group, Lengths, Sample, Tokens, Trajectory, fields
from nodes import Advantages, LogProbs, Policy, Reference, Rollout, Scores, TokenAdvantages

SITE = Site("mine.py", 1)


class Inner(Record):
    mask: Mask


class Outer(Record):
    group: Group
    inner: Inner


class Wider(Outer):
    tokens: Tokens


def edge_of(kind: type[Value]) -> Any:
    param = Param("it", kind, "flow mine", SITE)
    return kind.at(Edge(param, kind))


def test_a_value_of_real_data_holds_it_and_stands_for_no_edge() -> None:
    mask = Mask(torch.ones(2, 3))
    assert mask.edge is None
    assert len(mask) == 2
    assert mask.data.shape == (2, 3)
    assert [row.tolist() for row in mask] == [[1.0] * 3] * 2
    assert mask[0].tolist() == [1.0] * 3


def test_scalars_of_real_data_are_numbers() -> None:
    assert (float(Scores(torch.tensor(0.5))), int(Scores(torch.tensor(2))), bool(Scores(torch.tensor(1)))) == (
        0.5,
        2,
        True,
    )


def test_real_values_are_equal_only_to_themselves_and_can_be_kept_in_sets() -> None:
    one, other = Mask(torch.ones(1, 1)), Mask(torch.ones(1, 1))
    assert one == one
    assert one != other
    assert len({one, other, one}) == 2


@pytest.mark.parametrize(
    "use",
    [
        bool,
        len,
        iter,
        float,
        int,
        lambda value: value == 1,
        lambda value: value != 1,
        lambda value: value < 1,
        lambda value: value >= 1,
        lambda value: value[0],
        lambda value: value.data,
        lambda value: setattr(value, "measures", ()),
    ],
)
def test_no_use_of_an_edge_as_data_passes(use: Any) -> None:
    with pytest.raises(FlowTypeError, match="has no value while the flow is described"):
        use(edge_of(Mask))


def test_edges_can_be_kept_in_sets_shown_and_compared_by_identity() -> None:
    mask = edge_of(Mask)
    assert len({mask, mask}) == 1
    assert mask is not None
    assert repr(mask) == "<Mask of it>"


def test_the_part_of_a_records_edge_is_an_edge_of_the_parts_type() -> None:
    outer = edge_of(Outer)
    mask = outer.inner.mask
    assert type(mask) is Mask
    assert mask.edge == Edge(outer.edge.source, Mask, "inner.mask")
    assert str(mask.edge) == "it.inner.mask"


def test_a_records_parts_are_its_own_and_its_bases_in_order() -> None:
    assert fields(Wider) == {"group": Group, "inner": Inner, "tokens": Tokens}


def test_a_real_record_gives_its_parts_and_refuses_to_be_data() -> None:
    record = Outer(group=Group(torch.arange(2)), inner=Inner(mask=Mask(torch.ones(2, 1))))
    assert list(record.parts) == ["group", "inner"]
    assert record.inner.mask.data.shape == (2, 1)
    assert record.measured(Measure("seen", 1, 2)).measures == (Measure("seen", 1, 2),)
    for use in (len, bool, lambda value: value.data):
        with pytest.raises(
            FlowTypeError, match=r"Outer: holds parts, and they hold the data\n  hint: its parts: group, inner"
        ):
            use(record)


def test_an_unknown_part_is_an_attribute_error_with_the_nearest_name() -> None:
    record = Inner(mask=Mask(torch.ones(1, 1)))
    for each in (record, edge_of(Inner)):
        with pytest.raises(AttributeError, match=r"^Inner has no part `maks` \(did you mean `mask`\?\)$"):
            _ = each.maks
        assert not hasattr(each, "__array__")


def test_same_shape_is_not_same_type() -> None:
    token_columns = (Mask, Tokens, LogProbs, TokenAdvantages)
    for one in token_columns:
        assert one.kind is Kind.TOKEN
        assert not any(issubclass(one, other) for other in token_columns if other is not one)


def test_every_value_has_a_kind_and_a_row_its_identity() -> None:
    assert [kind.value for kind in Kind] == ["row", "row x token", "scalar", "model", "state"]
    kinds = {Scores: Kind.ROW, Advantages: Kind.ROW, Context: Kind.ROW, Lengths: Kind.ROW, Policy: Kind.MODEL}
    assert all(value.kind is kind for value, kind in kinds.items())
    assert [fields(Rollout)[name] for name in ("group", "sample", "trajectory")] == [Group, Sample, Trajectory]


def test_what_update_can_train_is_state_and_a_reference_is_not() -> None:
    assert issubclass(Trainable, State)
    assert issubclass(Policy, Trainable)
    assert not issubclass(Reference, State)
    assert issubclass(Reference, Model)


@dataclass
class Hosted:
    """A handle, as far as a model looks at it."""

    version: int = 0


def test_a_model_whose_weights_were_updated_refuses_to_be_read() -> None:
    handle: Any = Hosted()
    first = Policy(handle)
    second = first.advanced()
    assert (type(second), second.version, handle.version) == (Policy, 1, 1)
    assert second.handle is handle
    with pytest.raises(LawError) as raised:
        _ = first.handle
    assert str(raised.value) == (
        "version 0 of these weights was consumed by an update; they are at 1\n"
        "  hint: use the model that `update` returned"
    )
    with pytest.raises(LawError):
        first.advanced()


class Level(Linear):
    """A number that adds."""


def test_values_that_add_add_real_data() -> None:
    level = 2 * Level(3.0) - Level(1.0) + -Level(4.0)
    assert (type(level), level.data) == (Level, 1.0)
