"""`generate`, and the sampling that `eval` shares: find a model and prompts, plan, and sample batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.app.planning.flow_inputs import DEFAULT_DATA, FlowInputs, cache_folder, read_data
from flowgraph.app.planning.make_plan import searched
from flowgraph.app.planning.plan_result import PlanResult, plan_of
from flowgraph.app.planning.problem import prepare
from flowgraph.app.planning.saved_plans import plan_again
from flowgraph.app.request import Execution, Request, Say, Workload
from flowgraph.app.responses.generations import join_parts, partial_path, refuse_output, temporary_parts, write_part
from flowgraph.app.responses.weights import ModelUnderTest, model_under_test
from flowgraph.app.running.interrupts import Interrupts
from flowgraph.app.running.runtime_launch import RuntimeChoice, choose_runtime, open_runtime
from flowgraph.checks.placed import refuse_unsupported
from flowgraph.errors import DataError, FlowError, PlanError, UsageError
from flowgraph.flows.flow_files import SHIPPED, FlowFile
from flowgraph.flows.settings import resolve_settings, split_assignments
from flowgraph.language.flow import Flow
from flowgraph.language.keys import Key
from flowgraph.language.values import Group
from flowgraph.lowering.follow import plan_second_flow
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import Program, value_name
from flowgraph.passes import named, simplified
from flowgraph.runtime.hosting import ModelSetup
from flowgraph.runtime.interpreter import Executor
from nodes.data.sets import DataSet
from nodes.data.suggestions import suggested
from nodes.evaluation import respond
from nodes.values import Columns, Prompts

if TYPE_CHECKING:
    import pyarrow as pa


SPLITS = ("held-out", "train")
PARAM = "policy"  # of the flows that respond


Show = Callable[[int, str], None]
"""Receives how many prompts were done since the last call, and a text on how it goes."""
Progress = Callable[[str, int, str], Show]
"""Makes one, of a verb, a count and its noun."""


def no_progress(verb: str, count: int, noun: str) -> Show:
    """Return a function that discards the progress that it receives; the default for `progress`."""
    return lambda count, text: None


@dataclass(frozen=True, kw_only=True)
class PromptSelection:
    """A table of prompts with the name, SHA-256 digest, split ("" without held-out rows) and source of its data."""

    table: pa.Table
    name: str
    digest: str
    split: str
    source: str
    """The one `data_source` of all rows, else the name of the set."""


@dataclass(frozen=True)
class PromptBatch:
    """A batch of prompts as a source of rows: the same rows at any step; `first` is their place in the whole table."""

    table: pa.Table
    first: int

    def batch(self, step: int) -> Prompts:
        """Return the prompts; the group of each prompt is its row number in the whole table. `step` is ignored."""
        import torch

        places = torch.arange(self.first, self.first + self.table.num_rows)
        return Prompts(group=Group(places), columns=Columns(self.table))


@dataclass(frozen=True, kw_only=True)
class SamplingRun:
    """A prepared sampling run; no model is loaded yet. `batch` is in prompts, and `facts` describe all responses."""

    prompts: PromptSelection
    file: FlowFile
    program: Program
    chosen: RuntimeChoice
    models: ModelSetup
    batch: int
    facts: Mapping[str, Any]


def select_prompts(request: Request, model: ModelUnderTest, say: Say) -> PromptSelection:
    """Read the prompts that a request names, by default those of the run that trained the model, and return them.

    If the request names no data set, each option of the data that it leaves out (`data`, `columns`, `held_out`,
    `max_prompt_tokens`, `long_prompts`) is that of the run; a model that is not a run's gets `digits`. Without a
    requested split, held-out rows are used if there are any, else training rows; only the first `sampling.rows` of them
    are returned, by default all. `say` receives how many long prompts were dropped or cut. It also receives a warning
    if the rows differ from those of the run, provided that the request sets none of these options and the run recorded
    a digest of its rows. Raises UsageError for an unknown split, DataError if held-out rows are requested but the data
    has none, and the errors of `read_data`.
    """
    options, split = request.workload, request.sampling.split
    if split not in (None, *SPLITS):
        raise UsageError(f"no split `{split}`", where="--split", hint=f"known: {', '.join(SPLITS)}")
    changing = options.data, options.held_out, options.columns, options.max_prompt_tokens, options.long_prompts
    of_run = not any(changing)
    workload = options
    if not options.data:
        names = ("data", "columns", "held_out", "max_prompt_tokens", "long_prompts")
        theirs = {name: getattr(model.workload, name) for name in names if not getattr(options, name)}
        workload = options.model_copy(update=theirs)
    specs = workload.data or (DEFAULT_DATA,)
    # Rows that are made here are those of the run's own seed: with another, some would have been trained on.
    rows, long_prompts = read_data(workload, specs, model.source, model.seed)
    if of_run and model.digest not in ("", rows.digest):
        say(f"{', '.join(specs)}: these are not the rows that {model.name} was trained on")
    for which, counted in long_prompts.items():
        if counted.long:
            say(f"{which} rows: {counted}")
    split = split or (SPLITS[0] if rows.held_out is not None else SPLITS[1])
    table = rows.held_out if split == SPLITS[0] else rows.train
    if table is None:
        raise DataError.unusable(", ".join(specs), "has no held-out rows", hint="--split train, or --held-out FILE")
    return PromptSelection(
        table=table if request.sampling.rows is None else table.slice(0, request.sampling.rows),
        name=rows.name,
        digest=rows.digest,
        split=split if rows.held_out is not None else "",
        source=rows.data_source,
    )


def chat_prompts(texts: Sequence[str]) -> PromptSelection:
    """Return texts as a selection of prompts, each a chat with one user message, without a split, digest or source."""
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
    values: Mapping[str, object],
    say: Say,
) -> SamplingRun:
    """Plan a run that samples with `flow`, check the plan, and return all that sampling needs; no models are loaded.

    `values` are settings of the flow. The maximum number of tokens of a response is that of the request, or else of the
    run that trained the model, or else suggested for the data, or else 256; settings in the request replace all of
    these. `say` receives each note of planning. Raises SettingError for an invalid setting; PlanError for a plan that
    does not sample, or that cannot run here; and the errors of `prepare`, `searched`, `plan_again` and
    `choose_runtime`.
    """
    workload, execution, sampling, rows = request.workload, request.execution, request.sampling, prompts.table.num_rows
    max_tokens = sampling.max_tokens or model.max_tokens or suggested(prompts.source).get("generate.max_tokens", 256)
    flow_settings, chosen = split_assignments(list(flow.signature.settings.model_fields), workload.settings)
    settings = {"n": sampling.n, "temperature": sampling.temperature, **values, "max_tokens": max_tokens}
    graph = simplified(resolve_settings(named(flow.graph(settings | flow_settings)), (), chosen)[0])
    sampler = next(dict(node.settings) for node in graph.nodes if node.op.kind == "generate")
    file = FlowFile(flow, Path(flow.signature.at.file), SHIPPED)
    inputs = FlowInputs(
        file=file,
        graph=graph,
        sources={PARAM: model.source},
        data=DataSet(name=prompts.name, train=prompts.table, held_out=None, origin="", digest=prompts.digest),
        batch=min(workload.batch or max(1, execution.sample_rows // sampler["n"]), rows),
        steps=1,
        resolved=(),
    )
    planned = _plan(inputs, request, model, say)
    seed = model.seed if workload.seed is None else workload.seed
    cache = cache_folder(workload.cache)
    return SamplingRun(
        prompts=prompts,
        file=file,
        program=lower(graph, planned.plan, where=str(request.target)),
        chosen=choose_runtime(planned.plan, execution, planned.problem.shapes),
        models=ModelSetup(sources=inputs.sources, seed=seed, cache=cache, sample_rows=execution.sample_rows),
        batch=inputs.batch,
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


def _plan(inputs: FlowInputs, request: Request, model: ModelUnderTest, say: Say) -> PlanResult:
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
        samples = [placed.role.rpartition(".")[0] for placed in plan.placed if placed.role.endswith(".sample")]
        if not samples:
            hint = "plan a flow that does"
            raise PlanError(f"this plan of {plan.flow} does not sample from a model", where=where, hint=hint)
        plan = plan_second_flow(plan, inputs.graph, {PARAM: model.param if model.param in samples else samples[0]})
        used = {placed.pool for placed in plan.placed}
        plan = plan.model_copy(update={"pools": tuple(pool for pool in plan.pools if pool.name in used)})
    return plan_again(plan, prepare(question, cluster=plan.cluster, inputs=inputs), where, say)


FAILURES = ("rule_failures", "unreadable")  # of responses that were scored


@dataclass(frozen=True, kw_only=True)
class SamplingEnd:
    """How sampling ended: the number of finished prompts, facts about all responses, and whether it was interrupted."""

    prompts: int
    facts: Mapping[str, Any]
    interrupted: bool = False


def sample_responses(
    run: SamplingRun,
    out: Path | None,
    read: Callable[[Path, Mapping[str, int]], str],
    more_facts: Mapping[str, Any],
    say: Say,
    show: Show,
) -> SamplingEnd:
    """Load the model, sample all responses batch by batch, and return how sampling ended.

    Each batch is written to a file of its own; the files are joined into `out`, unless it is None, with `more_facts`
    added to the metadata. `read(path, failures)` is called with the file of each batch, and with how many responses
    failed their rule or were unreadable; `show` receives the number of prompts of the batch, and the text that `read`
    returns. After an error or an interrupt, the finished batches, if there are any, are joined into `partial_path(out)`
    instead, and `say` receives a note. An interrupt is returned; an error is raised, and a FlowError of a batch names
    the batch's prompts in its notes.
    """
    program, table, prompts = run.program, run.prompts.table, 0
    facts_before = {**run.facts, **more_facts}
    facts, names = dict(facts_before), [value_name(edge) for edge in program.graph.outputs]
    opening = open_runtime(program, [program.graph], run.file, run.models, run.chosen, say)
    with temporary_parts(out) as parts:
        try:
            with Interrupts("", say) as interrupts, interrupts.kept_from_closing(opening) as runtime:
                facts["digest"] = runtime.models[PARAM]["digest"]
                executor = Executor(runtime.places)
                for first in range(0, table.num_rows, run.batch):
                    batch = PromptBatch(table.slice(first, run.batch).combine_chunks(), first)
                    path, count = parts / f"{first // run.batch:08d}.parquet", batch.table.num_rows
                    try:
                        ran = executor.run(program, {"prompts": batch}, Key(run.models.seed))
                        ran.apply(write_part, names, facts, path)
                        runtime.places.finish()
                    except FlowError as error:
                        place = f"in prompts {first} to {first + count - 1} of {run.prompts.name}, from 0"
                        error.notes = (*error.notes, place)
                        raise
                    sums = ran.observed.sums
                    text = read(path, {name: int(sums.get(("score", name), (0.0, 0.0))[0]) for name in FAILURES})
                    prompts += count
                    show(count, text)
                    if out is None:
                        path.unlink()
        except (Exception, KeyboardInterrupt) as error:
            note = f"stopped after {prompts} of {facts_before['prompts']} prompts"
            if out is not None and prompts:
                join_parts(parts, partial_path(out), facts_before | {"done": prompts})
                note += f"; their responses are in {partial_path(out)}"
            say(note)
            if isinstance(error, KeyboardInterrupt):
                return SamplingEnd(prompts=prompts, facts=facts_before, interrupted=True)
            raise
        if out is not None:
            join_parts(parts, out, facts)
    return SamplingEnd(prompts=prompts, facts=facts)


COLUMNS = ("prompt_index", "sample_index", "prompt", "response", "finished")
TEMPERATURE = 1.0  # where the request names none


@dataclass(frozen=True, kw_only=True)
class GenerateResult:
    """Sampled responses, one row each: in `rows` for prompts that are texts, in the file `out` for a data set.

    `out` is None without a file, and after an interrupt, when `rows` is empty too.
    """

    rows: tuple[Mapping[str, Any], ...] = ()
    out: Path | None = None
    interrupted: bool = False

    @property
    def responses(self) -> list[str]:
        """Return the texts of the responses, prompt by prompt; empty for a data set, and after an interrupt."""
        return [str(row["response"]) for row in self.rows]

    def data(self) -> list[dict[str, Any]]:
        """Return the rows as JSON-compatible dicts; empty for a data set and after an interrupt.

        The keys are `prompt_index`, `sample_index`, `prompt` (its text), `response` and `finished`.
        """
        return [dict(row) | {"prompt": row["prompt"][0]["content"]} for row in self.rows]


def generate_request(request: Request, say: Say, progress: Progress) -> GenerateResult:
    """Sample responses to the prompts of a request; return them as rows if the prompts are texts.

    The responses are written to the output file of the request, if it names one. After an interrupt, no rows are
    returned, and the responses to the finished prompts, if any, are in `partial_path` of the file. `progress` makes the
    function that receives the progress. Raises UsageError for a data set without an output file, for an output file
    that exists (unless `overwrite` is set) or does not end in `.parquet`, and for texts together with options of a data
    set; and the errors of `model_under_test`, `select_prompts`, `prepare_sampling` and `sample_responses`.
    """
    import pyarrow.parquet as pq

    texts, out = request.sampling.prompt, request.output.out
    if out is not None:
        refuse_output(out, (".parquet",), request.output.overwrite)
    elif not texts:
        raise UsageError("needs an output file", where="generate", hint="-o FILE.parquet")
    workload, sampling = request.workload, request.sampling
    options = {
        "--data": workload.data or None,
        "--held-out": workload.held_out or None,
        "--columns": workload.columns or None,
        "--max-prompt-tokens": workload.max_prompt_tokens,
        "--split": sampling.split,
        "--rows": sampling.rows,
    }
    names = [name for name, value in options.items() if value is not None]
    if texts and names:
        raise UsageError(f"the prompts are given, so {names[0]} has no effect", where="--prompt")
    model = model_under_test(request, "generate")
    prompts = chat_prompts(texts) if texts else select_prompts(request, model, say)
    if sampling.temperature is None:
        request = request.changed(temperature=TEMPERATURE)
    run = prepare_sampling(respond, request, model, prompts, {}, say)
    rows = list[Mapping[str, Any]]()

    def read(path: Path, failures: Mapping[str, int]) -> str:
        if texts:
            rows.extend(pq.read_table(path, columns=list(COLUMNS)).to_pylist())
        return ""

    end = sample_responses(run, out, read, {}, say, progress("generate", prompts.table.num_rows, "prompts"))
    return GenerateResult(interrupted=True) if end.interrupted else GenerateResult(rows=tuple(rows), out=out)
