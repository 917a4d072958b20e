"""`run`: train a flow on this machine and leave a run folder."""

from __future__ import annotations

import copy
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.cli import INTERRUPTED
from flowgraph.cli.inputs import Inputs, model_params, read_inputs
from flowgraph.cli.interrupts import Interrupts
from flowgraph.cli.lists import cache_folder
from flowgraph.errors import FlowError, FlowTypeError, UsageError
from flowgraph.evaluate import Env
from flowgraph.graph import Param
from flowgraph.machine import available_cores
from flowgraph.models.shapes import shape
from flowgraph.runtime.record import Recorder, Replay, RunFolder, fresh
from flowgraph.values import Trainable, Value

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowgraph.executors.local import LocalModel
    from flowgraph.models.loading import Loaded
    from flowgraph.runtime.driver import Check, Job
    from placements import Decision

# Source: measured at 0.1M parameters: a second thread gains 1.4 times when idle, and costs 100 times when busy.
ONE_THREAD_PARAMETERS = 5_000_000


@dataclass(frozen=True)
class RunOptions:
    """What the command line said."""

    flow: str
    models: tuple[str, ...]
    data: str | None
    held_out: str | None
    steps: int | None
    batch: int | None
    seed: int
    sets: tuple[str, ...]
    eval_every: int
    eval_rows: int
    out: Path | None
    replay: Path | None
    sample_rows: int
    forward_tokens: int
    threads: int | None
    memory: str | None
    cache: Path | None


def run_flow(options: RunOptions) -> int:
    """Check everything that can be checked, then load, train and save; give the exit code."""
    from flowgraph.cli.plan import checked

    o = options
    inputs = read_inputs(o.flow, o.models, o.data, o.held_out, o.batch, o.steps, o.seed, o.sets, o.cache)
    refuse_what_cannot_run(inputs)
    decision = checked(inputs, o.memory, o.sample_rows, o.forward_tokens)
    replay = _replay(inputs, o)
    if replay is not None:
        inputs = replace(inputs, steps=min(inputs.steps, replay.steps()))
    folder = RunFolder.create(o.out or fresh(Path("runs"), inputs.graph.name))
    with Interrupts(f"{folder.path}") as interrupts:
        return _guarded(inputs, o, folder, decision, replay, interrupts)


def _guarded(
    inputs: Inputs,
    options: RunOptions,
    folder: RunFolder,
    decision: Decision,
    replay: Callable[[int], Env] | None,
    interrupts: Interrupts,
) -> int:
    """Train, and leave a folder that says how the run ended, however it does."""
    try:
        (folder.path / "plan.json").write_text(decision.plan.to_json(), "utf-8")
        return _train(inputs, options, folder, replay, interrupts)
    except KeyboardInterrupt:
        folder.note(status="interrupted")
        done = folder.facts().get("steps_done", 0)
        print(f"stopped in the middle of step {done + 1}; {folder.path} holds what was recorded", file=sys.stderr)
        return INTERRUPTED
    except FlowError as error:
        folder.note(status="failed", error=str(error))
        print(
            f"the run failed after step {folder.facts().get('steps_done', 0)}; {folder.path} holds what was recorded",
            file=sys.stderr,
        )
        raise


def refuse_what_cannot_run(inputs: Inputs) -> None:
    """Refuse a flow that returns no model or takes what a data set cannot give, and more prompts than there are."""
    from nodes.rules import reference_of, resolve
    from nodes.values import Prompts

    if inputs.batch > inputs.data.train.num_rows:
        what = f"{inputs.batch} prompts a step, but {inputs.data.name} has {inputs.data.train.num_rows}"
        raise UsageError(what, where="--batch", hint=f"--batch {inputs.data.train.num_rows} at most")
    graph, where = inputs.graph, str(inputs.graph.at)
    for node in graph.nodes:
        by = getattr(node.settings, "by", "data") if node.op.name == "score" else "data"
        if by != "data":
            resolve(by if isinstance(by, str) else reference_of(by))
    if not graph.carries():
        raise FlowTypeError.bad_flow(
            where, graph.name, "returns no model, so a run would train nothing", "return update(…)"
        )
    for param in graph.params:
        if issubclass(param.type, Trainable) and param.name not in graph.carries():
            why = f"`{param.name}` can be trained, but its next version is not returned: what updates it would be lost"
            raise FlowTypeError.bad_flow(where, graph.name, why, "return it too, or take a Reference if it is frozen")
        if param not in model_params(graph) and param.type is not Prompts:
            why = f"`{param.name}` takes {param.type.__name__}; a run gives prompts and models"
            raise FlowTypeError.bad_flow(where, graph.name, why)


def _replay(inputs: Inputs, options: RunOptions) -> Replay | None:
    return Replay(RunFolder.open(options.replay), inputs.graph) if options.replay is not None else None


