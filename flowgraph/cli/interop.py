"""`export` and `import`: a plan as another system starts it, and what another system starts as a plan. No torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from flowgraph.check_plan import check_plan
from flowgraph.cli.plan import read_plan
from flowgraph.cli.setting import Posed, Question, asked_by, planned_graph, pose
from flowgraph.cli.show import write_text
from flowgraph.errors import DataError, PlanError, ResourceError, SettingError, UsageError, nearest
from flowgraph.models.table import full_name
from flowgraph.plan import Layout, Plan, Running

MOST_BYTES = 4_000_000  # of a launch script or a configuration
WHOLE = "the command"  # where an error stands that is of the whole text

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
    graph = planned_graph(asked_by(plan.assumed))
    check_plan(plan, graph, str(path))
    found = export(plan, system, version, graph=graph)
    written = [] if folder is None else _written(folder, found.files)
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
    for file in written:
        print(file, file=sys.stderr)
    for note in found.notes if not as_json else ():
        print(f"note: {note}", file=sys.stderr)


def _written(folder: Path, files: Mapping[str, str]) -> list[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(folder)) from error
    for name, text in files.items():
        write_text(folder / name, text)
    return [folder / name for name in files]


def import_run(path: Path, device: str, question: Question, out: Path | None, as_json: bool) -> None:
    """Print another system's command as a flow and a plan, what that takes, and what a search finds instead."""
    from flowgraph.cli.reforecast import faults_of
    from placements.found_text import plan_lines
    from placements.placing import plan_from

    read = imported(path)
    posed = _posed(read, path, device, question)
    setting = posed.setting
    plan = plan_from(setting, list(homes_of_run(setting, read)), posed.assumed)
    faults = [str(each) for each in faults_of(plan, posed, str(path))]
    if out is not None:
        write_text(out, plan.to_json())
        print(out, file=sys.stderr)
    told = [*read.notes, *_unread(read), *posed.notes]
    for line in told:
        print(line, file=sys.stderr)
    best = _best(setting)
    if as_json:
        data = {
            "system": read.system,
            "version": read.version,
            "placement": read.placement,
            "plan": json.loads(plan.to_json()),
            "faults": faults,
            "notes": told,
            "searched_s": best and best.step_s,
        }
        print(json.dumps(data, indent=1))
        return
    models = ", ".join(f"{name} {model}" for name, model in posed.assumed.models.items() if name not in read.unused)
    print(f"{read.system} {read.version}: {read.flow}, {models}; {read.placement or 'a placement of its own'}")
    print("\n".join([*plan_lines(plan), *faults, _compared(plan, best, read)]))


def _unread(read: Imported) -> Iterator[str]:
    """Say which keys were not read, each with why, and in one line those that no plan depends on."""
    from nodes.interop import NEEDLESS

    yield from (f"{key} was not read: {why}" for key, why in read.ignored if why != NEEDLESS)
    needless = [key for key, why in read.ignored if why == NEEDLESS]
    if needless:
        yield f"not read, since no plan depends on them: {', '.join(needless)}"


def _compared(plan: Plan, best: Ranked | None, read: Imported) -> str:
    """Say what a search finds on the machines of a run, beside the run."""
    from placements.found_text import show_s

    machines, each = read.machines
    on = "the same devices" if machines * each == read.devices else f"all {machines * each} devices of its machines"
    if best is None:
        return f"searched on {on}: no plan fits"
    pools = " | ".join("+".join(part) for part in best.parts())
    known = plan.step is not None and plan.step.period_s is not None
    change = f", {best.step_s / plan.step.period_s - 1:+.0%}" if known and plan.step and plan.step.period_s else ""
    return f"searched on {on}: {show_s(best.step_s)} a step{change}: {pools}"


def _best(setting: Setting) -> Ranked | None:
    from placements.finding import find

    try:
        return find(setting).best
    except ResourceError:
        return None


def imported(path: Path) -> Imported:
    """Read a launch script or a YAML configuration.

    Raises DataError, with the file and the line, for what is no text, and for what it says wrong.
    """
    from nodes.interop import read_command, read_yaml

    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise DataError.unusable(path, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError.unusable(path, "is no text") from None
    if len(content) > MOST_BYTES:
        raise DataError.unusable(path, f"is larger than {MOST_BYTES:,} bytes, so no launch script")
    try:
        return read_yaml(text) if path.suffix.lower() in (".yaml", ".yml") else read_command(text)
    except UsageError as error:
        line = error.where.removeprefix("line ")
        where = f"{path}:{line}" if line.isdecimal() else str(path)
        what = error.what if where != str(path) or error.where == WHOLE else f"{error.where}: {error.what}"
        raise DataError.unusable(where, what, error.hint) from None


def _posed(read: Imported, path: Path, device: str, question: Question) -> Posed:
    """Pose the question of a run; what it says that no flow takes is an error of its file."""
    notes = list[str]()
    try:
        posed = pose(_asked(read, device, question, notes)).having(staleness=read.lag, without=read.unused)
    except SettingError as error:
        if error.where != "--set":
            raise
        raise DataError.unusable(path, error.what, error.hint) from None
    return replace(posed, notes=(*notes, *posed.notes))


def _asked(read: Imported, device: str, question: Question, notes: list[str]) -> Question:
    """Give the question that a run of another system poses; lengths are the longest that it allows unless given."""
    models = tuple(f"{name}={_model(model, notes)}" for name, model in read.models.items())
    asked = replace(question.asked, flow=read.flow, models=models, batch=read.batch, sets=read.settings)
    machines, each = read.machines
    drawn = read.running.get("policy.sample", Running()).precision
    return replace(
        question,
        asked=asked,
        cluster=f"{machines}x{each}x{_device(device)}",
        prompt_tokens=question.prompt_tokens or str(read.prompt_tokens),
        response_tokens=question.response_tokens or str(read.response_tokens),
        engines=tuple(f"{use}={engine}" for use, engine in read.engines.items()),
        precision=drawn if drawn in ("fp8", "fp4") else None,
    )


def _device(text: str) -> str:
    """Give a kind of device whose speed is known, with its memory if that is given too."""
    from placements.profiles import known_devices

    known, name = known_devices(), text.lower()
    if not any(name == each or name.startswith(f"{each}-") for each in known) or "," in name:
        raise UsageError(
            f"no kind of device `{text}` whose speed is known", where="--device", hint=nearest(name, known)
        )
    return text


def _model(text: str, notes: list[str]) -> str:
    """Give a model by its name where a run has it in a folder that is not here: its sizes are those of that name."""
    base, plus, adapters = text.rpartition("+lora=") if "+lora=" in text else (text, "", "")
    folder = Path(base).name
    known = full_name(folder) if base.startswith(("~", "/", ".")) or base.count("/") > 1 else None
    if known is None or Path(base).expanduser().is_dir():
        return text
    note = f"`{base}` is not here: its sizes are those of {known}, by its name"
    notes += [note] if note not in notes else []
    return f"{known}{plus}{adapters}"


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
