"""The state of a run in its checkpoints, and checks that a resumed run still has the same weights and software."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.analysis.flat_graph import full_hash, structure_hash
from flowgraph.app.request import Say
from flowgraph.checks.overlap import MAX_STEPS
from flowgraph.errors import DataError, RunFolderError
from flowgraph.language.values import Model
from flowgraph.runtime.hosting import LoadedModels
from flowgraph.runtime.record.checkpoint import Checkpoint, Checkpoints, Saver
from flowgraph.runtime.record.fingerprint import differences, fingerprint, irreproducible_parts, resume_promise
from flowgraph.runtime.record.run_folder import RECORDS
from flowgraph.runtime.window import overlap_text, read_window, steps_begun

if TYPE_CHECKING:
    from flowgraph.app.running.training import PreparedRun
    from flowgraph.lowering.program import Program
    from flowgraph.runtime.driver import RunSpec
    from flowgraph.runtime.interpreter import Executor
    from flowgraph.runtime.record.recorder import Recorder
    from flowgraph.runtime.record.run_folder import RunFolder


def checkpoints_of(folder: RunFolder, keep: int = 2, extendable: int = 0) -> Checkpoints:
    """Return the checkpoints of a run, in `checkpoints` in its run folder; the newest `keep` of them stay on disk.

    The checkpoint after `extendable` steps stays too, unless `extendable` is 0. Raises RunFolderError if the run's
    facts cannot be read.
    """
    return Checkpoints(folder=folder.path / "checkpoints", keep=keep, run=folder.facts()["id"], extendable=extendable)


def checkpoint_to_continue(folder: RunFolder, job: RunSpec, say: Say) -> Checkpoint | None:
    """Return the newest checkpoint from which a run can continue to its last step; None if the run must start again.

    If steps overlap, the checkpoint must have the rows of all steps that would be under way; if the newest one lacks
    them, an older one is returned. `say` receives a note if no checkpoint exists or the newest one is not returned.
    Raises DataError if the newest checkpoint is of steps that overlap in another way, and the errors of
    `Checkpoints.newest`.
    """
    program, steps = job.program, job.steps
    checkpoints = checkpoints_of(folder)
    newest = checkpoints.newest(say)
    if newest is None:
        say(f"{folder.path} has no checkpoint: it starts again from its first step")
        return None
    read_window(program, newest.parts)
    then, now = newest.state().get("overlap", overlap_text(None)), overlap_text(program.pipeline)
    if program.pipeline is not None and then != now and 0 < newest.steps < steps:
        raise DataError.other_overlap(str(newest.path), then, now)

    def continues(state: Mapping[str, Any]) -> bool:
        return program.pipeline is None or steps_begun(program, state["steps_done"], steps) <= state.get("begun", 0)

    if continues(newest.state()):
        return newest
    checkpoint = checkpoints.newest(say, continues)
    steps_done = checkpoint.steps if checkpoint is not None else 0
    say(f"{newest.path.name} has no rows of the next step: the steps after step {steps_done} are repeated")
    return checkpoint


def extendable_after(executor: Executor, program: Program, steps: int) -> int:
    """Return the number of steps after which a checkpoint must be kept to extend a run of `steps` steps; 0 if none.

    If steps overlap, this is the last step after which the executor can save a checkpoint and at least
    `program.pipeline.depth` steps of the run remain. A run without overlap can be extended from any checkpoint, so the
    result is 0.
    """
    if program.pipeline is None:
        return 0
    return next((step for step in range(steps - program.pipeline.depth, 0, -1) if executor.can_save(program, step)), 0)


def checkpoint_saver(
    ready: PreparedRun,
    folder: RunFolder,
    executor: Executor,
    recorder: Recorder,
    models: LoadedModels,
    start: int,
    say: Say,
) -> Saver:
    """Return the saver that writes the checkpoints of a run, and remove what unfinished checkpoints left behind.

    `start` is the number of steps that are saved already, and `say` receives what the saver reports. If the request
    sets `keep_best`, the saver also writes the weights of the best checkpoint to the folder `best`, in the form that
    transformers loads.
    """
    job = ready.job
    extendable = extendable_after(executor, job.program, job.steps)
    checkpoints = checkpoints_of(folder, ready.request.training.keep, extendable)
    checkpoints.sweep()

    def write(parts: Path) -> Mapping[str, Any]:
        executor.save_state(job.program, parts)
        return {RECORDS: recorder.settle()}

    def state(steps: int) -> Mapping[str, Any]:
        # Rows and random numbers are functions of the seed and the step: the step is the position of every source.
        inputs, plan = ready.inputs, job.program.plan
        pipeline, begun = job.program.pipeline, steps_begun(job.program, steps, job.steps)
        return {
            "steps_done": steps,
            **({} if pipeline is None else {"overlap": overlap_text(pipeline), "begun": begun}),
            "seed": job.seed,
            "batch": inputs.batch,
            "sources": dict.fromkeys(sorted(job.sources), steps),
            "data": {"name": inputs.data.name, "digest": inputs.data.digest},
            "full_hash": full_hash(inputs.graph),
            "structure_hash": structure_hash(inputs.graph),
            "software": fingerprint(plan, ready.chosen.threads),
            "resumes": resume_promise(plan),
            "versions": {f"{home.param} on {home}": version for home, version in executor.versions.items()},
            "models": models,
        }

    return Saver(
        checkpoints=checkpoints,
        every=ready.request.training.checkpoint_every,
        write=write,
        state=state,
        say=say,
        saved=start,
        metric=ready.request.training.keep_best or "",
        export=partial(save_weights, ready, executor, folder.path / "best"),
    )


def when_it_stops(ready: PreparedRun, executor: Executor) -> str:
    """Return, as text, after which step an interrupted run stops, and what becomes of the steps that have begun."""
    program, steps = ready.job.program, ready.job.steps
    if program.pipeline is None:
        return "after this step"
    anywhere = all(executor.can_save(program, step) for step in range(min(steps, MAX_STEPS)))
    text = "after this step" if anywhere else "after the next step from which the run can continue"
    rows = "the rows of the next step are" if program.pipeline.depth == 1 else "the rows of steps under way are"
    return f"{text}; {rows} {'saved' if ready.request.training.checkpoint_every else 'lost, without checkpoints'}"


def save_weights(ready: PreparedRun, executor: Executor, target: Path) -> None:
    """Save the newest weights of each carried model in `target`/PARAM, in the form that transformers loads.

    An existing folder `target` is replaced once the new weights are complete in a folder next to it. Nothing is written
    if no model is carried.
    """
    draft, graph = target.with_name(f"{target.name}.part"), ready.inputs.graph
    shutil.rmtree(draft, ignore_errors=True)
    for name, output in graph.carries().items():
        if issubclass(graph.outputs[output].type, Model):
            executor.save(ready.job.program, name, draft / name)
    if draft.is_dir():
        shutil.rmtree(target, ignore_errors=True)
        draft.rename(target)


def refuse_other_weights(checkpoint: Checkpoint | None, models: LoadedModels) -> None:
    """Raise RunFolderError if the weights of a loaded model differ from those when the checkpoint was written.

    Weights are compared by their digests; models without one, and a run without a checkpoint, are not checked.
    """
    before: Mapping[str, Any] = {} if checkpoint is None else checkpoint.state().get("models", {})
    for name, model in models.items():
        then = before.get(name, {}).get("digest", "")
        if checkpoint is not None and then and model.get("digest") and then != model["digest"]:
            what = f"`{name}` ({model['name']}) has different weights from when this run started"
            notes = [f"then: {then[:16]}", f"now: {model['digest'][:16]}"]
            raise RunFolderError(what, where=str(checkpoint.path), notes=notes)


def report_changes(ready: PreparedRun, checkpoint: Checkpoint, say: Say) -> None:
    """Report to `say` each difference from a checkpoint's software and hardware, and how closely the run repeats.

    Each difference, such as another version of torch, another GPU or other layouts of the plan, is one line. The last
    line says whether what follows equals a run that was not interrupted bit for bit, within 1e-5, or only
    statistically.
    """
    plan = ready.job.program.plan
    changed = differences(checkpoint.state().get("software", {}), fingerprint(plan, ready.chosen.threads))
    for line in changed:
        say(line)
    promises = {
        "bitwise": "what follows equals, bit for bit, a run that was not interrupted",
        "1e-5": "so what follows equals a run that was not interrupted within 1e-5, not bit for bit",
        "statistical": f"{', '.join(irreproducible_parts(plan))}: what follows is equivalent only statistically",
    }
    say(promises[resume_promise(plan, bool(changed))])
