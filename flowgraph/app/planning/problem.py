"""The planning problem of a request, or of the assumptions in a plan's file. No torch is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.analysis.roles import USES, Use, roles
from flowgraph.app.planning.flow_inputs import (
    DEFAULT_DATA,
    DEFAULT_MODEL,
    FlowInputs,
    cache_folder,
    compiled_flow,
    model_params,
    model_sources,
    read_inputs,
)
from flowgraph.app.request import Request, Search, Workload
from flowgraph.app.user_files import text_of
from flowgraph.cluster.cluster import Cluster, device_of_unknown_speed, parse_bytes
from flowgraph.cluster.plan import Contract, Plan, PlanAssumptions, Precision
from flowgraph.cluster.short_form import read_cluster
from flowgraph.cluster.this_machine import laptop
from flowgraph.engines.table import engines_for
from flowgraph.errors import DataError, FlowTypeError, ModelError, PlanError, UsageError, nearest
from flowgraph.flows.flow_files import flow_text
from flowgraph.language.graph import Graph
from flowgraph.models.sizes import shape
from flowgraph.models.table import nearest_names
from flowgraph.passes.prune_nodes import unread_calls
from flowgraph.runtime.hosting import heads_of
from nodes.mismatch import watch_engines
from placements import LengthDistribution, PlanningProblem, calibration, known_devices, report

if TYPE_CHECKING:
    from flowgraph.language.values import Head
    from flowgraph.models.sizes import ModelShape
    from flowgraph.models.sources import ModelSource

DEFAULT_CLUSTER = "laptop"
DEFAULT_BATCH, DEFAULT_PROMPT_TOKENS = 256, "512"  # where neither a request nor a data set says
CHARACTERS_PER_TOKEN = 3  # English is near 4 with the tokenizers of today; fewer keeps the forecast on the safe side
TEMPLATE_TOKENS = 48  # what a chat template adds, a default system prompt included
MANY_STEPS = 16  # optimizer steps of one update, from which on a minibatch is more likely a laptop's than meant


@dataclass(frozen=True, kw_only=True)
class PreparedProblem:
    """A planning problem that is ready to be searched.

    `assumed` is the problem in the form in which a plan's file records it, and `notes` are for the user. `inputs` are
    the rows and settings of a run; None if only lengths are known.
    """

    problem: PlanningProblem
    assumed: PlanAssumptions
    notes: tuple[str, ...] = ()
    inputs: FlowInputs | None = None

    def having(self, **changes: Any) -> PreparedProblem:
        """Return a copy with changed fields, by name, such as `staleness`, in both `problem` and `assumed`."""
        assumed = self.assumed.model_copy(update=changes)
        return replace(self, problem=replace(self.problem, **changes), assumed=assumed)


def cluster_of(text: str, memory: str | None = None) -> Cluster:
    """Return the cluster that `text` describes: a short form such as `2x8xh100`, a TOML file, or "" for this machine.

    `memory`, such as `8GiB`, is how much of this machine's memory to use, by default `plannable_bytes()`. Raises
    ClusterError for a text that describes no cluster, SettingError for an invalid `memory`, and UsageError for `memory`
    with a cluster of GPUs, which have memory of their own.
    """
    memory_bytes = None if memory is None else parse_bytes(memory)
    cluster = read_cluster(text or DEFAULT_CLUSTER, lambda devices: laptop(devices, memory_bytes), known_devices())
    if memory is not None and all(device.kind == "gpu" for node in cluster.nodes for device in node.devices):
        what = f"applies to this machine only, and the devices of {text} have memory of their own"
        raise UsageError(what, where=f"--memory {memory}", hint="set it per device: --cluster 2x8xh100-40GiB")
    return cluster


def prepare(request: Request, cluster: Cluster | None = None, inputs: FlowInputs | None = None) -> PreparedProblem:
    """Return the planning problem of a request, for its cluster or for another `cluster`.

    `inputs` are the flow, rows and settings if they have been read already. Otherwise rows are read if the request
    names a data set. The rows of the default data set are read if it names none and gives no `prompt_tokens`, and the
    cluster has a device of unknown speed, such as this machine's. Without rows, the problem is planned by lengths.
    Raises FlowTypeError for a flow that runs no model; UsageError for an invalid engine or precision; SettingError,
    UsageError or DataError for lengths that cannot be read; and the errors of `cluster_of`, `read_inputs`,
    `compiled_flow` and `model_sources`.
    """
    workload, search = request.workload, request.search
    cluster = cluster or cluster_of(request.target.cluster, request.target.memory)
    by_lengths = workload.prompt_tokens is not None or not device_of_unknown_speed(cluster)
    if inputs is None and not (not workload.data and by_lengths):
        inputs = read_inputs(workload)
    graph = compiled_flow(workload) if inputs is None else inputs.graph
    cache = cache_folder(workload.cache)
    sources = model_sources(graph, workload.model, cache) if inputs is None else inputs.sources
    prompt_tokens = DEFAULT_PROMPT_TOKENS if inputs is None else str(longest_prompt(inputs))
    assumed = PlanAssumptions(
        flow=request.flow,
        models={name: source.name for name, source in sources.items()},
        data=() if inputs is None else workload.data or (DEFAULT_DATA,),
        columns=workload.columns,
        batch=workload.batch or (DEFAULT_BATCH if inputs is None else inputs.batch),
        prompt_tokens=_anywhere(workload.prompt_tokens or prompt_tokens),
        response_tokens=_capped(_anywhere(workload.response_tokens or ""), graph, workload),
        settings=workload.settings,
        passes=workload.passes,
        **_search_assumptions(search),
        sample_rows=request.execution.sample_rows,
        forward_tokens=request.execution.forward_tokens,
    )
    problem = _planning_problem(assumed, graph, sources, cluster)
    if not problem.roles:
        why = "runs no model, so there is nothing to place"
        raise FlowTypeError.bad_flow(str(graph.at), graph.name, why, "return update(…)")
    notes = (
        *unread_calls(graph),
        *_notes(request, problem, inputs),
        *report.planner_notes(problem),
        *report.scale_notes(problem),
    )
    return PreparedProblem(problem=problem, assumed=assumed, notes=notes, inputs=inputs)


def longest_prompt(inputs: FlowInputs) -> int:
    """Return an upper estimate of the tokens of the longest training prompt, computed from its characters.

    Three characters count as one token, and 48 tokens are added for the chat template. If all models are `tiny`, each
    character counts as one token, and 2 tokens are added.
    """
    prompts: list[list[dict[str, Any]]] = inputs.data.train.column("prompt").to_pylist()
    longest = max(sum(len(message["content"]) for message in messages) for messages in prompts)
    real = any(source.kind != "tiny" for source in inputs.sources.values())
    return longest // CHARACTERS_PER_TOKEN + TEMPLATE_TOKENS if real else longest + 2


def prepare_from(
    plan: Plan, where: str, cluster: Cluster | None = None, workload: Workload | None = None
) -> PreparedProblem:
    """Return the problem that a saved plan solves, on its own cluster or on another `cluster`.

    A value in `workload` overrides that of the plan's file, but settings are added; `where` names the plan in errors.
    Raises PlanError, for example, for a plan that does not record its flow, models and data, that names an unknown
    model parameter or engine, or whose flow now has another graph; ModelError for a model that is not found; the errors
    of the flow's code; and the errors of `read_inputs` for a plan with data.
    """
    if plan.assumed is None:
        raise PlanError.unreadable(where, "", "does not state its flow, models and data, so it has no forecast")
    full = workload_of(plan.assumed, workload)
    graph = compiled_flow(full)
    if structure_hash(graph) != plan.structure_hash:
        error = PlanError.other_graph(where, plan.flow, plan.structure_hash, graph.name, structure_hash(graph))
        if workload is None and graph.name != plan.flow:  # the flow is the file's own word
            error.hint = f"the file names this flow as `assumed.flow`: flowgraph plan {graph.name}"
        raise error
    _refuse_unknown_names(plan.assumed, graph, workload, where)
    try:
        inputs = read_inputs(full) if full.data else None
        sources = model_sources(graph, full.model, cache_folder(full.cache))
    except ModelError as error:
        error.where = error.where or where
        raise
    graph = graph if inputs is None else inputs.graph
    changes = {
        "flow": flow_text(full.flow),
        "data": full.data,
        "columns": full.columns,
        "models": {name: source.name for name, source in sources.items()},
        "batch": full.batch or DEFAULT_BATCH,
        "settings": full.settings,
        "passes": full.passes,
        "engines": {use: plan.assumed.engines[use] for use in USES if use in plan.assumed.engines},
        "constants": {
            engine: calibration.constants_in(engine, table, where) for engine, table in plan.assumed.constants.items()
        },
    }
    assumed = plan.assumed.model_copy(update=changes)
    problem = _planning_problem(assumed, graph, sources, cluster or plan.cluster, where)
    lags = {placed.lag for placed in plan.placed if placed.role in problem.synced}
    sync_lag = min(lags, default=problem.lag)  # the file's own word, which a person may have lowered
    staleness = (
        problem.staleness if not sync_lag else None if problem.staleness is None else min(problem.staleness, sync_lag)
    )
    if any(placed.ahead for placed in plan.placed):
        staleness = sync_lag
    contract: Contract = "in_flight" if any(row.running.in_flight for row in plan.placed) else "scheduled"
    return PreparedProblem(
        problem=replace(problem, sync_lag=sync_lag, staleness=staleness, contract=contract),
        assumed=assumed,
        inputs=None if inputs is None else replace(inputs, batch=assumed.batch),
    )


def _refuse_unknown_names(assumed: PlanAssumptions, graph: Graph, workload: Workload | None, where: str) -> None:
    params = [param.name for param in model_params(graph)]
    for name in assumed.models:
        if name not in params:
            raise PlanError.unknown(where, "model parameter of the flow:", name, params)
    missing = [name for name in params if name not in assumed.models]
    if missing and not (workload and workload.model):
        raise PlanError.unreadable(where, "assumed.models", f"names no model for {', '.join(missing)}")
    for use in USES:
        if (engine := assumed.engines.get(use)) is not None and engine not in engines_for(use):
            raise PlanError.unknown(where, f"engine to {use}:", engine, engines_for(use))


def workload_of(assumed: PlanAssumptions, workload: Workload | None = None) -> Workload:
    """Return the workload that a saved plan was made for: its flow, models, data, columns, batch, settings and passes.

    Values in `workload` override those of the plan, but its settings are added after the plan's. All other fields, such
    as the lengths of rows, are those of `workload` or defaults.
    """
    workload = workload or Workload(flow=assumed.flow)
    return workload.model_copy(
        update={
            "flow": workload.flow or assumed.flow,
            "model": workload.model or tuple(f"{name}={model}" for name, model in assumed.models.items()),
            "data": workload.data or assumed.data,
            "columns": workload.columns or assumed.columns,
            "batch": workload.batch or assumed.batch,
            "settings": (*assumed.settings, *workload.settings),
            "passes": workload.passes or assumed.passes,
        }
    )


def _planning_problem(
    assumed: PlanAssumptions,
    graph: Graph,
    sources: Mapping[str, ModelSource],
    cluster: Cluster,
    where: str = "",
) -> PlanningProblem:
    heads, response = heads_of(graph), assumed.response_tokens
    problem = PlanningProblem(
        graph=graph,
        cluster=cluster,
        shapes={name: _shape(source, heads[name]) for name, source in sources.items()},
        prompts=assumed.batch,
        prompt=_lengths(where or "--prompt-tokens", assumed.prompt_tokens),
        response=_lengths(where or "--response-tokens", response) if response else None,
        engines={use: assumed.engines[use] for use in USES if use in assumed.engines},
        sampling=assumed.precision,
        calibrated=assumed.constants,
        calibration=assumed.calibration,
        staleness=assumed.staleness,
        ratio=assumed.ratio,
        streamed=assumed.streamed,
        without=assumed.without,
        sample_rows=assumed.sample_rows,
        forward_tokens=assumed.forward_tokens,
    )
    # Where one engine samples from what another trains, a run measures their mismatch in its graph. No plan has two
    # engines if one CPU device is all there is.
    differs = {*problem.engines_of("train")} - {*problem.engines_of("sample")}
    single = problem.kind == "cpu" and sum(group.count for group in problem.classes) == 1
    if not differs or (single and "train" not in problem.engines):
        return problem
    trained = [role.param for role in roles(graph) if role.use == "train"]
    return replace(problem, watched=watch_engines(graph, trained))


def _shape(source: ModelSource, head: Head) -> ModelShape:
    try:
        return shape(source, head)
    except ModelError as error:
        names = nearest_names(source.base.name.rpartition("/")[2]) if source.kind == "hub" else ()
        if names:
            error.hint = f"did you mean {' or '.join(f'`{name}`' for name in names)}? Or {error.hint}"
        raise


def _capped(text: str, graph: Graph, workload: Workload) -> str:
    limits = [
        int(getattr(node.settings, "max_tokens", 0))
        for node in graph.nodes
        if node.op.kind == "generate" and workload.sets(f"{node.name}.max_tokens")
    ]
    return f"{text},max={max(limits)}" if limits and "=" in text and "max=" not in text else text


def _search_assumptions(search: Search) -> dict[str, Any]:
    engines = dict[Use, str]()
    for text in search.engine:
        use_name, equals, engine = text.partition("=")
        where = f"--engine {text}"
        if not equals or use_name not in USES:
            hint = f"uses are {', '.join(USES)}: train=megatron"
            raise UsageError("should be USE=ENGINE", where=where, hint=hint)
        use = USES[USES.index(use_name)]
        if engines.get(use, engine) != engine:
            raise UsageError(f"the engine of {use} is already `{engines[use]}`", where=where)
        if engine not in engines_for(use):
            hint = nearest(engine, engines_for(use))
            raise UsageError(f"no engine `{engine}` for {use}", where=where, hint=hint)
        engines[use] = engine
    precision, precisions = search.precision, get_args(Precision)
    if precision is not None and precision not in precisions:
        hint = nearest(precision, precisions)
        raise UsageError(f"no precision `{precision}`", where="--precision", hint=hint)
    constants: Mapping[str, Mapping[str, float]] = {}
    if (file := search.constants) is not None:
        text = text_of(file, "profile", lambda why: UsageError(why, where=f"--profile {file}"))
        constants = calibration.read_profile(text, str(file))
    return {
        "engines": {use: engines[use] for use in USES if use in engines},
        "precision": precision,
        "constants": {engine: dict(values) for engine, values in constants.items()},
        "calibration": search.calibration,
    }


def _notes(request: Request, problem: PlanningProblem, inputs: FlowInputs | None) -> list[str]:
    notes, workload = list[str](), request.workload
    if not workload.model and problem.shapes and inputs is None:
        notes.append(f"assuming the model `{DEFAULT_MODEL}`; set another with --model")
    if workload.prompt_tokens is None and inputs is None:
        notes.append(f"assuming prompts of {DEFAULT_PROMPT_TOKENS} tokens; set --prompt-tokens to change it")
    if unknown := device_of_unknown_speed(problem.cluster):
        notes.append(f"the speed of {unknown}, is not known: seconds are nominal, only to compare plans")
    text, longest = workload.response_tokens or "", 0 if problem.response is None else int(problem.response.most)
    bounded = "max=" in text or any("max_tokens" in setting_text for setting_text in workload.settings)
    if longest and "=" in text and not bounded:
        notes.append(f"no response maximum is set, so some have {longest:,} tokens; set {text},max=N")
    for node in problem.graph.nodes:
        limit = getattr(node.settings, "max_tokens", None)
        samples = node.op.kind == "generate" or node.op.rows == "new"
        if samples and isinstance(limit, int) and longest > limit:
            notes.append(f"the flow cuts responses at {node.name}.max_tokens={limit:,}; these go up to {longest:,}")
    for load in problem.loads:
        if inputs is None and load.steps >= MANY_STEPS and not workload.sets(f"{load.node}.minibatch"):
            fewer = f"--set {load.node}.minibatch={max(1, problem.prompts // 4)}"
            notes.append(f"{load.node} makes {load.steps} optimizer steps in each step: {fewer} makes fewer")
    return notes


# ------------------------------------------------------------------------------------------------- lengths of rows


def _lengths(option: str, text: str) -> LengthDistribution:
    file, column = _file_and_column(text)
    if not file:
        return LengthDistribution.parse(text, option)
    if not column:
        raise UsageError("names no column", where=f"{option} {text}", hint=f"{option} {text}:tokens")
    import pyarrow
    import pyarrow.parquet as parquet

    path = Path(file).expanduser()
    try:
        names = parquet.read_schema(path).names
        if column not in names:
            raise DataError.lacks_column(file, column, names)
        return LengthDistribution.of_column(parquet.read_table(path, columns=[column]).column(column), option)
    except pyarrow.ArrowInvalid as error:
        raise DataError.corrupt(Path(file), error) from None
    except OSError as error:
        raise DataError.missing(file, str(error)) from None


def _file_and_column(text: str) -> tuple[str, str]:
    """Return the Parquet file that lengths are in, and its column, each "" if the text names none.

    >>> _file_and_column("a/b.parquet:tokens"), _file_and_column("b.parquet"), _file_and_column("mean=2k")
    (('a/b.parquet', 'tokens'), ('b.parquet', ''), ('', ''))
    """
    file, _, column = text.rpartition(":")
    if file.endswith(".parquet"):
        return file, column
    return (text, "") if text.endswith(".parquet") else ("", "")


def _anywhere(text: str) -> str:
    file, column = _file_and_column(text)
    return f"{Path(file).expanduser().absolute()}:{column}" if file and column else text
