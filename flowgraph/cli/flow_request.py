"""What `run` and `plan` share: the flow with its settings, where its models and rows come from, and whence each is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.cli.described import described_flow
from flowgraph.cli.listings import cache_folder
from flowgraph.cli.passes import find_passes
from flowgraph.errors import UsageError, nearest
from flowgraph.flows.flow_files import FlowFile
from flowgraph.flows.settings import ResolvedSetting, Suggestion, resolve_settings
from flowgraph.language.graph import Graph, Param
from flowgraph.language.values import Model, State, Trainable
from flowgraph.models.sources import ModelSource, resolve
from flowgraph.passes import named, simplified
from nodes.data.suggestions import batch_for, suggested

if TYPE_CHECKING:
    from nodes.data.sets import DataSet

DEFAULT_MODEL, DEFAULT_DATA, DEFAULT_STEPS = "tiny", "digits", 100


@dataclass(frozen=True)
class FlowRequest:
    """What a command line says of a flow and of what it works on."""

    flow: str
    models: tuple[str, ...] = ()
    data: str | None = None
    held_out: str | None = None
    batch: int | None = None
    steps: int | None = None
    seed: int = 0
    sets: tuple[str, ...] = ()
    passes: tuple[str, ...] = ()
    cache: Path | None = None


@dataclass(frozen=True)
class FlowInputs:
    """A flow ready to run or plan."""

    file: FlowFile
    graph: Graph
    sources: Mapping[str, ModelSource]
    data: DataSet
    batch: int
    steps: int
    resolved: tuple[ResolvedSetting, ...]


def read_inputs(asked: FlowRequest) -> FlowInputs:
    """Find everything that a command line names; nothing heavy is loaded."""
    from nodes.data import sets as data_sets

    where, data = cache_folder(asked.cache), asked.data or DEFAULT_DATA
    passes = find_passes(asked.passes)
    file, described, chosen = described_flow(asked.flow, asked.sets)
    graph = named(described)
    sources = model_sources(graph, asked.models, where)
    rows = data_sets.load(data, cache=where, held_out=asked.held_out, seed=asked.seed)
    tips = [Suggestion(f"known for model {source.name}", source.suggest(), name) for name, source in sources.items()]
    tips.append(Suggestion(f"known for data {rows.data_source}", suggested(rows.data_source)))
    graph, resolved = resolve_settings(graph, tips, chosen)
    graph = simplified(graph, passes)
    main = next(iter(sources.values()), None)
    own_steps = main.suggest().get("run.steps") if main else None
    known = f"known for model {main.name}" if main else ""
    picked = [
        _pick("run.steps", asked.steps, own_steps, known, DEFAULT_STEPS),
        _pick("run.batch", asked.batch, batch_for(rows.data_source), f"known for data {rows.data_source}", 16),
        ResolvedSetting("run.seed", asked.seed, "--seed" if asked.seed else "default"),
        *(
            ResolvedSetting(f"run.model.{name}", source.name, _model_origin(name, asked.models))
            for name, source in sources.items()
        ),
        ResolvedSetting("run.data", data, "--data" if asked.data else "default"),
    ]
    return FlowInputs(file, graph, sources, rows, int(picked[1].value), int(picked[0].value), (*picked, *resolved))


def _pick(name: str, asked: Any, known: Any, origin: str, default: Any) -> ResolvedSetting:
    if asked is not None:
        return ResolvedSetting(name, asked, f"--{name.partition('.')[2]}")
    return ResolvedSetting(name, known, origin) if known is not None else ResolvedSetting(name, default, "default")


def _model_origin(name: str, models: Sequence[str]) -> str:
    return (
        "--model"
        if any(text.startswith(f"{name}=") or "=" not in text.partition(":")[0] for text in models)
        else "default"
    )


def model_params(graph: Graph) -> list[Param]:
    """Give the flow's model parameters, trained ones first."""
    found = [param for param in graph.params if issubclass(param.type, Model)]
    return sorted(found, key=lambda param: not issubclass(param.type, Trainable))


def model_sources(graph: Graph, texts: Sequence[str], cache: Path) -> dict[str, ModelSource]:
    """Say where each model parameter comes from: `PARAM=MODEL`, a bare `MODEL` for the trained one; others as it.

    A frozen model is as the trained one without its adapters.
    """
    params = model_params(graph)
    named, bare = dict[str, str](), list[str]()
    for text in texts:
        name, equals, source = text.partition("=")
        if equals and name.isidentifier():
            if name not in [param.name for param in params]:
                hint = nearest(name, [param.name for param in params])
                raise UsageError(f"flow {graph.name} has no model `{name}`", where=f"--model {text}", hint=hint)
            named[name] = source
        else:
            bare.append(text)
    if len(bare) > 1:
        raise UsageError(f"two models without a parameter: {', '.join(bare)}", where="--model", hint="--model policy=…")
    if not params:
        return {}
    main = resolve(named.get(params[0].name) or (bare[0] if bare else DEFAULT_MODEL), cache=cache)
    given = {name: resolve(text, cache=cache) for name, text in named.items()}
    return {p.name: given.get(p.name, main if issubclass(p.type, State) else main.base) for p in params}
