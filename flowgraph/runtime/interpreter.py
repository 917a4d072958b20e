"""Execute a program task by task, with one store of values for each place and one version for each copy of weights.

The interpreter manages stores, versions and order. A `Places` object (`runtime.places`) decides where tasks run
and what the items in a store are: values in this process (`local`) or references on Ray (`ray.places`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from flowgraph.engines.table import ENGINES, is_server
from flowgraph.errors import DataError, LawError
from flowgraph.files.untrusted import json_as, read_bytes
from flowgraph.language.keys import Key
from flowgraph.language.region import Observations
from flowgraph.language.values import Measure, Model, VersionRange
from flowgraph.lowering.pipeline_steps import iteration, updates_in_step
from flowgraph.lowering.program import (
    HOST,
    CopySchedule,
    Home,
    Join,
    Program,
    Read,
    Run,
    Switch,
    Sync,
    Take,
    Task,
    Transfer,
    results_given,
    task_reads,
    task_results,
    value_name,
)
from flowgraph.lowering.project_columns import value_types
from flowgraph.lowering.stream_groups import in_one_batch
from flowgraph.lowering.take_groups import without_takes
from flowgraph.lowering.waits import carried_values
from flowgraph.runtime.batch import read_carried, write_carried
from flowgraph.runtime.finished_groups import (
    GroupPool,
    TakenGroup,
    TakenRows,
    age_in,
    picks_of,
    prompts_of,
    taken_measures,
)
from flowgraph.runtime.group_order import GroupOrder
from flowgraph.runtime.measure.pool_times import PoolTimes
from flowgraph.runtime.places import Item, Places, RowSource, StartState
from flowgraph.runtime.token_versions import staleness_of
from flowgraph.runtime.window import BegunStep, load_groups, load_window, save_window

LOST = -(2**62)
"""The version of a copy of weights that is missing or unknown: older than any real one."""

MODELS, COPIES, CARRIED, VERSIONS = "models", "copies", "carried", "versions.json"


class WeightVersions(BaseModel):
    """The content of `versions.json` in a checkpoint: versions of trained models by parameter, and of lagging copies.

    A copy is listed, as (`copy_name`, version), if its version is not the newest.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    models: dict[str, int]
    copies: list[tuple[str, int]]


@dataclass(frozen=True)
class StepResult:
    """The results of one step: items by name, and the observations; `pools` has times of each pool if steps overlap.

    `groups` are those that the step trained on, if it took those that had finished.
    """

    items: Mapping[str, Item]
    observed: Observations
    places: Places
    pools: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])
    groups: Sequence[TakenGroup] = ()

    def apply(self, function: Callable[..., Any], names: Sequence[str], *rest: Any) -> Callable[[], Any]:
        """Call a function on the tables of the results called `names`, as `Places.apply` does."""
        return self.places.apply(function, [self.items[name] for name in names], *rest)


