"""`run`: train a flow by its plan, on this machine or a cluster, and leave a run folder.

What is checked first is one thing, `prepare_run`, what is then done another, `carry_out`: `resume` shares both.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flowgraph.app.attached_servers import AttachedServer, read_attached
from flowgraph.app.flow_inputs import FlowInputs, cache_folder, model_params
from flowgraph.app.interrupts import Interrupts
from flowgraph.app.plan_result import plan_of
from flowgraph.app.planning import planned_for
from flowgraph.app.problem import PreparedProblem
from flowgraph.app.refusals import refuse_other_tokenizers, refuse_what_cannot_run
from flowgraph.app.request import Request, Say
from flowgraph.app.run_state import refuse_other_weights, saver_of
from flowgraph.app.runtime_launch import RuntimeChoice, choose, opened
from flowgraph.checks.placed import refuse_unsupported
from flowgraph.cluster.plan import Plan
from flowgraph.diagrams.build.flow_picture import flow_picture
from flowgraph.diagrams.build.plan_picture import plan_picture
from flowgraph.diagrams.write.mermaid.flowchart import mermaid
from flowgraph.engines.table import is_server
from flowgraph.errors import FlowError, PlanError, RunFolderError, UsageError, WorkerError
from flowgraph.files.hashes import sha256
from flowgraph.language.graph import Graph, rewrite
from flowgraph.language.values import Model, State
from flowgraph.lowering.follow import follow
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import Home, Program, Sync
from flowgraph.passes import compile_graph
from flowgraph.runtime.driver import HeldOutCheck, Listener, RunSpec, train
from flowgraph.runtime.hosting import ModelSetup
from flowgraph.runtime.interpreter import LOST, Executor, StartState
from flowgraph.runtime.loggers import logger, trackers
from flowgraph.runtime.measure.measured_step import MeasuredRecorder
from flowgraph.runtime.measure.profiling import Profiles, profiled_steps, write_ray_timeline
from flowgraph.runtime.record.checkpoint import Checkpoint, Checkpoints, disk_fault
from flowgraph.runtime.record.recorder import Recorder
from flowgraph.runtime.record.run_folder import RECORDS, Replay, RunFolder, fresh
from nodes.data.source import FixedPrompts, PromptSource
from nodes.data.suggestions import suggested
from nodes.evaluation import evaluate
from nodes.mismatch import watch_engines
from nodes.values import Policy

if TYPE_CHECKING:
    from flowgraph.runtime.interpreter import RowSource

Observe = Callable[[Graph, int, int], AbstractContextManager[Listener]]
"""Makes what shows a run, of its graph, all its steps, and the steps that are done."""


def silent(line: str) -> None:
    """Take a line and show it nowhere."""


@dataclass(frozen=True, kw_only=True)
class Observers:
    """Who follows a run: `say` receives lines, `listeners` each step, and what `show` makes is open while it trains."""

    say: Say = silent
    listeners: Sequence[Listener] = ()
    show: Observe | None = None


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended, and its folder; None where it stopped before it began, so that nothing is kept.

    `saved` says whether the newest weights are in the folder. `error` is what failed where the run can be resumed.
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
        """Return the plan that it ran by."""
        return Plan.from_json(RunFolder.open(self.path).text("plan.json"), f"{self.path}/plan.json")

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Return the recorded numbers, a mapping for each step."""
        return list(RunFolder.open(self.path).metrics())

    @property
    def weights(self) -> dict[str, Path]:
        """Return the folders of the newest weights by the model's parameter; `transformers` loads them."""
        return {path.name: path for path in sorted((self.path / "weights").glob("*")) if path.is_dir()}

    @property
    def path(self) -> Path:
        """Return the run's folder; raises RunFolderError where none is kept."""
        if self.folder is None:
            raise RunFolderError("the run stopped before it began; it left no folder")
        return self.folder


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """A run that passed every check that needs nothing heavy."""

    inputs: FlowInputs
    request: Request
    job: RunSpec
    chosen: RuntimeChoice
    attached: Mapping[str, tuple[AttachedServer, ...]]


def run_flow(request: Request, observers: Observers) -> RunResult:
    """Check everything that can be checked, then load, train and save."""
    request = with_flow(request)
    ready = prepare_run(request, observers.say)
    folder = RunFolder.create(request.output.out or fresh(Path("runs"), ready.inputs.graph.name))
    with folder.locked():
        return carry_out(ready, folder, lambda: begin(ready, folder), observers)


