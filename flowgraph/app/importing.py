"""`import`: another system's run as a flow and a plan, and what a search finds instead. No torch is loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.app.exported_plan import ExportTarget, exported, searched
from flowgraph.app.problem import PreparedProblem, prepare
from flowgraph.app.replan import faults_of
from flowgraph.app.request import Request
from flowgraph.app.run_lengths import as_long_as_its_rows, fitting_lengths
from flowgraph.cluster.plan import MOST_PROMPTS, Plan, RoleSettings
from flowgraph.diagrams.model.quantities import show_s
from flowgraph.errors import DataError, ModelError, SettingError, UsageError, nearest
from flowgraph.files.untrusted import read_bytes
from flowgraph.models.table import full_name
from nodes.interop import NEEDLESS, UNREAD, exported_versions, read_command, read_yaml, system_of
from placements import known_devices, report
from placements.format import flowing
from placements.search import as_run

MOST_BYTES = 4_000_000  # of a launch script or a configuration
MOST_SHOWN = 60  # letters of a value that was not read
WHOLE = "the command"  # where an error stands that is of the whole text

if TYPE_CHECKING:
    from flowgraph.app.exported_plan import ExportSearch
    from flowgraph.app.run_lengths import ShorterLengths
    from nodes.interop import Change, Imported


def import_command(path: Path, device: str, request: Request) -> ImportResult:
    """Read another system's command as a flow and a plan: what that takes, and what a search finds instead."""
    as_written = imported(path)

    def at(request: Request) -> tuple[PreparedProblem, Imported, Plan, tuple[str, ...]]:
        prepared = _prepared(as_written, path, device, request)
        read = as_long_as_its_rows(prepared.setting, as_written)
        plan = as_run.plan_of_run(prepared.setting, read, prepared.assumed)
        return prepared, read, plan, tuple(str(each) for each in faults_of(plan, prepared, str(path), ran=True))

    def fits(lengths: ShorterLengths) -> bool:
        shorter = request.changed(prompt_tokens=str(lengths.prompt), response_tokens=str(lengths.response))
        return not at(shorter)[-1]

    prepared, read, plan, faults = at(request)
    run = ImportedRun(path, read, plan, faults)
    notes = [*read.notes, *_unread(read), *prepared.notes]
    shorter = None
    if request.workload.prompt_tokens is None and request.workload.response_tokens is None:
        notes.append(_assumed_lengths(read))
        shorter = fitting_lengths(read, fits) if faults else None
    tight = "" if faults else report.tightness(plan)
    notes += [tight] if tight else []
    best = searched(prepared, run.target)
    return ImportResult(
        prepared=prepared,
        run=run,
        notes=tuple(notes),
        best=best,
        beside=_beside(prepared, run, best),
        shorter=shorter,
    )


@dataclass(frozen=True, kw_only=True)
class ImportResult:
    """Another system's run as a flow and a plan, and what a search finds instead for the same devices.

    `best` is what the search found, `beside` the fastest of these plans that the system can run, and `shorter`
    the lengths with which a run fits that does not fit with those that it allows; each None where there is none.
    """

    prepared: PreparedProblem
    run: ImportedRun
    notes: tuple[str, ...]
    best: ExportSearch | None
    beside: RunReplacement | None
    shorter: ShorterLengths | None

    @property
    def plan(self) -> Plan:
        """Return the run as a plan."""
        return self.run.plan

    @property
    def replacement(self) -> Plan | None:
        """Return the fastest plan of the search that the imported system can run; None if there is none."""
        return self.beside.plan if self.beside is not None else None

    def data(self) -> dict[str, Any]:
        """Return it as `flowgraph import --json` prints it."""
        read, shorter = self.run.read, self.shorter
        return {
            "system": read.system,
            "version": read.version,
            "placement": read.placement,
            "plan": json.loads(self.plan.to_json()),
            "faults": list(self.run.faults),
            "fits_with": None if shorter is None else {"prompt": shorter.prompt, "response": shorter.response},
            "notes": list(self.notes),
            "again": list(read.again),
            "searched_s": self.best.best.step_s if self.best is not None else None,
            "found": self.beside and self.beside.data(),
        }

    def text(self) -> str:
        """Return the plan, its faults, and what changes in the run's own words."""
        read, models = self.run.read, self.prepared.assumed.models
        names = ", ".join(f"{name} {model}" for name, model in models.items() if name not in read.unused)
        head = f"{read.system} {read.version}: {read.flow}, {names}; {read.placement or 'a placement of its own'}"
        hint = [f"it fits where rows are shorter: {self.shorter}"] if self.shorter is not None else []
        found = _compared(self.run, self.best, self.beside)
        return "\n".join([head, *report.plan_lines(self.plan), *self.run.faults, *hint, *found])


