"""What `eval` and `generate` share: a model or a run's weights, prompts, a plan, and responses batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.app.planning.flow_inputs import DEFAULT_DATA, FlowInputs, cache_folder
from flowgraph.app.planning.make_plan import searched
from flowgraph.app.planning.plan_result import PlanResult, plan_of
from flowgraph.app.planning.problem import prepare
from flowgraph.app.planning.replan import plan_again
from flowgraph.app.request import Execution, Request, Say, Workload
from flowgraph.app.responses.generations import BatchFiles, partial_path, write_part
from flowgraph.app.responses.weights import ModelUnderTest
from flowgraph.app.running.interrupts import Interrupts
from flowgraph.app.running.runtime_launch import RuntimeChoice, choose, opened
from flowgraph.checks.placed import refuse_unsupported
from flowgraph.cluster.plan import Plan
from flowgraph.errors import DataError, FlowError, PlanError, UsageError
from flowgraph.flows.flow_files import SHIPPED, FlowFile
from flowgraph.flows.settings import resolve_settings, split_assignments
from flowgraph.language.flow import Flow
from flowgraph.language.graph import Graph
from flowgraph.language.keys import Key
from flowgraph.language.values import Group
from flowgraph.lowering.follow import follow
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import Program, value_name
from flowgraph.passes import named, simplified
from flowgraph.runtime.hosting import ModelSetup
from flowgraph.runtime.interpreter import Executor
from nodes.data import sets as data_sets
from nodes.data.sets import DataSet
from nodes.data.suggestions import suggested
from nodes.values import Columns, Prompts

if TYPE_CHECKING:
    import pyarrow as pa


SPLITS = ("held-out", "train")
DEFAULT_MAX_TOKENS = 256
PARAM = "policy"  # of the flows that respond


Progress = Callable[[str, int, str], Callable[[int, str], None]]
"""Makes, of a verb, a count and its noun, what receives how many more are done, and a text on how it goes."""


def no_progress(verb: str, count: int, noun: str) -> Callable[[int, str], None]:
    """Show nothing of how far it is."""
    return lambda done, text: None


@dataclass(frozen=True, kw_only=True)
class PromptSelection:
    """Prompts: the rows of a table, and what they are called."""

    table: pa.Table
    name: str
    digest: str
    split: str
    source: str
    """The one `data_source` of all rows, else the name of the set."""


@dataclass(frozen=True)
class PromptBatch:
    """Some prompts of a table, a source of rows: those from `first` on, whatever the step."""

    table: pa.Table
    first: int

    def batch(self, step: int) -> Prompts:
        """Return the prompts; a row's place in the whole table is its prompt's identity."""
        import torch

        return Prompts(
            group=Group(torch.arange(self.first, self.first + self.table.num_rows)), columns=Columns(self.table)
        )


@dataclass(frozen=True, kw_only=True)
class SamplingRun:
    """Everything that is needed to sample responses: nothing heavy is loaded yet."""

    prompts: PromptSelection
    file: FlowFile
    program: Program
    chosen: RuntimeChoice
    models: ModelSetup
    batch: int
    facts: Mapping[str, Any]

    def batches(self) -> Iterator[PromptBatch]:
        """Cut the prompts into batches."""
        for first in range(0, self.prompts.table.num_rows, self.batch):
            yield PromptBatch(self.prompts.table.slice(first, self.batch).combine_chunks(), first)


def select_prompts(request: Request, model: ModelUnderTest, say: Say) -> PromptSelection:
    """Read the prompts: held-out ones if the data has any and nothing else is asked for; of a run, its own data."""
    workload, split = request.workload, request.sampling.split
    if split not in (None, *SPLITS):
        raise UsageError(f"no split `{split}`", where="--split", hint=f"known: {', '.join(SPLITS)}")
    spec = workload.data or model.data or DEFAULT_DATA
    # Rows that are made here are those of the run's own seed: with another, some would have been trained on.
    rows = data_sets.load(spec, cache=cache_folder(workload.cache), held_out=workload.held_out, seed=model.seed)
    if workload.data is None and workload.held_out is None and model.digest not in ("", rows.digest):
        say(f"{spec}: these are not the rows that {model.name} was trained on")
    split = split or (SPLITS[0] if rows.held_out is not None else SPLITS[1])
    table = rows.held_out if split == SPLITS[0] else rows.train
    if table is None:
        raise DataError.unusable(spec, "has no held-out rows", hint="--split train, or --held-out FILE")
    return PromptSelection(
        table=table if request.sampling.rows is None else table.slice(0, request.sampling.rows),
        name=rows.name,
        digest=rows.digest,
        split=split if rows.held_out is not None else "",
        source=rows.data_source,
    )


def prompts_of(texts: Sequence[str]) -> PromptSelection:
    """Make prompts of texts, each one message of a user."""
    import pyarrow as pa

    kind = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    chats = [[{"role": "user", "content": text}] for text in texts]
    table = pa.table({"prompt": pa.array(chats, kind)})
    return PromptSelection(table=table, name="--prompt", digest="", split="", source="")


def prepare_sampling(
    flow: Flow[..., Any],
    request: Request,
    model: ModelUnderTest,
    prompts: PromptSelection,
    settings: Mapping[str, object],
    say: Say,
) -> SamplingRun:
    """Settle everything before anything heavy is loaded; `settings` are of the flow itself."""
    graph = _graph_of(flow, request, model, prompts, settings)
    execution, rows = request.execution, prompts.table.num_rows
    sampler = next(dict(node.settings) for node in graph.nodes if node.op.kind == "generate")
    batch = min(request.workload.batch or max(1, execution.sample_rows // sampler["n"]), rows)
    file = FlowFile(flow, Path(flow.signature.at.file), SHIPPED)
    data = DataSet(
        name=prompts.name, train=prompts.table, held_out=None, origin="", digest=prompts.digest
    )  # of a step, as the planner reads it
    inputs = FlowInputs(
        file=file, graph=graph, sources={PARAM: model.source}, data=data, batch=batch, steps=1, resolved=()
    )
    planned = plan_sampling(inputs, request, model, say)
    seed = model.seed if request.workload.seed is None else request.workload.seed
    return SamplingRun(
        prompts=prompts,
        file=file,
        program=lower(graph, planned.plan, where=str(request.target)),
        chosen=choose(planned.plan, execution, planned.setting.shapes),
        models=ModelSetup(
            sources=inputs.sources,
            seed=seed,
            cache=cache_folder(request.workload.cache),
            sample_rows=execution.sample_rows,
        ),
        batch=batch,
        facts={
            "model": model.name,
            "step": model.step,
            "data": prompts.name,
            "split": prompts.split,
            "prompts": rows,
            **{name: sampler[name] for name in ("n", "temperature", "max_tokens")},
            "seed": seed,
        },
    )


def _graph_of(
    flow: Flow[..., Any],
    request: Request,
    model: ModelUnderTest,
    prompts: PromptSelection,
    settings: Mapping[str, object],
) -> Graph:
    """Describe the flow that responds, with the settings of the request, else of the run, else for the data."""
    suggestion = suggested(prompts.source).get("generate.max_tokens", DEFAULT_MAX_TOKENS)
    own, chosen = split_assignments(list(flow.signature.settings.model_fields), request.workload.settings)
    wanted = request.sampling
    values = {"n": wanted.n, "temperature": wanted.temperature, **settings}
    values["max_tokens"] = wanted.max_tokens or model.max_tokens or suggestion
    return simplified(resolve_settings(named(flow.graph({**values, **own})), (), chosen)[0])


def plan_sampling(inputs: FlowInputs, request: Request, model: ModelUnderTest, say: Say) -> PlanResult:
    """Plan, or read a plan: one of this flow, or one of a flow that samples, such as a run's, whose place is taken."""
    target, where = request.target, str(request.target)
    plan = plan_of(target)
    question = Request(
        workload=Workload(flow=inputs.graph.name),
        target=target,
        execution=Execution(sample_rows=request.execution.sample_rows),
    )
    if plan is None:
        return searched(prepare(question, inputs=inputs), target, say)
    refuse_unsupported(plan, where)
    if plan.structure_hash != structure_hash(inputs.graph):
        plan = _followed(plan, inputs, where, model.param)
    return plan_again(plan, prepare(question, there=plan.cluster, inputs=inputs), where, say)


