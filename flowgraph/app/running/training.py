"""`run`: train a flow by its plan, on this machine or a cluster, and record it in a run folder.

`prepare_run` checks everything before models are loaded, and `train_and_record` trains. `resume` uses both.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flowgraph.analysis.roles import roles
from flowgraph.app.planning.checking import refuse_other_tokenizers, refuse_what_cannot_run
from flowgraph.app.planning.flow_inputs import FlowInputs, cache_folder
from flowgraph.app.planning.make_plan import planned_for
from flowgraph.app.planning.plan_result import plan_of
from flowgraph.app.planning.problem import PreparedProblem
from flowgraph.app.request import Request, Say
from flowgraph.app.running.interrupts import Interrupts
from flowgraph.app.running.run_state import (
    checkpoint_saver,
    checkpoints_of,
    refuse_other_weights,
    save_weights,
    when_it_stops,
)
from flowgraph.app.running.runtime_launch import RuntimeChoice, choose_runtime, open_runtime, read_attached
from flowgraph.app.running.training_warnings import TrainingWarnings, chosen_rules
from flowgraph.app.running.validation import held_out_check
from flowgraph.checks.placed import allowed_lag, refuse_unsupported
from flowgraph.cluster.plan import Plan
from flowgraph.diagrams.build.flow_picture import flow_picture
from flowgraph.diagrams.build.plan_picture import plan_picture
from flowgraph.diagrams.write.mermaid.flowchart import mermaid
from flowgraph.engines.table import is_server
from flowgraph.errors import FlowError, PlanError, RunFolderError, UsageError, WorkerError
from flowgraph.files.hashes import sha256
from flowgraph.language.graph import Graph
from flowgraph.language.values import Model, State
from flowgraph.lowering.lower import lower
from flowgraph.runtime.driver import Listener, RunSpec, train
from flowgraph.runtime.hosting import ModelSetup
from flowgraph.runtime.interpreter import LOST, Executor
from flowgraph.runtime.loggers import metric_logger, trackers
from flowgraph.runtime.measure.measured_step import MeasuredRecorder
from flowgraph.runtime.measure.profiling import Profiles, profiled_steps, write_ray_timeline
from flowgraph.runtime.places import StartState
from flowgraph.runtime.record.checkpoint import Checkpoint, Checkpoints, disk_fault
from flowgraph.runtime.record.group_journal import GROUPS, read_groups
from flowgraph.runtime.record.recorded_values import TOKEN_ROWS
from flowgraph.runtime.record.recorder import Recorder
from flowgraph.runtime.record.run_folder import RECORDS, Replay, RunFolder, unused_run_path
from nodes.data.source import PromptSource
from nodes.mismatch import watch_engines

if TYPE_CHECKING:
    from flowgraph.runtime.places import RowSource

Observe = Callable[[Graph, int, int], AbstractContextManager[Listener]]
"""Makes what shows a run, of its graph, all its steps, and the steps that are done."""


def silent(line: str) -> None:
    """Discard a line of text; the default for `say`, which receives notes."""


@dataclass(frozen=True, kw_only=True)
class Observers:
    """The observers of a run: `say` receives lines, `listeners` each step; `show` makes another listener."""

    say: Say = silent
    listeners: Sequence[Listener] = ()
    show: Observe | None = None


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended, and its folder; `folder` is None if the run stopped before it began.

    `saved` says whether the newest weights are in the folder. `error` is the failure of a run that can be resumed or
    started again; None if it did not fail. `notes` are the lines that were reported during the run.
    """

    folder: Path | None
    status: Literal["finished", "interrupted", "failed"]
    steps_done: int
    steps: int
    saved: bool = False
    error: Exception | None = None
    notes: tuple[str, ...] = ()

    @property
    def plan(self) -> Plan:
        """Return the plan in the run's folder.

        Raises RunFolderError if the run stopped before it began or the file cannot be read, and PlanError for an
        invalid plan.
        """
        return Plan.from_json(RunFolder.open(self.path).text("plan.json"), f"{self.path}/plan.json")

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of the run's `metrics.jsonl`: a mapping for each step, with its number, metrics and seconds.

        Raises RunFolderError if the run stopped before it began, or if the file cannot be read.
        """
        return list(RunFolder.open(self.path).metrics())

    @property
    def weights(self) -> dict[str, Path]:
        """Return the folder of the last saved weights of each model parameter, by name, in the form of transformers.

        Empty if the run saved none. Raises RunFolderError if the run stopped before it began.
        """
        return {path.name: path for path in sorted((self.path / "weights").glob("*")) if path.is_dir()}

    @property
    def path(self) -> Path:
        """Return the run's folder. Raises RunFolderError if the run stopped before it began."""
        if self.folder is None:
            raise RunFolderError("the run stopped before it began; it left no folder")
        return self.folder


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """A run that has passed every check that is possible before models are loaded."""

    inputs: FlowInputs
    request: Request
    job: RunSpec
    chosen: RuntimeChoice
    models: ModelSetup