def _assumed_lengths(read: Imported) -> str:
    most = f"{read.prompt_tokens:,} + {read.response_tokens:,} tokens"
    otherwise = "--prompt-tokens and --response-tokens say otherwise"
    return f"every row is taken to have all that the run allows, {most}: {otherwise}"


@dataclass(frozen=True)
class ImportedRun:
    """A run that was read from a file: as a plan, and why that does not fit."""

    path: Path
    read: Imported
    plan: Plan
    faults: tuple[str, ...]

    @property
    def target(self) -> ExportTarget:
        """Return the system, in the version that was read, or in the oldest after it that is written."""
        known = exported_versions(system_of(self.read.system))
        version = self.read.version if self.read.version in known else known[0]
        return ExportTarget(system=self.read.system, version=version)

    @property
    def step_s(self) -> float | None:
        """Return the seconds of its step."""
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
        """Return it as data."""
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


def _beside(prepared: PreparedProblem, run: ImportedRun, best: ExportSearch | None) -> RunReplacement | None:
    """Return what a search finds that the system runs, in the words of the run's own command."""
    from nodes.interop import changes

    found = best.found if best is not None else None
    if found is None or found.plan is None or found.step_s is None:
        return None
    own = exported(prepared, run.plan, run.target)
    told = changes(run.read, own.files["run.sh"], found.exported.files["run.sh"])
    return RunReplacement(found.plan, found.step_s, told, tuple(n for n in found.exported.notes if n not in own.notes))


def _unread(read: Imported) -> Iterator[str]:
    """Yield which keys were not read, each with why, and in one line those that no plan depends on."""
    yield from (f"{key} was not read: {why}" for key, why in read.ignored if why not in (NEEDLESS, UNREAD))
    unread = [f"{key}={read.overrides[key][:MOST_SHOWN]}" for key, why in read.ignored if why == UNREAD]
    if unread:
        yield f"not read, though they may change what is computed: {', '.join(unread)}"
    needless = [key for key, why in read.ignored if why == NEEDLESS]
    if needless:
        yield f"not read, since no plan depends on them: {', '.join(needless)}"
    if read.again:
        yield f"a plan keeps none of these: tell them again to what is exported from it: {' '.join(read.again)}"


def _compared(run: ImportedRun, best: ExportSearch | None, beside: RunReplacement | None) -> Iterator[str]:
    """Yield what a search finds on the machines of a run, and what of the run's command changes with it."""
    where, system = f"searched on {run.on}", f"{run.target.system} {run.target.version}"
    if best is None:
        yield f"{where}: no plan fits"
        return
    pools = report.pools_of(best.best)
    if beside is None:
        yield f"{where}: {show_s(best.best.step_s)} a step: {pools}; {system} runs none of what was found"
        return
    known = run.step_s is not None and not run.faults
    more = beside.step_s / run.step_s - 1 if known and run.step_s else None
    if more is not None and more > report.TIED_SHARE:
        yield f"{where}: no faster plan was found"
        return
    if more is not None and more >= -report.TIED_SHARE:
        yield f"{where}: this run is as good as what a search finds, {show_s(beside.step_s)} a step"
        return
    if best.best.step_s < beside.step_s * (1 - report.TIED_SHARE):
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


