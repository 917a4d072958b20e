"""The state of a run in its checkpoints, and checks that a resumed run still has the same weights and software."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.analysis.flat_graph import full_hash, structure_hash
from flowgraph.app.request import Say
from flowgraph.errors import RunFolderError
from flowgraph.language.values import Model
from flowgraph.runtime.hosting import LoadedModels
from flowgraph.runtime.record.checkpoint import Checkpoint, Checkpoints, Saver
from flowgraph.runtime.record.fingerprint import differences, fingerprint, resume_promise
from flowgraph.runtime.record.run_folder import RECORDS

if TYPE_CHECKING:
    from flowgraph.app.running.training import PreparedRun
    from flowgraph.runtime.interpreter import Executor
    from flowgraph.runtime.record.recorder import Recorder
    from flowgraph.runtime.record.run_folder import RunFolder


def checkpoints_of(folder: RunFolder, keep: int = 2) -> Checkpoints:
    """Return the checkpoints of a run, in the folder `checkpoints`; the newest `keep` of them stay on disk."""
    return Checkpoints(folder.path / "checkpoints", keep, folder.facts()["id"])


def checkpoint_saver(
    ready: PreparedRun,
    folder: RunFolder,
    executor: Executor,
    recorder: Recorder,
    models: LoadedModels,
    start: int,
    say: Say,
) -> Saver:
    """Return the saver that writes the checkpoints of a run.

    `start` is the number of steps that are saved already. The call removes the remains of unfinished checkpoints. The
    saver also writes the weights of the best checkpoint to the folder `best`, as transformers loads them.
    """
    checkpoints = checkpoints_of(folder, ready.request.training.keep)
    checkpoints.sweep()

    def write(parts: Path) -> Mapping[str, Any]:
        executor.save_state(ready.job.program, parts)
        return {RECORDS: recorder.settle()}

    def state(steps: int) -> Mapping[str, Any]:
        # Rows and random numbers are functions of the seed and the step: the step is the position of every source.
        inputs, plan = ready.inputs, ready.job.program.plan
        return {
            "steps_done": steps,
            "seed": ready.job.seed,
            "batch": inputs.batch,
            "sources": dict.fromkeys(sorted(ready.job.sources), steps),
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


def save_weights(ready: PreparedRun, executor: Executor, target: Path) -> None:
    """Save the newest weights of each carried model in `target`/PARAM, in the form that transformers loads.

    An existing folder `target` is replaced, but only after the new weights are complete in a folder next to it, and
    only if a model is carried.
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
    """Raise RunFolderError if a loaded model has other weights than when the checkpoint was written.

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
    """Report to `say` how software and hardware differ from a checkpoint's, and how exactly the run will continue."""
    plan = ready.job.program.plan
    changed = differences(checkpoint.state().get("software", {}), fingerprint(plan, ready.chosen.threads))
    for line in changed:
        say(line)
    promises = {
        "bitwise": "what follows equals, bit for bit, a run that was not interrupted",
        "1e-5": "so what follows equals a run that was not interrupted within 1e-5, not bit for bit",
        "statistical": "an engine or device here is not bit-reproducible: what follows is statistically equivalent",
    }
    say(promises[resume_promise(plan, bool(changed))])