def run_flow(request: Request, observers: Observers) -> RunResult:
    """Check a request, then load the models, train, and save the weights; return how the run ended.

    The run is recorded in the folder `output.out` of the request, by default the next unused `runs/FLOW-N`. Raises
    RunFolderError if the folder exists, and the errors of `request_with_flow`, `prepare_run` and `train_and_record`.
    """
    request = request_with_flow(request)
    ready = prepare_run(request, observers.say)
    folder = RunFolder.create(request.output.out or unused_run_path(Path("runs"), ready.inputs.graph.name))
    with folder.locked():
        return train_and_record(ready, folder, lambda: write_initial_files(ready, folder), observers)


def request_with_flow(request: Request) -> Request:
    """Return a request that names a flow: a request with only a plan gets the plan's flow, others stay unchanged.

    Raises UsageError without a flow and a plan; PlanError for a plan that cannot be read, that cannot run here, or that
    does not record its flow if the request names none.
    """
    plan, where = plan_of(request.target), str(request.target)
    if plan is None:
        if not request.flow:
            raise UsageError(
                "names neither a flow nor a plan", where="run", hint="flowgraph run grpo, or run --plan PLAN.json"
            )
        return request
    refuse_unsupported(plan, where)
    if request.flow:
        return request
    if plan.assumed is None:
        why = f"does not name its flow: flowgraph run {plan.flow} --plan {where}"
        raise PlanError.unreadable(where, "", why)
    return request.changed(flow=plan.assumed.flow)


def prepare_run(request: Request, say: Say) -> PreparedRun:
    """Check a request, make its plan, and return all that the run needs; no models are loaded.

    `say` receives each note of planning. Raises UsageError, for example, for arguments that contradict each other, for
    a plan without rows to train on, and for a flow that workers of Ray cannot find by its name; PlanError for a plan
    with engines that cannot run here; ModelError for a model that reads tokens of a model with different token ids;
    RunFolderError for rollouts to replay that are missing or damaged; and the errors of `planned_for`,
    `refuse_what_cannot_run`, `choose_runtime` and `held_out_check`.
    """
    workload, execution, where = request.workload, request.execution, str(request.target)
    training = request.training
    _ = trackers(training.log or ""), _profiled(request), chosen_rules(training.warnings)  # refuse what they cannot do

    def check(prepared: PreparedProblem) -> None:
        refuse_what_cannot_run(prepared)
        if prepared.inputs is not None:
            refuse_other_tokenizers(prepared.inputs, workload.cache, say)

    planned = planned_for(request, say, check=check)
    refuse_unsupported(planned.plan, where)
    chosen = choose_runtime(planned.plan, execution, planned.problem.shapes)
    inputs = planned.inputs
    if inputs is None:
        what = "was planned for lengths of rows, and names no data to train on"
        raise UsageError(what, where=where, hint="--data gsm8k")
    if chosen.runtime == "ray" and not inputs.file.named:
        file = inputs.file.path
        name = f"{file}:{inputs.file.flow.name}"
        hint = f'name it: run("{name}")' if file.is_file() else 'write it into a file: run("my.py")'
        what = "is defined in this process, and the workers of Ray find flows by their names"
        hint += "; or run it here, on one device: cluster='1xcpu'"
        raise UsageError(what, where=inputs.graph.name, hint=hint)
    for line in inputs.notes():
        say(line)
    inputs = replace(inputs, steps=workload.steps or inputs.steps)
    replay = request.training.replay
    recorded = None if replay is None else Replay(RunFolder.open(replay), inputs.graph)
    if recorded is not None:
        inputs = replace(inputs, steps=min(inputs.steps, recorded.steps()))
        recorded.refuse_damaged(inputs.steps)
    job = _job(planned.plan, inputs, request, recorded)
    models = ModelSetup(
        sources=inputs.sources,
        seed=workload.seed or 0,
        cache=cache_folder(workload.cache),
        sample_rows=execution.sample_rows,
        forward_tokens=execution.forward_tokens,
        attached={} if execution.attach is None else read_attached(execution.attach, job.program.homes),
    )
    return PreparedRun(inputs=inputs, request=request, job=job, chosen=chosen, models=models)


def _profiled(request: Request) -> frozenset[int]:
    profile = request.training.profile
    return frozenset() if profile is None else profiled_steps(profile)