def _prepared(read: Imported, path: Path, device: str, request: Request) -> PreparedProblem:
    """Pose the question of a run; what it says that no flow takes is an error of its file."""
    notes = list[str]()
    if read.batch > MOST_PROMPTS:
        raise DataError.unusable(path, f"draws {read.batch:,} prompts in a step; {MOST_PROMPTS:,} are the most")
    try:
        prepared = prepare(_request(read, device, request, notes)).having(staleness=read.lag, without=read.unused)
    except SettingError as error:
        if error.where != "--set":
            raise
        raise DataError.unusable(path, error.what, error.hint) from None
    except ModelError as error:
        if request.workload.model:
            raise
        raise _naming_a_base(error, read) from None
    return replace(prepared, notes=(*notes, *prepared.notes))


def _naming_a_base(error: ModelError, read: Imported) -> ModelError:
    """Return in an error of a run's model how to name one of the same sizes."""
    param = next((name for name, text in read.models.items() if _base(text)[0] in str(error)), "policy")
    base = f"--model {param}=NAME plans with the sizes of another, as of the model that it was trained from"
    return ModelError(error.what, where=error.where, notes=error.notes, hint=f"{error.hint}; {base}".lstrip("; "))


def _request(read: Imported, device: str, request: Request, notes: list[str]) -> Request:
    """Return the request that another system's run stands for, with its longest lengths unless others are given."""
    machines, each = read.machines
    precision = read.running.get("policy.sample", RoleSettings()).precision
    return request.changed(
        flow=read.flow,
        model=_models(read, request, notes),
        batch=read.batch,
        settings=read.settings,
        prompt_tokens=request.workload.prompt_tokens or str(read.prompt_tokens),
        response_tokens=request.workload.response_tokens or str(read.response_tokens),
        cluster=f"{machines}x{each}x{_device(device)}",
        engine=tuple(f"{use}={engine}" for use, engine in read.engines.items()),
        precision=precision if precision in ("fp8", "fp4") else None,
    )


def _models(read: Imported, request: Request, notes: list[str]) -> tuple[str, ...]:
    """Return the models of a run, those that the request names in place of its own.

    What the run starts from the policy's weights is the policy's too, and adapters stay.
    """
    texts = [text.partition("=") for text in request.workload.model]
    given = dict(
        (name, model) if name.isidentifier() and equals else ("policy", f"{name}{equals}{model}")
        for name, equals, model in texts
    )
    models, policy = dict[str, str](), _base(read.models["policy"])[0]
    for name, text in read.models.items():
        base, adapters = _base(text)
        other = given.get(name) or (_base(given.get("policy", ""))[0] if base == policy else "")
        if not other:
            models[name] = _model(text, notes)
            continue
        models[name] = other if "+lora=" in other else f"{other}{adapters}"
        note = f"`{base}` is planned with the sizes of {_base(other)[0]}"
        notes += [note] if note not in notes else []
    return tuple(f"{name}={model}" for name, model in (given | models).items())


def _base(text: str) -> tuple[str, str]:
    """Part a model from its adapters.

    >>> _base("org/name+lora=8"), _base("org/name")
    (('org/name', '+lora=8'), ('org/name', ''))
    """
    base, plus, adapters = text.rpartition("+lora=") if "+lora=" in text else (text, "", "")
    return base, f"{plus}{adapters}"


def _device(text: str) -> str:
    """Return a kind of device whose speed is known, with its memory if that is given too."""
    known, name = known_devices(), text.lower()
    if not any(name == each or name.startswith(f"{each}-") for each in known) or "," in name:
        raise UsageError(f"unknown device `{text}` whose speed is known", where="--device", hint=nearest(name, known))
    return text


def _model(text: str, notes: list[str]) -> str:
    """Return a model by its name where a run has it in a folder that is not here: its sizes are those of that name."""
    base, adapters = _base(text)
    folder = Path(base).name
    known = full_name(folder) if base.startswith(("~", "/", ".")) or base.count("/") > 1 else None
    if known is None or Path(base).expanduser().is_dir():
        return text
    note = f"`{base}` is not here: its sizes are those of {known}, by its name"
    notes += [note] if note not in notes else []
    return f"{known}{adapters}"
