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
from flowgraph.cli.flow_request import FlowInputs, FlowRequest, read_inputs
from flowgraph.cli.plan_result import PlanTarget, read_plan
from flowgraph.cli.planning_request import asked_by
from flowgraph.cli.run import PreparedRun, RunOptions, carry_out, options_from_plain, prepared
from flowgraph.cli.run_state import checkpoints_of, say_what_changed
from flowgraph.diagrams.build.plan_picture import plan_picture
from flowgraph.diagrams.write.mermaid.flowchart import mermaid
from flowgraph.errors import DataError, RunFolderError, UsageError
from flowgraph.files.hashes import faults, sha256
from flowgraph.files.untrusted import read_bytes
from flowgraph.runtime.record.checkpoint import Checkpoint
from flowgraph.runtime.record.run_facts import ResumableRun, fault_in
from flowgraph.runtime.record.run_folder import RECORDS, RunFolder
from flowgraph.runtime.scratch import scratch
from flowgraph.serialize.graph_text import graph_text

NOT_RESUMABLE = 4  # exit code: what the run began with is not what is there now
LINES_AT_MOST = 8  # of differences that are told


@dataclass(frozen=True)
class SavedRun:
    """What a run's folder says of the run: its facts, and what it was asked."""

    folder: RunFolder
    facts: Mapping[str, Any]
    options: RunOptions

    @property
    def steps(self) -> int:
        """Give how many steps the run is to do."""
        return int(self.facts["steps"])

    @property
    def done(self) -> int:
        """Give how many steps were done, if perhaps not saved."""
        return int(self.facts["steps_done"])


def resume_run(path: Path, steps: int | None, where: PlanTarget) -> int:
    """Go on with a run, to `steps` in all if said; give the exit code."""
    where = replace(where, plan=where.plan.absolute() if where.plan is not None else None)
    folder = RunFolder.open(path)
    with folder.locked(), scratch() as copies:
        try:
            kept = _kept(folder)
            if kept.facts["status"] == "finished" and (steps or kept.steps) <= kept.done:
                return _say_finished(kept)
            with _where_it_began(kept) as kept:
                return _resume(kept, steps or kept.steps, where, copies)
        except RunFolderError as error:
            print(error, file=sys.stderr)
            return NOT_RESUMABLE


def _kept(folder: RunFolder) -> SavedRun:
    facts = folder.facts()
    fault = fault_in(ResumableRun, facts)
    try:
        if not fault:
            return SavedRun(folder, facts, options_from_plain(facts["options"]))
    except ValueError as error:
        fault = str(error).splitlines()[0]
    what = "does not say how it was run, so it cannot be resumed"
    raise RunFolderError(what, where=str(folder.path / "run.json"), notes=[fault])


def _say_finished(kept: SavedRun) -> int:
    more = f"--steps {2 * kept.done} goes on"
    print(f"{kept.folder.path} is finished: {kept.done} of {kept.steps} steps are done; {more}", file=sys.stderr)
    print(kept.folder.path)
    return 0


@contextlib.contextmanager
def _where_it_began(kept: SavedRun) -> Generator[SavedRun]:
    """Work in the folder that the run began in, if it is still there: relative paths start from it."""
    began, here = Path(kept.facts["folder"]), Path.cwd()
    if began == here or not began.is_dir():
        yield kept
        return
    moved = replace(kept, folder=RunFolder(kept.folder.path.absolute()))
    os.chdir(began)
    try:
        yield moved
    finally:
        os.chdir(here)


def _resume(kept: SavedRun, steps: int, where: PlanTarget, copies: Path) -> int:
    where = _place(kept, where)
    flow = _flow(kept, copies)
    asked = replace(kept.options.asked, flow=flow, steps=steps, batch=kept.facts["batch"])
    options = replace(kept.options, asked=asked, where=where)
    refuse_another_run(kept, _inputs(kept, _as_planned(asked, where)))
    ready = prepared(options)
    found = checkpoints_of(kept.folder).newest(lambda line: print(line, file=sys.stderr))
    start = found.steps if found is not None else 0
    if ready.job.steps < start:
        raise UsageError(f"{start} steps are done already", where=f"--steps {steps}")
    _say_where(kept, ready, found)
    return carry_out(ready, kept.folder, lambda: _begin(kept, ready, start), found)


def _inputs(kept: SavedRun, asked: FlowRequest) -> FlowInputs:
    """Read what the run works on; an error in its data says which of its files have changed."""
    try:
        return read_inputs(asked)
    except DataError as error:
        error.notes = (*error.notes, *files_changed(kept))
        raise


def files_changed(kept: SavedRun) -> list[str]:
    """Return which of the files that the run's rows were read from are not what they were, with both hashes."""
    return list(faults(Path(), kept.facts["data"].get("files", {})))


def _as_planned(asked: FlowRequest, where: PlanTarget) -> FlowRequest:
    """Return what is asked, and where that says nothing, what the plan of the run was made for."""
    plan = None if where.plan is None else read_plan(where.plan)
    return asked if plan is None or plan.assumed is None else asked_by(plan.assumed, asked)