def train_and_record(
    ready: PreparedRun,
    folder: RunFolder,
    begun: Callable[[], None],
    observers: Observers,
    checkpoint: Checkpoint | None = None,
) -> RunResult:
    """Train a prepared run, from `checkpoint` if there is one, and return how the run ended.

    `begun` writes the first files of the folder. The status is recorded in the folder, also if the run is interrupted
    or fails; the folder is removed if that happens before its first files are written. The first interrupt stops the
    run after the current step, a second one at once. A full disk, or a failed worker of a run that can be resumed, is
    returned as the result's `error`; any other error is raised.
    """
    notes = list[str]()

    def say(line: str) -> None:
        notes.append(line)
        observers.say(line)

    def ended(status: Literal["finished", "interrupted", "failed"], steps_done: int = 0, **values: Any) -> RunResult:
        path = folder.path if folder.begun else None
        steps = ready.job.steps
        return RunResult(folder=path, status=status, steps_done=steps_done, steps=steps, notes=tuple(notes), **values)

    with Interrupts(f"{folder.path}", say) as interrupts:
        try:
            begun()
            steps_done = _train(ready, folder, interrupts, replace(observers, say=say), checkpoint)
            finished = steps_done == ready.job.steps
            status: Literal["finished", "interrupted"] = "finished" if finished else "interrupted"
            folder.note(status=status, finished=time.strftime("%Y-%m-%dT%H:%M:%S"), steps_done=steps_done)
            if not finished:
                where = f"weights and records are in {folder.path}{resume_hint(folder)}"
                say(f"stopped after step {steps_done} of {ready.job.steps}; {where}")
            return ended(status, steps_done, saved=True)
        except KeyboardInterrupt:
            if not folder.begun:
                say(f"stopped before it began; {folder.path} is not kept")
                folder.discard()
                return ended("interrupted")
            folder.note(status="interrupted")
            facts = folder.facts()
            steps_done = int(facts["steps_done"])
            when = f"in the middle of step {steps_done + 1}" if facts.get("timings") else "while it was starting"
            say(f"stopped {when}; the records are in {folder.path}{resume_hint(folder)}")
            return ended("interrupted", steps_done)
        except Exception as error:
            failed_after = _fail(folder, error, say)
            if failed_after is None:
                raise
            return ended("failed", failed_after, error=error)


def _fail(folder: RunFolder, error: Exception, say: Say) -> int | None:
    hint, steps_done = "", 0
    if folder.begun:
        with contextlib.suppress(OSError):  # the disk may be what failed
            folder.note(status="failed", error=str(error))
        hint, steps_done = resume_hint(folder), folder.facts().get("steps_done", 0)
        say(f"the run failed after step {steps_done}; the records are in {folder.path}{hint}")
    else:
        say(f"the run failed before it began; {folder.path} is not kept")
        folder.discard()
    if not disk_fault(error) and not (hint and isinstance(error, WorkerError)):
        return None
    say(str(error) if isinstance(error, FlowError) else f"{folder.path}: {error}")
    return steps_done


def resume_hint(folder: RunFolder) -> str:
    """Return "; `flowgraph resume FOLDER` continues after step N", to end a sentence; "" without a checkpoint."""
    checkpoints = Checkpoints(folder.path / "checkpoints").oldest_first()
    return f"; `flowgraph resume {folder.path}` continues after step {checkpoints[-1].steps}" if checkpoints else ""