@dataclass(eq=False)
class Executor:
    """Executes programs at places, and carries state from step to step: versions of weights, and other values.

    `versions` are the versions of copies; a copy that is not in it has version 0, the version that was loaded. `groups`
    are those that have started and are not trained on yet, if steps take groups as they finish.
    """

    places: Places
    versions: dict[Home, int] = field(default_factory=dict[Home, int])
    carried: dict[str, Item] = field(default_factory=dict[str, Item])
    asleep: set[Home] = field(default_factory=set[Home])
    begun: dict[int, _Step] = field(default_factory=dict[int, "_Step"])
    window: dict[int, BegunStep] = field(default_factory=dict[int, BegunStep])
    pool_times: PoolTimes = field(default_factory=PoolTimes)
    groups: GroupPool = field(default_factory=lambda: GroupPool(GroupOrder()))

    def run(self, program: Program, sources: Mapping[str, RowSource], key: Key, steps: int | None = None) -> StepResult:
        """Execute one step of a program and return its results, except those that stay inside their task.

        `sources` contains data parameters, and recorded results of nodes, which then do not run; `key` contains the
        seed and the step. A sync is skipped while the copy of the weights is recent enough. If steps overlap, the call
        also begins later steps, up to the last of `steps` steps (None: this step is the last); make a call for each
        step in order. Raises errors of the tasks, and LawError if a task reads a value that its place does not have, or
        weights that another version has replaced, or if overlapping steps start neither at step 0 nor from a
        checkpoint.
        """
        recorded = [task for task in program.tasks if isinstance(task, Run) and {*sources} & {*task.nodes}]
        if any(task.chunk is not None or task.by_group for task in recorded):
            program = without_takes(in_one_batch(program))  # recorded rows are all there
        if program.pipeline is None:
            self.places.work_for(None)
            step = _Step(self, program, sources, key)
            with self.pool_times.left_out():  # a check between steps that overlap
                for task in program.tasks:
                    step.execute(task)
                step.observe(self.places.finish())
        else:
            fills = key.step not in self.begun and key.step not in self.window
            if fills and key.step:
                raise LawError.no_window(key.step)
            for number in range(key.step - program.pipeline.depth if fills else key.step, key.step + 1):
                for turn in iteration(program, number, key.step + 1 if steps is None else steps):
                    self.execute(program, sources, Key(seed=key.seed, step=number + turn.ahead), turn.task)
            step = self.begun.pop(key.step)
            step.observe(self.places.finish(step))
            self.places.work_for(None)
        for node, updates in step.staleness.items():  # the mean over tokens, and the most: one version draws them all
            step.observed.add(node, [Measure(f"staleness{most}", total=updates, count=1) for most in ("", "_worst")])
        for node, measures in staleness_of(step.observed).items():
            step.observed.add(node, measures)
        carries = {i: name for name, i in program.graph.carries().items()}
        for i, edge in enumerate(program.graph.outputs):
            if not issubclass(edge.type, Model):
                item = step.get(HOST, value_name(edge), "the end of the step")
                if i in carries:
                    self.carried[carries[i]] = item
        pools = {} if program.pipeline is None else self.pool_times.of_step(program, step.observed.measured)
        replayed = next((source for source in sources.values() if isinstance(source, TakenRows)), None)
        trained_on = step.groups if replayed is None else replayed.groups[key.step]
        return StepResult(step.results, step.observed, self.places, pools=pools, groups=trained_on)

    def execute(self, program: Program, sources: Mapping[str, RowSource], key: Key, task: Task) -> None:
        """Execute one task of step `key.step` of a program whose steps overlap; tasks of other steps may be under way.

        Any order that keeps the waits of `lowering.waits.waits_between` gives the same results.
        """
        if key.step not in self.begun:
            self.begun[key.step] = _Step(self, program, sources, key, self.window.pop(key.step, None))
        self.places.work_for(self.begun[key.step])
        self.begun[key.step].execute(task)

    def switch(self, program: Program, home: Home, *, awake: bool) -> None:
        """Free a home's device memory, or restore its weights (`awake`); do nothing if that is its state already.

        An inference server loses trained weights when it sleeps: its copy is marked as lost, and the next sync runs.
        """
        if (home in self.asleep) is awake:
            self.places.switch(home, awake=awake)
            self.asleep ^= {home}
            if not awake and is_server(home.engine) and home.param not in program.frozen:
                self.versions[home] = LOST

    def _wake(self, program: Program, *homes: Home) -> None:
        pools = {home.pool for home in homes}
        for home in program.homes:
            if home.running.sleeps and home.pool in pools and home not in homes:
                self.switch(program, home, awake=False)
        for home in homes:
            self.switch(program, home, awake=True)

    def save(self, program: Program, param: str, folder: Path) -> None:
        """Write the newest weights of model parameter `param` to a folder that transformers can load.

        The home of these weights is awake afterwards; other homes of its pool that can sleep are asleep.
        """
        home = dict(program.origins)[param]
        self._wake(program, home)
        self.places.on_disk(home, "save", folder)

    def can_save(self, program: Program, steps: int) -> bool:
        """Return whether a run can continue from a checkpoint after `steps` steps; True if steps do not overlap.

        False if a copy must then have older weights than the newest, but is on an engine that cannot return its
        weights: `load_state` would fill this copy with the newest.
        """
        copies = program.pipeline.copies if program.pipeline is not None else ()
        returned = [copy for copy in copies if "token_stats" not in ENGINES[copy.home.engine].verbs]
        return all(copy.version(steps + copy.ahead) == copy.updates * steps for copy in returned)

    def save_state(self, program: Program, folder: Path) -> None:
        """Write all that the next step starts from into an existing folder, and wait until everything is written.

        These are the trained models, copies of weights that lag, carried values, `versions.json`, and the window of
        steps that have begun. Copies on engines that only sample are left out, because these engines cannot return
        weights. Homes are woken to be saved, and others of their pools put to sleep.
        """
        for step in self.begun.values():
            step.observe(self.places.finish(step))
        self.groups.receive_all(self.places)
        with self.pool_times.left_out():
            self._write_state(program, folder)

    def _write_state(self, program: Program, folder: Path) -> None:
        trained = _trained(program)
        for param, home in trained.items():
            self._wake(program, home)
            self.places.on_disk(home, "save_state", folder / MODELS / param)
        newest = {param: self.versions.get(home, 0) for param, home in trained.items()}
        copies = [home for home in program.homes if home.param in trained]
        lagging = [home for home in copies if self.versions.get(home, 0) != newest[home.param]]
        for index, home in enumerate(lagging):
            if "token_stats" in ENGINES[home.engine].verbs:  # a sampling-only engine cannot return its weights
                self._wake(program, home)
                self.places.on_disk(home, "save_state", folder / COPIES / str(index))
        for name, item in self.carried.items():
            self.places.apply(write_carried, [item], folder.absolute() / CARRIED / f"{name}.json")
        self.places.finish()
        copy_versions = [(copy_name(home), self.versions.get(home, 0)) for home in lagging]
        versions = WeightVersions(models=newest, copies=copy_versions)
        (folder / VERSIONS).write_text(versions.model_dump_json(indent=1), "utf-8")
        begun = self.window | {number: step.so_far() for number, step in self.begun.items()}
        save_window(self.places, program, begun, folder, self.groups)
        self.places.finish()

    def load_state(self, program: Program, folder: Path) -> None:
        """Load the state that `save_state` wrote, possibly under another plan.

        A lagging copy that was not saved or is placed differently gets the newest weights. Raises DataError if the
        version of a trained model is missing, or if a carried value or a file of weights cannot be read, LawError for
        another model's state, and the errors of `load_window`. After an error, part of the state may be loaded.
        """
        trained = _trained(program)
        try:
            versions = json_as(WeightVersions, read_bytes(folder / VERSIONS))
        except (OSError, ValueError) as error:
            raise DataError.failed(folder / VERSIONS, "has no versions of weights", error) from error
        for param in trained:
            if param not in versions.models:
                raise DataError.lacks_part(str(folder / VERSIONS), param, versions.models)
        for param, home in trained.items():
            self._wake(program, home)
            self.versions[home] = versions.models[param]
            self.places.on_disk(home, "load_state", folder / MODELS / param, self.versions[home])
        lagging = {name: (index, version) for index, (name, version) in enumerate(versions.copies)}
        for home in program.homes:
            origin = trained.get(home.param, home)
            if home == origin:
                continue
            index, version = lagging.get(copy_name(home), (-1, self.versions[origin]))
            if (folder / COPIES / str(index)).is_dir():
                self._wake(program, home)
                self.places.on_disk(home, "load_state", folder / COPIES / str(index), version)
                self.versions[home] = version
            else:
                self._wake(program, origin, home)
                self.versions[home] = self.versions[origin]
                self.places.sync(Sync(home.param, origin, home), self.versions[home])
        for parameter in program.graph.params:
            if (path := folder / CARRIED / f"{parameter.name}.json").is_file():
                self.carried[parameter.name] = self.places.read(StartState(read_carried(parameter.type, path)), 0)
        self.begun.clear()
        self.window = load_window(self.places, program, folder)
        load_groups(self.places, program, folder, self.groups)
        self.places.finish()


