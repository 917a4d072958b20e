"""What every command that plans shares: from a command line to the setting of one search. No torch is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.analysis.roles import USES, Use, roles
from flowgraph.cli.described import described_flow
from flowgraph.cli.flow_request import (
    DEFAULT_DATA,
    DEFAULT_MODEL,
    FlowInputs,
    FlowRequest,
    model_params,
    model_sources,
    read_inputs,
)
from flowgraph.cli.length_texts import anywhere, lengths
from flowgraph.cli.listings import cache_folder
from flowgraph.cli.passes import find_passes
from flowgraph.cluster.calibration import Calibration
from flowgraph.cluster.cluster import Cluster, parse_bytes, show_bytes
from flowgraph.cluster.plan import Plan, PlanAssumptions, Precision
from flowgraph.cluster.short_form import read_cluster
from flowgraph.cluster.this_machine import laptop
from flowgraph.engines.table import engines_for
from flowgraph.errors import FlowTypeError, ModelError, PlanError, UsageError, nearest
from flowgraph.files.untrusted import read_text
from flowgraph.flows.settings import resolve_settings
from flowgraph.language.graph import Graph
from flowgraph.models.sizes import shape
from flowgraph.models.table import nearest_names
from flowgraph.passes import named, simplified
from flowgraph.runtime.hosting import heads_of
from nodes.mismatch import watch_engines

if TYPE_CHECKING:
    from flowgraph.language.values import Head
    from flowgraph.models.sizes import ModelShape
    from flowgraph.models.sources import ModelSource
    from placements.setting import Setting

DEFAULT_CLUSTER = "laptop"
DEFAULT_BATCH, DEFAULT_PROMPT_TOKENS = 256, "512"  # where neither a command line nor a data set says
SAMPLE_ROWS, FORWARD_TOKENS = 256, 4096  # rows decoded side by side, and padded tokens of a pass without gradients
CHARACTERS_PER_TOKEN = 3  # English is near 4 with the tokenizers of today; fewer keeps the forecast on the safe side
TEMPLATE_TOKENS = 48  # what a chat template adds, a default system prompt included
MANY_STEPS = 16  # optimizer steps of one update, from which on a minibatch is more likely a laptop's than meant


@dataclass(frozen=True)
class PlanRequest:
    """What a command line asks of the planner: a flow, a cluster, the lengths, and what runs the models.

    `cluster` "" is this machine, whose memory `memory` may bound. Lengths are texts that `Lengths.parse` reads, or
    `FILE.parquet:COLUMN`. `engines` are texts such as `train=megatron`; `profile` is a file of constants
    of engines, and a `calibration` scales what is forecast.
    """

    asked: FlowRequest
    cluster: str = ""
    prompt_tokens: str | None = None
    response_tokens: str | None = None
    engines: tuple[str, ...] = ()
    precision: str | None = None
    profile: Path | None = None
    memory: str | None = None
    sample_rows: int = SAMPLE_ROWS
    forward_tokens: int = FORWARD_TOKENS
    calibration: Calibration | None = None


@dataclass(frozen=True)
class PlanningProblem:
    """A question that can be answered: the setting, what a plan says that it was made for, and notes for the user.

    `inputs` are the rows and settings of a run, None where only lengths are known.
    """

    setting: Setting
    assumed: PlanAssumptions
    notes: tuple[str, ...]
    inputs: FlowInputs | None = None

    def having(
        self,
        *,
        staleness: int | None = None,
        ratio: tuple[int, int] | None = None,
        streamed: bool = False,
        without: Sequence[str] = (),
    ) -> PlanningProblem:
        """Give the question with a staleness, a ratio, drawing across steps, or without some models."""
        told = {"staleness": staleness, "ratio": ratio, "streamed": streamed or None, "without": tuple(without)}
        said = self.assumed.model_copy(update={name: value for name, value in told.items() if value not in (None, ())})
        free = replace(self.setting, staleness=said.staleness, ratio=said.ratio, streamed=said.streamed)
        return replace(self, setting=replace(free, without=frozenset(said.without)), assumed=said)

    def calibrated(self, calibration: Calibration) -> PlanningProblem:
        """Return the question with forecasts that a calibration scales."""
        assumed = self.assumed.model_copy(update={"calibration": calibration})
        return replace(self, setting=replace(self.setting, calibration=calibration), assumed=assumed)


def has_profiles(cluster: Cluster) -> bool:
    """Say whether all devices are of a kind that is known, so that seconds can be forecast."""
    return all(device.model for node in cluster.nodes for device in node.devices)


def of_unknown_speed(cluster: Cluster) -> str:
    """Name the first device of a cluster whose speed is not known, and its node; "" if all are known."""
    for node in cluster.nodes:
        for place, device in enumerate(node.devices):
            if not device.model:
                memory = f" of {show_bytes(device.memory_bytes)}" if device.kind == "gpu" else ""
                return f"{node.name}/{place}, a {device.kind}{memory}"
    return ""


def cluster_of(text: str, memory: str | None = None) -> Cluster:
    """Return the cluster of a short form or a file; "" is this machine, of whose memory `memory` says how much to use.

    Raises ClusterError for what is none, UsageError for memory of devices that have their own.
    """
    from placements.profiles import known_devices

    bound = None if memory is None else parse_bytes(memory)

    def here(devices: int) -> Cluster:
        return laptop(devices, bound)

    cluster = read_cluster(text or DEFAULT_CLUSTER, here, known_devices())
    if memory is not None and all(device.kind == "gpu" for node in cluster.nodes for device in node.devices):
        what = f"applies to this machine only, and the devices of {text} have memory of their own"
        raise UsageError(what, where=f"--memory {memory}", hint="set it per device: --cluster 2x8xh100-40GiB")
    return cluster


def pose(question: PlanRequest, there: Cluster | None = None, inputs: FlowInputs | None = None) -> PlanningProblem:
    """Read everything that a question names, for its own cluster or for another that is `there`.

    `inputs` are the flow, rows and settings where they have been read already.

    Rows are those of the data set that is named. Without one, devices of a known model are planned for by lengths, and
    other devices, this machine's for one, for the data set that a run takes by default. Raises what the parts raise,
    each of which names the option.
    """
    asked, cluster = question.asked, there or cluster_of(question.cluster, question.memory)
    by_lengths = question.prompt_tokens is not None or has_profiles(cluster)
    if inputs is None and not (asked.data is None and by_lengths):
        inputs = read_inputs(asked)
    graph = planned_graph(asked) if inputs is None else inputs.graph
    sources = model_sources(graph, asked.models, cache_folder(asked.cache)) if inputs is None else inputs.sources
    prompt_tokens = DEFAULT_PROMPT_TOKENS if inputs is None else str(longest_prompt(inputs))
    assumed = PlanAssumptions(
        flow=asked.flow,
        models={name: source.name for name, source in sources.items()},
        data="" if inputs is None else asked.data or DEFAULT_DATA,
        batch=asked.batch or (DEFAULT_BATCH if inputs is None else inputs.batch),
        prompt_tokens=anywhere(question.prompt_tokens or prompt_tokens),
        response_tokens=_capped(anywhere(question.response_tokens or ""), graph, asked.sets),
        settings=asked.sets,
        passes=asked.passes,
        engines=_by_use(_engines(question.engines)),
        precision=_precision(question.precision),
        constants={engine: dict(values) for engine, values in _constants_of(question.profile).items()},
        calibration=question.calibration,
        sample_rows=question.sample_rows,
        forward_tokens=question.forward_tokens,
    )
    setting = _setting(assumed, graph, sources, cluster, "--prompt-tokens", "--response-tokens")
    if not setting.roles:
        why = "runs no model, so there is nothing to place"
        raise FlowTypeError.bad_flow(str(graph.at), graph.name, why, "return update(…)")
    posed = PlanningProblem(setting, assumed, tuple(_notes(question, setting, inputs)), inputs)
    return replace(posed, notes=(*posed.notes, *scale_notes(posed)))


def longest_prompt(inputs: FlowInputs) -> int:
    """Return an upper estimate of the tokens of the longest prompt of a data set, from its characters."""
    prompts: list[list[dict[str, Any]]] = inputs.data.train.column("prompt").to_pylist()
    longest = max(sum(len(message["content"]) for message in messages) for messages in prompts)
    real = any(source.kind != "tiny" for source in inputs.sources.values())
    return longest // CHARACTERS_PER_TOKEN + TEMPLATE_TOKENS if real else longest + 2


def posed_by(
    plan: Plan, where: str, cluster: Cluster | None = None, asked: FlowRequest | None = None
) -> PlanningProblem:
    """Pose again the question that a plan from a file answers, on its own cluster or on another.

    What `asked` says of the flow and of what it works on goes before what the file says. Raises PlanError for a plan
    that does not say what it was made for, or that is for another graph than the flow has.
    """
    if plan.assumed is None:
        raise PlanError.unreadable(where, "", "does not say what it was made for, so nothing can be forecast from it")
    wanted = asked_by(plan.assumed, asked)
    graph = planned_graph(wanted)
    if structure_hash(graph) != plan.structure_hash:
        error = PlanError.other_graph(where, plan.flow, plan.structure_hash, graph.name, structure_hash(graph))
        if asked is None and graph.name != plan.flow:  # the flow is the file's own word
            error.hint = f"the file names this flow as `assumed.flow`: flowgraph plan {graph.name}"
        raise error
    _refuse_unnamed_models(graph, plan.assumed, asked, where)
    try:
        inputs = None if wanted.data is None else read_inputs(wanted)
        sources = model_sources(graph, wanted.models, cache_folder(wanted.cache))
    except ModelError as error:
        error.where = error.where or where
        raise
    graph = graph if inputs is None else inputs.graph
    told = {
        "flow": wanted.flow,
        "data": wanted.data or "",
        "models": {name: source.name for name, source in sources.items()},
        "batch": wanted.batch or DEFAULT_BATCH,
        "settings": wanted.sets,
        "passes": wanted.passes,
        "engines": _by_use(_engines_in(plan.assumed, where)),
        "constants": _constants_in(plan.assumed, where),
    }
    assumed = plan.assumed.model_copy(update=told)
    setting = _setting(assumed, graph, sources, cluster or plan.cluster, where, where)
    lags = {each.lag for each in plan.placed if each.role in setting.synced}
    least = min(lags, default=setting.lag)  # the file's own word, which a person may have lowered
    staleness = None if setting.staleness is None else min(setting.staleness, least)
    own = replace(setting, sync_lag=least, staleness=staleness)
    return PlanningProblem(own, assumed, (), None if inputs is None else replace(inputs, batch=assumed.batch))


def _refuse_unnamed_models(graph: Graph, assumed: PlanAssumptions, asked: FlowRequest | None, where: str) -> None:
    """Refuse a plan that does not say which model each parameter is, or names one of no parameter, unless told."""
    params = [param.name for param in model_params(graph)]
    for name in assumed.models:
        if name not in params:
            raise PlanError.unknown(where, "model parameter of the flow:", name, params)
    missing = [name for name in params if name not in assumed.models]
    if missing and not (asked and asked.models):
        raise PlanError.unreadable(where, "assumed.models", f"names no model for {', '.join(missing)}")


def asked_by(assumed: PlanAssumptions, given: FlowRequest | None = None) -> FlowRequest:
    """Give what a plan from a file says of its flow, and of what it works on, what a command line says before it."""
    given = given or FlowRequest(assumed.flow)
    return replace(
        given,
        models=given.models or tuple(f"{name}={model}" for name, model in assumed.models.items()),
        data=given.data or assumed.data or None,
        batch=given.batch or assumed.batch,
        sets=(*assumed.settings, *given.sets),
        passes=given.passes or assumed.passes,
    )


def _setting(
    assumed: PlanAssumptions,
    graph: Graph,
    sources: Mapping[str, ModelSource],
    cluster: Cluster,
    prompt_option: str,
    response_option: str,
) -> Setting:
    """Give the setting of all that is assumed; the options are what an error names."""
    from placements.setting import Setting

    heads, response = heads_of(graph), assumed.response_tokens
    setting = Setting(
        graph=graph,
        cluster=cluster,
        shapes={name: _shape(source, heads[name]) for name, source in sources.items()},
        prompts=assumed.batch,
        prompt=lengths(prompt_option, assumed.prompt_tokens),
        response=lengths(response_option, response) if response else None,
        engines={use: assumed.engines[use] for use in USES if use in assumed.engines},
        sampling=assumed.precision,
        calibrated=assumed.constants,
        calibration=assumed.calibration,
        staleness=assumed.staleness,
        ratio=assumed.ratio,
        streamed=assumed.streamed,
        without=frozenset(assumed.without),
        sample_rows=assumed.sample_rows,
        forward_tokens=assumed.forward_tokens,
    )
    return replace(setting, watched=_watched(setting))


def _shape(source: ModelSource, head: Head) -> ModelShape:
    """Give the sizes of a model; an error of one that is not here names those that are nearest."""
    try:
        return shape(source, head)
    except ModelError as error:
        near = nearest_names(source.base.name.rpartition("/")[2]) if source.kind == "hub" else ()
        error.hint = (
            f"did you mean {' or '.join(f'`{each}`' for each in near)}? Or {error.hint}" if near else error.hint
        )
        raise


def _capped(text: str, graph: Graph, sets: Sequence[str]) -> str:
    """Give lengths of responses that say no longest one the most tokens that the command line sets a sampler."""
    most = [
        int(getattr(node.settings, "max_tokens", 0))
        for node in graph.nodes
        if node.op.kind == "generate" and any(each.startswith(f"{node.name}.max_tokens=") for each in sets)
    ]
    return f"{text},max={max(most)}" if most and "=" in text and "max=" not in text else text


def _watched(setting: Setting) -> Graph | None:
    """Return the graph that a run has where one engine samples what another trains: their mismatch is measured in it.

    None where no plan of the setting has two: of one CPU device, or with one engine for both.
    """
    apart = {*setting.engines_of("train")} - {*setting.engines_of("sample")}
    alone = setting.kind == "cpu" and sum(of.count for of in setting.classes) == 1
    if not apart or (alone and "train" not in setting.engines):
        return None
    return watch_engines(setting.graph, [role.param for role in roles(setting.graph) if role.use == "train"])


def planned_graph(asked: FlowRequest) -> Graph:
    """Give the graph of a flow as its passes leave it, with the settings of the command line."""
    passes = find_passes(asked.passes)
    _, described, chosen = described_flow(asked.flow, asked.sets)
    graph, _ = resolve_settings(named(described), (), chosen)
    return simplified(graph, passes)


def _engines(texts: Sequence[str]) -> Mapping[Use, str]:
    found = dict[Use, str]()
    for text in texts:
        use, equals, engine = text.partition("=")
        known = USES[USES.index(use)] if use in USES else None
        if not equals or known is None:
            raise UsageError(
                "should be USE=ENGINE", where=f"--engine {text}", hint=f"uses are {', '.join(USES)}: train=megatron"
            )
        offered = engines_for(known)
        if found.get(known, engine) != engine:
            raise UsageError(f"what does {use} is said to be `{found[known]}` too", where=f"--engine {text}")
        if engine not in offered:
            raise UsageError(f"no engine `{engine}` for {use}", where=f"--engine {text}", hint=nearest(engine, offered))
        found[known] = engine
    return found


def _engines_in(assumed: PlanAssumptions, where: str) -> Mapping[Use, str]:
    """Return the engine of each use that a plan's file names. Raises PlanError for one that does not have the use."""
    found = dict[Use, str]()
    for use in USES:
        engine = assumed.engines.get(use)
        if engine is not None and engine not in engines_for(use):
            raise PlanError.unknown(where, f"engine to {use}:", engine, engines_for(use))
        found |= {use: engine} if engine is not None else {}
    return found


