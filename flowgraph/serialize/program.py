"""Write and read programs as JSON: the graph in the format of `flat_graph`, the plan, and the tasks by their verbs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from flowgraph.analysis.flat_graph import flat
from flowgraph.cluster.cluster import dotted
from flowgraph.cluster.plan import Plan
from flowgraph.errors import FlowError, LawError
from flowgraph.files.untrusted import parse_json
from flowgraph.lowering.check_program import check_program
from flowgraph.lowering.pipeline_steps import pipeline_steps
from flowgraph.lowering.program import Home, Join, Program, Read, Run, Switch, Sync, Take, Task, Transfer
from flowgraph.lowering.waits import homes_of
from flowgraph.serialize.graph import from_json

SCHEMA = 1
VERBS: Mapping[str, type[Task]] = {
    kind.__name__.lower(): kind for kind in (Read, Run, Transfer, Join, Take, Sync, Switch)
}


@cache
def _reader(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def program_to_json(program: Program) -> str:
    """Return a program as JSON text, which `program_from_json` reads. Raises LawError if its graph holds real data."""
    data = {
        "schema": SCHEMA,
        "graph": flat(program.graph),
        "plan": json.loads(program.plan.to_json()),
        "homes": _plain(tuple[Home, ...], program.homes),
        "origins": _plain(tuple[tuple[str, Home], ...], program.origins),
        "frozen": list(program.frozen),
        "tasks": [{"do": type(task).__name__.lower(), **_plain_task(task)} for task in program.tasks],
    }
    return json.dumps(data, indent=1)


def _plain_task(task: Task) -> dict[str, Any]:
    data: dict[str, Any] = _plain(type(task), task)
    return {name: value for name, value in data.items() if value or name not in ("chunk", "streamed", "by_group")}


def _plain(kind: Any, value: object) -> Any:
    return _reader(kind).dump_python(value, mode="json")


def program_from_json(text: str) -> Program:
    """Return the program in a JSON text that `program_to_json` wrote.

    Ops and types are imported by name, which runs the code of their modules. Raises LawError for any other text, for a
    name that cannot be imported, and for a program that breaks a law.
    """
    try:
        data = parse_json(text)
        if data["schema"] != SCHEMA:
            raise LawError(f"this program has schema {data['schema']}, not {SCHEMA}")
        program = Program(
            from_json(json.dumps(data["graph"])),
            Plan.from_json(json.dumps(data["plan"]), "the program's plan"),
            _read(tuple[Home, ...], data["homes"], "homes"),
            _read(tuple[tuple[str, Home], ...], data["origins"], "origins"),
            _read(tuple[str, ...], data["frozen"], "frozen"),
            tuple(_read_task(task, f"tasks.{i}") for i, task in enumerate(data["tasks"])),
        )
        program = pipeline_steps(program)  # a function of the plan and the tasks
        _refuse_unknown_places(program)
        check_program(program)
    except LawError:
        raise
    except FlowError as error:
        raise LawError(f"{_NOT_STORED}: {error.what}", where=error.where, hint=error.hint) from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise LawError(f"{_NOT_STORED}: {type(error).__name__}: {error}") from error
    return program


_NOT_STORED = "this is not a stored program"


def _refuse_unknown_places(program: Program) -> None:
    models, pools = dict(program.origins), {pool.name for pool in program.plan.pools}
    for placed in program.plan.placed:
        if placed.role.rpartition(".")[0] not in models:
            raise LawError(f"{_NOT_STORED}: its plan places `{placed.role}`, but it has no such model")
    for home in program.homes:
        if home.pool not in pools:
            raise LawError(f"{_NOT_STORED}: {home} is on a pool that its plan does not have")
    used = [("origins", home) for home in models.values()]
    for i, task in enumerate(program.tasks):
        homes = (task.home,) if isinstance(task, Switch) else homes_of(task)
        used += [(f"tasks.{i}", home) for home in homes]
    for where, home in used:
        if home not in program.homes:
            raise LawError(f"{_NOT_STORED}: {where}: {home} is not one of its homes")


def _read_task(data: dict[str, Any], where: str) -> Task:
    fields = dict(data)
    verb = fields.pop("do")
    if verb not in VERBS:
        raise LawError(f"{_NOT_STORED}: {where}: no task is called `{verb}`")
    unknown = fields.keys() - VERBS[verb].__dataclass_fields__.keys()
    if unknown:
        raise LawError(f"{_NOT_STORED}: {where}: a {verb} has no `{min(unknown)}`")
    task: Task = _read(VERBS[verb], fields, where)
    return task


def _read(kind: Any, data: object, where: str) -> Any:
    try:
        return _reader(kind).validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = dotted([where, *fault["loc"]])
        raise LawError(f"{_NOT_STORED}: {place}: {fault['msg']}") from None
