"""`import`: another system's run as a flow and a plan, and faster plans for its devices. No torch is loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.app.interop.exporting import ExportSearch, ExportTarget, exported_files, search_exportable_plan
from flowgraph.app.planning.problem import PreparedProblem, prepare
from flowgraph.app.planning.saved_plans import faults_of
from flowgraph.app.request import Request
from flowgraph.app.user_files import text_of
from flowgraph.cluster.plan import MOST_PROMPTS, Plan, RoleSettings
from flowgraph.diagrams.model.quantities import show_s
from flowgraph.errors import DataError, ModelError, SettingError, UsageError, nearest
from flowgraph.models.table import full_name
from nodes.interop import NEEDLESS, UNREAD, changes, exported_versions, read_command, read_yaml, system_of
from placements import known_devices, report
from placements.search import as_run

MAX_BYTES = 4_000_000  # of a launch script or a configuration
MAX_LETTERS = 60  # of a value that was not read
WHOLE = "the command"  # where an error stands that is of the whole text
PARTS = (2, 4, 8, 16)  # of the longest rows: the lengths to try for a run that does not fit with the longest

if TYPE_CHECKING:
    from nodes.interop import Change, Imported
    from placements import PlanningProblem


def import_command(path: Path, device: str, request: Request) -> ImportResult:
    """Read another system's run as a flow and a plan, forecast its memory and seconds, and search for a faster plan.

    `path` is a launch script or a YAML configuration; `device` is the type of its devices, such as "h100". Values in
    `request`, such as lengths of rows, replace those of the run; by default every row has the largest lengths that the
    run allows. If the run does not fit with these, 1/2, 1/4, 1/8 and 1/16 of them are tried until it fits. The fastest
    plan found may be slower than the run. Raises, for example, DataError for a file that is not a run, UsageError for a
    device of unknown speed, and ModelError for a model of unknown sizes.
    """
    as_written = read_run(path)

    def at(request: Request) -> tuple[PreparedProblem, ImportedRun]:
        prepared = _prepared(as_written, path, device, request)
        read = _with_micro_batches(prepared.problem, as_written)
        plan = as_run.plan_of_run(prepared.problem, read, prepared.assumed)
        faults = tuple(map(str, faults_of(plan, prepared, str(path), ran=True)))
        return prepared, ImportedRun(path, read, plan, faults)

    prepared, run = at(request)
    read, shorter = run.read, None
    notes = [*read.notes, *_unread(read), *prepared.notes]
    if request.workload.prompt_tokens is None and request.workload.response_tokens is None:
        longest = f"{read.prompt_tokens:,} + {read.response_tokens:,} tokens"
        otherwise = "set --prompt-tokens and --response-tokens to change it"
        notes.append(f"every row is assumed to be as long as the run allows, {longest}: {otherwise}")
        for part in PARTS if run.faults else ():
            tokens = [max(1, length // part) for length in (read.prompt_tokens, read.response_tokens)]
            if not at(request.changed(prompt_tokens=str(tokens[0]), response_tokens=str(tokens[1])))[1].faults:
                shorter = ShorterLengths(prompt=tokens[0], response=tokens[1])
                break
    if tight := "" if run.faults else report.tightness(run.plan):
        notes.append(tight)
    best = search_exportable_plan(prepared, run.target)
    replaced = _replacement(prepared, run, best)
    return ImportResult(
        prepared=prepared, run=run, notes=tuple(notes), best=best, replaced_by=replaced, shorter=shorter
    )


@dataclass(frozen=True)
class ShorterLengths:
    """Lengths of prompts and responses in tokens, shorter than a run's limits."""

    prompt: int
    response: int

    def __str__(self) -> str:
        return f"--prompt-tokens {self.prompt} --response-tokens {self.response}"


