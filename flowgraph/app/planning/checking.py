"""`check`: find every fault of a flow, its settings, its passes and its plan, without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.analysis.facts import cross_model_reads
from flowgraph.app.planning.flow_inputs import FlowInputs, cache_folder, compiled_flow, described_flow, model_params
from flowgraph.app.planning.make_plan import searched
from flowgraph.app.planning.plan_result import plan_of
from flowgraph.app.planning.problem import PreparedProblem, prepare
from flowgraph.app.planning.saved_plans import faults_of, plan_again, prepare_again
from flowgraph.app.request import Request, Say
from flowgraph.checks.placed import unsupported_parts
from flowgraph.diagrams.model.quantities import many, show_s
from flowgraph.errors import FlowError, FlowTypeError, ResourceError
from flowgraph.flows.flow_files import find_flow
from flowgraph.flows.settings import setting_faults, split_assignments
from flowgraph.language.graph import Graph, Param
from flowgraph.language.values import Model, State, Trainable
from flowgraph.lowering.lower import lower
from flowgraph.models import shape
from flowgraph.models.loading import chat_tokenizer, refuse_other_tokens
from flowgraph.passes import named
from flowgraph.passes.verify import verified
from nodes.data.prompt_lengths import Encode, refuse_oversized
from nodes.mismatch import watch_engines
from nodes.scoring.rules import reference_of, refuse_missing, refuse_unknown_sources, refuse_unscorable, resolve
from nodes.values import Prompts

if TYPE_CHECKING:
    from flowgraph.cluster.plan import Plan
    from nodes.data.arrow import Table


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The faults of a flow; `notes` list assumptions and skipped checks.

    `pruned` has a line for each node and call that does not affect the flow's results; empty if there are faults.
    """

    flow: str
    faults: tuple[str, ...]
    notes: tuple[str, ...] = ()
    pruned: tuple[str, ...] = ()

    def data(self) -> dict[str, Any]:
        """Return the flow's name, the faults and the notes as JSON-compatible data."""
        return {"flow": self.flow, "faults": list(self.faults), "notes": list(self.notes)}


def check_flow(request: Request, say: Say) -> CheckResult:
    """Return the faults of a flow, with notes on assumptions and skipped checks.

    There are three stages, and each is checked only if the previous one has no fault: the flow's text; the settings;
    the passes, models, data and plan. Equal faults are returned once. `say` receives the notes of planning. Raises
    UnknownNameError for an unknown flow, UserCodeError for a broken file, SettingError for a text without `=`.
    """
    notes = list[str]()
    with verified():
        faults = tuple(dict.fromkeys(map(str, _faults(request, notes, say))))
    pruned = () if faults else compiled_flow(request.workload).pruned
    return CheckResult(flow=request.flow, faults=faults, notes=tuple(notes), pruned=pruned)


def _faults(request: Request, notes: list[str], say: Say) -> Iterator[FlowError]:
    workload = request.workload
    file = find_flow(workload.flow)
    options, _ = split_assignments(list(file.flow.signature.settings.model_fields), workload.settings)
    if faults := list(file.flow.faults(options)):
        yield from faults
        return
    _, graph, settings = described_flow(workload.flow, workload.settings)
    if faults := list(setting_faults(named(graph), settings)):
        yield from faults
        return
    try:
        plan = plan_of(request.target)
        yield from _on_devices(request, notes, say) if plan is None else _in_plan(plan, request, notes, say)
    except FlowError as error:
        yield error


def _in_plan(plan: Plan, request: Request, notes: list[str], say: Say) -> Iterator[FlowError]:
    where = str(request.target)
    prepared = prepare_again(plan, request, where)
    yield from _raised(lambda: refuse_what_cannot_run(prepared))
    faults = list(faults_of(plan, prepared, where))
    yield from faults
    not_run_here = unsupported_parts(plan)
    if not faults:
        yield from _raised(lambda: plan_again(plan, prepared, where, say, fits=False).batch)
    if not faults and not not_run_here:
        yield from _raised(lambda: lower(prepared.problem.graph, plan, where=where, watch=watch_engines))
    notes += [f"the plan names {name}, which cannot be run here" for name in not_run_here]


def _on_devices(request: Request, notes: list[str], say: Say) -> Iterator[FlowError]:
    prepared, where = prepare(request), str(request.target)
    yield from _raised(lambda: refuse_what_cannot_run(prepared))
    if not request.workload.model and prepared.inputs is None:
        command = f"flowgraph check {request.flow} --cluster {where} --model Qwen/Qwen3-8B"
        notes.append(f"whether it fits on {where} is not known: no model is named\n  hint: {command}")
        return
    if prepared.inputs is None:
        rows = f"{prepared.problem.prompts:,} prompts a step, of {prepared.assumed.prompt_tokens} tokens"
        notes.append(f"assuming {rows}, and responses of maximum length; `flowgraph plan` has options for both")
    try:
        planned = searched(prepared, request.target, say)
    except ResourceError as error:
        yield error
        return
    yield from _raised(lambda: planned.batch)
    yield from _raised(lambda: lower(planned.graph, planned.plan, where=where, watch=watch_engines))
    if prepared.inputs is None and planned.search is not None:
        best = planned.search.best
        devices = many(best.devices, "device")
        notes.append(f"it fits on {where}: {show_s(best.step_s)} a step on {devices}; `flowgraph plan` shows how")