def _say_where(kept: SavedRun, ready: PreparedRun, found: Checkpoint | None) -> None:
    if found is None:
        print(f"{kept.folder.path} has no checkpoint: it starts again from its first step", file=sys.stderr)
        return
    for line in kept.folder.damage(found.state().get(RECORDS, {})):
        print(f"a record of the steps before is damaged: {line}", file=sys.stderr)
    say_what_changed(ready, found)
    print(f"going on after step {found.steps} of {ready.job.steps}", file=sys.stderr)


def _place(kept: SavedRun, where: PlanTarget) -> PlanTarget:
    """Say where to run: by the plan or cluster that is named now, else by the run's own plan, as it was."""
    then = kept.options.where
    if any(each is not None for each in (where.plan, where.cluster, where.placement, where.memory)):
        return replace(where, address=where.address or then.address)
    runtime = where.runtime or (None if where.address else str(kept.facts["runtime"]))
    address = where.address or (None if runtime == "local" else then.address)
    threads = where.threads or int(kept.facts["threads"])
    plan = kept.folder.path.absolute() / "plan.json"
    return replace(where, plan=plan, runtime=runtime, address=address, threads=threads)


def _flow(kept: SavedRun, copies: Path) -> str:
    """Name the flow: its own file if that still reads as it did, else a copy of what the run's folder holds.

    Neither runs unless its hash is the one that the run noted.

    A copy keeps the file's name, which its values and nodes are known by, and imports from beside the file.
    """
    said, file, own = kept.options.asked.flow, Path(kept.facts["file"]), kept.folder.path / "flow.py"
    try:
        text = read_bytes(own)
    except OSError as error:
        raise RunFolderError.cannot(str(own), error) from error
    then = kept.facts["flow_sha256"]
    if file.is_file() and sha256(file) == then:
        return said
    if (now := hashlib.sha256(text).hexdigest()) != then:
        what = f"is not the flow that this run began with: sha256 was {then[:16]}, is {now[:16]}"
        raise RunFolderError(what, where=str(own), hint=f"bring it back, or {file} as it was; it was not run")
    what = "has changed since this run began" if file.is_file() else "is gone"
    print(f"{file} {what}; {own}, the run's own copy of it, is resumed", file=sys.stderr)
    copy = copies / file.name
    copy.write_bytes(text)
    if file.parent.is_dir():
        sys.path.append(str(file.parent.absolute()))
    path, colon, name = said.rpartition(":")
    name = name if colon and path.endswith(".py") else "" if said.endswith(".py") else said
    return f"{copy}:{name}" if name else str(copy)


def refuse_another_run(kept: SavedRun, inputs: FlowInputs) -> None:
    """Refuse a flow, settings or rows that are not those that the run began with."""
    where = str(kept.folder.path)
    if full_hash(inputs.graph) != kept.facts["full_hash"]:
        same = structure_hash(inputs.graph) == kept.facts["structure_hash"]
        lines = list(_settings_changed(kept, inputs)) if same else list(_lines_changed(kept, inputs))
        more = [f"… ({len(lines)} in all)"] if len(lines) > LINES_AT_MOST else []
        what = "the flow's settings are" if same else "the flow's structure is"
        hint = "a run goes on as it began; start another for what has changed"
        raise RunFolderError(
            f"{what} not what this run began with", where=where, notes=[*lines[:LINES_AT_MOST], *more], hint=hint
        )
    if inputs.data.digest != kept.facts["data"]["digest"]:
        notes = files_changed(kept) or [f"then: {kept.facts['data']['digest'][:16]}", f"now: {inputs.data.digest[:16]}"]
        what = f"the rows of `{inputs.data.name}` are not those that this run began with"
        raise RunFolderError(what, where=where, notes=notes, hint="bring those back, or start another run")
    for line in files_changed(kept):
        print(f"{line}; its rows are the same", file=sys.stderr)


def _settings_changed(kept: SavedRun, inputs: FlowInputs) -> Iterator[str]:
    told = kept.folder.settings()
    then = {each["name"]: each["value"] for each in told}
    now = {each.name: json.loads(json.dumps(each.value, default=str)) for each in inputs.resolved}
    for name in dict.fromkeys([*then, *now]):
        if not name.startswith("run.") and then.get(name) != now.get(name):
            yield f"{name} was {then.get(name, 'not there')}, is {now.get(name, 'not there')}"


def _lines_changed(kept: SavedRun, inputs: FlowInputs) -> Iterator[str]:
    then = kept.folder.text("graph.txt").splitlines()
    lines = difflib.unified_diff(then, graph_text(inputs.graph).splitlines(), n=0, lineterm="")
    return (line for line in lines if not line.startswith(("---", "+++", "@@")))


def _begin(kept: SavedRun, ready: PreparedRun, start: int) -> None:
    """Write that the run goes on, from which step and by which plan."""
    program, chosen = ready.job.program, ready.chosen
    kept.folder.planned(program, {"plan.mmd": mermaid(plan_picture(program))})
    again = {"after_step": start, "at": time.strftime("%Y-%m-%dT%H:%M:%S"), "command": sys.argv}
    kept.folder.note(
        status="running",
        steps=ready.job.steps,
        steps_done=start,
        resumed=[*kept.facts.get("resumed", []), again],
        runtime=chosen.runtime,
        threads=chosen.threads,
        timings=None,
        error=None,
    )