@dataclass(frozen=True, kw_only=True)
class ImportResult:
    """Another system's run as a flow and a plan, and the plans that a search finds for the same devices.

    `best` is the result of the search, None if no plan fits. `replaced_by` is the fastest plan found that the system
    can run, None if it can run none. If the run does not fit at its own limits, `shorter` has lengths at which it fits,
    if any are known; otherwise None.
    """

    prepared: PreparedProblem
    run: ImportedRun
    notes: tuple[str, ...]
    best: ExportSearch | None
    replaced_by: RunReplacement | None
    shorter: ShorterLengths | None

    @property
    def plan(self) -> Plan:
        """Return the imported run as a plan."""
        return self.run.plan

    @property
    def replacement(self) -> Plan | None:
        """Return the fastest plan found that the imported system can run, which may be slower than the imported run.

        None if no plan fits the devices, or if the system can run none of those found.
        """
        return self.replaced_by.plan if self.replaced_by is not None else None

    def data(self) -> dict[str, Any]:
        """Return what `flowgraph import --json` prints, as JSON-compatible data about the run and the search.

        `system`, `version` and `placement` ("" for one without a name) describe the run. `plan` is the run as a plan,
        and `faults` are the reasons why this does not fit. `fits_with` has shorter lengths in tokens at which it fits,
        `prompt` and `response`; None if it fits already or none are known. `notes` are for the user, and `again` has
        the words of the command that no plan stores. `searched_s` is the seconds of a step of the best plan of the
        search, None if no plan fits. `found` is the data of the fastest plan found that the system can run
        (`RunReplacement.data`), perhaps slower than the run, or None.
        """
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
            "searched_s": self.best.search.best.step_s if self.best is not None else None,
            "found": self.replaced_by and self.replaced_by.data(),
        }

    def text(self) -> str:
        """Return the run's plan and faults, and the fastest plan found with the flags of the run that it changes.

        If that plan is not faster than a run that fits, or if there is none, a line says so instead.
        """
        read, models = self.run.read, self.prepared.assumed.models
        names = ", ".join(f"{name} {model}" for name, model in models.items() if name not in read.unused)
        head = f"{read.system} {read.version}: {read.flow}, {names}; {read.placement or 'a placement of its own'}"
        hint = [f"it fits with shorter rows: {self.shorter}"] if self.shorter is not None else []
        compared = _compared(self.run, self.best, self.replaced_by)
        return "\n".join([head, *report.plan_lines(self.plan), *self.run.faults, *hint, *compared])


@dataclass(frozen=True)
class ImportedRun:
    """A run that was read from a file, its plan, and the faults that say why this plan does not fit."""

    path: Path
    read: Imported
    plan: Plan
    faults: tuple[str, ...]

    @property
    def target(self) -> ExportTarget:
        """Return the system and version to export to: the run's version, else the oldest that can be exported."""
        versions = exported_versions(system_of(self.read.system))
        version = self.read.version if self.read.version in versions else versions[0]
        return ExportTarget(system=self.read.system, version=version)

    @property
    def step_s(self) -> float | None:
        """Return the forecast seconds of a step of the run; None if they are not known."""
        return self.plan.step.period_s if self.plan.step is not None else None

    @property
    def on(self) -> str:
        """Return the searched devices as text: "the same devices" as the run's, or "all N devices of its machines"."""
        machines, per_machine = self.read.machines
        devices = machines * per_machine
        return "the same devices" if devices == self.read.devices else f"all {devices} devices of its machines"


@dataclass(frozen=True)
class RunReplacement:
    """A plan that the system of a run can run instead, and its forecast seconds of a step.

    `changes` are the flags of the run that change, and `notes` say what the system does differently.
    """

    plan: Plan
    step_s: float
    changes: tuple[Change, ...]
    notes: tuple[str, ...]

    def data(self) -> dict[str, Any]:
        """Return the plan as JSON-compatible data with the keys `step_s`, `roles`, `changes` and `notes`.

        `step_s` is the seconds of a step. Each of `roles` has its `role`, `pool`, number of `devices`, `engine`,
        `layout`, settings (`running`) and `lag` in updates. Each of `changes` is a flag of the run: its `key`, new
        `value` and old one (`was`).
        """
        pools = {pool.name: len(pool.devices) for pool in self.plan.pools}
        roles = [
            {
                "role": placed.role,
                "pool": placed.pool,
                "devices": pools[placed.pool],
                "engine": placed.engine,
                "layout": placed.layout.model_dump(),
                "running": placed.running.model_dump(mode="json"),
                "lag": placed.lag,
            }
            for placed in self.plan.placed
        ]
        changed = [{"key": change.key, "value": change.value, "was": change.was} for change in self.changes]
        return {"step_s": self.step_s, "roles": roles, "changes": changed, "notes": list(self.notes)}


