"""Identity of rows: split over ranks by whole groups, put back in any order, lined up where a node reads them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flowgraph import Record, Value
from flowgraph.errors import LawError
from flowgraph.language import Kind
from flowgraph.language.rows import take
from flowgraph.language.values import Group, Lengths, Mask, Sample, Trajectory
from flowgraph.runtime.batch import from_table, to_table
from flowgraph.runtime.row_identity import (
    IDS,
    LAST,
    PLACE,
    StoredValue,
    align_rows,
    join_shards,
    lengths_for,
    rows_of_rank,
)
from nodes import LogProbs, Rollout, Scores

Make = Callable[..., Rollout]


class Asked(Record):
    """Prompts by their group alone."""

    group: Group


class Answered(Record):
    """Answers with an identity, and which they are in the whole batch."""

    group: Group
    sample: Sample
    trajectory: Trajectory
    number: Scores


class Share(Value):
    """A number that does not depend on rows."""

    kind = Kind.SCALAR


def asked(groups: Sequence[int]) -> Asked:
    return Asked(group=Group(torch.tensor(groups, dtype=torch.int64)))


def answered(groups: Sequence[int], samples: Sequence[int] | None = None) -> Answered:
    """Return an answer a row, its number unlike all others."""
    samples = range(len(groups)) if samples is None else samples
    return Answered(
        group=Group(torch.tensor(groups, dtype=torch.int64)),
        sample=Sample(torch.tensor(list(samples), dtype=torch.int64)),
        trajectory=Trajectory(torch.zeros(len(groups), dtype=torch.int64)),
        number=Scores(torch.arange(len(groups)).float() + 0.5),
    )


def packed(held: StoredValue) -> pa.Table:
    """Lay a value out as it travels, with its ids."""
    table = to_table(held.value)
    for name, column in held.ids.items():
        table = table.append_column(name, [column])
    return table


def unpacked(kind: type[Value], table: pa.Table) -> StoredValue:
    ids = {name: table.column(name).to_numpy() for name in (*IDS, PLACE) if name in table.column_names}
    return StoredValue(from_table(kind, table, "here"), ids)


def told(held: StoredValue) -> dict[str, list[int]]:
    return {name: column.tolist() for name, column in held.ids.items()}


# ------------------------------------------------------------------------------------------- what tells rows apart


def test_a_record_tells_its_rows_apart_by_what_it_holds() -> None:
    assert told(StoredValue.of(answered([4, 4, 2]))) == {
        "#group": [4, 4, 2],
        "#sample": [0, 1, 2],
        "#trajectory": [0, 0, 0],
    }
    assert told(StoredValue.of(asked([3, 1]))) == {"#group": [3, 1]}
    assert len(StoredValue.of(asked([3, 1]))) == 2


def test_scalars_and_plain_rows_of_nothing_have_no_identity() -> None:
    rows = StoredValue.of(answered([1, 2]))
    assert told(StoredValue.of(Share(0.5), [rows])) == {}
    assert told(StoredValue.of(Scores(torch.ones(2)))) == {}
    assert told(StoredValue.of(Scores(torch.ones(3)), [rows])) == {}, "rows that are as many as those of no input"
    assert len(StoredValue.of(Share(0.5))) == 0


def test_plain_rows_are_those_of_an_input_with_as_many() -> None:
    prompts, rows = StoredValue.of(asked([1, 2])), StoredValue.of(answered([1, 1, 2, 2]))
    assert told(StoredValue.of(Scores(torch.ones(4)), [prompts, rows])) == told(rows)
    assert told(StoredValue.of(Scores(torch.ones(2)), [prompts, rows])) == told(prompts)


def test_of_two_inputs_with_as_many_rows_the_finer_identity_counts() -> None:
    prompts, rows = StoredValue.of(asked([1, 2])), StoredValue.of(answered([1, 2]))
    for inputs in ([prompts, rows], [rows, prompts]):
        assert told(StoredValue.of(Scores(torch.ones(2)), inputs)) == told(rows)


def test_samples_have_the_place_of_their_prompt() -> None:
    prompts = StoredValue(asked([5, 3]), {"#group": np.array([5, 3]), PLACE: np.array([7, 2])})
    assert told(StoredValue.of(answered([5, 5, 3, 3, 3]), [prompts]))[PLACE] == [7, 7, 2, 2, 2]
    assert told(StoredValue.of(answered([5, 3]), [prompts]))[PLACE] == [7, 2]
    assert told(StoredValue.of(answered([3, 3]), [prompts]))[PLACE] == [2, 2], (
        "as many samples as prompts, but of one of them"
    )
    assert told(StoredValue.of(answered([3, 8]), [prompts]))[PLACE] == [2, LAST], "a prompt that was not asked"


def test_rows_in_another_order_or_fewer_keep_their_places() -> None:
    whole = StoredValue.of(answered([5, 5, 3]))
    rows = StoredValue(whole.value, {**whole.ids, PLACE: np.array([4, 6, 9])})
    for order in ([2, 0, 1], [1, 2], [1]):
        assert told(StoredValue.of(in_order(whole, order).value, [rows]))[PLACE] == [[4, 6, 9][i] for i in order]
    longer = answered([5, 3, 5], [1, 2, 0]).parts | {"trajectory": Trajectory(torch.tensor([1, 0, 0]))}
    assert told(StoredValue.of(Answered(**longer), [rows]))[PLACE] == [6, 9, 4], (
        "a further trajectory goes with its sample"
    )


def test_what_is_made_of_samples_has_their_places() -> None:
    rows = StoredValue(answered([5, 5]), {**StoredValue.of(answered([5, 5])).ids, PLACE: np.array([7, 7])})
    assert told(StoredValue.of(Scores(torch.ones(2)), [rows])) == told(rows)


# ------------------------------------------------------------------------------------------- dealt to ranks


@st.composite
def batches(draw: st.DrawFn) -> list[int]:
    """Draw the groups of a batch's rows, in any order."""
    return draw(st.lists(st.integers(-3, 9), max_size=14))


