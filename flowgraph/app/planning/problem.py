"""From a request, or from what a plan's file says it was made for, to one planning problem. No torch is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from flowgraph.app.planning.length_texts import anywhere, lengths
from flowgraph.app.request import Request, Workload
from flowgraph.cluster.cluster import Cluster, of_unknown_speed, parse_bytes
from flowgraph.cluster.plan import Plan, PlanAssumptions, Precision
from flowgraph.cluster.short_form import read_cluster
from flowgraph.cluster.this_machine import laptop
from flowgraph.engines.table import engines_for
from flowgraph.errors import FlowTypeError, ModelError, PlanError, UsageError, nearest
from flowgraph.files.untrusted import read_text
from flowgraph.flows.flow_files import flow_text
from flowgraph.language.graph import Graph
from flowgraph.models.sizes import shape
from flowgraph.models.table import nearest_names
from flowgraph.runtime.hosting import heads_of
from nodes.mismatch import watch_engines
from placements import PlanningProblem, calibration, known_devices, report

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
    """A problem that can be searched: the setting, what its plan will say it was made for, and notes for you.

    `inputs` are the rows and settings of a run, None where only lengths are known.
    """

    setting: PlanningProblem
    assumed: PlanAssumptions
    notes: tuple[str, ...] = ()
    inputs: FlowInputs | None = None

    def having(self, **changes: Any) -> PreparedProblem:
        """Return the problem with other values of fields that its plan names too, such as `staleness` and `ratio`."""
        assumed = self.assumed.model_copy(update=changes)
        return replace(self, setting=replace(self.setting, **changes), assumed=assumed)


def cluster_of(text: str, memory: str | None = None) -> Cluster:
    """Return the cluster of a short form or a file; "" is this machine, of whose memory `memory` says how much to use.

    Raises ClusterError for what is none, UsageError for memory of devices that have their own.
    """
    bound = None if memory is None else parse_bytes(memory)

    def here(devices: int) -> Cluster:
        return laptop(devices, bound)

    cluster = read_cluster(text or DEFAULT_CLUSTER, here, known_devices())
    if memory is not None and all(device.kind == "gpu" for node in cluster.nodes for device in node.devices):
        what = f"applies to this machine only, and the devices of {text} have memory of their own"
        raise UsageError(what, where=f"--memory {memory}", hint="set it per device: --cluster 2x8xh100-40GiB")
    return cluster


def prepare(request: Request, there: Cluster | None = None, inputs: FlowInputs | None = None) -> PreparedProblem:
    """Read everything that a request names, for its own cluster or for another that is `there`.

    `inputs` are the flow, rows and settings where they have been read already.

    Rows are those of the data set that is named. Without one, devices of a known model are planned for by lengths, and
    other devices, this machine's for one, for the data set that a run takes by default. Raises what the parts raise,
    which names the option.
    """
    workload, search = request.workload, request.search
    cluster = there or cluster_of(request.target.cluster, request.target.memory)
    by_lengths = workload.prompt_tokens is not None or not of_unknown_speed(cluster)
    if inputs is None and not (workload.data is None and by_lengths):
        inputs = read_inputs(workload)
    graph = compiled_flow(workload) if inputs is None else inputs.graph
    cache = cache_folder(workload.cache)
    sources = model_sources(graph, workload.model, cache) if inputs is None else inputs.sources
    prompt_tokens = DEFAULT_PROMPT_TOKENS if inputs is None else str(longest_prompt(inputs))
    assumed = PlanAssumptions(
        flow=request.flow,
        models={name: source.name for name, source in sources.items()},
        data="" if inputs is None else workload.data or DEFAULT_DATA,
        batch=workload.batch or (DEFAULT_BATCH if inputs is None else inputs.batch),
        prompt_tokens=anywhere(workload.prompt_tokens or prompt_tokens),
        response_tokens=_capped(anywhere(workload.response_tokens or ""), graph, workload.settings),
        settings=workload.settings,
        passes=workload.passes,
        engines=_by_use(_engines(search.engine)),
        precision=_precision(search.precision),
        constants={engine: dict(values) for engine, values in _constants_of(search.constants).items()},
        calibration=search.calibration,
        sample_rows=request.execution.sample_rows,
        forward_tokens=request.execution.forward_tokens,
    )
    setting = _setting(assumed, graph, sources, cluster)
    if not setting.roles:
        why = "runs no model, so there is nothing to place"
        raise FlowTypeError.bad_flow(str(graph.at), graph.name, why, "return update(…)")
    notes = *_notes(request, setting, inputs), *report.planner_notes(setting), *report.scale_notes(setting)
    return PreparedProblem(setting=setting, assumed=assumed, notes=notes, inputs=inputs)


def longest_prompt(inputs: FlowInputs) -> int:
    """Return an upper estimate of the tokens of the longest prompt of a data set, from its characters."""
    prompts: list[list[dict[str, Any]]] = inputs.data.train.column("prompt").to_pylist()
    longest = max(sum(len(message["content"]) for message in messages) for messages in prompts)
    real = any(source.kind != "tiny" for source in inputs.sources.values())
    return longest // CHARACTERS_PER_TOKEN + TEMPLATE_TOKENS if real else longest + 2


def prepare_from(
    plan: Plan, where: str, cluster: Cluster | None = None, workload: Workload | None = None
) -> PreparedProblem:
    """Prepare again the problem that a plan from a file answers, on its own cluster or on another.

    What `workload` says goes before what the file says. Raises PlanError for a plan that does not say what it was made
    for, or that is for another graph than the flow has.
    """
    if plan.assumed is None:
        raise PlanError.unreadable(where, "", "does not say what it was made for, so nothing can be forecast from it")
    wanted = workload_of(plan.assumed, workload)
    graph = compiled_flow(wanted)
    if structure_hash(graph) != plan.structure_hash:
        error = PlanError.other_graph(where, plan.flow, plan.structure_hash, graph.name, structure_hash(graph))
        if workload is None and graph.name != plan.flow:  # the flow is the file's own word
            error.hint = f"the file names this flow as `assumed.flow`: flowgraph plan {graph.name}"
        raise error
    _refuse_unnamed_models(graph, plan.assumed, workload, where)
    try:
        inputs = None if wanted.data is None else read_inputs(wanted)
        sources = model_sources(graph, wanted.model, cache_folder(wanted.cache))
    except ModelError as error:
        error.where = error.where or where
        raise
    graph = graph if inputs is None else inputs.graph
    changes = {
        "flow": flow_text(wanted.flow),
        "data": wanted.data or "",
        "models": {name: source.name for name, source in sources.items()},
        "batch": wanted.batch or DEFAULT_BATCH,
        "settings": wanted.settings,
        "passes": wanted.passes,
        "engines": _by_use(_engines_in(plan.assumed, where)),
        "constants": {
            engine: calibration.constants_in(engine, table, where) for engine, table in plan.assumed.constants.items()
        },
    }
    assumed = plan.assumed.model_copy(update=changes)
    setting = _setting(assumed, graph, sources, cluster or plan.cluster, where)
    lags = {each.lag for each in plan.placed if each.role in setting.synced}
    sync_lag = min(lags, default=setting.lag)  # the file's own word, which a person may have lowered
    staleness = None if setting.staleness is None else min(setting.staleness, sync_lag)
    return PreparedProblem(
        setting=replace(setting, sync_lag=sync_lag, staleness=staleness),
        assumed=assumed,
        inputs=None if inputs is None else replace(inputs, batch=assumed.batch),
    )


def _refuse_unnamed_models(graph: Graph, assumed: PlanAssumptions, workload: Workload | None, where: str) -> None:
    """Refuse a plan without the model of a parameter, or with one of no parameter, unless models are given."""
    params = [param.name for param in model_params(graph)]
    for name in assumed.models:
        if name not in params:
            raise PlanError.unknown(where, "model parameter of the flow:", name, params)
    missing = [name for name in params if name not in assumed.models]
    if missing and not (workload and workload.model):
        raise PlanError.unreadable(where, "assumed.models", f"names no model for {', '.join(missing)}")


def workload_of(assumed: PlanAssumptions, given: Workload | None = None) -> Workload:
    """Return what a plan from a file was made for; what is `given` goes before it."""
    given = given or Workload(flow=assumed.flow)
    return given.model_copy(
        update={
            "flow": given.flow or assumed.flow,
            "model": given.model or tuple(f"{name}={model}" for name, model in assumed.models.items()),
            "data": given.data or assumed.data or None,
            "batch": given.batch or assumed.batch,
            "settings": (*assumed.settings, *given.settings),
            "passes": given.passes or assumed.passes,
        }
    )


def _setting(
    assumed: PlanAssumptions,
    graph: Graph,
    sources: Mapping[str, ModelSource],
    cluster: Cluster,
    where: str = "",
) -> PlanningProblem:
    """Return the setting of all that is assumed; `where` is the file that says so, where one does."""
    heads, response = heads_of(graph), assumed.response_tokens
    setting = PlanningProblem(
        graph=graph,
        cluster=cluster,
        shapes={name: _shape(source, heads[name]) for name, source in sources.items()},
        prompts=assumed.batch,
        prompt=lengths(where or "--prompt-tokens", assumed.prompt_tokens),
        response=lengths(where or "--response-tokens", response) if response else None,
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
    return replace(setting, watched=_watched(setting))


def _shape(source: ModelSource, head: Head) -> ModelShape:
    """Return the sizes of a model; an error of one that is not here names those that are nearest."""
    try:
        return shape(source, head)
    except ModelError as error:
        near = nearest_names(source.base.name.rpartition("/")[2]) if source.kind == "hub" else ()
        error.hint = (
            f"did you mean {' or '.join(f'`{each}`' for each in near)}? Or {error.hint}" if near else error.hint
        )
        raise


def _capped(text: str, graph: Graph, sets: Sequence[str]) -> str:
    """Return lengths of responses that say no longest one the most tokens that the command line sets a sampler."""
    most = [
        int(getattr(node.settings, "max_tokens", 0))
        for node in graph.nodes
        if node.op.kind == "generate" and any(each.startswith(f"{node.name}.max_tokens=") for each in sets)
    ]
    return f"{text},max={max(most)}" if most and "=" in text and "max=" not in text else text


def _watched(setting: PlanningProblem) -> Graph | None:
    """Return the graph that a run has where one engine samples what another trains: their mismatch is measured in it.

    None where no plan of the setting has two: of one CPU device, or with one engine for both.
    """
    apart = {*setting.engines_of("train")} - {*setting.engines_of("sample")}
    alone = setting.kind == "cpu" and sum(of.count for of in setting.classes) == 1
    if not apart or (alone and "train" not in setting.engines):
        return None
    return watch_engines(setting.graph, [role.param for role in roles(setting.graph) if role.use == "train"])


def _engines(texts: Sequence[str]) -> Mapping[Use, str]:
    engines = dict[Use, str]()
    for text in texts:
        use, equals, engine = text.partition("=")
        known = USES[USES.index(use)] if use in USES else None
        if not equals or known is None:
            raise UsageError(
                "should be USE=ENGINE", where=f"--engine {text}", hint=f"uses are {', '.join(USES)}: train=megatron"
            )
        offered = engines_for(known)
        if engines.get(known, engine) != engine:
            raise UsageError(f"what does {use} is said to be `{engines[known]}` too", where=f"--engine {text}")
        if engine not in offered:
            raise UsageError(f"no engine `{engine}` for {use}", where=f"--engine {text}", hint=nearest(engine, offered))
        engines[known] = engine
    return engines


def _engines_in(assumed: PlanAssumptions, where: str) -> Mapping[Use, str]:
    """Return the engine of each use that a plan's file names. Raises PlanError for one that does not have the use."""
    found = dict[Use, str]()
    for use in USES:
        engine = assumed.engines.get(use)
        if engine is not None and engine not in engines_for(use):
            raise PlanError.unknown(where, f"engine to {use}:", engine, engines_for(use))
        found |= {use: engine} if engine is not None else {}
    return found