def _raised(action: Callable[[], object]) -> Iterator[FlowError]:
    try:
        action()
    except FlowError as error:
        yield error


SCORING = ("score", "refill")  # nodes that score by a rule


def refuse_what_cannot_run(prepared: PreparedProblem) -> None:
    """Raise an error for a flow that a run cannot train, or whose rows a run cannot use.

    Raises FlowTypeError for a flow that updates or returns no model, and for a parameter that nothing reads, whose
    update is lost, or that a run cannot provide; RuleError for a scoring rule that does not exist. If the problem was
    prepared with a data set, also raises BatchError if the sizes of a step do not go together, RuleError for rows that
    the scoring rule cannot score or whose data source has no rule, and DataError for a prompt that leaves no room for
    the longest response.
    """
    inputs = prepared.inputs
    if inputs is not None:
        prepared.problem.batch_sizes(**inputs.row_origins())
    graph = prepared.problem.graph if inputs is None else inputs.graph
    rules = [getattr(node.settings, "by", "data") for node in graph.nodes if node.op.name in SCORING]
    for rule in rules:
        if rule != "data":
            refuse_missing(resolve(rule if isinstance(rule, str) else reference_of(rule)))
    why = ""
    if not graph.carries():
        why = "returns no model, so a run would train nothing"
    elif not any(node.root is not None for node in graph.nodes):
        why = "updates no model, so a run would train nothing"
    if why:
        raise FlowTypeError.bad_flow(str(graph.at), graph.name, why, "return update(…)")
    for param in graph.params:
        _refuse_param(graph, param)
    for rule in rules:
        if inputs is not None and isinstance(rule, str):
            for name, rows in inputs.data.train_sets():
                refuse_unscorable(rule, rows, name)
                refuse_unknown_sources(rule, rows, name)
    samplers = [node for node in graph.nodes if node.op.name in ("generate", "interact", "refill")]
    if inputs is not None and samplers:  # held-out rows: `held_out_check`
        longest = max(getattr(node.settings, "max_tokens", 0) for node in samplers)
        refuse_long_rows(inputs, inputs.data.train_sets(), longest)


def refuse_long_rows(inputs: FlowInputs, sets: Iterable[tuple[str, Table]], max_tokens: int) -> None:
    """Raise DataError if a prompt and a response of `max_tokens` together exceed the first model's positions (tokens).

    `sets` are the names and rows of data sets. The first model samples and trains. Nothing is checked if its positions
    are not known, or if `max_tokens` alone reaches them. Only the 1,000 longest texts of a set are counted in tokens.
    """
    source = next(iter(inputs.sources.values()), None)
    positions = None if source is None else shape(source).positions
    if source is None or positions is None or positions <= max_tokens:
        return  # if max_tokens alone exceeds them, the first step fails, with a max_tokens that fits
    limit = positions - max_tokens
    why = f"and with a response of up to {max_tokens:,} more than the {positions:,} positions of {source.name}"
    hint = f"--max-prompt-tokens {limit} --long-prompts drop, or a smaller max_tokens of the node that samples"

    def encode() -> Encode:
        return chat_tokenizer(source, cache_folder(inputs.cache), lambda line: None).encode

    for name, rows in sets:
        refuse_oversized(rows, encode, limit, name, why, hint)


def _refuse_param(graph: Graph, param: Param) -> None:
    name, kind, carried = param.name, param.type.__name__, param.name in graph.carries()
    trainable = issubclass(param.type, Trainable)
    read = {edge.source for node in graph.nodes for edge in node.edges()}
    why, hint = "", ""
    if carried and issubclass(param.type, Model) and param not in read:
        why, hint = f"`{name}` is returned, but nothing reads it", "leave it out"
    elif trainable and param in {edge.source for edge in graph.outputs}:
        why = f"`{name}` is trainable, but is returned without an update"
        hint = f"return update({name}, …), or take a Reference"
    elif trainable and not carried:
        why = f"`{name}` can be trained, but its next version is not returned: its update would be lost"
        hint = "return it too, or take a Reference if it is frozen"
    elif param in model_params(graph) or param.type is Prompts:
        return
    elif not issubclass(param.type, State):
        why = f"`{name}` takes {kind}; a run provides prompts, models and state"
    elif param.initial is None:
        why = f"`{name}` has no initial value"
        hint = f"give it a default: `{name}: {kind} = {kind}(…)`"
    elif not carried:
        why, hint = f"`{name}` is state, but is not returned", "return the result of a node that carries it"
    if why:
        raise FlowTypeError.bad_flow(str(graph.at), graph.name, why, hint)


def refuse_other_tokenizers(inputs: FlowInputs, cache: Path | None, say: Say) -> None:
    """Raise ModelError if a model, such as a teacher, reads tokens of a model whose token ids differ from its own.

    `cache` is the folder of downloaded models, None for the default one; `say` receives each note.
    """
    for reader, writer in sorted(cross_model_reads(inputs.graph)):
        refuse_other_tokens(reader, writer, inputs.sources, cache_folder(cache), say)
