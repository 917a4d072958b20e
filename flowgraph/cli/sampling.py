"""What `eval` and `generate` share: a model or a run's weights, rows, a plan, and responses drawn batch by batch."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.checks.placed import refuse_unsupported
from flowgraph.cli.flow_request import DEFAULT_DATA, FlowInputs, FlowRequest
from flowgraph.cli.generations import BatchFiles, partial_path, write_part
from flowgraph.cli.interrupts import Interrupts
from flowgraph.cli.listings import cache_folder
from flowgraph.cli.plan import searched
from flowgraph.cli.plan_result import PlanResult, PlanTarget, SearchChoices, read_plan
from flowgraph.cli.planning_request import SAMPLE_ROWS, pose
from flowgraph.cli.replan import planned_again
from flowgraph.cli.runtime_launch import RuntimeChoice, choose, opened
from flowgraph.cli.weights import ModelUnderTest
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
LINE_EVERY_S = 5.0
PARAM = "policy"  # of the flows that respond


@dataclass(frozen=True)
class SamplingRequest:
    """What a command line says of the responses that it wants; None is for what the model or the data suggest."""

    data: str | None = None
    held_out: str | None = None
    split: str | None = None
    rows: int | None = None
    batch: int | None = None
    n: int = 1
    temperature: float = 1.0
    max_tokens: int | None = None
    seed: int | None = None
    sets: tuple[str, ...] = ()
    cache: Path | None = None
    where: PlanTarget = field(default_factory=PlanTarget)
    sample_rows: int = SAMPLE_ROWS


@dataclass(frozen=True)
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
        """Give the prompts; a row's place in the whole table is its prompt's identity."""
        import torch

        return Prompts(
            group=Group(torch.arange(self.first, self.first + self.table.num_rows)), columns=Columns(self.table)
        )


@dataclass(frozen=True)
class SamplingRun:
    """Everything that is needed to draw responses: nothing heavy is loaded yet."""

    asking: PromptSelection
    file: FlowFile
    program: Program
    chosen: RuntimeChoice
    models: ModelSetup
    batch: int
    facts: Mapping[str, Any]

    def batches(self) -> Iterator[PromptBatch]:
        """Cut the prompts into batches."""
        for first in range(0, self.asking.table.num_rows, self.batch):
            yield PromptBatch(self.asking.table.slice(first, self.batch).combine_chunks(), first)


def asking_of(wanted: SamplingRequest, subject: ModelUnderTest) -> PromptSelection:
    """Read the prompts: held-out ones if the data has any and nothing else is asked for; of a run, its own data."""
    if wanted.split not in (None, *SPLITS):
        raise UsageError(f"no split `{wanted.split}`", where="--split", hint=f"known: {', '.join(SPLITS)}")
    spec = wanted.data or subject.data or DEFAULT_DATA
    # Rows that are made here are those of the run's own seed: with another, some would have been trained on.
    rows = data_sets.load(spec, cache=cache_folder(wanted.cache), held_out=wanted.held_out, seed=subject.seed)
    if wanted.data is None and wanted.held_out is None and subject.digest not in ("", rows.digest):
        print(f"{spec}: these are not the rows that {subject.name} was trained on", file=sys.stderr)
    split = wanted.split or (SPLITS[0] if rows.held_out is not None else SPLITS[1])
    table = rows.held_out if split == SPLITS[0] else rows.train
    if table is None:
        raise DataError.unusable(spec, "has no held-out rows", hint="--split train, or --held-out FILE")
    chosen = table if wanted.rows is None else table.slice(0, wanted.rows)
    return PromptSelection(chosen, rows.name, rows.digest, split if rows.held_out is not None else "", rows.data_source)


def prompts_of(texts: Sequence[str]) -> PromptSelection:
    """Make prompts of texts, each one message of a user."""
    import pyarrow as pa

    kind = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    chats = [[{"role": "user", "content": text}] for text in texts]
    return PromptSelection(pa.table({"prompt": pa.array(chats, kind)}), "--prompt", "", "", "")


def prepared(
    flow: Flow[..., Any],
    wanted: SamplingRequest,
    subject: ModelUnderTest,
    asking: PromptSelection,
    more: Mapping[str, object],
) -> SamplingRun:
    """Settle everything before anything heavy is loaded; `more` are settings of the flow itself."""
    graph = _graph_of(flow, wanted, subject, asking, more)
    draws = next(dict(node.settings) for node in graph.nodes if node.op.kind == "generate")
    batch = min(wanted.batch or max(1, wanted.sample_rows // draws["n"]), asking.table.num_rows)
    file = FlowFile(flow, Path(flow.signature.at.file), SHIPPED)
    inputs = FlowInputs(file, graph, {PARAM: subject.source}, _as_data(asking), batch, 1, ())
    planned = plan_of(inputs, wanted, subject)
    plan, chosen = planned.plan, choose(planned.plan, wanted.where, planned.setting.shapes)
    seed = subject.seed if wanted.seed is None else wanted.seed
    models = ModelSetup(inputs.sources, seed, cache_folder(wanted.cache), wanted.sample_rows)
    about = {"model": subject.name, "step": subject.step, "data": asking.name, "split": asking.split}
    own = {name: draws[name] for name in ("n", "temperature", "max_tokens")}
    facts = {**about, "prompts": asking.table.num_rows, **own, "seed": seed}
    return SamplingRun(asking, file, lower(graph, plan, where=str(wanted.where)), chosen, models, batch, facts)


def _graph_of(
    flow: Flow[..., Any],
    wanted: SamplingRequest,
    subject: ModelUnderTest,
    asking: PromptSelection,
    more: Mapping[str, object],
) -> Graph:
    """Describe the flow that responds, with the settings of the command line, else of the run, else for the data."""
    known = suggested(asking.source).get("generate.max_tokens", DEFAULT_MAX_TOKENS)
    own, chosen = split_assignments(list(flow.signature.settings.model_fields), wanted.sets)
    told = {"n": wanted.n, "temperature": wanted.temperature, **more}
    told["max_tokens"] = wanted.max_tokens or subject.max_tokens or known
    return simplified(resolve_settings(named(flow.graph({**told, **own})), (), chosen)[0])


def _as_data(asking: PromptSelection) -> DataSet:
    """Give the prompts as the data set of a step, as the planner reads it."""
    return DataSet(asking.name, asking.table, None, "", asking.digest)


def plan_of(inputs: FlowInputs, wanted: SamplingRequest, subject: ModelUnderTest) -> PlanResult:
    """Plan, or read a plan: one of this flow, or one of a flow that samples, such as a run's, whose place is taken."""
    where = wanted.where
    question = where.question(FlowRequest(inputs.graph.name), sample_rows=wanted.sample_rows)
    plan = None if where.plan is None else read_plan(where.plan)
    if plan is None:
        posed = pose(question, inputs=inputs)
        return searched(posed, replace(SearchChoices(), placement=where.placement or ""), str(where))
    refuse_unsupported(plan, str(where))
    if plan.structure_hash != structure_hash(inputs.graph):
        plan = _followed(plan, inputs, str(where), subject.param)
    return planned_again(plan, pose(question, there=plan.cluster, inputs=inputs), str(where))