@given(batches(), st.integers(1, 4))
def test_groups_stay_whole_and_are_shared_evenly(groups: list[int], count: int) -> None:
    table = packed(StoredValue.of(answered(groups)))
    parts = [rows_of_rank(table, rank, count, "rows").column("#group").to_pylist() for rank in range(count)]
    assert sorted(row for part in parts for row in part) == sorted(groups)
    owned = [set(part) for part in parts]
    assert sum(map(len, owned)) == len(set(groups)), "a group is on one rank"
    assert max(map(len, owned)) - min(map(len, owned)) <= 1


@given(batches(), st.integers(2, 4), st.data())
def test_rows_go_to_the_same_rank_in_whatever_order_they_come(
    groups: list[int], count: int, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(groups))))
    table = packed(StoredValue.of(answered(groups)))
    for rank in range(count):
        here = [
            rows_of_rank(each, rank, count, "rows").column("#sample").to_pylist()
            for each in (table, table.take(np.array(order, dtype=np.int64)))
        ]
        assert here[0] == sorted(here[0]), "in the table's order"
        assert set(here[0]) == set(here[1])


def test_each_row_that_is_dealt_knows_its_place_in_the_batch() -> None:
    table = packed(StoredValue.of(answered([8, 3, 8, 5])))
    parts = [rows_of_rank(table, rank, 2, "rows").select(["#group", PLACE]).to_pydict() for rank in range(2)]
    assert parts == [{"#group": [3, 5], PLACE: [1, 3]}, {"#group": [8, 8], PLACE: [0, 2]}]
    again = rows_of_rank(rows_of_rank(table, 0, 2, "rows"), 0, 2, "rows")
    assert again.select(["#group", PLACE]).to_pydict() == {"#group": [3], PLACE: [0]}, (
        "a place is one in what was split"
    )


def test_more_ranks_than_groups_leave_some_without_rows() -> None:
    table = packed(StoredValue.of(answered([6, 6])))
    assert [rows_of_rank(table, rank, 3, "rows").num_rows for rank in range(3)] == [2, 0, 0]
    assert rows_of_rank(table, 2, 3, "rows").schema == rows_of_rank(table, 0, 3, "rows").schema


def test_one_rank_gets_all_and_every_rank_gets_a_scalar() -> None:
    plain, scalar = to_table(Scores(torch.ones(3))), to_table(Share(0.5))
    assert rows_of_rank(plain, 0, 1, "scores") is plain
    assert [rows_of_rank(scalar, rank, 2, "share") for rank in range(2)] == [scalar, scalar]


def test_rows_without_identity_are_not_dealt() -> None:
    with pytest.raises(LawError) as caught:
        rows_of_rank(to_table(Scores(torch.ones(3))), 1, 2, "score")
    assert str(caught.value) == (
        "the rows of `score` have no identity, so they cannot be split over 2 ranks\n"
        "  hint: make it from a record with Group, Sample and Trajectory, or run its reader with data=1"
    )
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


# ------------------------------------------------------------------------------------------- put back


def kept(rows: StoredValue) -> StoredValue:
    """Make a plain value of each row."""
    assert isinstance(rows.value, Answered)
    return StoredValue.of(Scores(rows.value.number.data * 2), [rows])


def turned(rows: StoredValue) -> StoredValue:
    """Make a record of the same rows."""
    assert isinstance(rows.value, Answered)
    return StoredValue.of(take(rows.value, torch.arange(len(rows))), [rows])


