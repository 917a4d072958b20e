"""Execute a program: task by task, values from store to store, one store for each place and each copy of weights.

It knows stores, versions and order. Where tasks run, and what a store's items are, is for the places to say: in this
process (`in_process`) or on Ray (`ray_places`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict

from flowgraph.engines.table import ENGINES, is_server
from flowgraph.errors import DataError, LawError
from flowgraph.files.untrusted import json_as, read_bytes
from flowgraph.language.graph import Graph
from flowgraph.language.keys import Key
from flowgraph.language.region import Observations
from flowgraph.language.values import Model, Value
from flowgraph.lowering.program import (
    HOST,
    Home,
    Program,
    Read,
    Run,
    Switch,
    Sync,
    Task,
    Transfer,
    results_given,
    value_name,
)
from flowgraph.runtime.record.carried_state import read_carried, write_carried

LOST = -(2**62)
"""The version of a copy of weights that is not there, or not known: older than any may be."""

MODELS, COPIES, CARRIED, VERSIONS = "models", "copies", "carried", "versions.json"

Item = Any
"""A value as places hold it: the value itself, or references to its rows."""


class WeightVersions(BaseModel):
    """What `versions.json` of a checkpoint says: the version of each model, and of each copy that may lag."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    models: dict[str, int]
    copies: list[tuple[str, int]]


def _read_versions(path: Path, names: Collection[str]) -> WeightVersions:
    """Read the versions of a checkpoint. Raises DataError for what is none, or lacks a model of these names."""
    try:
        found = json_as(WeightVersions, read_bytes(path))
    except (OSError, ValueError) as error:
        raise DataError.failed(path, "says no versions of weights", error) from error
    for name in names:
        if name not in found.models:
            raise DataError.lacks_part(str(path), name, found.models)
    return found


class RowSource(Protocol):
    """Where rows come from: a pure function of the step."""

    def batch(self, step: int) -> Value:
        """Give the rows of one step."""
        ...


@dataclass(frozen=True)
class StartState:
    """What carried state is before the first step."""

    value: Value

    def batch(self, step: int) -> Value:
        """Give the value, whatever the step: it is asked for until the state is carried."""
        return self.value


class Places(Protocol):
    """Where tasks run."""

    def read(self, source: RowSource, step: int) -> Item:
        """Get a source's rows of one step."""
        ...

    def run(
        self, graph: Graph, task: Run, items: Mapping[str, Item], versions: Mapping[str, int], key: Key
    ) -> Mapping[str, Item]:
        """Run a task's nodes and give their results by name, models left out."""
        ...

    def transfer(self, task: Transfer, item: Item) -> Item:
        """Bring an item from one place to another."""
        ...

    def sync(self, task: Sync, version: int) -> None:
        """Bring this version of a model's weights from one home to another."""
        ...

    def switch(self, home: Home, *, awake: bool) -> None:
        """Let what a home holds leave its devices, or come back; all that was begun there before is done first."""
        ...

    def finish(self) -> Observations:
        """Wait for all that was begun, raise what went wrong, and give what was observed."""
        ...

    def apply(self, function: Callable[..., Any], items: Sequence[Item], *rest: Any) -> Callable[[], Any]:
        """Call a function on a list of tables (`runtime.batch.to_table`) of items, where they can be read.

        Returns what gives the function's result, once `finish` was called after this.
        """
        ...

    def save(self, home: Home, folder: Path) -> None:
        """Write the weights of one home as a folder that transformers loads."""
        ...

    def save_state(self, home: Home, folder: Path) -> None:
        """Write a home's weights and, where they are trained, its optimizers' state; every rank takes part."""
        ...

    def load_state(self, home: Home, folder: Path, version: int) -> None:
        """Take what `save_state` wrote, on any layout; `version` is that of the weights."""
        ...

    def put(self, value: Value) -> Item:
        """Bring a value here."""
        ...

    def close(self) -> None:
        """End every process that was started."""
        ...