def _trained(program: Program) -> dict[str, Home]:
    return {name: home for name, home in program.origins if name not in program.frozen}


def copy_name(home: Home) -> str:
    """Return a name for the copy of weights in a home; it is the same in every plan that places the copy alike.

    The name consists of the model parameter, the pool, the engine and the layout.
    """
    return str((home.param, home.pool, home.engine, str(home.layout)))


class _Step:
    def __init__(
        self,
        executor: Executor,
        program: Program,
        sources: Mapping[str, RowSource],
        key: Key,
        begun: BegunStep | None = None,
    ) -> None:
        self._executor, self._program, self._sources, self._key = executor, program, sources, key
        self._places, self._versions = executor.places, executor.versions
        self.results, self.staleness, self.observed = dict[str, Item](), dict[str, int](), Observations()
        self.groups = list[TakenGroup]()
        self._stores: dict[str | Home, dict[str, Item]] = {HOST: {}}
        self._carried = dict[str, str]()
        for name, home in program.origins:
            loaded = self._versions.setdefault(home, 0)
            ahead = program.pipeline is not None and name not in program.frozen  # earlier steps will have updated them
            self._put(home, name, key.step * updates_in_step(program, name) if ahead else loaded)
        if program.pipeline is not None:
            self._carried = {value: name for name, value in carried_values(program).items()}
        for home in program.homes:
            if home.param in program.frozen:
                self._put(home, home.param, self._versions.setdefault(home, 0))
        self._whole = {*value_types(program.graph)}  # a chunk is joined in the iteration that hands it out
        if begun is not None:
            for (place, name), item in begun.stores.items():
                self._put(place, name, item)
            self.results, self.staleness, self.observed = dict(begun.results), dict(begun.staleness), begun.observed
            for task in program.tasks:  # the rows were drawn; nothing of this step reads these weights again
                if isinstance(task, Sync) and (copy := self._schedule(task)) is not None:
                    self._put(task.target, task.value, copy.version(key.step))

    def so_far(self) -> BegunStep:
        """Return what is known of the step: values by place, results and observations, without weights."""
        stores = ((place, store) for place, store in self._stores.items() if isinstance(place, str))
        values = {(place, name): item for place, store in stores for name, item in store.items() if name in self._whole}
        return BegunStep(values, self.results, self.staleness, self.observed)

    def observe(self, observed: Observations) -> None:
        """Add observations of this step's work to the step's earlier ones."""
        self.observed.merge(observed)
        for node, seconds in observed.seconds.items():
            self.observed.seconds[node] = self.observed.seconds.get(node, 0.0) + seconds

    def get(self, place: str | Home, name: str, task: object) -> Item:
        """Return an item of a place's store. Raises LawError, naming the task that reads it, if it is missing."""
        store = self._stores.get(place, {})
        if name not in store:
            raise LawError.not_there(str(task), name, str(place))
        return store[name]

    def _put(self, place: str | Home, name: str, item: Item) -> None:
        self._stores.setdefault(place, {})[name] = item
        if place == HOST and name in self._carried:
            self._executor.carried[self._carried[name]] = item

    def execute(self, task: Task) -> None:
        """Execute one task and store its results. Raises LawError if a value that it reads is missing or replaced."""
        match task:
            case Read(value):
                carried = self._executor.carried
                self._put(HOST, value, carried[value] if value in carried else self._read(value))
            case Transfer(_, source, target):
                ((name, _),), ((brought, _),) = task_reads(task), task_results(task, self._program.nodes)
                self._put(target, brought, self._places.transfer(task, self.get(source, name, task)))
            case Join(value, place, like=like):
                chunks = [self.get(place, name, task) for name in task.parts]
                joined = self._places.join(task, chunks, self.get(place, like, task))
                self._put(place, value, joined)
                self.results[value] = joined
            case Take():
                self._take(task)
            case Sync(value, source, target) if (copy := self._schedule(task)) is not None:
                version, newest = copy.version(self._key.step), self._versions.get(source, 0)
                if self._versions.get(target, 0) != version:
                    if newest != version:
                        raise LawError.other_version(str(task), self._key.step, value, str(source), newest, version)
                    self._places.sync(task, version)
                    self._versions[target] = version
                self._put(target, value, version)
            case Sync(value, source, target):
                version = self.get(source, value, task)
                if not 0 <= version - self._versions.get(target, 0) <= task.lag:
                    self._places.sync(task, version)
                    self._versions[target] = version
                self._put(target, value, self._versions.get(target, 0))
            case Switch(home, awake):
                self._executor.switch(self._program, home, awake=awake)
            case Run():
                self._run(task)

    def _schedule(self, task: Sync) -> CopySchedule | None:
        """Return the schedule of a sync's target if it gets the weights with which a step begins, and steps overlap."""
        newest = task.value in dict(self._program.origins)
        return self._program.pipeline.schedule(task.target) if self._program.pipeline is not None and newest else None

    def _read(self, name: str) -> Item:
        return self._places.read(self._sources[name], self._key.step)

    def _run(self, task: Run) -> None:
        nodes = self._program.nodes
        results: dict[str, Item] = {name: self._read(name) for name in task.nodes if name in self._sources}
        rest = task.without(results, nodes)
        if rest.nodes:
            items = {
                name: results[name] if name in results else self.get(task.place, rest.stored(name), task)
                for name in rest.reads
            }
            versions = {name: int(self.get(home, name, task)) for name, home in task.homes}
            ranges = dict[str, VersionRange]()
            for name, home in task.homes:
                copy = self._program.pipeline.schedule(home) if self._program.pipeline is not None else None
                if copy is not None and home.in_flight:
                    ranges[name] = replace(copy.versions(self._key.step), oldest=versions[name])
                elif copy is not None:
                    newest = self._key.step * updates_in_step(self._program, name)
                    self.staleness |= dict.fromkeys(rest.nodes, newest - versions[name])
            if rest.by_group:
                prompts = prompts_of(self._sources[rest.reads[0]], self._key.step)
                self._executor.groups.order.start(self._key.step, prompts)
                self._places.sample(self._program.graph, rest, items, {**versions, **ranges}, self._key)
                return
            do = self._places.draw if rest.hands_out else self._places.run
            results |= do(self._program.graph, rest, items, {**versions, **ranges}, self._key)
            for name, kind in results_given(rest, nodes):
                if issubclass(kind, Model) and task.home is not None:
                    self._versions[task.home] = next(iter(versions.values())) + 1
                    self._put(task.home, name, self._versions[task.home])
        for name, item in results.items():
            self._put(task.place, name if task.chunk is None or rest.hands_out else task.chunk.named(name), item)
        self.results |= {} if task.streamed else {name: item for name, item in results.items() if name in self._whole}

    def _take(self, task: Take) -> None:
        """Wait for the groups that this step trains on, and store their rows and prompts instead of the step's own."""
        step, groups, pipeline = self._key.step, self._executor.groups, self._program.pipeline
        home = next(run.home for run in self._program.tasks if isinstance(run, Run) and run.by_group)
        copy = pipeline.schedule(home) if pipeline is not None and home is not None else None
        assert copy is not None, "a role that samples by group works ahead, on a copy that has a schedule"
        groups.order.behind = copy.behind
        finished, awaited = groups.take(step, self._places)
        newest = copy.updates * step
        allowed = VersionRange(oldest=max(0, newest - copy.bound), newest=newest)
        for group in finished:
            self.groups.append(age_in(step, group, copy.versions(group.name.step), allowed, task.value))
            self.observed.merge(group.observed)
        names = [group.name for group in finished]
        self.observed.add(task.value, taken_measures(step, names, awaited))
        kind = value_types(self._program.graph)[task.value]
        self.results[task.value] = self._places.pick(
            [group.item for group in finished], picks_of(names), kind, task.value
        )
        self._put(task.place, task.value, self.results[task.value])
        prompts = TakenRows(self._sources[task.prompts], {step: self.groups}).batch(step)
        self._put(HOST, task.prompts, self._places.read(StartState(prompts), step))
