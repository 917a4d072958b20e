"""`run`: train a flow by its plan, on this machine or a cluster, and leave a run folder.

What is checked first is one thing, `prepared`, what is then done another, `carry_out`: `resume` shares both.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.checks.placed import refuse_unsupported
from flowgraph.cli.attached import AttachedServer, read_attached
from flowgraph.cli.flow_request import FlowInputs, FlowRequest, model_params
from flowgraph.cli.interrupts import INTERRUPTED, Interrupts
from flowgraph.cli.listings import cache_folder
from flowgraph.cli.plan import planned_for
from flowgraph.cli.plan_result import PlanTarget, read_plan
from flowgraph.cli.planning_request import FORWARD_TOKENS, SAMPLE_ROWS
from flowgraph.cli.refusals import refuse_other_tokenizers, refuse_untrainable, refuse_what_cannot_run
from flowgraph.cli.run_state import refuse_other_weights, saver_of
from flowgraph.cli.runtime_launch import RuntimeChoice, choose, opened
from flowgraph.cluster.plan import Plan
from flowgraph.diagrams.build.flow_picture import flow_picture
from flowgraph.diagrams.build.plan_picture import plan_picture
from flowgraph.diagrams.write.mermaid.flowchart import mermaid
from flowgraph.engines.table import is_server
from flowgraph.errors import FlowError, PlanError, UsageError, WorkerError
from flowgraph.files.hashes import sha256
from flowgraph.language.graph import Graph, rewrite
from flowgraph.language.values import Model, State
from flowgraph.lowering.follow import follow
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import Home, Program, Sync
from flowgraph.passes import compile_graph
from flowgraph.runtime.driver import HeldOutCheck, RunSpec, train
from flowgraph.runtime.hosting import ModelSetup
from flowgraph.runtime.interpreter import LOST, Executor, StartState
from flowgraph.runtime.loggers import logger
from flowgraph.runtime.measure.measured_file import MeasuredRecorder
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


CHECKPOINT_EVERY, KEEP = 50, 2  # steps between checkpoints, and how many of them stay
RESUMABLE = 3  # exit code: a process or the disk failed, and `resume` goes on


@dataclass(frozen=True)
class RunOptions:
    """What the command line said; `checkpoint_every` 0 makes no checkpoints, not even at the end.

    `log` names trackers that are told the metrics too, `profile` steps to profile, `attach` servers that run already.
    """

    asked: FlowRequest
    eval_every: int
    eval_rows: int
    out: Path | None
    replay: Path | None
    where: PlanTarget
    sample_rows: int = SAMPLE_ROWS
    forward_tokens: int = FORWARD_TOKENS
    checkpoint_every: int = CHECKPOINT_EVERY
    keep: int = KEEP
    log: str | None = None
    profile: str | None = None
    attach: Path | None = None

    @property
    def trackers(self) -> tuple[str, ...]:
        """Give the trackers that are told; raises UsageError for one that there is not."""
        from flowgraph.runtime.loggers import trackers

        return trackers(self.log or "")

    @property
    def profiled(self) -> frozenset[int]:
        """Give the steps to profile; raises UsageError for what names none."""
        return profiled_steps(self.profile) if self.profile is not None else frozenset()


@dataclass(frozen=True)
class PreparedRun:
    """A run of which everything was checked that can be before anything heavy is loaded."""

    inputs: FlowInputs
    options: RunOptions
    job: RunSpec
    chosen: RuntimeChoice
    attached: Mapping[str, tuple[AttachedServer, ...]]


def run_flow(options: RunOptions) -> int:
    """Check everything that can be checked, then load, train and save; give the exit code."""
    options = with_flow(options)
    ready = prepared(options)
    folder = RunFolder.create(options.out or fresh(Path("runs"), ready.inputs.graph.name))
    with folder.locked():
        return carry_out(ready, folder, lambda: begin(ready, folder))


def with_flow(options: RunOptions) -> RunOptions:
    """Return the options with the flow that their plan was made for, where the command line names none.

    Raises PlanError for a plan that does not say, or that names what cannot be run here.
    """
    asked, where = options.asked, options.where
    if where.plan is None:
        if not asked.flow:
            raise UsageError(
                "names no flow and no plan", where="run", hint="flowgraph run grpo, or run --plan PLAN.json"
            )
        return options
    plan = read_plan(where.plan)
    refuse_unsupported(plan, str(where))
    if asked.flow:
        return options
    if plan.assumed is None:
        why = f"does not say which flow it was made for: flowgraph run {plan.flow} --plan {where}"
        raise PlanError.unreadable(str(where), "", why)
    return replace(options, asked=replace(asked, flow=plan.assumed.flow))


def prepared(options: RunOptions) -> PreparedRun:
    """Check what goes together, plan, and put together what the driver runs."""
    o = options
    _ = o.trackers, o.profiled  # each refuses what it cannot do
    question = o.where.question(o.asked, sample_rows=o.sample_rows, forward_tokens=o.forward_tokens)

    def check(inputs: FlowInputs | None, graph: Graph) -> None:
        if inputs is None:
            refuse_untrainable(graph)
            return
        refuse_what_cannot_run(inputs)
        refuse_other_tokenizers(inputs, o.asked.cache)

    plan = planned_for(question, o.where, check=check)
    refuse_unsupported(plan.plan, str(o.where))
    chosen = choose(plan.plan, o.where, plan.setting.shapes)
    inputs = plan.inputs
    if inputs is None:
        what = "was planned for lengths of rows, and names no data to train on"
        raise UsageError(what, where=str(o.where), hint="--data gsm8k")
    inputs = replace(inputs, steps=o.asked.steps or inputs.steps)
    replay = Replay(RunFolder.open(o.replay), inputs.graph) if o.replay is not None else None
    if replay is not None:
        inputs = replace(inputs, steps=min(inputs.steps, replay.steps()))
        replay.refuse_damaged(inputs.steps)
    job = make_job(plan.plan, inputs, o, replay)
    servers = {} if o.attach is None else read_attached(o.attach, job.program.homes)
    return PreparedRun(inputs, o, job, chosen, servers)


def carry_out(ready: PreparedRun, folder: RunFolder, begun: Callable[[], None], found: Checkpoint | None = None) -> int:
    """Train, from a checkpoint if one is given, and leave a folder that says how the run ended, however it does."""
    with Interrupts(f"{folder.path}") as interrupts:
        try:
            begun()
            return _train(ready, folder, interrupts, found)
        except KeyboardInterrupt:
            if not folder.begun:
                print(f"stopped before it began; {folder.path} is not kept", file=sys.stderr)
                folder.discard()
                return INTERRUPTED
            folder.note(status="interrupted")
            facts = folder.facts()
            when = (
                f"in the middle of step {facts['steps_done'] + 1}" if facts.get("timings") else "while it was starting"
            )
            print(f"stopped {when}; {folder.path} holds what was recorded{goes_on(folder)}", file=sys.stderr)
            return INTERRUPTED
        except Exception as error:
            if not _can_be_resumed(folder, error):
                raise
            return RESUMABLE


def _can_be_resumed(folder: RunFolder, error: Exception) -> bool:
    """Say what became of a run that failed; if it can be resumed as it is, or begun again, say the error too."""
    more = ""
    if folder.begun:
        with contextlib.suppress(OSError):  # the disk may be what failed
            folder.note(status="failed", error=str(error))
        more = goes_on(folder)
        done = folder.facts().get("steps_done", 0)
        print(f"the run failed after step {done}; {folder.path} holds what was recorded{more}", file=sys.stderr)
    else:
        print(f"the run failed before it began; {folder.path} is not kept", file=sys.stderr)
        folder.discard()
    resumable = bool(disk_fault(error)) or (more != "" and isinstance(error, WorkerError))
    if resumable:
        print(error if isinstance(error, FlowError) else f"{folder.path}: {error}", file=sys.stderr)
    return resumable


def goes_on(folder: RunFolder) -> str:
    """Say how to go on from the newest checkpoint, if there is one."""
    there = Checkpoints(folder.path / "checkpoints").there()
    return f"; `flowgraph resume {folder.path}` goes on after step {there[-1].steps}" if there else ""


def _train(ready: PreparedRun, folder: RunFolder, interrupts: Interrupts, found: Checkpoint | None) -> int:
    from flowgraph.cli.display import Display

    inputs, job, start = ready.inputs, ready.job, found.steps if found is not None else 0
    graphs = [job.program.graph, *([job.check.program.graph] if job.check is not None else [])]
    profiles = Profiles(folder.path.absolute(), ready.options.profiled)
    opening = opened(job.program, graphs, inputs.file, _models(ready), ready.chosen, profiles)
    with interrupts.kept_from_closing(opening) as places:
        refuse_other_weights(found, places.told)
        folder.note(models=places.told, timings=places.timings)
        executor = Executor(places.places, held=_unknown(ready))
        with interrupts.patient():  # what is saved, too
            if found is not None:
                executor.load_state(job.program, found.parts)
            folder.rewind(start, found.state().get(RECORDS, {}) if found is not None else {})
            with (
                Recorder(folder, inputs.graph, partial(print, file=sys.stderr)) as recorder,
                MeasuredRecorder(folder, job.program) as measured,
                logger(ready.options.trackers, folder.path, graphs, start) as log,
                Display(job.program.graph, job.steps) as display,
            ):
                display.step = start
                saver = saver_of(ready, folder, executor, recorder, places.told, start)
                done = train(job, executor, [recorder, measured, log, display], interrupts.asked, start, saver)
                executor.places.finish()
                recorder.settle()
            if ready.options.profiled and ready.chosen.runtime == "ray":
                write_ray_timeline(folder.path)
            _save_models(ready, folder, executor)
    return _ended(folder, done, job.steps)


def _unknown(ready: PreparedRun) -> dict[Home, int]:
    """Give the copies on servers that someone else started: whatever they hold, ours come before the first sample."""
    program = ready.job.program
    names = set(ready.attached) - {*program.frozen}
    return {home: LOST for home in program.homes if home.param in names and is_server(home.engine)}


def _models(ready: PreparedRun) -> ModelSetup:
    o = ready.options
    where, servers = cache_folder(o.asked.cache), ready.attached
    return ModelSetup(ready.inputs.sources, o.asked.seed, where, o.sample_rows, o.forward_tokens, attached=servers)


def _save_models(ready: PreparedRun, folder: RunFolder, executor: Executor) -> None:
    """Write the newest weights for transformers to load, in place of those, whole or half, of an earlier end."""
    graph = ready.inputs.graph
    shutil.rmtree(folder.path / "weights", ignore_errors=True)
    for name, output in graph.carries().items():
        if issubclass(graph.outputs[output].type, Model):
            executor.save(ready.job.program, name, folder.path / "weights" / name)


def _ended(folder: RunFolder, done: int, steps: int) -> int:
    finished = done == steps
    folder.note(
        status="finished" if finished else "interrupted", finished=time.strftime("%Y-%m-%dT%H:%M:%S"), steps_done=done
    )
    if not finished:
        more = f"weights and records are in {folder.path}{goes_on(folder)}"
        print(f"stopped after step {done} of {steps}; {more}", file=sys.stderr)
    print(folder.path)
    return 0 if finished else INTERRUPTED


def begin(ready: PreparedRun, folder: RunFolder) -> None:
    """Write what is known before anything heavy is loaded, and all that `resume` asks for."""
    from importlib.metadata import version

    inputs, options, job, chosen = ready.inputs, ready.options, ready.job, ready.chosen
    about = {
        "flow": inputs.graph.name,
        "file": str(inputs.file.path),
        "command": sys.argv,
        "seed": options.asked.seed,
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
        "replay": str(options.replay) if options.replay else None,
        "batch": inputs.batch,
        "options": options_to_plain(options),
        "folder": str(Path.cwd()),  # what relative paths in the options start from
    }
    drawn = {"flow.mmd": mermaid(flow_picture(inputs.graph)), "plan.mmd": mermaid(plan_picture(job.program))}
    folder.begin(inputs.graph, job.program, inputs.resolved, inputs.file.source, about, drawn)


def options_to_plain(options: RunOptions) -> dict[str, Any]:
    """Give what a command line said as JSON can hold it; `options_from_plain` reads it back."""
    from pydantic import TypeAdapter

    told: dict[str, Any] = TypeAdapter(RunOptions).dump_python(options, mode="json")
    return told


def options_from_plain(told: object) -> RunOptions:
    """Read what `options_to_plain` gave. Raises ValueError for what is none."""
    from pydantic import TypeAdapter

    return TypeAdapter(RunOptions).validate_python(told)


def make_job(plan: Plan, inputs: FlowInputs, options: RunOptions, replay: Replay | None) -> RunSpec:
    """Put together what the driver runs."""
    program = lower(inputs.graph, plan, where=str(options.where), watch=watch_engines)
    rows = PromptSource(inputs.data.train, inputs.batch, options.asked.seed)
    data = [param for param in inputs.graph.params if not issubclass(param.type, Model)]
    sources: dict[str, RowSource] = {
        p.name: StartState(p.type(p.initial)) if issubclass(p.type, State) else rows for p in data
    }
    sources |= replay.sources() if replay is not None else {}
    return RunSpec(program, sources, options.asked.seed, inputs.steps, held_out_check(inputs, options, program))


def held_out_check(inputs: FlowInputs, options: RunOptions, program: Program) -> HeldOutCheck | None:
    """Check held-out prompts by the flow's own rule, with greedy responses of the first trained policy."""
    trained = {node.root for node in inputs.graph.nodes}
    policy = next((p.name for p in model_params(inputs.graph) if issubclass(p.type, Policy) and p in trained), None)
    if inputs.data.held_out is None or options.eval_every == 0 or policy is None:
        return None
    rows = tuple(range(min(options.eval_rows, inputs.data.held_out.num_rows)))
    found = {node.op.name: node.settings for node in reversed(inputs.graph.nodes)}
    most = suggested(inputs.data.data_source).get("generate.max_tokens", 256)
    max_tokens = getattr(found.get("generate", found.get("refill")), "max_tokens", most)
    settings = {"by": getattr(found.get("score", found.get("refill")), "by", "data"), "max_tokens": max_tokens}
    graph = _at_the_flows_lines(compile_graph(evaluate.graph(settings)), inputs.graph)
    own = lower(graph, follow(program.plan, graph, {"policy": policy}), {"policy": dict(program.origins)[policy]})
    rows_of = {"prompts": FixedPrompts(inputs.data.held_out, rows)}
    return HeldOutCheck(own, rows_of, options.eval_every, _as_late(own, program, policy))


def _as_late(check: Program, program: Program, policy: str) -> Program:
    """Give the program of a check that leaves the copy it samples from as old as the plan lets a step leave it.

    Else how often a run is checked would change what it trains on.
    """
    lag = next((placed.lag for placed in program.plan.placed if placed.role == f"{policy}.sample"), 0)
    return replace(check, tasks=tuple(replace(t, lag=lag) if isinstance(t, Sync) else t for t in check.tasks))


def _at_the_flows_lines(check: Graph, graph: Graph) -> Graph:
    """Let each node of a check stand at the line of the flow where its op does: that is where what it reads is set."""
    lines = {node.op.name: node.at for node in reversed(graph.nodes)}
    moved = rewrite(check, lambda node: replace(node, at=lines.get(node.op.name, graph.at)))
    return replace(moved, at=graph.at)
