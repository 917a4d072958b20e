"""Programs as JSON, out and in: the graph as `flat_graph` writes it, the plan, and the tasks by their verbs."""

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
from flowgraph.lowering.program import Home, Program, Read, Run, Switch, Sync, Task, Transfer
from flowgraph.lowering.waits import homes_of
from flowgraph.serialize.graph import from_json

SCHEMA = 1
VERBS: Mapping[str, type[Task]] = {"read": Read, "run": Run, "transfer": Transfer, "sync": Sync, "switch": Switch}


@cache
def _reader(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def program_to_json(program: Program) -> str:
    """Write a program as JSON with a schema version; `program_from_json` reads it back."""
    data = {
        "schema": SCHEMA,
        "graph": flat(program.graph),
        "plan": json.loads(program.plan.to_json()),
        "homes": _plain(tuple[Home, ...], program.homes),
        "origins": _plain(tuple[tuple[str, Home], ...], program.origins),
        "frozen": list(program.frozen),
        "tasks": [_task(each) for each in program.tasks],
    }
    return json.dumps(data, indent=1)


def _plain(kind: Any, value: object) -> Any:
    return _reader(kind).dump_python(value, mode="json")


def _task(task: Task) -> dict[str, Any]:
    verb = next(verb for verb, kind in VERBS.items() if isinstance(task, kind))
    return {"do": verb, **_plain(type(task), task)}


def program_from_json(text: str) -> Program:
    """Read a program back; its ops and types are imported by name.

    Raises LawError for text that is no such program, and for a program that breaks a law of its stage.
    """
    try:
        data = parse_json(text)
        if data["schema"] != SCHEMA:
            raise LawError(f"this program has schema {data['schema']}; {SCHEMA} is read here")
        program = Program(
            from_json(json.dumps(data["graph"])),
            Plan.from_json(json.dumps(data["plan"]), "the program's plan"),
            _read(tuple[Home, ...], data["homes"], "homes"),
            _read(tuple[tuple[str, Home], ...], data["origins"], "origins"),
            _read(tuple[str, ...], data["frozen"], "frozen"),
            tuple(_read_task(i, each) for i, each in enumerate(data["tasks"])),
        )
        _refuse_other_roles(program)
        _refuse_other_homes(program)
        check_program(program)
    except LawError:
        raise
    except FlowError as error:
        raise LawError(f"this is no stored program: {error.what}", where=error.where, hint=error.hint) from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise LawError(f"this is no stored program: {type(error).__name__}: {error}") from error
    return program


def _refuse_other_roles(program: Program) -> None:
    """Refuse a plan that places a role of a model that the program does not have."""
    models = dict(program.origins)
    for placed in program.plan.placed:
        if placed.role.rpartition(".")[0] not in models:
            raise LawError(f"this is no stored program: its plan places `{placed.role}`, and it has no such model")


def _refuse_other_homes(program: Program) -> None:
    """Refuse homes that the program does not list, and homes of pools that its plan does not have."""
    pools = {pool.name for pool in program.plan.pools}
    for home in program.homes:
        if home.pool not in pools:
            raise LawError(f"this is no stored program: {home} is of a pool that its plan does not have")
    named = [("origins", home) for _, home in program.origins]
    for number, task in enumerate(program.tasks):
        used = (task.home,) if isinstance(task, Switch) else homes_of(task)
        named += [(f"tasks.{number}", home) for home in used]
    for where, home in named:
        if home not in program.homes:
            raise LawError(f"this is no stored program: {where}: {home} is not among its homes as it is here")


def _read_task(place: int, data: dict[str, Any]) -> Task:
    fields, where = dict(data), f"tasks.{place}"
    verb = fields.pop("do")
    if verb not in VERBS:
        raise LawError(f"this is no stored program: {where}: no task is called `{verb}`")
    unknown = fields.keys() - VERBS[verb].__dataclass_fields__.keys()
    if unknown:
        raise LawError(f"this is no stored program: {where}: a {verb} has no `{min(unknown)}`")
    task: Task = _read(VERBS[verb], fields, where)
    return task


def _read(kind: Any, data: object, where: str) -> Any:
    try:
        return _reader(kind).validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = dotted([where, *fault["loc"]])
        raise LawError(f"this is no stored program: {place}: {fault['msg']}") from None
