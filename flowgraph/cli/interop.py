"""`export` and `import`: a plan as another system starts it, and what another system starts as a plan. No torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from flowgraph.cli.inputs import Asked
from flowgraph.cli.plan import read_plan
from flowgraph.cli.setting import Question, planned_graph, pose
from flowgraph.cli.show import write_text
from flowgraph.errors import DataError, PlanError, ResourceError
from flowgraph.plan import Layout, Running

if TYPE_CHECKING:
    from nodes.interop import Imported
    from placements.placing import Home
    from placements.ranked import Ranked
    from placements.setting import Setting


def export_plan(path: Path, system: str, version: str, folder: Path | None, as_json: bool) -> None:
    """Write a plan as the files that another system starts from: into a folder, or to stdout."""
    from nodes.interop import export

    plan = read_plan(path)
    if plan.assumed is None:
        raise PlanError.unreadable(str(path), "", "does not say what it was made for, so no command can be written")
    graph = planned_graph(Asked(plan.assumed.flow, sets=plan.assumed.settings))
    found = export(plan, system, version, graph=graph)
    if as_json:
        told = {
            "system": found.system,
            "version": found.version,
            "files": dict(found.files),
            "notes": list(found.notes),
        }
        print(json.dumps(told, indent=1))
    elif folder is None:
        print("\n".join(text.rstrip() for text in found.files.values()))
    else:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in found.files.items():
            write_text(folder / name, text)
            print(folder / name, file=sys.stderr)
    for note in found.notes if not as_json else ():
        print(f"note: {note}", file=sys.stderr)


def import_run(path: Path, device: str, question: Question, out: Path | None, as_json: bool) -> None:
    """Print another system's command as a flow and a plan, what that takes, and what a search finds instead."""
    from placements.found_text import plan_lines, show_s
    from placements.placing import plan_from
    from placements.short import overflows

    read = imported(path)
    posed = pose(_asked(read, device, question))
    setting = replace(posed.setting, staleness=read.lag, without=frozenset(read.unused))
    plan = plan_from(setting, list(homes_of_run(setting, read)), posed.assumed)
    faults = [str(each) for each in overflows(plan, str(path))]
    if out is not None:
        write_text(out, plan.to_json())
        print(out, file=sys.stderr)
    told = [*read.notes, *(f"{key} was not read: {why}" for key, why in read.ignored), *posed.notes]
    for line in told:
        print(line, file=sys.stderr)
    best = _best(setting)
    if as_json:
        data = {"plan": json.loads(plan.to_json()), "faults": faults, "notes": told, "searched_s": best and best.step_s}
        print(json.dumps(data, indent=1))
        return
    models = ", ".join(f"{name} {model}" for name, model in read.models.items())
    print(f"{read.system} {read.version}: {read.flow}, {models}; {read.placement or 'a placement of its own'}")
    print("\n".join(plan_lines(plan)))
    for fault in faults:
        print(fault)
    if best is not None and plan.step is not None and plan.step.period_s is not None:
        change = best.step_s / plan.step.period_s - 1
        pools = " | ".join("+".join(part) for part in best.parts())
        print(f"searched on the same devices: {show_s(best.step_s)} a step, {change:+.0%}: {pools}")


def _best(setting: Setting) -> Ranked | None:
    from placements.finding import find

    try:
        return find(setting, named=False).best
    except ResourceError:
        return None


def imported(path: Path) -> Imported:
    """Read a launch script or a YAML configuration.

    Raises DataError for a file that is no text, UsageError for what it says wrong.
    """
    from nodes.interop import read_command, read_yaml

    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise DataError.missing(str(path), str(error.strerror or "")) from None
    except UnicodeDecodeError:
        raise DataError.unusable(str(path), "is no text") from None
    return read_yaml(text) if path.suffix in (".yaml", ".yml") else read_command(text)


def _asked(read: Imported, device: str, question: Question) -> Question:
    """Give the question that a run of another system poses; lengths are the longest that it allows unless given."""
    models = tuple(f"{name}={model}" for name, model in read.models.items())
    asked = replace(question.asked, flow=read.flow, models=models, batch=read.batch, sets=read.settings)
    machines = -(-read.devices // read.devices_per_node)
    return replace(
        question,
        asked=asked,
        cluster=f"{machines}x{read.devices_per_node}x{device}",
        prompt_tokens=question.prompt_tokens or str(read.prompt_tokens),
        response_tokens=question.response_tokens or str(read.response_tokens),
        engines=tuple(f"{use}={engine}" for use, engine in read.engines.items()),
    )


def homes_of_run(setting: Setting, read: Imported) -> Iterator[Home]:
    """Give where each role of a run lives: in the pools that it shares, in the layouts that it says."""
    from placements.placing import Home, seat_for

    roles = {role.name: role for role in setting.roles}
    for number, part in enumerate(read.parts):
        names = [name for name in part.roles if name in roles]
        shared = any(roles[name].use == "sample" for name in names)
        seat = seat_for(setting, f"pool{number}", part.devices)
        for name in names:
            layout = read.layouts.get(name) or Layout(data=part.devices, sharding="full")
            running = read.running.get(name) or Running(precision="bfloat16")
            yield Home(roles[name], f"pool{number}", seat, setting.engines[roles[name].use], layout, running, shared)