def _by_use(engines: Mapping[Use, str]) -> dict[str, str]:
    return {use: engines[use] for use in USES if use in engines}


def _notes(request: Request, setting: PlanningProblem, inputs: FlowInputs | None) -> list[str]:
    """Return what was assumed without being asked for, and what a run would do otherwise."""
    notes, workload = list[str](), request.workload
    if not workload.model and setting.shapes and inputs is None:
        notes.append(f"assuming the model `{DEFAULT_MODEL}`; set another with --model")
    if workload.prompt_tokens is None and inputs is None:
        notes.append(f"assuming prompts of {DEFAULT_PROMPT_TOKENS} tokens; set --prompt-tokens to change it")
    if unknown := of_unknown_speed(setting.cluster):
        notes.append(f"the speed of {unknown}, is not known: seconds are nominal, to tell one plan from another")
    response, text = setting.response, workload.response_tokens or ""
    if (
        response is not None
        and "=" in text
        and "max=" not in text
        and not any("max_tokens" in each for each in workload.settings)
    ):
        notes.append(
            f"no longest response is said, so some have {int(response.most):,} tokens: {text},max=N says otherwise"
        )
    for node in setting.graph.nodes:
        most = getattr(node.settings, "max_tokens", None)
        if response is not None and isinstance(most, int) and (node.op.kind == "generate" or node.op.rows == "new"):
            longest = int(response.most)
            if longest > most:
                notes.append(f"a run cuts responses at {node.name}.max_tokens={most:,}; these go up to {longest:,}")
    for load in setting.loads:
        if (
            inputs is None
            and load.steps >= MANY_STEPS
            and not any(each.startswith(f"{load.node}.minibatch=") for each in workload.settings)
        ):
            fewer = f"--set {load.node}.minibatch={max(1, setting.prompts // 4)}"
            notes.append(f"{load.node} makes {load.steps} optimizer steps in each step: {fewer} makes fewer")
    return notes


def _precision(text: str | None) -> Precision | None:
    known: tuple[Precision, ...] = get_args(Precision)
    if text is None:
        return None
    if text not in known:
        raise UsageError(f"no precision `{text}`", where="--precision", hint=nearest(text, known))
    return known[known.index(text)]


def _constants_of(profile: Path | None) -> Mapping[str, Mapping[str, float]]:
    """Return the constants of a file, by engine."""
    if profile is None:
        return {}
    try:
        return calibration.read_profile(read_text(profile), str(profile))
    except UnicodeDecodeError:
        raise UsageError("is no text, so no profile", where=f"--profile {profile}") from None
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=f"--profile {profile}") from None
