"""`resume`: go on with a run from its newest checkpoint; all but the end and the place is as the run's folder says."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import os
import sys
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flowgraph.analysis.flat_graph import full_hash, structure_hash
from flowgraph.app.planning.flow_inputs import FlowInputs, read_inputs
from flowgraph.app.planning.plan_result import plan_of
from flowgraph.app.planning.problem import workload_of
from flowgraph.app.request import FlowLike, Request, Say, Target, Workload, saved_request
from flowgraph.app.running.run_state import checkpoints_of, say_what_changed
from flowgraph.app.running.training import Observers, PreparedRun, RunResult, carry_out, prepare_run
from flowgraph.diagrams.build.plan_picture import plan_picture
from flowgraph.diagrams.write.mermaid.flowchart import mermaid
from flowgraph.errors import DataError, RunFolderError, UsageError
from flowgraph.errors.exit_codes import ExitCode
from flowgraph.files.hashes import faults, sha256
from flowgraph.files.untrusted import read_bytes
from flowgraph.runtime.record.checkpoint import Checkpoint
from flowgraph.runtime.record.run_facts import ResumableRun, fault_in
from flowgraph.runtime.record.run_folder import RECORDS, RunFolder
from flowgraph.runtime.scratch import scratch
from flowgraph.serialize.graph_text import graph_text

LINES_AT_MOST = 8  # of differences that an error shows


class NotResumableError(RunFolderError):
    """A run that cannot go on: its flow, its rows or its weights are not what it began with (exit code 4)."""

    exit_code = ExitCode.NOT_RESUMABLE


@dataclass(frozen=True)
class SavedRun:
    """What a run's folder says of the run: its facts, and its request."""

    folder: RunFolder
    facts: Mapping[str, Any]
    request: Request

    @property
    def steps(self) -> int:
        """Return how many steps the run is to do."""
        return int(self.facts["steps"])

    @property
    def done(self) -> int:
        """Return how many steps were done, if perhaps not saved."""
        return int(self.facts["steps_done"])


def resume_run(path: Path, request: Request, observers: Observers) -> RunResult:
    """Go on with a run, to `request.workload.steps` in all if said, by its own plan unless the request names a target.

    A flow of the request takes the place of the run's own, if it is the same. Raises RunFolderError for a run that
    cannot be resumed: what it began with is not what is there now.
    """
    if isinstance(request.target.plan, Path):
        request = request.changed(plan=request.target.plan.absolute())
    folder = RunFolder.open(path)
    with folder.locked(), scratch() as copies:
        try:
            saved = _saved(folder)
            steps = request.workload.steps or saved.steps
            if saved.facts["status"] == "finished" and steps <= saved.done:
                more = f"--steps {2 * saved.done} goes on"
                note = f"{folder.path} is finished: {saved.done} of {saved.steps} steps are done; {more}"
                observers.say(note)
                return RunResult(
                    folder=folder.path,
                    status="finished",
                    steps_done=saved.done,
                    steps=saved.steps,
                    saved=True,
                    notes=(note,),
                )
            with _where_it_began(saved) as saved:
                return _resume(saved, steps, request, copies, observers)
        except RunFolderError as error:
            raise NotResumableError(error.what, where=error.where, notes=error.notes, hint=error.hint) from error


def _saved(folder: RunFolder) -> SavedRun:
    facts = folder.facts()
    fault = fault_in(ResumableRun, facts)
    try:
        if not fault:
            return SavedRun(folder, facts, saved_request(facts["options"]))
    except ValueError as error:
        fault = str(error).splitlines()[0]
    what = "does not say how it was run, so it cannot be resumed"
    raise RunFolderError(what, where=str(folder.path / "run.json"), notes=[fault])


@contextlib.contextmanager
def _where_it_began(saved: SavedRun) -> Generator[SavedRun]:
    """Work in the folder that the run began in, if it is still there: relative paths start from it."""
    began, here = Path(saved.facts["folder"]), Path.cwd()
    if began == here or not began.is_dir():
        yield saved
        return
    moved = replace(saved, folder=RunFolder(saved.folder.path.absolute()))
    os.chdir(began)
    try:
        yield moved
    finally:
        os.chdir(here)


def _resume(saved: SavedRun, steps: int, given: Request, copies: Path, observers: Observers) -> RunResult:
    say = observers.say
    request = _with_target(saved, given)
    flow = given.workload.flow or _flow(saved, copies, say)
    request = request.changed(flow=flow, steps=steps, batch=saved.facts["batch"])
    refuse_another_run(saved, _inputs(saved, _as_planned(request)), say)
    ready = prepare_run(request, say)
    checkpoint = checkpoints_of(saved.folder).newest(say)
    start = checkpoint.steps if checkpoint is not None else 0
    if ready.job.steps < start:
        raise UsageError(f"{start} steps are done already", where=f"--steps {steps}")
    _say_where(saved, ready, checkpoint, say)
    return carry_out(ready, saved.folder, lambda: _begin(saved, ready, start), observers, checkpoint)


def _inputs(saved: SavedRun, workload: Workload) -> FlowInputs:
    """Read what the run works on; an error in its data says which of its files have changed."""
    try:
        return read_inputs(workload)
    except DataError as error:
        error.notes = (*error.notes, *files_changed(saved))
        raise


def files_changed(saved: SavedRun) -> list[str]:
    """Return which of the files that the run's rows were read from are not what they were, with both hashes."""
    return list(faults(Path(), saved.facts["data"].get("files", {})))


def _as_planned(request: Request) -> Workload:
    """Return what is asked, and where that says nothing, what the plan of the run was made for."""
    plan = plan_of(request.target)
    return request.workload if plan is None or plan.assumed is None else workload_of(plan.assumed, request.workload)


