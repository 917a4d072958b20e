"""What the planner's commands share: from a command line to the setting of a search. No torch is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from flowgraph.check_plan import VERBS
from flowgraph.cli.inputs import Asked, model_sources
from flowgraph.cli.lists import cache_folder
from flowgraph.cli.passes import find_passes
from flowgraph.cli.show import described_flow
from flowgraph.cluster import Cluster
from flowgraph.cluster_text import read_cluster
from flowgraph.errors import DataError, PlanError, UsageError, nearest
from flowgraph.executors.layouts import COSTED
from flowgraph.graph import Graph
from flowgraph.machine import laptop
from flowgraph.models.shapes import shape
from flowgraph.passes import named, simplified
from flowgraph.plan import Assumed, Plan, Precision
from flowgraph.roles import USES, Use
from flowgraph.runtime.hosting import heads_of
from flowgraph.settings import resolve_settings
from flowgraph.store import structure_hash

if TYPE_CHECKING:
    from placements.lengths import Lengths
    from placements.setting import Setting

DEFAULT_BATCH, DEFAULT_PROMPT_TOKENS = 256, "512"  # where a command line does not say


@dataclass(frozen=True)
class Question:
    """What a command line asks of the planner: a flow, a cluster, the lengths, and what runs the models.

    Lengths are texts that `Lengths.parse` reads, or `FILE.parquet:COLUMN`. `engines` are texts such as
    `train=megatron`; `profile` is a file that `calibrate` wrote.
    """

    asked: Asked
    cluster: str
    prompt_tokens: str | None = None
    response_tokens: str | None = None
    engines: tuple[str, ...] = ()
    precision: str | None = None
    profile: Path | None = None


@dataclass(frozen=True)
class Posed:
    """A question that can be answered: the setting, what a plan says that it was made for, and what to tell of it."""

    setting: Setting
    assumed: Assumed
    notes: tuple[str, ...]


def has_profiles(cluster: Cluster) -> bool:
    """Say whether all devices are of a kind that is known, so that seconds can be forecast."""
    return all(device.model for node in cluster.nodes for device in node.devices)


def cluster_of(text: str) -> Cluster:
    """Read a cluster from its short form or its file. Raises ClusterError."""
    from placements.profiles import known_devices

    return read_cluster(text, laptop, known_devices())


def pose(question: Question) -> Posed:
    """Read everything that a question names. Raises what the parts raise, each of which names the option."""
    from placements.setting import ENGINES, Setting

    asked, cluster = question.asked, cluster_of(question.cluster)
    if not has_profiles(cluster):
        hint = "name devices of a known kind: --cluster 2x8xh100"
        raise UsageError("the speed of its devices is not known", where=f"--cluster {question.cluster}", hint=hint)
    graph = planned_graph(asked)
    sources = model_sources(graph, asked.models, cache_folder(asked.cache))
    heads = heads_of(graph)
    prompt = lengths("--prompt-tokens", question.prompt_tokens or DEFAULT_PROMPT_TOKENS)
    response = None if question.response_tokens is None else lengths("--response-tokens", question.response_tokens)
    setting = Setting(
        graph=graph,
        cluster=cluster,
        shapes={name: shape(source, heads[name]) for name, source in sources.items()},
        prompts=asked.batch or DEFAULT_BATCH,
        prompt=prompt,
        response=response,
        engines={**ENGINES, **_engines(question.engines)},
        calibrated=_calibrated(question.profile),
    )
    if question.precision is not None:
        setting = replace(setting, sampling=_precision(question.precision))
    assumed = Assumed(
        flow=asked.flow,
        models={name: source.name for name, source in sources.items()},
        batch=setting.prompts,
        prompt_tokens=question.prompt_tokens or DEFAULT_PROMPT_TOKENS,
        response_tokens=question.response_tokens or "",
        settings=asked.sets,
        engines={str(use): engine for use, engine in setting.engines.items()},
        precision=setting.sampling,
        constants={engine: dict(values) for engine, values in setting.calibrated.items()},
    )
    return Posed(setting, assumed, tuple(_notes(question, setting)))


def posed_by(plan: Plan, where: str, cluster: Cluster | None = None) -> Posed:
    """Pose again the question that a plan from a file answers, on its own cluster or on another.

    Raises PlanError for a plan that does not say what it was made for, or that is for another graph than the flow has.
    """
    from placements.setting import Setting

    assumed = plan.assumed
    if assumed is None:
        raise PlanError.unreadable(where, "", "does not say what it was made for, so nothing can be forecast from it")
    asked = Asked(
        assumed.flow, tuple(f"{name}={model}" for name, model in assumed.models.items()), sets=assumed.settings
    )
    graph = planned_graph(asked)
    if structure_hash(graph) != plan.structure_hash:
        raise PlanError.other_graph(where, plan.flow, plan.structure_hash, graph.name, structure_hash(graph))
    sources, heads = model_sources(graph, asked.models, cache_folder(None)), heads_of(graph)
    setting = Setting(
        graph=graph,
        cluster=cluster or plan.cluster,
        shapes={name: shape(source, heads[name]) for name, source in sources.items()},
        prompts=assumed.batch,
        prompt=lengths("prompt_tokens", assumed.prompt_tokens),
        response=lengths("response_tokens", assumed.response_tokens) if assumed.response_tokens else None,
        engines={use: assumed.engines[use] for use in USES if use in assumed.engines},
        sampling=assumed.precision,
        calibrated=assumed.constants,
        staleness=assumed.staleness,
    )
    return Posed(setting, assumed, ())


def planned_graph(asked: Asked) -> Graph:
    """Give the graph of a flow as its passes leave it, with the settings of the command line."""
    passes = find_passes(asked.passes)
    _, described, chosen = described_flow(asked.flow, asked.sets)
    graph, _ = resolve_settings(named(described), (), chosen)
    return simplified(graph, passes)


def lengths(option: str, text: str) -> Lengths:
    """Read lengths from their text, or from a column of a Parquet file.

    Raises SettingError for a text that tells no lengths, DataError for a file that cannot be read.
    """
    from placements.lengths import Lengths

    file, colon, column = text.rpartition(":")
    if not (colon and file.endswith(".parquet")) and not text.endswith(".parquet"):
        return Lengths.parse(text, option)
    if not colon:
        raise UsageError("names no column", where=f"{option} {text}", hint=f"{option} {text}:tokens")
    return Lengths.of_column(_column(Path(file), column), option)


def _column(path: Path, column: str) -> object:
    import pyarrow.parquet as parquet

    try:
        known = parquet.read_schema(path).names
        if column not in known:
            raise DataError.lacks_column(str(path), column, known)
        return parquet.read_table(path, columns=[column]).column(column)
    except OSError as error:
        raise DataError.missing(str(path), str(error)) from None


def _engines(texts: Sequence[str]) -> Mapping[Use, str]:
    found = dict[Use, str]()
    for text in texts:
        use, equals, engine = text.partition("=")
        known = USES[USES.index(use)] if use in USES else None
        if not equals or known is None:
            raise UsageError(
                "should be USE=ENGINE", where=f"--engine {text}", hint=f"uses are {', '.join(USES)}: train=megatron"
            )
        offered = [name for name, offer in COSTED.items() if offer.verbs.issuperset(VERBS[known])]
        if engine not in offered:
            raise UsageError(f"no engine `{engine}` for {use}", where=f"--engine {text}", hint=nearest(engine, offered))
        found[known] = engine
    return found


def _notes(question: Question, setting: Setting) -> list[str]:
    """Say what was taken without being asked for, and what a run would do otherwise."""
    told = list[str]()
    if question.prompt_tokens is None:
        told.append(f"prompts are taken to have {DEFAULT_PROMPT_TOKENS} tokens: --prompt-tokens says otherwise")
    for node in setting.graph.nodes:
        most = getattr(node.settings, "max_tokens", None)
        if setting.response is not None and isinstance(most, int) and node.op.kind == "generate":
            longest = int(setting.response.most)
            if longest > most:
                told.append(f"a run cuts responses at {node.name}.max_tokens={most:,}; these go up to {longest:,}")
    return told


def _precision(text: str) -> Precision:
    known: tuple[Precision, ...] = get_args(Precision)
    if text not in known:
        raise UsageError(f"no precision `{text}`", where="--precision", hint=nearest(text, known))
    return known[known.index(text)]


def _calibrated(profile: Path | None) -> Mapping[str, Mapping[str, float]]:
    """Read the constants that a calibration has fitted, by engine."""
    if profile is None:
        return {}
    from placements.calibrate import read_profile

    try:
        return read_profile(profile.read_text("utf-8"), str(profile))
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=f"--profile {profile}") from None
