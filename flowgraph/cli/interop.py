"""`export` and `import`: a plan as another system starts it, and what another system starts as a plan. No torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.analysis.placed_graph import check_plan
from flowgraph.cli.exporting import ExportedPlan, ExportTarget, exported, fitting, homes_of_run, searched
from flowgraph.cli.plan_result import read_plan
from flowgraph.cli.planning_request import PlanningProblem, PlanRequest, asked_by, planned_graph, pose, posed_by
from flowgraph.cli.replan import experts_of, faults_of, fullest_share
from flowgraph.cli.run_lengths import as_long_as_its_rows, fitting_lengths
from flowgraph.cli.written_files import write_text
from flowgraph.cluster.plan import MOST_PROMPTS, Plan, RoleSettings
from flowgraph.errors import DataError, ModelError, PlanError, SettingError, UsageError, nearest
from flowgraph.files.untrusted import read_bytes
from flowgraph.models.table import full_name
from nodes.interop import NEEDLESS, UNREAD, export, exported_versions, read_command, read_yaml, system_of
from placements.finding import TIED_SHARE
from placements.footprint import FITS_SHARE
from placements.found_text import plan_lines, pools_of, show_s
from placements.placing import plan_from
from placements.profiles import known_devices
from placements.text import flowing

MOST_BYTES = 4_000_000  # of a launch script or a configuration
MOST_SHOWN = 60  # letters of a value that was not read
WHOLE = "the command"  # where an error stands that is of the whole text

if TYPE_CHECKING:
    from flowgraph.cli.exporting import ExportSearch
    from flowgraph.cli.run_lengths import ShorterLengths
    from nodes.interop import Change, Imported


def export_plan(path: Path, system: str, version: str, folder: Path | None, as_json: bool) -> None:
    """Write a plan as the files that another system starts from: into a folder, or to stdout."""
    plan = read_plan(path)
    if plan.assumed is None:
        raise PlanError.unreadable(str(path), "", "does not say what it was made for, so no command can be written")
    graph = planned_graph(asked_by(plan.assumed))
    check_plan(plan, graph, str(path))
    _refuse_part_of_a_pool(plan, str(path))
    try:
        posed = posed_by(plan, str(path))
        check_plan(plan, graph, str(path), experts=experts_of(posed.setting))
        found = fitting(posed, plan, ExportTarget(system, version))
    except ModelError as error:
        unknown = f"whether what is written fits is not known: {error}".replace("\n", " ")
        found = ExportedPlan(export(plan, system, version, graph=graph, notes=[unknown]), None)
    told = found.exported
    written = [] if folder is None else _written(folder, told.files)
    if as_json:
        data = {
            "system": told.system,
            "version": told.version,
            "files": dict(told.files),
            "notes": list(told.notes),
            "step_s": found.step_s,
            "faults": list(found.faults),
        }
        print(json.dumps(data, indent=1))
    elif folder is None:
        print("\n".join(text.rstrip() for text in told.files.values()))
    for file in written:
        print(file, file=sys.stderr)
    for note in told.notes if not as_json else ():
        print(f"note: {note}", file=sys.stderr)


def _refuse_part_of_a_pool(plan: Plan, where: str) -> None:
    """Raise PlanError for a role that runs on some devices of its pool: other systems have no such pools."""
    for each in plan.placed:
        pool = plan.pool(each.pool)
        needs, has = each.layout.devices, 0 if pool is None else len(pool.devices)
        if needs != has:
            raise PlanError.too_few_devices(where, each.role, str(each.layout), needs, has)


def _written(folder: Path, files: Mapping[str, str]) -> list[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(folder)) from error
    for name, text in files.items():
        write_text(folder / name, text)
    return [folder / name for name in files]


def import_run(
    path: Path, device: str, question: PlanRequest, out: Path | None, as_json: bool, found: Path | None = None
) -> None:
    """Print another system's command as a flow and a plan, what that takes, and what a search finds instead.

    The plan is written to `out`, and what the search finds to `found`.
    """
    read_as_written = imported(path)

    def at(question: PlanRequest) -> tuple[PlanningProblem, Imported, Plan, tuple[str, ...]]:
        posed = _posed(read_as_written, path, device, question)
        read = as_long_as_its_rows(posed.setting, read_as_written)
        plan = plan_from(posed.setting, list(homes_of_run(posed.setting, read.as_run)), posed.assumed)
        return posed, read, plan, tuple(str(each) for each in faults_of(plan, posed, str(path), ran=True))

    def fits(lengths: ShorterLengths) -> bool:
        shorter = replace(question, prompt_tokens=str(lengths.prompt), response_tokens=str(lengths.response))
        return not at(shorter)[-1]

    posed, read, plan, faults = at(question)
    run = ImportedRun(path, read, plan, faults)
    told = [*read.notes, *_unread(read), *posed.notes]
    shorter = None
    if question.prompt_tokens is None and question.response_tokens is None:
        told.append(_assumed_lengths(read))
        shorter = fitting_lengths(read, fits) if faults else None
    told += [] if faults else _tight(fullest_share(plan))
    best = searched(posed, run.target)
    beside = _beside(posed, run, best)
    _write(plan, out)
    _write(beside.plan if beside is not None else None, found)
    for line in told:
        print(line, file=sys.stderr)
    if as_json:
        data = _run_data(run, told, best, shorter) | {"found": beside and beside.data()}
        print(json.dumps(data, indent=1))
        return
    models = ", ".join(f"{name} {model}" for name, model in posed.assumed.models.items() if name not in read.unused)
    print(f"{read.system} {read.version}: {read.flow}, {models}; {read.placement or 'a placement of its own'}")
    hint = [f"it fits where rows are shorter: {shorter}"] if shorter is not None else []
    print("\n".join([*plan_lines(plan), *run.faults, *hint, *_compared(run, best, beside)]))


def _run_data(
    run: ImportedRun, told: list[str], best: ExportSearch | None, shorter: ShorterLengths | None
) -> dict[str, Any]:
    read = run.read
    return {
        "system": read.system,
        "version": read.version,
        "placement": read.placement,
        "plan": json.loads(run.plan.to_json()),
        "faults": list(run.faults),
        "fits_with": None if shorter is None else {"prompt": shorter.prompt, "response": shorter.response},
        "notes": told,
        "again": list(read.again),
        "searched_s": best.best.step_s if best is not None else None,
    }


def _tight(share: float) -> list[str]:
    """Return a note where a run takes more of a device than a plan of ours would."""
    note = f"its fullest device takes {share:.0%} of its memory by the forecast, whose error is a tenth"
    return [note] if share > FITS_SHARE else []


def _assumed_lengths(read: Imported) -> str:
    most = f"{read.prompt_tokens:,} + {read.response_tokens:,} tokens"
    otherwise = "--prompt-tokens and --response-tokens say otherwise"
    return f"every row is taken to have all that the run allows, {most}: {otherwise}"


def _write(plan: Plan | None, file: Path | None) -> None:
    if file is None:
        return
    if plan is None:
        print(f"{file} is not written: a search finds nothing that the system runs", file=sys.stderr)
        return
    write_text(file, plan.to_json())
    print(file, file=sys.stderr)


@dataclass(frozen=True)
class ImportedRun:
    """A run that was read from a file: as a plan, and why that does not fit."""

    path: Path
    read: Imported
    plan: Plan
    faults: tuple[str, ...]

    @property
    def target(self) -> ExportTarget:
        """Give the system, in the version that was read, or in the oldest after it that is written."""
        known = exported_versions(system_of(self.read.system))
        return ExportTarget(self.read.system, self.read.version if self.read.version in known else known[0])

    @property
    def step_s(self) -> float | None:
        """Give the seconds of its step."""
        return self.plan.step.period_s if self.plan.step is not None else None

    @property
    def on(self) -> str:
        """Name the devices that a search has."""
        machines, each = self.read.machines
        whole = machines * each == self.read.devices
        return "the same devices" if whole else f"all {machines * each} devices of its machines"


@dataclass(frozen=True)
class RunReplacement:
    """What the system of a run runs instead: the plan, the keys of the run that change, and what it does otherwise."""

    plan: Plan
    step_s: float
    changes: tuple[Change, ...]
    notes: tuple[str, ...]

    def data(self) -> dict[str, Any]:
        """Give it as data."""
        pools = {pool.name: len(pool.devices) for pool in self.plan.pools}
        roles = [
            {
                "role": each.role,
                "pool": each.pool,
                "devices": pools[each.pool],
                "engine": each.engine,
                "layout": each.layout.model_dump(),
                "running": each.running.model_dump(mode="json"),
                "lag": each.lag,
            }
            for each in self.plan.placed
        ]
        changed = [{"key": each.key, "value": each.value, "was": each.was} for each in self.changes]
        return {"step_s": self.step_s, "roles": roles, "changes": changed, "notes": list(self.notes)}


def _beside(posed: PlanningProblem, run: ImportedRun, best: ExportSearch | None) -> RunReplacement | None:
    """Give what a search finds that the system runs, in the words of the run's own command."""
    from nodes.interop import changes

    found = best.found if best is not None else None
    if found is None or found.plan is None or found.step_s is None:
        return None
    own = exported(posed, run.plan, run.target)
    told = changes(run.read, own.files["run.sh"], found.exported.files["run.sh"])
    return RunReplacement(found.plan, found.step_s, told, tuple(n for n in found.exported.notes if n not in own.notes))