def _say_where(saved: SavedRun, ready: PreparedRun, checkpoint: Checkpoint | None, say: Say) -> None:
    if checkpoint is None:
        say(f"{saved.folder.path} has no checkpoint: it starts again from its first step")
        return
    for line in saved.folder.damage(checkpoint.state().get(RECORDS, {})):
        say(f"a record of the steps before is damaged: {line}")
    say_what_changed(ready, checkpoint, say)
    say(f"going on after step {checkpoint.steps} of {ready.job.steps}")


def _with_target(saved: SavedRun, given: Request) -> Request:
    """Return the run's request with where to run: by the plan or cluster that is given, else by the run's own plan."""
    address = given.execution.address or saved.request.execution.address
    execution = {"runtime": given.execution.runtime, "threads": given.execution.threads, "address": address}
    if given.target != Target():
        return saved.request.model_copy(update={"target": given.target}).changed(**execution)
    runtime = given.execution.runtime or (None if given.execution.address else str(saved.facts["runtime"]))
    execution |= {
        "runtime": runtime,
        "threads": given.execution.threads or int(saved.facts["threads"]),
        "address": given.execution.address or (None if runtime == "local" else address),
    }
    own = Target(plan=saved.folder.path.absolute() / "plan.json")
    return saved.request.model_copy(update={"target": own}).changed(**execution)


def _flow(saved: SavedRun, copies: Path, say: Say) -> FlowLike:
    """Name the flow: its own file if that still reads as it did, else a copy of what the run's folder holds.

    Neither runs unless its hash is the one that the run noted.

    A copy keeps the file's name, which its values and nodes are known by, and imports from beside the file.
    """
    name_text, file, own = saved.request.flow, Path(saved.facts["file"]), saved.folder.path / "flow.py"
    try:
        text = read_bytes(own)
    except OSError as error:
        raise RunFolderError.cannot(str(own), error) from error
    then = saved.facts["flow_sha256"]
    if file.is_file() and sha256(file) == then:
        return name_text
    if (now := hashlib.sha256(text).hexdigest()) != then:
        what = f"is not the flow that this run began with: sha256 was {then[:16]}, is {now[:16]}"
        raise RunFolderError(what, where=str(own), hint=f"bring it back, or {file} as it was; it was not run")
    what = "has changed since this run began" if file.is_file() else "is gone"
    say(f"{file} {what}; {own}, the run's own copy of it, is resumed")
    copy = copies / file.name
    copy.write_bytes(text)
    if file.parent.is_dir():
        sys.path.append(str(file.parent.absolute()))
    path, colon, name = name_text.rpartition(":")
    name = name if colon and path.endswith(".py") else "" if name_text.endswith(".py") else name_text
    return f"{copy}:{name}" if name else str(copy)


def refuse_another_run(saved: SavedRun, inputs: FlowInputs, say: Say) -> None:
    """Refuse a flow, settings or rows that are not those that the run began with."""
    where = str(saved.folder.path)
    if full_hash(inputs.graph) != saved.facts["full_hash"]:
        same = structure_hash(inputs.graph) == saved.facts["structure_hash"]
        lines = list(_settings_changed(saved, inputs)) if same else list(_lines_changed(saved, inputs))
        more = [f"… ({len(lines)} in all)"] if len(lines) > LINES_AT_MOST else []
        what = "the flow's settings are" if same else "the flow's structure is"
        hint = "a run goes on as it began; start another for what has changed"
        raise RunFolderError(
            f"{what} not what this run began with", where=where, notes=[*lines[:LINES_AT_MOST], *more], hint=hint
        )
    if inputs.data.digest != saved.facts["data"]["digest"]:
        notes = files_changed(saved) or [
            f"then: {saved.facts['data']['digest'][:16]}",
            f"now: {inputs.data.digest[:16]}",
        ]
        what = f"the rows of `{inputs.data.name}` are not those that this run began with"
        raise RunFolderError(what, where=where, notes=notes, hint="bring those back, or start another run")
    for line in files_changed(saved):
        say(f"{line}; its rows are the same")


def _settings_changed(saved: SavedRun, inputs: FlowInputs) -> Iterator[str]:
    told = saved.folder.settings()
    then = {each["name"]: each["value"] for each in told}
    now = {each.name: json.loads(json.dumps(each.value, default=str)) for each in inputs.resolved}
    for name in dict.fromkeys([*then, *now]):
        if not name.startswith("run.") and then.get(name) != now.get(name):
            yield f"{name} was {then.get(name, 'not there')}, is {now.get(name, 'not there')}"


def _lines_changed(saved: SavedRun, inputs: FlowInputs) -> Iterator[str]:
    then = saved.folder.text("graph.txt").splitlines()
    lines = difflib.unified_diff(then, graph_text(inputs.graph).splitlines(), n=0, lineterm="")
    return (line for line in lines if not line.startswith(("---", "+++", "@@")))


def _begin(saved: SavedRun, ready: PreparedRun, start: int) -> None:
    """Write that the run goes on, from which step and by which plan."""
    program, chosen = ready.job.program, ready.chosen
    saved.folder.planned(program, {"plan.mmd": mermaid(plan_picture(program))})
    again = {"after_step": start, "at": time.strftime("%Y-%m-%dT%H:%M:%S"), "command": sys.argv}
    saved.folder.note(
        status="running",
        steps=ready.job.steps,
        steps_done=start,
        resumed=[*saved.facts.get("resumed", []), again],
        runtime=chosen.runtime,
        threads=chosen.threads,
        timings=None,
        error=None,
    )