def _constants_in(assumed: PlanAssumptions, where: str) -> Mapping[str, Mapping[str, float]]:
    """Give the constants that a plan's file names. Raises UnknownNameError or DataError for such as cannot be."""
    from placements.calibrate import constants_in

    return {engine: constants_in(engine, table, where) for engine, table in assumed.constants.items()}


def _by_use(engines: Mapping[Use, str]) -> dict[str, str]:
    return {use: engines[use] for use in USES if use in engines}


def scale_notes(posed: PlanningProblem) -> list[str]:
    """Return what a user should know of a calibrated forecast: by what, with which factors, and what has none."""
    calibration = posed.setting.calibration
    if calibration is None:
        return []
    notes = list[str]()
    for device in dict.fromkeys(of.model or of.kind for of in posed.setting.classes):
        here = [scale for scale in calibration.scales if scale.device == device]
        measured = {scale.phase for scale in here if scale.role}
        shown = [scale for scale in here if scale.role or scale.phase not in measured]
        factors = ", ".join(f"{f'{each.phase} {each.role}'.strip()} ×{each.factor:.2f}" for each in shown)
        other = f"the calibration by {calibration.source} has no scale for {device}, whose seconds are not scaled"
        notes.append(f"calibrated on {device} by {calibration.source}: {factors}" if shown else other)
    return notes