@dataclass(frozen=True)
class StepResult:
    """One step's results: items by name, and what was observed."""

    items: Mapping[str, Item]
    observed: Observations
    places: Places

    def apply(self, function: Callable[..., Any], names: Sequence[str], *rest: Any) -> Callable[[], Any]:
        """Call a function on a list of tables of these results, as `Places.apply` does."""
        return self.places.apply(function, [self.items[name] for name in names], *rest)


@dataclass(eq=False)
class Executor:
    """Executes programs at places; holds what is carried from step to step: versions of weights, and other state.

    `held` are the versions of copies, 0 of those it does not name: all that was loaded.
    """

    places: Places
    held: dict[Home, int] = field(default_factory=dict[Home, int])
    carried: dict[str, Item] = field(default_factory=dict[str, Item])
    asleep: set[Home] = field(default_factory=set[Home])

    def run(self, program: Program, sources: Mapping[str, RowSource], key: Key) -> StepResult:
        """Execute one step. `sources` give data parameters, and recorded results of nodes that then are not run.

        A sync is left out while the copy of the weights is as new as it may be. Results that do not leave a task are in
        none of what it gives.
        Raises LawError for a task that reads what is not in the store of its place, and what the tasks raise.
        """
        step = _StepStores(self, program, sources, key)
        for task in program.tasks:
            step.take(task)
        observed = self.places.finish()
        carries = {i: name for name, i in program.graph.carries().items()}
        for i, edge in enumerate(program.graph.outputs):
            if not issubclass(edge.type, Model):
                item = step.get(HOST, value_name(edge), "the end of the step")
                self.carried |= {carries[i]: item} if i in carries else {}
        return StepResult(step.found, observed, self.places)

    def switch(self, program: Program, home: Home, *, awake: bool) -> None:
        """Let a home's memory be freed or taken, unless it is so already.

        An engine's servers lose the weights that new ones come for: a copy that slept is never new enough.
        """
        if (home in self.asleep) is awake:
            self.places.switch(home, awake=awake)
            self.asleep ^= {home}
            if not awake and is_server(home.engine) and home.param not in program.frozen:
                self.held[home] = LOST

    def _wake(self, program: Program, *used: Home) -> None:
        """Wake homes for work between steps, once those that share their devices have stepped aside."""
        pools = {home.pool for home in used}
        for home in program.homes:
            if home.running.sleeps and home.pool in pools and home not in used:
                self.switch(program, home, awake=False)
        for home in used:
            self.switch(program, home, awake=True)

    def save(self, program: Program, param: str, folder: Path) -> None:
        """Write the newest weights of a model parameter as a folder that transformers loads."""
        home = dict(program.origins)[param]
        self._wake(program, home)
        self.places.save(home, folder)

    def save_state(self, program: Program, folder: Path) -> None:
        """Write all that the next step begins from: trained models, copies that are older, carried values, versions."""
        moving = _moving(program)
        for param, home in moving.items():
            self._wake(program, home)
            self.places.save_state(home, folder / MODELS / param)
        copies = [home for home in program.homes if self._lags(home, moving)]
        for place, home in enumerate(copies):
            if "token_stats" in ENGINES[home.engine].verbs:  # an engine that only samples gives no weights
                self._wake(program, home)
                self.places.save_state(home, folder / COPIES / str(place))
        for name, item in self.carried.items():
            self.places.apply(write_carried, [item], folder.absolute() / CARRIED / f"{name}.json")
        self.places.finish()
        versions = {
            MODELS: {param: self.held.get(home, 0) for param, home in moving.items()},
            COPIES: [[str(reader_of(home)), self.held.get(home, 0)] for home in copies],
        }
        (folder / VERSIONS).write_text(json.dumps(versions, indent=1), "utf-8")

    def load_state(self, program: Program, folder: Path) -> None:
        """Take what `save_state` wrote, by this program's plan, which may be another.

        A copy that was older and is not placed as it was then is as new as what is trained.
        """
        versions, moving = _read_versions(folder / VERSIONS, _moving(program)), _moving(program)
        for param, home in moving.items():
            self._wake(program, home)
            self.held[home] = versions.models[param]
            self.places.load_state(home, folder / MODELS / param, self.held[home])
        old = {name: (place, version) for place, (name, version) in enumerate(versions.copies)}
        for home in program.homes:
            if home.param not in moving or home == moving[home.param]:
                continue
            place, version = old.get(str(reader_of(home)), (-1, self.held[moving[home.param]]))
            if (folder / COPIES / str(place)).is_dir():
                self._wake(program, home)
                self.places.load_state(home, folder / COPIES / str(place), version)
                self.held[home] = version
            else:
                self._wake(program, moving[home.param], home)
                self.held[home] = self.held[moving[home.param]]
                self.places.sync(Sync(home.param, moving[home.param], home), self.held[home])
        for each in program.graph.params:
            if (path := folder / CARRIED / f"{each.name}.json").is_file():
                self.carried[each.name] = self.places.put(read_carried(each.type, path))
        self.places.finish()

    def _lags(self, home: Home, moving: Mapping[str, Home]) -> bool:
        return home.param in moving and self.held.get(home, 0) != self.held.get(moving[home.param], 0)


