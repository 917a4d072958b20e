"""`resume`: continue a run from its newest checkpoint, with the request saved in the run's folder.

Only the number of steps and the place to run can be changed.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import os
import sys
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flowgraph.analysis.flat_graph import full_hash, structure_hash
from flowgraph.app.planning.flow_inputs import FlowInputs, read_inputs
from flowgraph.app.planning.plan_result import plan_of
from flowgraph.app.planning.problem import workload_of
from flowgraph.app.request import FlowLike, Request, Say, Target, saved_request
from flowgraph.app.running.run_state import checkpoint_to_continue, report_changes
from flowgraph.app.running.training import Observers, RunResult, prepare_run, train_and_record
from flowgraph.diagrams.build.plan_picture import plan_picture
from flowgraph.diagrams.write.mermaid.flowchart import mermaid
from flowgraph.errors import DataError, RunFolderError, UsageError
from flowgraph.errors.exit_codes import ExitCode
from flowgraph.files.hashes import file_mismatches, sha256
from flowgraph.files.untrusted import read_bytes
from flowgraph.runtime.record.run_facts import ResumableRun, schema_fault
from flowgraph.runtime.record.run_folder import RECORDS, RunFolder
from flowgraph.runtime.scratch import scratch
from flowgraph.serialize.graph_text import graph_text

MAX_LINES = 8  # of differences that an error shows


class NotResumableError(RunFolderError):
    """A run that cannot be resumed, for example because its flow, rows or weights have changed (exit code 4)."""

    exit_code = ExitCode.NOT_RESUMABLE


@dataclass(frozen=True)
class SavedRun:
    """A run as saved in its folder: the facts of `run.json`, and the request that started the run."""

    folder: RunFolder
    facts: Mapping[str, Any]
    request: Request


def resume_run(path: Path, request: Request, observers: Observers) -> RunResult:
    """Continue the run in folder `path` from its newest checkpoint, and return how the run ended.

    The run has `request.workload.steps` steps in total, by default as many as planned. The plan or cluster of the
    request replaces the run's saved plan. A flow in the request replaces the run's flow, and must be equal to it. A run
    without a checkpoint starts again from its first step; a finished run is not continued unless it gets more steps.
    Raises RunFolderError for a folder that is not a run folder, or that another process uses; NotResumableError, for
    example, if the flow, rows or weights have changed; UsageError for fewer steps than are done; DataError for a
    checkpoint of steps that overlap in another way; and the errors of `prepare_run` and `train_and_record`.
    """
    if isinstance(request.target.plan, Path):
        request = request.changed(plan=request.target.plan.absolute())
    folder = RunFolder.open(path)
    with folder.locked(), scratch() as copies:
        try:
            saved = _saved(folder)
            planned, steps_done = int(saved.facts["steps"]), int(saved.facts["steps_done"])
            steps = request.workload.steps or planned
            if saved.facts["status"] == "finished" and steps <= steps_done:
                note = f"{path} is finished: {steps_done} of {planned} steps; continue with --steps {2 * steps_done}"
                observers.say(note)
                return RunResult(
                    folder=path, status="finished", steps_done=steps_done, steps=planned, saved=True, notes=(note,)
                )
            with _where_it_began(saved) as saved:
                return _resume(saved, steps, request, copies, observers)
        except RunFolderError as error:
            raise NotResumableError(error.what, where=error.where, notes=error.notes, hint=error.hint) from error


def _saved(folder: RunFolder) -> SavedRun:
    facts = folder.facts()
    fault = schema_fault(ResumableRun, facts)
    try:
        if not fault:
            return SavedRun(folder, facts, saved_request(facts["options"]))
    except ValueError as error:
        fault = str(error).splitlines()[0]
    what = "does not record how it was run, so it cannot be resumed"
    raise RunFolderError(what, where=str(folder.path / "run.json"), notes=[fault])


@contextlib.contextmanager
def _where_it_began(saved: SavedRun) -> Generator[SavedRun]:
    began, current = Path(saved.facts["folder"]), Path.cwd()
    if began == current or not began.is_dir():
        yield saved
        return
    saved = replace(saved, folder=RunFolder(saved.folder.path.absolute()))
    os.chdir(began)
    try:
        yield saved
    finally:
        os.chdir(current)


def _resume(saved: SavedRun, steps: int, changes: Request, copies: Path, observers: Observers) -> RunResult:
    say, folder = observers.say, saved.folder
    request = _with_target(saved, changes)
    flow = changes.workload.flow or _flow(saved, copies, say)
    request = request.changed(flow=flow, steps=steps, batch=saved.facts["batch"])
    plan, workload = plan_of(request.target), request.workload
    if plan is not None and plan.assumed is not None:
        workload = workload_of(plan.assumed, workload)
    try:
        inputs = read_inputs(workload)
    except DataError as error:
        error.notes = (*error.notes, *_files_changed(saved))
        raise
    _refuse_another_run(saved, inputs, say)
    ready = prepare_run(request, say)
    checkpoint = checkpoint_to_continue(folder, ready.job, say)
    start = checkpoint.steps if checkpoint is not None else 0
    if ready.job.steps < start:
        raise UsageError(f"{start} steps are done already", where=f"--steps {steps}")
    if checkpoint is not None:
        for line in folder.damage(checkpoint.state().get(RECORDS, {})):
            say(f"a record of the steps before is damaged: {line}")
        report_changes(ready, checkpoint, say)
        say(f"continuing after step {start} of {ready.job.steps}")

    def begin() -> None:
        program, chosen = ready.job.program, ready.chosen
        folder.planned(program, {"plan.mmd": mermaid(plan_picture(program))})
        again = {"after_step": start, "at": time.strftime("%Y-%m-%dT%H:%M:%S"), "command": sys.argv}
        folder.note(
            status="running",
            steps=ready.job.steps,
            steps_done=start,
            resumed=[*saved.facts.get("resumed", []), again],
            runtime=chosen.runtime,
            threads=chosen.threads,
            timings=None,
            error=None,
        )

    return train_and_record(ready, folder, begin, observers, checkpoint)


def _files_changed(saved: SavedRun) -> list[str]:
    return list(file_mismatches(Path(), saved.facts["data"].get("files", {})))


def _with_target(saved: SavedRun, changes: Request) -> Request:
    execution = changes.execution
    overlap = changes.target.model_dump(include={"depth", "sync_every", "chunks", "contract"})
    address = execution.address or saved.request.execution.address
    if changes.target != Target(**overlap):
        request = saved.request.model_copy(update={"target": changes.target})
        return request.changed(runtime=execution.runtime, threads=execution.threads, address=address)
    runtime = execution.runtime or (None if execution.address else str(saved.facts["runtime"]))
    request = saved.request.model_copy(
        update={"target": Target(plan=saved.folder.path.absolute() / "plan.json", **overlap)}
    )
    return request.changed(
        runtime=runtime,
        threads=execution.threads or int(saved.facts["threads"]),
        address=execution.address or (None if runtime == "local" else address),
    )


def _flow(saved: SavedRun, copies: Path, say: Say) -> FlowLike:
    """Return the name of the run's flow: its file if unchanged, else a copy, under the same name, of the run's copy."""
    flow_name, file, backup = saved.request.flow, Path(saved.facts["file"]), saved.folder.path / "flow.py"
    try:
        text = read_bytes(backup)
    except OSError as error:
        raise RunFolderError.cannot(str(backup), error) from error
    then = saved.facts["flow_sha256"]
    if file.is_file() and sha256(file) == then:
        return flow_name
    if (now := hashlib.sha256(text).hexdigest()) != then:
        what = f"is not the flow that this run started with: sha256 was {then[:16]}, is {now[:16]}"
        raise RunFolderError(what, where=str(backup), hint=f"restore it, or the original {file}; nothing was run")
    what = "has changed since this run started" if file.is_file() else "no longer exists"
    say(f"{file} {what}; {backup}, the copy in the run folder, is resumed")
    copy = copies / file.name
    copy.write_bytes(text)
    if file.parent.is_dir():
        sys.path.append(str(file.parent.absolute()))
    path, colon, name = flow_name.rpartition(":")
    name = name if colon and path.endswith(".py") else "" if flow_name.endswith(".py") else flow_name
    return f"{copy}:{name}" if name else str(copy)


def _refuse_another_run(saved: SavedRun, inputs: FlowInputs, say: Say) -> None:
    where, digest = str(saved.folder.path), saved.facts["data"]["digest"]
    if full_hash(inputs.graph) != saved.facts["full_hash"]:
        same = structure_hash(inputs.graph) == saved.facts["structure_hash"]
        if same:
            then = {setting["name"]: setting["value"] for setting in saved.folder.settings()}
            now = {s.name: json.loads(json.dumps(s.value, default=str)) for s in inputs.resolved}
            lines = [
                f"{name} was {then.get(name, 'not there')}, is {now.get(name, 'not there')}"
                for name in dict.fromkeys([*then, *now])
                if not name.startswith("run.") and then.get(name) != now.get(name)
            ]
        else:
            texts = saved.folder.text("graph.txt").splitlines(), graph_text(inputs.graph).splitlines()
            diff = difflib.unified_diff(*texts, n=0, lineterm="")
            lines = [line for line in diff if not line.startswith(("---", "+++", "@@"))]
        notes = [*lines[:MAX_LINES], *([f"… ({len(lines)} in all)"] if len(lines) > MAX_LINES else [])]
        what = f"the flow's {'settings' if same else 'structure'} changed after this run started"
        hint = "restore the original flow, or start a new run with the changed one"
        raise RunFolderError(what, where=where, notes=notes, hint=hint)
    if inputs.data.digest != digest:
        notes = _files_changed(saved) or [f"then: {digest[:16]}", f"now: {inputs.data.digest[:16]}"]
        what = f"the rows of `{inputs.data.name}` are not those that this run started with"
        raise RunFolderError(what, where=where, notes=notes, hint="restore the original rows, or start a new run")
    for line in _files_changed(saved):
        say(f"{line}; its rows are the same")
