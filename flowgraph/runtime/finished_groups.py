"""Groups of responses that have finished, until a step trains on them: their rows, their metrics, and their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from flowgraph.errors import DataError, LawError
from flowgraph.language.region import Observations
from flowgraph.language.rows import find, take
from flowgraph.language.values import Group, Measure, Record, Value, VersionRange
from flowgraph.runtime.batch import EXTRAS
from flowgraph.runtime.group_order import GroupName, GroupOrder
from flowgraph.runtime.join_chunks import NO_EXTRAS, stacked
from flowgraph.runtime.places import Places, RowSource
from flowgraph.runtime.row_identity import StoredValue
from flowgraph.runtime.token_versions import AGED

if TYPE_CHECKING:
    import pyarrow as pa

V = TypeVar("V", bound=Value)

AGAIN = 2**40
"""What is added to the id of a prompt that a step has twice, so its groups stay two: more than tables have rows."""


@dataclass(frozen=True)
class FinishedGroup:
    """A group that has finished: an item of a place with its rows, possibly among others, and what was observed.

    `observed` has the metrics of the group alone, and its tokens by age behind the newest version that may draw them.
    """

    name: GroupName
    item: Any
    observed: Observations = field(default_factory=Observations)


@dataclass(frozen=True)
class TakenGroup:
    """A group that a step trains on, and the oldest version of the weights that drew its tokens."""

    name: GroupName
    first_version: int


@dataclass(frozen=True)
class Pick:
    """Which rows of an item to read: those of a prompt, whose id is increased by `AGAIN` for each time `again`."""

    prompt: int
    again: int = 0

    @property
    def added(self) -> int:
        """Return the number to add to the id of the group."""
        return self.again * AGAIN


def picks_of(names: Sequence[GroupName]) -> list[Pick]:
    """Return which rows to read for groups; a prompt that comes again gets another id for each further group.

    >>> picks_of([GroupName(3, 7), GroupName(4, 7)])
    [Pick(prompt=7, again=0), Pick(prompt=7, again=1)]
    """
    seen, picks = Counter[int](), list[Pick]()
    for name in names:
        picks.append(Pick(prompt=name.prompt, again=seen[name.prompt]))
        seen[name.prompt] += 1
    return picks


@dataclass(eq=False)
class GroupPool:
    """The groups of a run that have started and are not trained on yet: their order, and those that have finished."""

    order: GroupOrder
    finished: dict[GroupName, FinishedGroup] = field(default_factory=dict[GroupName, FinishedGroup])

    def take(self, step: int, places: Places) -> tuple[list[FinishedGroup], int]:
        """Return the groups that a step trains on, in order, and how many overdue groups were unfinished at the call.

        A group is overdue if the step is the last that can train on it. Waits for groups to finish. Raises the errors
        of their sampling, and those of `GroupOrder`.
        """
        while self._receive(places, wait=False):
            pass
        awaited = len(self.order.awaited(step))
        while (names := self.order.take(step)) is None:
            self._receive(places)
        return [self.finished.pop(name) for name in names], awaited

    def receive_all(self, places: Places) -> None:
        """Wait until all groups that have started have finished. Raises the errors of their sampling."""
        while self.order.under_way:
            self._receive(places)

    def _receive(self, places: Places, *, wait: bool = True) -> bool:
        group = places.finished(wait=wait) if self.order.under_way else None
        if group is not None:
            self.order.finish(group.name)
            self.finished[group.name] = group
        return group is not None

    def by_step(self) -> Iterator[tuple[int, list[FinishedGroup]]]:
        """Yield (step, groups) for each step with groups that are not trained on yet; all must have finished."""
        for step in dict.fromkeys(name.step for name in self.order.waiting):
            yield step, [self.finished[name] for name in self.order.waiting if name.step == step]


def prompts_of(source: RowSource, step: int) -> list[int]:
    """Return the ids of the prompts of a step's rows, in the order of the data."""
    groups = find([source.batch(step)], Group)
    assert groups is not None, "check_ready_roles refuses rows without groups"
    return list(map(int, groups.data.tolist()))