def _replacement(prepared: PreparedProblem, run: ImportedRun, best: ExportSearch | None) -> RunReplacement | None:
    fastest = best.fastest if best is not None else None
    if fastest is None or fastest.plan is None or fastest.step_s is None:
        return None
    before, after = exported_files(prepared, run.plan, run.target), fastest.exported
    changed = changes(run.read, before.files["run.sh"], after.files["run.sh"])
    notes = tuple(note for note in after.notes if note not in before.notes)
    return RunReplacement(fastest.plan, fastest.step_s, changed, notes)


def _unread(read: Imported) -> Iterator[str]:
    yield from (f"{key} was not read: {why}" for key, why in read.ignored if why not in (NEEDLESS, UNREAD))
    unread = [f"{key}={read.overrides[key][:MAX_LETTERS]}" for key, why in read.ignored if why == UNREAD]
    if unread:
        yield f"not read, though they may change what is computed: {', '.join(unread)}"
    needless = [key for key, why in read.ignored if why == NEEDLESS]
    if needless:
        yield f"not read, because no plan depends on them: {', '.join(needless)}"
    if read.again:
        yield f"a plan does not store these; add them to the exported command: {' '.join(read.again)}"


def _compared(run: ImportedRun, best: ExportSearch | None, replaced: RunReplacement | None) -> Iterator[str]:
    where, system = f"searched on {run.on}", f"{run.target.system} {run.target.version}"
    if best is None:
        yield f"{where}: no plan fits"
        return
    fastest = best.search.best
    pools = report.pools_of(fastest)
    if replaced is None:
        yield f"{where}: {show_s(fastest.step_s)} a step: {pools}; {system} can run none of the plans found"
        return
    share = replaced.step_s / run.step_s - 1 if run.step_s and not run.faults else None
    if share is not None and share > report.TIED_SHARE:
        yield f"{where}: no faster plan was found"
        return
    if share is not None and share >= -report.TIED_SHARE:
        yield f"{where}: this run is as fast as the best plan found, {show_s(replaced.step_s)} a step"
        return
    if fastest.step_s < replaced.step_s * (1 - report.TIED_SHARE):
        yield f"{where}: {show_s(fastest.step_s)} a step: {pools}; {system} cannot run that plan unchanged"
    change = f", {share:+.0%}" if share is not None else ""
    yield f"{where}: {show_s(replaced.step_s)} a step{change}, as {system} runs it"
    yield from report.pool_lines(replaced.plan)
    yield f"changes to {run.path}, in the terms of {system}" if replaced.changes else "nothing changes"
    yield from (f"  {change}" for change in replaced.changes)
    yield from (f"  {system} runs this plan differently: {note}" for note in replaced.notes)


def read_run(path: Path) -> Imported:
    """Return the run that a file describes: a launch script of verl or OpenRLHF, or verl's configuration in YAML.

    Files with the suffix `.yaml` or `.yml` are read as YAML, all others as scripts; nothing is run. Raises DataError,
    with the line if it is known, for a file that cannot be read, is not text or has more than 4 MB, for a file that
    starts no training with these systems, and for a run that names no model or has invalid settings.
    """
    text = text_of(path, "", lambda why: DataError.unusable(path, why), MAX_BYTES).removeprefix("\ufeff")
    try:
        return read_yaml(text) if path.suffix.lower() in (".yaml", ".yml") else read_command(text)
    except UsageError as error:
        line = error.where.removeprefix("line ")
        where = f"{path}:{line}" if line.isdecimal() else str(path)
        what = error.what if where != str(path) or error.where == WHOLE else f"{error.where}: {error.what}"
        raise DataError.unusable(where, what, error.hint) from None


