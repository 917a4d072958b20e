"""The window of steps that overlap: what a checkpoint holds of steps that have begun and not ended.

A step draws its rows with weights that the trainer may have replaced since, so the rows are saved, not the weights.
`window.json` lists the values of each step by place, each a file in Arrow format, and the metrics observed so far.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, NonNegativeInt

from flowgraph.errors import DataError
from flowgraph.files.untrusted import json_as, read_bytes
from flowgraph.language.region import Observations
from flowgraph.lowering.program import HOST, Pipeline, Program, Take, Transfer
from flowgraph.lowering.project_columns import value_types
from flowgraph.runtime.finished_groups import FinishedGroup, GroupPool, picks_of
from flowgraph.runtime.group_order import GroupName
from flowgraph.runtime.token_versions import AGED

WINDOW, ROWS = "window.json", "window"


class WindowStep(BaseModel):
    """One step that has begun: (place, name, file) of each value, and (node, metric, sum, count) of each metric.

    `results` maps the results that are recorded when the step ends to their files, and `staleness` maps nodes to the
    lag of the weights that they sampled with, in updates.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    step: NonNegativeInt
    values: list[tuple[str, str, str]]
    results: dict[str, str]
    staleness: dict[str, int]
    sums: list[tuple[str, str, float, float]]


class WindowGroups(BaseModel):
    """The finished groups of one step's prompts that no step has trained on yet: the ids of prompts, and their file.

    `sums` has (prompt, node, metric, sum, count) of each metric of each group.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    step: NonNegativeInt
    prompts: list[int]
    file: str
    sums: list[tuple[int, str, str, float, float]]


class Window(BaseModel):
    """The content of `window.json`: how steps overlapped (`overlap_text`), and the steps that had begun.

    `groups` are those that had finished and were not trained on, if each step takes `size` groups as they finish.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    overlap: str
    steps: list[WindowStep]
    groups: list[WindowGroups] = []
    size: NonNegativeInt = 0


@dataclass(frozen=True)
class BegunStep:
    """What is known of a step that has begun: values by place and name, results, staleness and observations."""

    stores: Mapping[tuple[str, str], Any]
    results: Mapping[str, Any]
    staleness: Mapping[str, int] = field(default_factory=dict[str, int])
    observed: Observations = field(default_factory=Observations)


def overlap_text(pipeline: Pipeline | None) -> str:
    """Return how the steps of a program overlap, as text that is the same for the same overlap.

    It has the depth of the pipeline and, for each copy of weights, how many steps it samples ahead, how many steps are
    between its syncs, and, where the copy has such settings, what happens to requests while weights arrive and how many
    steps late a group may be. For None, it says that steps do not overlap.
    """
    if pipeline is None:
        return "steps that do not overlap"
    copies = [
        f"{copy.home.param} {copy.ahead} ahead, synced every {copy.sync_every}"
        + (f", in flight, {copy.home.running.hold}" if copy.home.in_flight else "")
        + (f", ready, {copy.behind} late" if copy.behind else "")
        for copy in pipeline.copies
    ]
    return f"depth {pipeline.depth} ({'; '.join(sorted(copies))})"


def steps_begun(program: Program, ended: int, steps: int) -> int:
    """Return how many of `steps` steps have begun when `ended` have ended; 0 if none has ended."""
    depth = program.pipeline.depth if program.pipeline is not None else 0
    return min(ended + depth, steps) if ended else 0


def save_window(
    places: Any, program: Program, begun: Mapping[int, BegunStep], folder: Path, pool: GroupPool | None = None
) -> None:
    """Write the steps that have begun to `window.json`, and their values to files in the new folder `window`.

    The groups of `pool`, which must all have finished, are written too. `places` writes the files of values; they are
    complete after its next `finish`. Nothing is written if no step has begun, or if steps of `program` do not overlap.
    Raises FileExistsError if `folder` has a folder `window` already.
    """
    if program.pipeline is None or not begun:
        return
    files, steps = dict[int, str](), list[WindowStep]()
    (folder / ROWS).mkdir(parents=True)

    def file_of(item: Any) -> str:
        if id(item) not in files:
            files[id(item)] = f"{len(files)}.arrow"
            places.keep(item, folder.absolute() / ROWS / files[id(item)])
        return files[id(item)]

    for number, step in sorted(begun.items()):
        values = [(place, name, file_of(item)) for (place, name), item in step.stores.items()]
        results = {name: file_of(item) for name, item in step.results.items()}
        sums = [(*key, total, float(count)) for key, (total, count) in step.observed.sums.items()]
        steps.append(WindowStep(step=number, values=values, results=results, staleness=dict(step.staleness), sums=sums))
    groups = list[WindowGroups]()
    if (take := _take_of(program)) is not None and pool is not None:
        kind = value_types(program.graph)[take.value]
        for number, finished in pool.by_step():
            names = [group.name for group in finished]
            rows = places.pick([group.item for group in finished], picks_of(names), kind, take.value)
            file = f"groups-{number}.arrow"
            places.keep(rows, folder.absolute() / ROWS / file)
            measured = [
                (group.name.prompt, *key, total, float(count))
                for group in finished
                for key, (total, count) in group.observed.sums.items()
            ]
            prompts = [name.prompt for name in names]
            groups.append(WindowGroups(step=number, prompts=prompts, file=file, sums=measured))
    size = pool.order.size if groups and pool is not None else 0
    window = Window(overlap=overlap_text(program.pipeline), steps=steps, groups=groups, size=size)
    (folder / WINDOW).write_text(window.model_dump_json(indent=1), "utf-8")