def drawn(rows: StoredValue) -> StoredValue:
    """Draw as many samples of each prompt as its id says, told apart by what they are drawn of."""
    assert isinstance(rows.value, Asked)
    groups = [group for group in rows.value.group.data.tolist() for _ in range(group % 3)]
    made = answered(groups, [sum(group == other for other in groups[:i]) for i, group in enumerate(groups)])
    numbered = made.parts | {"number": Scores(torch.tensor([10.0 * g + s for g, s in ids_of(made)]))}
    return StoredValue.of(Answered(**numbered), [rows])


def ids_of(rows: Answered) -> list[tuple[int, int]]:
    return list(zip(rows.group.data.tolist(), rows.sample.data.tolist(), strict=True))


def on_ranks(table: pa.Table, kind: type[Value], step: Callable[[StoredValue], StoredValue], count: int) -> pa.Table:
    """Run a step on each rank's rows, and put the results together."""
    parts = [unpacked(kind, rows_of_rank(table, rank, count, "rows")) for rank in range(count)]
    return join_shards([packed(step(part)) for part in parts], "rows")


@pytest.mark.parametrize("step", [kept, turned])
@given(batches(), st.integers(1, 4))
def test_a_step_on_dealt_rows_gives_what_it_gives_on_the_whole(
    step: Callable[[StoredValue], StoredValue], groups: list[int], count: int
) -> None:
    whole = StoredValue.of(answered(groups))
    assert on_ranks(packed(whole), Answered, step, count).equals(packed(step(whole)))


@given(st.lists(st.integers(0, 9), max_size=8, unique=True), st.integers(1, 4))
def test_samples_drawn_on_ranks_are_in_the_order_of_their_prompts(groups: list[int], count: int) -> None:
    whole = StoredValue.of(asked(groups))
    assert on_ranks(packed(whole), Asked, drawn, count).equals(packed(drawn(whole)))


@given(st.lists(st.integers(0, 9), max_size=8, unique=True), st.integers(1, 4), st.integers(1, 4))
def test_steps_one_after_another_keep_the_order_of_the_batch(groups: list[int], first: int, second: int) -> None:
    whole = StoredValue.of(asked(groups))
    samples = on_ranks(packed(whole), Asked, drawn, first)
    assert on_ranks(samples, Answered, kept, second).equals(packed(kept(drawn(whole))))
    own = [drawn(unpacked(Asked, rows_of_rank(packed(whole), rank, first, "rows"))) for rank in range(first)]
    assert join_shards([packed(kept(part)) for part in own], "rows").equals(packed(kept(drawn(whole)))), (
        "without a stop"
    )


@given(batches(), st.integers(1, 4), st.data())
def test_parts_are_put_back_whatever_rank_comes_first(groups: list[int], count: int, data: st.DataObject) -> None:
    table = packed(StoredValue.of(answered(groups)))
    parts = [rows_of_rank(table, rank, count, "rows") for rank in range(count)]
    for part, named in zip(parts, range(count), strict=True):
        assert (PLACE in part.column_names) == (count > 1), named
    assert join_shards(data.draw(st.permutations(parts)), "rows").equals(table)


def test_one_table_is_put_back_as_it_is_without_its_places() -> None:
    table = packed(StoredValue.of(answered([2, 1])))
    assert join_shards([table], "rows") is table
    assert join_shards([table.append_column(PLACE, [[1, 0]])], "rows").equals(table)


def test_a_scalar_that_all_ranks_agree_on_is_one() -> None:
    one = to_table(Share(0.5))
    assert join_shards([one, to_table(Share(0.5))], "share").equals(one, check_metadata=True)


def test_scalars_that_depend_on_how_the_batch_was_cut_are_refused() -> None:
    with pytest.raises(LawError) as caught:
        join_shards([to_table(Share(0.5)), to_table(Share(0.25))], "share")
    assert str(caught.value) == "the rows of `share` are not those of `share`: its ranks give different scalars"


def test_a_rank_without_rows_says_nothing_of_types() -> None:
    some = pa.table({"value": [1.5], "#group": [4], PLACE: [0]}).replace_schema_metadata({b"a": b"1"})
    none = pa.table({"value": pa.array([], pa.null()), PLACE: pa.array([], pa.int64())})
    none = none.replace_schema_metadata({b"a": b"1"})
    assert join_shards([none, some], "rows").equals(some.drop([PLACE]), check_metadata=True)
    assert join_shards([none, none], "rows").num_rows == 0


# ------------------------------------------------------------------------------------------- lined up


def numbers(held: StoredValue) -> list[float]:
    value: Any = held.value
    data: torch.Tensor = value.number.data if isinstance(value, Answered) else value.data
    return data.tolist()