def _followed(plan: Plan, inputs: FlowInputs, where: str, param: str) -> Plan:
    """Return the place where a plan samples to the flow that responds; pools that nothing is left in are left out."""
    samples = [placed.role.rpartition(".")[0] for placed in plan.placed if placed.role.endswith(".sample")]
    if not samples:
        raise PlanError(f"this plan of {plan.flow} samples from no model", where=where, hint="plan a flow that does")
    own = follow(plan, inputs.graph, {PARAM: param if param in samples else samples[0]})
    used = {placed.pool for placed in own.placed}
    return own.model_copy(update={"pools": tuple(pool for pool in own.pools if pool.name in used)})


LOST = ("rule_failures", "unreadable")


def sample(
    run: SamplingRun,
    parts: BatchFiles,
    done: Callable[[Path, Mapping[str, int]], None],
    more: Mapping[str, Any],
    say: Say,
) -> dict[str, Any]:
    """Sample all responses, a batch at a time, each into a file of its own; return what is known of all of them.

    `done` receives the file of each batch, and how many responses failed their rule or were unreadable; `more` is
    known of all responses, too. What happens in the middle, an error or an interrupt, leaves the files of the batches
    before.
    """
    program, facts = run.program, {**run.facts, **more}
    names = [value_name(edge) for edge in program.graph.outputs]
    with (
        Interrupts("", say) as interrupts,
        interrupts.kept_from_closing(opened(program, [program.graph], run.file, run.models, run.chosen, say)) as ready,
    ):
        facts["digest"] = ready.told[PARAM]["digest"]
        executor = Executor(ready.places)
        for number, batch in enumerate(run.batches()):
            path = parts.path(number)
            try:
                ran = executor.run(program, {"prompts": batch}, Key(run.models.seed))
                ran.apply(write_part, names, facts, path)
                ready.places.finish()
            except FlowError as error:
                last = batch.first + batch.table.num_rows - 1
                error.notes = (*error.notes, f"in prompts {batch.first} to {last} of {run.prompts.name}, from 0")
                raise
            sums = ran.observed.sums
            done(path, {name: int(sums.get(("score", name), (0.0, 0.0))[0]) for name in LOST})
    return facts


def keep(parts: BatchFiles, out: Path | None, facts: Mapping[str, Any], done: int, say: Say) -> None:
    """Leave what was done before an interrupt or an error, and say so: never under the name of the whole file."""
    note = f"stopped after {done} of {facts['prompts']} prompts"
    if out is not None and done:
        parts.join(partial_path(out), dict(facts) | {"done": done})
        note += f"; their responses are in {partial_path(out)}"
    say(note)