def _notes(question: PlanRequest, setting: Setting, inputs: FlowInputs | None) -> list[str]:
    """Return what was assumed without being asked for, and what a run would do otherwise."""
    from placements.cautions import cautions
    from placements.loads import taken

    told, asked = list[str](), question.asked
    if not asked.models and setting.shapes and inputs is None:
        told.append(f"models are taken to be `{DEFAULT_MODEL}`: --model says otherwise")
    if question.prompt_tokens is None and inputs is None:
        told.append(f"prompts are taken to have {DEFAULT_PROMPT_TOKENS} tokens: --prompt-tokens says otherwise")
    if unknown := of_unknown_speed(setting.cluster):
        told.append(f"the speed of {unknown}, is not known: seconds are nominal, to tell one plan from another")
    response, text = setting.response, question.response_tokens or ""
    if (
        response is not None
        and "=" in text
        and "max=" not in text
        and not any("max_tokens" in each for each in asked.sets)
    ):
        told.append(
            f"no longest response is said, so some have {int(response.most):,} tokens: {text},max=N says otherwise"
        )
    for node in setting.graph.nodes:
        most = getattr(node.settings, "max_tokens", None)
        if response is not None and isinstance(most, int) and (node.op.kind == "generate" or node.op.rows == "new"):
            longest = int(response.most)
            if longest > most:
                told.append(f"a run cuts responses at {node.name}.max_tokens={most:,}; these go up to {longest:,}")
    for load in setting.loads:
        if (
            inputs is None
            and load.steps >= MANY_STEPS
            and not any(each.startswith(f"{load.node}.minibatch=") for each in asked.sets)
        ):
            fewer = f"--set {load.node}.minibatch={max(1, setting.prompts // 4)}"
            told.append(f"{load.node} makes {load.steps} optimizer steps in each step: {fewer} makes fewer")
    return [*told, *taken(setting.running, setting.prompts), *cautions(setting)]


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
    from placements.calibrate import read_profile

    try:
        return read_profile(read_text(profile), str(profile))
    except UnicodeDecodeError:
        raise UsageError("is no text, so no profile", where=f"--profile {profile}") from None
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=f"--profile {profile}") from None