def _train(
    ready: PreparedRun, folder: RunFolder, interrupts: Interrupts, observers: Observers, checkpoint: Checkpoint | None
) -> int:
    graph, job, start = ready.inputs.graph, ready.job, checkpoint.steps if checkpoint is not None else 0
    graphs = [job.program.graph, *([job.check.program.graph] if job.check is not None else [])]
    profiles = Profiles(folder.path.absolute(), _profiled(ready.request))
    opening = open_runtime(job.program, graphs, ready.inputs.file, ready.models, ready.chosen, observers.say, profiles)
    # Whatever servers hold that were running before, our copies come before the first sample.
    attached = {*ready.models.attached} - {*job.program.frozen}
    unknown = {home: LOST for home in job.program.homes if home.param in attached and is_server(home.engine)}
    with interrupts.kept_from_closing(opening) as places:
        refuse_other_weights(checkpoint, places.models)
        folder.note(models=places.models, timings=places.timings)
        executor = Executor(places.places, versions=unknown)
        with (
            interrupts.patient(when_it_stops(ready, executor)),
            contextlib.ExitStack() as open_files,
        ):  # what is saved, too
            if checkpoint is not None:
                executor.load_state(job.program, checkpoint.parts)
            checkpoints_of(folder).forget_after(start)  # their records are removed
            if journal := read_groups(folder.path):  # what was trained on before is trained on again, in that order
                order = executor.groups.order
                order.planned = {step: [group.name for group in journal[step]] for step in journal if step >= start}
                order.where = str(folder.path / GROUPS)
            folder.rewind(start, checkpoint.state().get(RECORDS, {}) if checkpoint is not None else {})
            training = ready.request.training
            tokens = TOKEN_ROWS if training.record_tokens is None else training.record_tokens
            recorder = open_files.enter_context(Recorder(folder, graph, observers.say, tokens))
            watch = TrainingWarnings(chosen_rules(training.warnings), graph, observers.say, folder.metrics())
            measured = open_files.enter_context(MeasuredRecorder(folder, job.program))
            logger = metric_logger(trackers(training.log or ""), folder.path, graphs, start)
            listeners: list[Listener] = [watch, recorder, measured, open_files.enter_context(logger)]
            if observers.show is not None:
                listeners.append(open_files.enter_context(observers.show(job.program.graph, job.steps, start)))
            listeners += observers.listeners
            saver = checkpoint_saver(ready, folder, executor, recorder, places.models, start, observers.say)
            steps_done = train(job, executor, listeners, interrupts.asked, start, saver)
            executor.places.finish()
            recorder.settle()
            open_files.close()
            if profiles.steps and ready.chosen.runtime == "ray":
                write_ray_timeline(folder.path)
            save_weights(ready, executor, folder.path / "weights")
    return steps_done


def write_initial_files(ready: PreparedRun, folder: RunFolder) -> None:
    """Write the first files of a run's folder, before models are loaded.

    These are the flow's source and graph, its settings, the plan, diagrams of both, and the facts that `resume` needs.
    """
    from importlib.metadata import version

    inputs, request, job, chosen = ready.inputs, ready.request, ready.job, ready.chosen
    replay, plan = request.training.replay, request.target.plan
    options = request.changed(plan=plan if isinstance(plan, Path) else None)  # another plan is in the run's folder
    about = {
        "flow": inputs.graph.name,
        "file": str(inputs.file.path),
        "command": sys.argv,
        "seed": request.workload.seed or 0,
        "steps": inputs.steps,
        "data": {
            "name": inputs.data.name,
            "origin": inputs.data.origin,
            "digest": inputs.data.digest,
            "files": {str(path): sha256(path) for path in inputs.data.files},
            "sets": {
                part.name: {"rows": part.rows, "share": part.share and float(part.share)} for part in inputs.data.sets
            },
            "long_prompts": {split: asdict(counted) for split, counted in inputs.long_prompts.items()},
        },
        "runtime": chosen.runtime,
        "threads": chosen.threads,
        "versions": {name: version(name) for name in ("torch", "transformers", "pyarrow", "ray")},
        "started": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "replay": str(replay) if replay else None,
        "batch": inputs.batch,
        "options": options.model_dump(mode="json"),
        "folder": str(Path.cwd()),  # what relative paths in the options start from
    }
    diagrams = {"flow.mmd": mermaid(flow_picture(inputs.graph)), "plan.mmd": mermaid(plan_picture(job.program))}
    folder.begin(inputs.graph, job.program, inputs.resolved, inputs.file.source, about, diagrams)


def _oldest_version(graph: Graph, step: int) -> int:
    """Return the oldest version of weights that a step of a flow may train on, of all that it samples from."""
    sampling = [role for role in roles(graph) if role.use == "sample"]
    return min((graph.updates(role.param) * step - allowed_lag(graph, role)[0] for role in sampling), default=0)


def _job(plan: Plan, inputs: FlowInputs, request: Request, replay: Replay | None) -> RunSpec:
    graph, seed = inputs.graph, request.workload.seed or 0
    program = lower(graph, plan, where=str(request.target), watch=watch_engines)
    mixed = inputs.data.mixed(inputs.batch)
    rows: RowSource = PromptSource(table=inputs.data.train, rows_per_step=inputs.batch, seed=seed, mixed=mixed)
    if replay is not None:
        rows = replay.in_their_order(rows, lambda step: _oldest_version(graph, step))
    sources: dict[str, RowSource] = {
        param.name: StartState(param.type(param.initial)) if issubclass(param.type, State) else rows
        for param in graph.params
        if not issubclass(param.type, Model)
    }
    sources |= replay.sources() if replay is not None else {}
    check = held_out_check(inputs, request, program)
    return RunSpec(program=program, sources=sources, seed=seed, steps=inputs.steps, check=check)