def _unread(read: Imported) -> Iterator[str]:
    """Say which keys were not read, each with why, and in one line those that no plan depends on."""
    yield from (f"{key} was not read: {why}" for key, why in read.ignored if why not in (NEEDLESS, UNREAD))
    unread = [f"{key}={read.told[key][:MOST_SHOWN]}" for key, why in read.ignored if why == UNREAD]
    if unread:
        yield f"not read, though they may change what is computed: {', '.join(unread)}"
    needless = [key for key, why in read.ignored if why == NEEDLESS]
    if needless:
        yield f"not read, since no plan depends on them: {', '.join(needless)}"
    if read.again:
        yield f"a plan keeps none of these: tell them again to what is exported from it: {' '.join(read.again)}"


def _compared(run: ImportedRun, best: ExportSearch | None, beside: RunReplacement | None) -> Iterator[str]:
    """Say what a search finds on the machines of a run, and what of the run's command changes with it."""
    where, system = f"searched on {run.on}", f"{run.target.system} {run.target.version}"
    if best is None:
        yield f"{where}: no plan fits"
        return
    pools = pools_of(best.best)
    if beside is None:
        yield f"{where}: {show_s(best.best.step_s)} a step: {pools}; {system} runs none of what was found"
        return
    known = run.step_s is not None and not run.faults
    more = beside.step_s / run.step_s - 1 if known and run.step_s else None
    if more is not None and more > TIED_SHARE:
        yield f"{where}: no faster plan was found"
        return
    if more is not None and more >= -TIED_SHARE:
        yield f"{where}: this run is as good as what a search finds, {show_s(beside.step_s)} a step"
        return
    if best.best.step_s < beside.step_s * (1 - TIED_SHARE):
        yield f"{where}: {show_s(best.best.step_s)} a step: {pools}; {system} does not run that as it is"
    change = f", {more:+.0%}" if more is not None else ""
    yield f"{where}: {show_s(beside.step_s)} a step{change}, as {system} runs it"
    yield from _roles(beside.plan)
    yield f"what changes in {run.path}, in the words of {system}" if beside.changes else "nothing in it changes"
    yield from (f"  {each}" for each in beside.changes)
    yield from (f"  the search's own plan is run otherwise: {note}" for note in beside.notes)