def _followed(plan: Plan, inputs: FlowInputs, where: str, param: str) -> Plan:
    """Give the place where a plan samples to the flow that responds; pools that nothing is left in are left out."""
    samples = [placed.role.rpartition(".")[0] for placed in plan.placed if placed.role.endswith(".sample")]
    if not samples:
        raise PlanError(f"this plan of {plan.flow} samples from no model", where=where, hint="plan a flow that does")
    own = follow(plan, inputs.graph, {PARAM: param if param in samples else samples[0]})
    used = {placed.pool for placed in own.placed}
    return own.model_copy(update={"pools": tuple(pool for pool in own.pools if pool.name in used)})


LOST = ("rule_failures", "unreadable")


def draw(
    drawing: SamplingRun, parts: BatchFiles, done: Callable[[Path, Mapping[str, int]], None], more: Mapping[str, Any]
) -> dict[str, Any]:
    """Draw all responses, a batch at a time, each into a file of its own; give what is known of all of them.

    `done` is called with the file of each batch, and how many responses failed their rule or were unreadable; `more` is
    known of all responses, too. What happens in the middle, an error or an interrupt, leaves the files of the batches
    before.
    """
    program, facts = drawing.program, {**drawing.facts, **more}
    names = [value_name(edge) for edge in program.graph.outputs]
    with (
        Interrupts("") as interrupts,
        interrupts.kept_from_closing(
            opened(program, [program.graph], drawing.file, drawing.models, drawing.chosen)
        ) as ready,
    ):
        facts["digest"] = ready.told[PARAM]["digest"]
        executor = Executor(ready.places)
        for number, batch in enumerate(drawing.batches()):
            path = parts.path(number)
            try:
                ran = executor.run(program, {"prompts": batch}, Key(drawing.models.seed))
                ran.apply(write_part, names, facts, path)
                ready.places.finish()
            except FlowError as error:
                last = batch.first + batch.table.num_rows - 1
                error.notes = (*error.notes, f"in prompts {batch.first} to {last} of {drawing.asking.name}, from 0")
                raise
            sums = ran.observed.sums
            done(path, {name: int(sums.get(("score", name), (0.0, 0.0))[0]) for name in LOST})
    return facts


class Progress:
    """Say on stderr how far it is: a line that is written anew on a terminal, else one now and then."""

    def __init__(self, verb: str, count: int, what: str = "prompts") -> None:
        self.verb, self.count, self.what, self.done = verb, count, what, 0
        self._live, self._said_s = sys.stderr.isatty(), 0.0
        self._first: tuple[int, float] | None = None  # what the first batch did, with all that is loaded, and when

    def add(self, done: int, more: str = "") -> None:
        """Count what was done, and say so."""
        self.done += done
        now_s, last = time.monotonic(), self.done >= self.count
        if self._live or last or now_s - self._said_s > LINE_EVERY_S:
            self._said_s = now_s
            line = f"{self.verb} {self.done}/{self.count} {self.what}{more}{self._left(now_s)}"
            end = "\n" if last or not self._live else ""
            print(f"\r\x1b[K{line}" if self._live else line, end=end, file=sys.stderr, flush=True)
        self._first = self._first or (self.done, now_s)

    def _left(self, now_s: float) -> str:
        """Say how long the rest takes, once a batch has been timed by itself."""
        if self._first is None or self.done >= self.count:
            return ""
        first, then_s = self._first
        return f"  about {(now_s - then_s) / (self.done - first) * (self.count - self.done):.0f} s left"


def keep(parts: BatchFiles, out: Path | None, facts: Mapping[str, Any], progress: Progress) -> bool:
    """Leave what was done before an interrupt or an error, and say so; give whether anything was.

    It is never left under the name of the whole file.
    """
    said = f"stopped after {progress.done} of {progress.count} prompts"
    if out is not None and progress.done:
        parts.join(partial_path(out), dict(facts) | {"done": progress.done})
        said += f"; their responses are in {partial_path(out)}"
    print(said, file=sys.stderr)
    return progress.done > 0