def age_in(step: int, group: FinishedGroup, sampled_by: VersionRange, allowed: VersionRange, node: str) -> TakenGroup:
    """Return a group as one that `step` trains on, and count its tokens by age behind the newest version `allowed`.

    The counts of `group.observed` are changed: they were behind the newest of `sampled_by`, the versions that may
    sample its rows in any step. `node` is the node that samples. Raises LawError for a token of a version that is not
    `allowed`.
    """
    sums = group.observed.sums
    aged = {key: sums.pop(key) for key in [*sums] if key[1].startswith(AGED)}
    tokens = {sampled_by.newest - int(name.removeprefix(AGED)): counted for (_, name), counted in aged.items()}
    for version, counted in tokens.items():
        if version not in allowed:
            raise LawError.drawn_by_other(node, step, version, str(allowed))
        sums[node, f"{AGED}{allowed.newest - version}"] = counted
    return TakenGroup(group.name, min(tokens, default=sampled_by.oldest))


def picked(items: Sequence[StoredValue], picks: Sequence[Pick], name: str) -> StoredValue:
    """Return one value with the picked rows of each item, in order; `name` is the value's name in errors.

    There is one pick for each item, and at least one item. Ids of groups are increased by `Pick.added`, so that groups
    of a prompt that is picked again stay apart. Raises LawError if scalars of the items differ.
    """
    import numpy as np
    import torch

    values, ids = list[Value](), list[Mapping[str, Any]]()
    for item, pick in zip(items, picks, strict=True):
        rows = np.flatnonzero(item.ids["#group"] == pick.prompt)
        values.append(_renumbered(take(item.value, torch.from_numpy(rows)), pick.added))
        ids.append({column: numbers[rows] + pick.added * (column == "#group") for column, numbers in item.ids.items()})
    return StoredValue(
        stacked(values, name), {column: np.concatenate([columns[column] for columns in ids]) for column in ids[0]}
    )


def _renumbered(value: V, added: int) -> V:
    if isinstance(value, Record) and added:
        return type(value).of({name: _renumbered(part, added) for name, part in value.parts.items()})
    return type(value)(value.data + added) if isinstance(value, Group) and added else value


def picked_table(tables: Sequence[pa.Table], picks: Sequence[Pick], groups: Sequence[str], name: str) -> pa.Table:
    """Return a table with the picked rows of each table, in order, as `picked` does for values.

    `groups` are the columns of ids of groups in the value, besides `#group`. `name` is the value's name in errors.
    Raises LawError if scalars differ.
    """
    import numpy as np
    import pyarrow as pa

    pieces = list[pa.Table]()
    for table, pick in zip(tables, picks, strict=True):
        rows = table.take(np.flatnonzero(table.column("#group").to_numpy() == pick.prompt))
        for column in ("#group", *groups) if pick.again else ():
            numbers = pa.array(rows.column(column).to_numpy() + pick.added)
            rows = rows.set_column(rows.column_names.index(column), column, numbers)
        pieces.append(rows)
    if any(piece.schema.metadata != pieces[0].schema.metadata for piece in pieces):
        raise LawError.not_aligned(name, name, "its groups give different scalars")
    rows = pa.concat_tables(pieces, promote_options="default").combine_chunks()
    for place, column in enumerate(rows.column_names):
        if column.endswith(EXTRAS) and rows.column(column).null_count:
            rows = rows.set_column(place, column, rows.column(column).fill_null(NO_EXTRAS))
    return rows


@dataclass(frozen=True)
class TakenRows:
    """The rows of a source in the order of groups: `groups` has, for each step, those that it trains on.

    `where` names the file that the groups are from, for errors.
    """

    source: RowSource
    groups: Mapping[int, Sequence[TakenGroup]]
    where: str = ""

    def batch(self, step: int) -> Value:
        """Return the prompts of the groups of step `step`, in their order.

        Raises DataError for a step without groups, and for a group that is not of the prompts of its step.
        """
        names = [group.name for group in self.groups.get(step, ())]
        rows = {of: StoredValue.of(self.source.batch(of)) for of in dict.fromkeys(name.step for name in names)}
        foreign = [name for name in names if name.prompt not in rows[name.step].ids.get("#group", ())]
        if foreign or not names:
            why = f"names {foreign[0]}, which has no such prompt" if foreign else "is not in it"
            raise DataError.unusable(self.where, f"step {step} {why}")
        return picked([rows[name.step] for name in names], picks_of(names), "prompts").value


def taken_measures(step: int, names: Sequence[GroupName], awaited: int) -> tuple[Measure, ...]:
    """Return the measures of the groups that a step trains on.

    They are `moved`, the share of groups of other steps; `waited`, the groups that it had to wait for because of the
    bound; and `late`, the most steps by which a group came after its own.
    """
    steps_late = max((step - name.step for name in names), default=0)
    return (
        Measure("moved", total=sum(name.step != step for name in names), count=len(names)),
        Measure("waited", total=awaited, count=1),
        Measure("late", total=max(0, steps_late), count=1),
    )