def with_flow(request: Request) -> Request:
    """Return the request with the flow that its plan was made for, where it names none.

    Raises PlanError for a plan that does not say, or that names what cannot be run here.
    """
    plan, where = plan_of(request.target), str(request.target)
    if plan is None:
        if not request.flow:
            raise UsageError(
                "names no flow and no plan", where="run", hint="flowgraph run grpo, or run --plan PLAN.json"
            )
        return request
    refuse_unsupported(plan, where)
    if request.flow:
        return request
    if plan.assumed is None:
        why = f"does not say which flow it was made for: flowgraph run {plan.flow} --plan {where}"
        raise PlanError.unreadable(where, "", why)
    return request.changed(flow=plan.assumed.flow)


def prepare_run(request: Request, say: Say) -> PreparedRun:
    """Check what goes together, plan, and put together what the driver runs."""
    workload, training, attach = request.workload, request.training, request.execution.attach
    _ = tracker_names(request), profiled(request)  # each refuses what it cannot do

    def check(prepared: PreparedProblem) -> None:
        refuse_what_cannot_run(prepared)
        if prepared.inputs is not None:
            refuse_other_tokenizers(prepared.inputs, workload.cache, say)

    where = str(request.target)
    planned = planned_for(request, say, check=check)
    refuse_unsupported(planned.plan, where)
    chosen = choose(planned.plan, request.execution, planned.setting.shapes)
    inputs = planned.inputs
    if inputs is None:
        what = "was planned for lengths of rows, and names no data to train on"
        raise UsageError(what, where=where, hint="--data gsm8k")
    if chosen.runtime == "ray" and not inputs.file.named:
        raise _only_here(inputs)
    inputs = replace(inputs, steps=workload.steps or inputs.steps)
    replay = Replay(RunFolder.open(training.replay), inputs.graph) if training.replay is not None else None
    if replay is not None:
        inputs = replace(inputs, steps=min(inputs.steps, replay.steps()))
        replay.refuse_damaged(inputs.steps)
    job = make_job(planned.plan, inputs, request, replay)
    servers = {} if attach is None else read_attached(attach, job.program.homes)
    return PreparedRun(inputs=inputs, request=request, job=job, chosen=chosen, attached=servers)


def _only_here(inputs: FlowInputs) -> UsageError:
    """Return that other processes do not find a flow, and how to name it so that they do."""
    file = inputs.file.path
    name = f"{file}:{inputs.file.flow.name}"
    hint = f'name it: run("{name}")' if file.is_file() else 'write it into a file: run("my.py")'
    what = "is defined in this process, and the workers of Ray find flows by their names"
    return UsageError(what, where=inputs.graph.name, hint=f"{hint}; or run it here, on one device: cluster='1xcpu'")


def tracker_names(request: Request) -> tuple[str, ...]:
    """Return the trackers that receive the metrics; raises UsageError for an unknown one."""
    return trackers(request.training.log or "")


def profiled(request: Request) -> frozenset[int]:
    """Return the steps to profile; raises UsageError for a text that names none."""
    profile = request.training.profile
    return frozenset() if profile is None else profiled_steps(profile)


def carry_out(
    ready: PreparedRun,
    folder: RunFolder,
    begun: Callable[[], None],
    observers: Observers,
    checkpoint: Checkpoint | None = None,
) -> RunResult:
    """Train, from a checkpoint if one is given, and leave a folder that says how the run ended, however it does."""
    notes = list[str]()

    def say(line: str) -> None:
        notes.append(line)
        observers.say(line)

    def ended(status: Literal["finished", "interrupted", "failed"], done: int = 0, **values: Any) -> RunResult:
        kept = folder.path if folder.begun else None
        return RunResult(
            folder=kept, status=status, steps_done=done, steps=ready.job.steps, notes=tuple(notes), **values
        )

    with Interrupts(f"{folder.path}", say) as interrupts:
        try:
            begun()
            done = _train(ready, folder, interrupts, replace(observers, say=say), checkpoint)
            status = _end(folder, done, ready.job.steps, say)
            return ended(status, done, saved=True)
        except KeyboardInterrupt:
            if not folder.begun:
                say(f"stopped before it began; {folder.path} is not kept")
                folder.discard()
                return ended("interrupted")
            folder.note(status="interrupted")
            facts = folder.facts()
            done = int(facts["steps_done"])
            when = f"in the middle of step {done + 1}" if facts.get("timings") else "while it was starting"
            say(f"stopped {when}; {folder.path} holds what was recorded{goes_on(folder)}")
            return ended("interrupted", done)
        except Exception as error:
            failed_after = _fail(folder, error, say)
            if failed_after is None:
                raise
            return ended("failed", failed_after, error=error)


