"""The places where the tasks of a program run, and the items that they store, as the interpreter calls them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from flowgraph.language.graph import Graph
from flowgraph.language.keys import Key
from flowgraph.language.region import Observations
from flowgraph.language.values import Value, VersionRange
from flowgraph.lowering.program import Home, Join, Parts, Run, Sync, Transfer

if TYPE_CHECKING:
    from flowgraph.runtime.finished_groups import FinishedGroup, Pick

LATER = object()
"""The owner of work that no step waits for: it samples groups, and any step may train on each of them."""

Item = Any
"""A value as places store it: the value itself, or references to its rows."""

ReadVersions = Mapping[str, int | VersionRange]
"""The version of each model that a task reads, by name; a range if newer weights may come while the task runs."""

DiskVerb = Literal["save", "save_state", "load_state"]
"""`save` writes a folder that transformers loads; `save_state` writes weights and, where they are trained, optimizer
state, which `load_state` loads under any layout."""


class RowSource(Protocol):
    """A source of rows; `batch` must be a pure function of the step."""

    def batch(self, step: int) -> Value:
        """Return the rows of step `step` (from 0)."""
        ...


@dataclass(frozen=True)
class StartState:
    """A value that is read as it is, such as the initial value of carried state, until a step has replaced it."""

    value: Value

    def batch(self, step: int) -> Value:
        """Return the value, for any step."""
        return self.value


class Places(Protocol):
    """The places where tasks run, and the items that they store."""

    def read(self, source: RowSource, step: int) -> Item:
        """Return the rows of one step from a source, as an item."""
        ...

    def run(
        self, graph: Graph, task: Run, items: Mapping[str, Item], versions: ReadVersions, key: Key
    ) -> Mapping[str, Item]:
        """Run the nodes of a task and return their results by name, without models.

        `items` are the inputs by name; `versions` are the versions of the models that the task reads; `key` contains
        the seed and the step, for random numbers. The work may still be under way when this returns; the next `finish`
        then raises its errors.
        """
        ...

    def draw(
        self, graph: Graph, task: Run, items: Mapping[str, Item], versions: ReadVersions, key: Key
    ) -> Mapping[str, Item]:
        """Return the next chunk of what a task samples, by name; the task of the first chunk begins to sample.

        A chunk is some groups of the batch, returned when they have finished. The last chunk comes with all rows, under
        the name of the node itself. The arguments are those of `run`.
        """
        ...

    def sample(self, graph: Graph, task: Run, items: Mapping[str, Item], versions: ReadVersions, key: Key) -> None:
        """Begin to sample the groups of a step, which `finished` returns as they finish; the step does not wait.

        The arguments are those of `run`.
        """
        ...

    def finished(self, *, wait: bool = True) -> FinishedGroup | None:
        """Wait for the next group that finishes, of any step, and return it.

        If `wait` is False, returns at once, with None if no group has finished. Raises errors of the sampling.
        """
        ...

    def pick(self, items: Sequence[Item], picks: Sequence[Pick], kind: type[Value], name: str) -> Item:
        """Return an item with the rows that each pick selects from the item at its index, in the order of the items.

        There is one pick for each item, and at least one item. Ids of groups are increased by `Pick.added`, so that the
        groups of a prompt that is picked again stay apart. `kind` is the type of the value whose rows the items have,
        and `name` its name in errors. Raises LawError if scalars of the items differ, here or in the next `finish`.
        """
        ...

    def join(self, task: Join, chunks: Sequence[Item], like: Item) -> Item:
        """Return an item with the rows of all chunks of a value, in the order in which `like` has these rows.

        Raises LawError if the chunks do not have the rows of `like`.
        """
        ...

    def transfer(self, task: Transfer, item: Item) -> Item:
        """Return an item for the task's target place, with at least the parts that the task transfers.

        It may be the same item, where places read from a common store.
        """
        ...

    def sync(self, task: Sync, version: int) -> None:
        """Copy a model's weights, of version `version`, from the source home of `task` to its target.

        A home is one copy of a model's weights, in one pool under one engine and layout.
        """
        ...

    def keep(self, item: Item, path: Path) -> None:
        """Write an item, with the ids of its rows, to a file, or replace it; it is complete after the next `finish`."""
        ...

    def kept(self, kind: type[Value], path: Path, parts: Parts) -> Item:
        """Return the item that `keep` wrote, of type `kind`.

        Unless `parts` is empty, it may lack other parts of a record than these.
        """
        ...

    def switch(self, home: Home, *, awake: bool) -> None:
        """Free the device memory of a home's weights, or load them again (`awake`), after all work submitted there."""
        ...

    def work_for(self, step: object) -> None:
        """Attribute work that is submitted from now on, with its observations, to `step`; None: to no step."""
        ...

    def finish(self, step: object = None) -> Observations:
        """Wait for all work of `step` and return its observations. Raises the first error of that work.

        Work that belongs to no step is waited for, too. Without a step, wait for all work, and return the observations
        of what belongs to no step.
        """
        ...

    def apply(self, function: Callable[..., Any], items: Sequence[Item], *rest: Any) -> Callable[[], Any]:
        """Call `function(tables, *rest)` with the tables (`runtime.batch.to_table`) of `items`.

        Returns a function that returns the result; call it only after the next `finish`.
        """
        ...

    def on_disk(self, home: Home, verb: DiskVerb, folder: Path, version: int | None = None) -> None:
        """Save the weights or state of a home to `folder`, or load them from there, on every rank.

        `verb` is the method of the handles. `version` is the version of the loaded weights; None when saving.
        """
        ...

    def close(self) -> None:
        """End every process that these places started."""
        ...