def _train(
    inputs: Inputs,
    options: RunOptions,
    folder: RunFolder,
    replay: Callable[[int], Env] | None,
    interrupts: Interrupts,
) -> int:
    from flowgraph.cli.display import Display
    from flowgraph.executors.local import LocalExecutor
    from flowgraph.runtime.driver import train

    begin(inputs, options, folder)
    models, digests = load_models(inputs, options)
    folder.note(models=digests)
    job = make_job(inputs, options, models)
    recorder, display = Recorder(folder, inputs.graph), Display(inputs.graph, job.steps)
    with recorder, display:
        carried, done = train(job, LocalExecutor(), [recorder, display], replay, interrupts.asked)
    for name in inputs.graph.carries():
        handle: Any = carried[name].data
        handle.save(folder.path / "weights" / name)
    finished = done == job.steps
    folder.note(
        status="finished" if finished else "interrupted", finished=time.strftime("%Y-%m-%dT%H:%M:%S"), steps_done=done
    )
    if not finished:
        print(f"stopped after step {done} of {job.steps}; weights and records are in {folder.path}", file=sys.stderr)
    print(folder.path)
    return 0 if finished else INTERRUPTED


def begin(inputs: Inputs, options: RunOptions, folder: RunFolder) -> None:
    """Write what is known before anything heavy is loaded."""
    from importlib.metadata import version

    from flowgraph.diagrams.flow_picture import flow_picture
    from flowgraph.diagrams.mermaid import mermaid

    about = {
        "flow": inputs.graph.name,
        "file": str(inputs.file.path),
        "command": sys.argv,
        "seed": options.seed,
        "steps": inputs.steps,
        "data": {"name": inputs.data.name, "origin": inputs.data.origin, "digest": inputs.data.digest},
        "versions": {name: version(name) for name in ("torch", "transformers", "pyarrow")},
        "started": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "replay": str(options.replay) if options.replay else None,
    }
    folder.begin(inputs.graph, inputs.resolved, inputs.file.source, about, mermaid(flow_picture(inputs.graph)))


def load_models(inputs: Inputs, options: RunOptions) -> tuple[dict[str, Value], dict[str, dict[str, str]]]:
    """Load each model once, a copy for each parameter that names it; give the values, and what `run.json` says."""
    from flowgraph.executors.local import LocalModel
    from flowgraph.models.loading import load

    set_threads(inputs, options.threads)
    values: dict[str, Value] = {}
    told: dict[str, dict[str, str]] = {}
    loaded: dict[str, Loaded] = {}
    carried = inputs.graph.carries()
    for param in model_params(inputs.graph):
        source = inputs.sources[param.name]
        again = source.name in loaded
        if not again:
            loaded[source.name] = load(source, seed=options.seed, cache=cache_folder(options.cache), say=_say)
        have = loaded[source.name]
        told[param.name] = {"name": have.name, "digest": have.digest, "notes": "; ".join(have.notes)}
        module: Any = copy.deepcopy(have.model) if again else have.model
        handle = LocalModel(module, have.tokenizer, param.name in carried, options.sample_rows, options.forward_tokens)
        values[param.name] = _model_value(param, handle)
    return values, told


def set_threads(inputs: Inputs, asked: int | None) -> None:
    """Give torch its threads: small models run on one, since threads that wait for each other cost more than help."""
    import torch

    largest = max(shape(source).parameters for source in inputs.sources.values())
    torch.set_num_threads(asked or (1 if largest < ONE_THREAD_PARAMETERS else available_cores()))


def _model_value(param: Param, handle: LocalModel) -> Value:
    kind: Any = param.type
    value: Value = kind(handle)
    return value


def make_job(inputs: Inputs, options: RunOptions, models: dict[str, Value]) -> Job:
    """Put together what the driver runs."""
    from flowgraph.runtime.driver import Job
    from nodes.data.source import PromptSource

    names = [param.name for param in inputs.graph.params if param.name not in models]
    sources = {name: PromptSource(inputs.data.train, inputs.batch, options.seed) for name in names}
    return Job(inputs.graph, models, sources, options.seed, inputs.steps, held_out_check(inputs, options))


def held_out_check(inputs: Inputs, options: RunOptions) -> Check | None:
    """Check held-out prompts by the flow's own rule, with greedy responses of the first trained policy."""
    from flowgraph.passes import compile_graph
    from flowgraph.runtime.driver import Check
    from nodes.data.source import prompts_at
    from nodes.evaluation import evaluate
    from nodes.values import Policy

    policy = next((p.name for p in model_params(inputs.graph) if issubclass(p.type, Policy)), None)
    if inputs.data.held_out is None or options.eval_every == 0 or policy is None:
        return None
    rows = list(range(min(options.eval_rows, inputs.data.held_out.num_rows)))
    found = {node.op.name: node.settings for node in reversed(inputs.graph.nodes)}
    max_tokens = getattr(found.get("generate"), "max_tokens", 256)
    settings = {"by": getattr(found.get("score"), "by", "data"), "max_tokens": max_tokens}
    graph = compile_graph(evaluate.graph(settings))
    return Check(graph, {"policy": policy}, {"prompts": prompts_at(inputs.data.held_out, rows)}, options.eval_every)


def _say(line: str) -> None:
    print(line, file=sys.stderr)