def in_order(held: StoredValue, order: Sequence[int]) -> StoredValue:
    index = torch.tensor(order, dtype=torch.int64)
    return StoredValue(take(held.value, index), {name: column[index.numpy()] for name, column in held.ids.items()})


def test_inputs_come_in_the_order_of_the_first_that_has_their_rows() -> None:
    rows = StoredValue.of(answered([1, 1, 2]))
    scores = in_order(kept(rows), [2, 0, 1])
    assert numbers(scores) == [5.0, 1.0, 3.0]
    for inputs in ({"rows": rows, "scores": scores}, {"scores": scores, "rows": rows}):
        done = align_rows(inputs)
        first, second = done.values()
        assert list(done) == list(inputs) and first is next(iter(inputs.values()))
        assert told(first) == told(second)
        assert [2 * number for number in numbers(done["rows"])] == numbers(done["scores"])


@given(batches(), st.data())
def test_any_order_is_put_right(groups: list[int], data: st.DataObject) -> None:
    rows = StoredValue.of(answered(groups))
    inputs: dict[str, StoredValue] = {"rows": rows}
    for i in range(3):
        inputs[f"scores{i}"] = in_order(kept(rows), data.draw(st.permutations(range(len(groups)))))
    done = align_rows(inputs)
    assert all(numbers(done[name]) == numbers(kept(rows)) for name in list(inputs)[1:])


def test_places_move_with_their_rows() -> None:
    rows = unpacked(Answered, rows_of_rank(packed(StoredValue.of(answered([1, 9, 2]))), 0, 2, "rows"))
    done = align_rows({"rows": rows, "scores": in_order(kept(rows), [1, 0])})
    assert told(done["scores"])[PLACE] == told(rows)[PLACE] == [0, 2]


def test_what_has_other_rows_or_none_stays_as_it_is() -> None:
    inputs: Mapping[str, StoredValue] = {
        "rows": StoredValue.of(answered([1, 2])),
        "others": StoredValue.of(answered([2, 1])),
        "more": StoredValue.of(answered([1, 2, 2])),
        "prompts": StoredValue.of(asked([2, 1])),
        "share": StoredValue.of(Share(0.5)),
        "plain": StoredValue.of(Scores(torch.ones(2))),
    }
    done = align_rows(inputs)
    assert all(done[name] is held for name, held in inputs.items())


def test_rows_that_nothing_tells_apart_may_come_in_one_order_only() -> None:
    prompts = StoredValue.of(asked([4, 4, 7]))
    assert align_rows({"a": prompts, "b": StoredValue.of(asked([4, 4, 7]))})["b"].ids["#group"].tolist() == [4, 4, 7]
    with pytest.raises(LawError) as caught:
        align_rows({"prompts": prompts, "turned": StoredValue.of(asked([7, 4, 4]))})
    assert str(caught.value) == (
        "the rows of `turned` are not those of `prompts`: their order differs, and several have the same ids"
    )


# ------------------------------------------------------------------------------------------- lengths


def test_lengths_of_a_token_value_are_those_of_the_input_that_it_fits(make_rollout: Make) -> None:
    one, other = make_rollout([3, 1]), make_rollout([1, 3])
    inside = LogProbs(one.mask.data * -1.0)
    inputs = [StoredValue.of(other), StoredValue.of(Share(1)), StoredValue.of(one)]
    assert lengths_for(inside, inputs) is one.lengths.data, "the first would cut two tokens"
    assert lengths_for(LogProbs(torch.ones(2, 3)), inputs) is None, "each would cut"
    assert lengths_for(Mask(torch.zeros(2, 4)), inputs) is None, "a column would be lost"
    assert lengths_for(Mask(torch.zeros(3, 3)), inputs) is None
    assert lengths_for(Mask(torch.zeros(0, 0)), [StoredValue.of(make_rollout([]))]) is not None


def test_no_token_is_lost_on_the_way_whatever_the_inputs(make_rollout: Make) -> None:
    inputs = [StoredValue.of(make_rollout([1, 2])), StoredValue.of(make_rollout([2, 1]))]
    for value in (LogProbs(torch.tensor([[1.0, 2.0], [3.0, 0.0]])), LogProbs(torch.ones(2, 2))):
        table = to_table(value, lengths_for(value, inputs))
        assert torch.equal(from_table(LogProbs, table, "here").data, value.data)


def test_every_id_has_its_value_type() -> None:
    assert dict(IDS) == {"#group": Group, "#sample": Sample, "#trajectory": Trajectory}
    assert all(one != two for one, two in pairwise((*IDS, PLACE)))
    assert Lengths not in IDS.values()