def _roles(plan: Plan) -> Iterator[str]:

    for pool in plan.pools:
        yield f"{pool.name}: {len(pool.devices)} devices"
        here = [each for each in plan.placed if each.pool == pool.name]
        yield from flowing(
            [[each.role, each.engine, str(each.layout), f"{each.running} {each.late}".strip()] for each in here]
        )


def imported(path: Path) -> Imported:
    """Read a launch script or a YAML configuration.

    Raises DataError, with the file and the line, for what is no text, and for what it says wrong.
    """
    try:
        text = read_bytes(path, MOST_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise DataError.unusable(path, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError.unusable(path, "is no text") from None
    try:
        return read_yaml(text) if path.suffix.lower() in (".yaml", ".yml") else read_command(text)
    except UsageError as error:
        line = error.where.removeprefix("line ")
        where = f"{path}:{line}" if line.isdecimal() else str(path)
        what = error.what if where != str(path) or error.where == WHOLE else f"{error.where}: {error.what}"
        raise DataError.unusable(where, what, error.hint) from None


def _posed(read: Imported, path: Path, device: str, question: PlanRequest) -> PlanningProblem:
    """Pose the question of a run; what it says that no flow takes is an error of its file."""
    notes = list[str]()
    if read.batch > MOST_PROMPTS:
        raise DataError.unusable(path, f"draws {read.batch:,} prompts in a step; {MOST_PROMPTS:,} are the most")
    try:
        posed = pose(_asked(read, device, question, notes)).having(staleness=read.lag, without=read.unused)
    except SettingError as error:
        if error.where != "--set":
            raise
        raise DataError.unusable(path, error.what, error.hint) from None
    except ModelError as error:
        if question.asked.models:
            raise
        raise _naming_a_base(error, read) from None
    return replace(posed, notes=(*notes, *posed.notes))


def _naming_a_base(error: ModelError, read: Imported) -> ModelError:
    """Say in an error of a run's model how to name one of the same sizes."""
    param = next((name for name, text in read.models.items() if _base(text)[0] in str(error)), "policy")
    base = f"--model {param}=NAME plans with the sizes of another, as of the model that it was trained from"
    return ModelError(error.what, where=error.where, notes=error.notes, hint=f"{error.hint}; {base}".lstrip("; "))


def _asked(read: Imported, device: str, question: PlanRequest, notes: list[str]) -> PlanRequest:
    """Give the question that a run of another system poses; lengths are the longest that it allows unless given."""
    asked = replace(
        question.asked, flow=read.flow, models=_models(read, question, notes), batch=read.batch, sets=read.settings
    )
    machines, each = read.machines
    drawn = read.running.get("policy.sample", RoleSettings()).precision
    return replace(
        question,
        asked=asked,
        cluster=f"{machines}x{each}x{_device(device)}",
        prompt_tokens=question.prompt_tokens or str(read.prompt_tokens),
        response_tokens=question.response_tokens or str(read.response_tokens),
        engines=tuple(f"{use}={engine}" for use, engine in read.engines.items()),
        precision=drawn if drawn in ("fp8", "fp4") else None,
    )


def _models(read: Imported, question: PlanRequest, notes: list[str]) -> tuple[str, ...]:
    """Give the models of a run, those that a command line names in place of its own.

    What the run starts from the policy's weights is the policy's too, and adapters stay.
    """
    told = [text.partition("=") for text in question.asked.models]
    given = dict(
        (name, model) if name.isidentifier() and equals else ("policy", f"{name}{equals}{model}")
        for name, equals, model in told
    )
    found, policy = dict[str, str](), _base(read.models["policy"])[0]
    for name, text in read.models.items():
        base, adapters = _base(text)
        other = given.get(name) or (_base(given.get("policy", ""))[0] if base == policy else "")
        if not other:
            found[name] = _model(text, notes)
            continue
        found[name] = other if "+lora=" in other else f"{other}{adapters}"
        note = f"`{base}` is planned with the sizes of {_base(other)[0]}"
        notes += [note] if note not in notes else []
    return tuple(f"{name}={model}" for name, model in (given | found).items())


def _base(text: str) -> tuple[str, str]:
    """Part a model from its adapters.

    >>> _base("org/name+lora=8"), _base("org/name")
    (('org/name', '+lora=8'), ('org/name', ''))
    """
    base, plus, adapters = text.rpartition("+lora=") if "+lora=" in text else (text, "", "")
    return base, f"{plus}{adapters}"


def _device(text: str) -> str:
    """Give a kind of device whose speed is known, with its memory if that is given too."""
    known, name = known_devices(), text.lower()
    if not any(name == each or name.startswith(f"{each}-") for each in known) or "," in name:
        raise UsageError(
            f"no kind of device `{text}` whose speed is known", where="--device", hint=nearest(name, known)
        )
    return text


def _model(text: str, notes: list[str]) -> str:
    """Give a model by its name where a run has it in a folder that is not here: its sizes are those of that name."""
    base, adapters = _base(text)
    folder = Path(base).name
    known = full_name(folder) if base.startswith(("~", "/", ".")) or base.count("/") > 1 else None
    if known is None or Path(base).expanduser().is_dir():
        return text
    note = f"`{base}` is not here: its sizes are those of {known}, by its name"
    notes += [note] if note not in notes else []
    return f"{known}{adapters}"