def _fail(folder: RunFolder, error: Exception, say: Say) -> int | None:
    """Say what became of a run that failed; return its steps if it can be resumed or begun again as it is, or None."""
    more, done = "", 0
    if folder.begun:
        with contextlib.suppress(OSError):  # the disk may be what failed
            folder.note(status="failed", error=str(error))
        more, done = goes_on(folder), folder.facts().get("steps_done", 0)
        say(f"the run failed after step {done}; {folder.path} holds what was recorded{more}")
    else:
        say(f"the run failed before it began; {folder.path} is not kept")
        folder.discard()
    resumable = bool(disk_fault(error)) or (more != "" and isinstance(error, WorkerError))
    if resumable:
        say(str(error) if isinstance(error, FlowError) else f"{folder.path}: {error}")
    return done if resumable else None


def goes_on(folder: RunFolder) -> str:
    """Return how to go on from the newest checkpoint, if there is one."""
    checkpoints = Checkpoints(folder.path / "checkpoints").oldest_first()
    return f"; `flowgraph resume {folder.path}` goes on after step {checkpoints[-1].steps}" if checkpoints else ""


def _train(
    ready: PreparedRun, folder: RunFolder, interrupts: Interrupts, observers: Observers, checkpoint: Checkpoint | None
) -> int:
    """Load, train and save the weights; return the steps that are done."""
    inputs, job, start = ready.inputs, ready.job, checkpoint.steps if checkpoint is not None else 0
    graphs = [job.program.graph, *([job.check.program.graph] if job.check is not None else [])]
    profiles = Profiles(folder.path.absolute(), profiled(ready.request))
    opening = opened(job.program, graphs, inputs.file, _models(ready), ready.chosen, observers.say, profiles)
    with interrupts.kept_from_closing(opening) as places:
        refuse_other_weights(checkpoint, places.told)
        folder.note(models=places.told, timings=places.timings)
        executor = Executor(places.places, versions=_unknown(ready))
        with interrupts.patient(), contextlib.ExitStack() as open_files:  # what is saved, too
            if checkpoint is not None:
                executor.load_state(job.program, checkpoint.parts)
            folder.rewind(start, checkpoint.state().get(RECORDS, {}) if checkpoint is not None else {})
            recorder = open_files.enter_context(Recorder(folder, inputs.graph, observers.say))
            listeners: list[Listener] = [recorder, open_files.enter_context(MeasuredRecorder(folder, job.program))]
            listeners.append(open_files.enter_context(logger(tracker_names(ready.request), folder.path, graphs, start)))
            if observers.show is not None:
                listeners.append(open_files.enter_context(observers.show(job.program.graph, job.steps, start)))
            listeners += observers.listeners
            saver = saver_of(ready, folder, executor, recorder, places.told, start, observers.say)
            done = train(job, executor, listeners, interrupts.asked, start, saver)
            executor.places.finish()
            recorder.settle()
            open_files.close()
            if profiles.steps and ready.chosen.runtime == "ray":
                write_ray_timeline(folder.path)
            _save_models(ready, folder, executor)
    return done


def _unknown(ready: PreparedRun) -> dict[Home, int]:
    """Return the copies on servers that someone else started: whatever they hold, ours come before the first sample."""
    program = ready.job.program
    names = set(ready.attached) - {*program.frozen}
    return {home: LOST for home in program.homes if home.param in names and is_server(home.engine)}


def _models(ready: PreparedRun) -> ModelSetup:
    workload, execution = ready.request.workload, ready.request.execution
    return ModelSetup(
        sources=ready.inputs.sources,
        seed=workload.seed or 0,
        cache=cache_folder(workload.cache),
        sample_rows=execution.sample_rows,
        forward_tokens=execution.forward_tokens,
        attached=ready.attached,
    )


def _save_models(ready: PreparedRun, folder: RunFolder, executor: Executor) -> None:
    """Write the newest weights for transformers to load, in place of those, whole or half, of an earlier end."""
    graph = ready.inputs.graph
    shutil.rmtree(folder.path / "weights", ignore_errors=True)
    for name, output in graph.carries().items():
        if issubclass(graph.outputs[output].type, Model):
            executor.save(ready.job.program, name, folder.path / "weights" / name)