def read_window(program: Program, folder: Path) -> Window:
    """Return the content of the `window.json` that `save_window` wrote to `folder`; without the file, no steps.

    Raises DataError for a file that cannot be read or is not a window, and if the steps of `program` overlap in another
    way, or its plan lacks a pool that stored a value.
    """
    if not (folder / WINDOW).is_file():
        return Window(overlap=overlap_text(program.pipeline), steps=[])
    try:
        window = json_as(Window, read_bytes(folder / WINDOW))
    except (OSError, ValueError) as error:
        raise DataError.failed(folder / WINDOW, "has no steps under way", error) from error
    if (now := overlap_text(program.pipeline)) != window.overlap:
        raise DataError.other_overlap(str(folder), window.overlap, now)
    stored, pools = (
        {place for step in window.steps for place, _, _ in step.values},
        {pool.name for pool in program.plan.pools},
    )
    if not stored - {HOST} <= pools:
        texts = [f"the pools {', '.join(sorted(names))}" for names in (stored - {HOST}, pools)]
        raise DataError.other_overlap(str(folder), *texts)
    return window


def load_window(places: Any, program: Program, folder: Path) -> dict[int, BegunStep]:
    """Return the steps that had begun when `save_window` wrote to `folder`, by number; empty without a `window.json`.

    Raises DataError as `read_window` does, for a value that the flow lacks, a result without a file, or a count of
    tokens without an age, and for a value that cannot be read; on Ray, the next `finish` of `places` raises the last.
    """
    window = read_window(program, folder)
    types, items = value_types(program.graph), dict[str, Any]()
    parts = {(task.target, task.value): task.parts for task in program.tasks if isinstance(task, Transfer)}
    begun = dict[int, BegunStep]()
    for step in window.steps:
        stores = dict[tuple[str, str], Any]()
        for place, name, file in step.values:
            if name not in types:
                raise DataError.lacks_part(str(folder / WINDOW), name, types)
            path = folder.absolute() / ROWS / Path(file).name
            if file not in items:
                items[file] = places.kept(types[name], path, parts.get((place, name), ()))
            stores[place, name] = items[file]
        wrong = [
            name for _, name, _, _ in step.sums if name.startswith(AGED) and not name.removeprefix(AGED).isdecimal()
        ]
        if wrong:
            raise DataError.unusable(str(folder / WINDOW), f"has a metric without an age: `{wrong[0]}`")
        observed = Observations({(node, name): (total, count) for node, name, total, count in step.sums})
        if (lost := next((name for name, file in step.results.items() if file not in items), None)) is not None:
            raise DataError.lacks_part(str(folder / WINDOW), lost, ())
        results = {name: items[file] for name, file in step.results.items()}
        begun[step.step] = BegunStep(stores, results, step.staleness, observed)
    return begun


def load_groups(places: Any, program: Program, folder: Path, pool: GroupPool) -> None:
    """Put the groups that `save_window` wrote to `folder` into `pool`, which must be empty, as finished groups.

    Does nothing if no step had begun, or if steps of `program` do not take groups as they finish. Raises DataError as
    `read_window` does, for more or fewer groups than steps that had begun and not ended leave, and for rows that cannot
    be read; on Ray, the next `finish` of `places` raises the last.
    """
    window, take = read_window(program, folder), _take_of(program)
    if take is None or not window.steps:
        return
    names = [GroupName(groups.step, prompt) for groups in window.groups for prompt in groups.prompts]
    if len(names) != len(window.steps) * window.size or len({*names}) < len(names):
        what = f"has {len({*names})} groups; {len(window.steps)} steps of {window.size} groups had begun"
        raise DataError.unusable(folder / WINDOW, what)
    for groups in window.groups:
        path = folder.absolute() / ROWS / Path(groups.file).name
        item = places.kept(value_types(program.graph)[take.value], path, ())
        for prompt in groups.prompts:
            sums = {(node, name): (total, count) for of, node, name, total, count in groups.sums if of == prompt}
            name = GroupName(groups.step, prompt)
            pool.finished[name] = FinishedGroup(name, item, Observations(sums))
    pool.order.restore(sorted(names, key=lambda name: name.step), window.size)


def _take_of(program: Program) -> Take | None:
    return next((task for task in program.tasks if isinstance(task, Take)), None)