def _prepared(read: Imported, path: Path, device: str, request: Request) -> PreparedProblem:
    notes = list[str]()
    if read.batch > MOST_PROMPTS:
        raise DataError.unusable(
            path, f"samples {read.batch:,} prompts in a step; at most {MOST_PROMPTS:,} are allowed"
        )
    try:
        prepared = prepare(_request(read, device, request, notes)).having(staleness=read.lag, without=read.unused)
    except SettingError as error:
        if error.where != "--set":
            raise
        raise DataError.unusable(path, error.what, error.hint) from None
    except ModelError as error:
        if not request.workload.model:
            param = next((name for name, text in read.models.items() if _base(text)[0] in str(error)), "policy")
            sizes = f"--model {param}=NAME plans with the sizes of another model, such as its base model"
            error.hint = f"{error.hint}; {sizes}".lstrip("; ")
        raise
    return replace(prepared, notes=(*notes, *prepared.notes))


def _request(read: Imported, device: str, request: Request, notes: list[str]) -> Request:
    known_names, name = known_devices(), device.lower()
    if "," in name or not any(name == known_name or name.startswith(f"{known_name}-") for known_name in known_names):
        hint = nearest(name, known_names)
        raise UsageError(f"unknown device `{device}` whose speed is known", where="--device", hint=hint)
    machines, per_machine = read.machines
    precision = read.running.get("policy.sample", RoleSettings()).precision
    return request.changed(
        flow=read.flow,
        model=_models(read, request, notes),
        batch=read.batch,
        settings=read.settings,
        prompt_tokens=request.workload.prompt_tokens or str(read.prompt_tokens),
        response_tokens=request.workload.response_tokens or str(read.response_tokens),
        cluster=f"{machines}x{per_machine}x{device}",
        engine=tuple(f"{use}={engine}" for use, engine in read.engines.items()),
        precision=precision if precision in ("fp8", "fp4") else None,
    )


def _models(read: Imported, request: Request, notes: list[str]) -> tuple[str, ...]:
    """Return the models of a run, replaced by those requested; models that begin as the policy's follow the policy."""
    requested = dict[str, str]()
    for text in request.workload.model:
        name, equals, model = text.partition("=")
        requested |= {name: model} if equals and name.isidentifier() else {"policy": text}
    models, policy = dict[str, str](), _base(read.models["policy"])[0]
    for name, text in read.models.items():
        base, adapters = _base(text)
        model = requested.get(name) or (_base(requested.get("policy", ""))[0] if base == policy else "")
        in_folder = base.startswith(("~", "/", ".")) or base.count("/") > 1
        note = ""
        if model:
            models[name] = model if "+lora=" in model else f"{model}{adapters}"
            note = f"`{base}` is planned with the sizes of {_base(model)[0]}"
        elif in_folder and (hub_name := full_name(Path(base).name)) and not Path(base).expanduser().is_dir():
            models[name] = f"{hub_name}{adapters}"
            note = f"`{base}` is not on this machine: the sizes of {hub_name} are used, by its name"
        else:
            models[name] = text
        notes += [note] if note and note not in notes else []
    return tuple(f"{name}={model}" for name, model in (requested | models).items())


def _base(text: str) -> tuple[str, str]:
    base, plus, rank = text.rpartition("+lora=")
    return (base, f"{plus}{rank}") if plus else (text, "")


def _with_micro_batches(problem: PlanningProblem, read: Imported) -> Imported:
    """Return a run with its micro-batches in tokens at the lengths of a problem: budgets are seldom full."""
    running = dict(read.running)
    for role in problem.roles:
        settings, layout, loads = running.get(role.name), read.layouts.get(role.name), problem.loads_of(role)
        if settings is None or layout is None or role.use == "sample" or not loads:
            continue
        if (tokens := settings.micro_batch_tokens) is None:
            continue
        rows = read.rows_at_once.get(role.name)  # of a budget that counts rows without their padding
        if rows is not None:
            tokens = ceil(rows * max(load.row_tokens for load in loads))
        longest = max(load.longest_tokens for load in loads)
        updates = [load for load in loads if load.phase == "update"] or loads
        of_a_rank = max(load.tokens.tokens / max(1, load.steps // load.epochs) / layout.data for load in updates)
        tokens = max(longest, min(tokens, ceil(of_a_rank)))
        running[role.name] = settings.model_copy(update={"micro_batch_tokens": tokens})
    return replace(read, running=running)