def _end(folder: RunFolder, done: int, steps: int, say: Say) -> Literal["finished", "interrupted"]:
    """Write how a run ended, and say where it stopped if it did."""
    status: Literal["finished", "interrupted"] = "finished" if done == steps else "interrupted"
    folder.note(status=status, finished=time.strftime("%Y-%m-%dT%H:%M:%S"), steps_done=done)
    if status == "interrupted":
        say(f"stopped after step {done} of {steps}; weights and records are in {folder.path}{goes_on(folder)}")
    return status


def begin(ready: PreparedRun, folder: RunFolder) -> None:
    """Write what is known before anything heavy is loaded, and all that `resume` asks for."""
    from importlib.metadata import version

    inputs, request, job, chosen = ready.inputs, ready.request, ready.job, ready.chosen
    replay = request.training.replay
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
        },
        "runtime": chosen.runtime,
        "threads": chosen.threads,
        "versions": {name: version(name) for name in ("torch", "transformers", "pyarrow", "ray")},
        "started": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "replay": str(replay) if replay else None,
        "batch": inputs.batch,
        "options": request.changed(plan=_file_of(request)).model_dump(mode="json"),
        "folder": str(Path.cwd()),  # what relative paths in the options start from
    }
    drawn = {"flow.mmd": mermaid(flow_picture(inputs.graph)), "plan.mmd": mermaid(plan_picture(job.program))}
    folder.begin(inputs.graph, job.program, inputs.resolved, inputs.file.source, about, drawn)


def _file_of(request: Request) -> Path | None:
    """Return the file of the plan that is named; a plan that is in no file is in the run's folder."""
    return request.target.plan if isinstance(request.target.plan, Path) else None


def make_job(plan: Plan, inputs: FlowInputs, request: Request, replay: Replay | None) -> RunSpec:
    """Put together what the driver runs."""
    program = lower(inputs.graph, plan, where=str(request.target), watch=watch_engines)
    seed = request.workload.seed or 0
    rows = PromptSource(table=inputs.data.train, rows_per_step=inputs.batch, seed=seed)
    data = [param for param in inputs.graph.params if not issubclass(param.type, Model)]
    sources: dict[str, RowSource] = {
        p.name: StartState(p.type(p.initial)) if issubclass(p.type, State) else rows for p in data
    }
    sources |= replay.sources() if replay is not None else {}
    check = held_out_check(inputs, request, program)
    return RunSpec(program=program, sources=sources, seed=seed, steps=inputs.steps, check=check)


def held_out_check(inputs: FlowInputs, request: Request, program: Program) -> HeldOutCheck | None:
    """Check held-out prompts by the flow's own rule, with greedy responses of the first trained policy."""
    trained = {node.root for node in inputs.graph.nodes}
    policy = next((p.name for p in model_params(inputs.graph) if issubclass(p.type, Policy) and p in trained), None)
    if inputs.data.held_out is None or request.training.eval_every == 0 or policy is None:
        return None
    rows = tuple(range(min(request.training.eval_rows, inputs.data.held_out.num_rows)))
    found = {node.op.name: node.settings for node in reversed(inputs.graph.nodes)}
    most = suggested(inputs.data.data_source).get("generate.max_tokens", 256)
    max_tokens = getattr(found.get("generate", found.get("refill")), "max_tokens", most)
    settings = {"by": getattr(found.get("score", found.get("refill")), "by", "data"), "max_tokens": max_tokens}
    graph = _at_the_flows_lines(compile_graph(evaluate.graph(settings)), inputs.graph)
    own = lower(graph, follow(program.plan, graph, {"policy": policy}), {"policy": dict(program.origins)[policy]})
    rows_of = {"prompts": FixedPrompts(inputs.data.held_out, rows)}
    return HeldOutCheck(own, rows_of, request.training.eval_every, _as_late(own, program, policy))


def _as_late(check: Program, program: Program, policy: str) -> Program:
    """Return the program of a check that leaves the copy it samples from as old as the plan lets a step leave it.

    Else how often a run is checked would change what it trains on.
    """
    lag = next((placed.lag for placed in program.plan.placed if placed.role == f"{policy}.sample"), 0)
    return replace(check, tasks=tuple(replace(t, lag=lag) if isinstance(t, Sync) else t for t in check.tasks))


def _at_the_flows_lines(check: Graph, graph: Graph) -> Graph:
    """Let each node of a check stand at the line of the flow where its op does: that is where what it reads is set."""
    lines = {node.op.name: node.at for node in reversed(graph.nodes)}
    moved = rewrite(check, lambda node: replace(node, at=lines.get(node.op.name, graph.at)))
    return replace(moved, at=graph.at)