def _moving(program: Program) -> dict[str, Home]:
    """Give the home of the newest version of each model that an update moves on."""
    return {name: home for name, home in program.origins if name not in program.frozen}


def reader_of(home: Home) -> tuple[str, str, str, str]:
    """Name a copy of weights in a way that a plan of another day names it too, if it is placed alike."""
    return home.param, home.pool, home.engine, str(home.layout)


class _StepStores:
    """The stores of one step."""

    def __init__(self, executor: Executor, program: Program, sources: Mapping[str, RowSource], key: Key) -> None:
        self._executor, self._program, self._sources, self._key = executor, program, sources, key
        self._places, self._held = executor.places, executor.held
        self.found = dict[str, Item]()
        self._stores: dict[str | Home, dict[str, Item]] = {HOST: {}}
        for name, home in program.origins:
            self._put(home, name, self._held.setdefault(home, 0))
        for home in program.homes:
            if home.param in program.frozen:
                self._put(home, home.param, self._held.setdefault(home, 0))

    def get(self, place: str | Home, name: str, task: object) -> Item:
        """Take an item from a place's store."""
        store = self._stores.get(place, {})
        if name not in store:
            raise LawError.not_there(str(task), name, str(place))
        return store[name]

    def _put(self, place: str | Home, name: str, item: Item) -> None:
        self._stores.setdefault(place, {})[name] = item

    def take(self, task: Task) -> None:
        """Execute one task."""
        match task:
            case Read(value):
                carried = self._executor.carried
                found = carried[value] if value in carried else self._read(value)
                self._put(HOST, value, found)
            case Transfer(value, source, target):
                self._put(target, value, self._places.transfer(task, self.get(source, value, task)))
            case Sync(value, source, target):
                version = self.get(source, value, task)
                if not 0 <= version - self._held.get(target, 0) <= task.lag:
                    self._places.sync(task, version)
                    self._held[target] = version
                self._put(target, value, self._held.get(target, 0))
            case Switch(home, awake):
                self._executor.switch(self._program, home, awake=awake)
            case Run():
                self._run(task)

    def _read(self, name: str) -> Item:
        return self._places.read(self._sources[name], self._key.step)

    def _run(self, task: Run) -> None:
        nodes = self._program.nodes
        results: dict[str, Item] = {name: self._read(name) for name in task.nodes if name in self._sources}
        rest = task.without(results, nodes)
        if rest.nodes:
            items = {
                name: results[name] if name in results else self.get(task.place, name, task) for name in rest.reads
            }
            versions = {name: int(self.get(home, name, task)) for name, home in task.homes}
            results |= self._places.run(self._program.graph, rest, items, versions, self._key)
            for name, kind in results_given(rest, nodes):
                if issubclass(kind, Model) and task.home is not None:
                    self._held[task.home] = next(iter(versions.values())) + 1
                    self._put(task.home, name, self._held[task.home])
        for name, item in results.items():
            self._put(task.place, name, item)
        self.found |= results
