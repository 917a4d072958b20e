"""A flow ready to plan or run: its settings, its models and its rows, each with its origin, and its passes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from flowgraph.app.request import FlowLike, Workload
from flowgraph.errors import UnknownNameError, UsageError, nearest
from flowgraph.flows.entry_points import load
from flowgraph.flows.flow_files import FlowFile, find_flow, import_file
from flowgraph.flows.settings import ResolvedSetting, Suggestion, resolve_settings, split_assignments
from flowgraph.language.graph import Graph, Param
from flowgraph.language.values import Model, State, Trainable
from flowgraph.models.sources import ModelSource, resolve
from flowgraph.passes import Pass, named, simplified
from nodes.data.suggestions import batch_for, suggested

if TYPE_CHECKING:
    from nodes.data.sets import DataSet

DEFAULT_MODEL, DEFAULT_DATA, DEFAULT_STEPS = "tiny", "digits", 100


@dataclass(frozen=True, kw_only=True)
class FlowInputs:
    """A flow ready to run or plan."""

    file: FlowFile
    graph: Graph
    sources: Mapping[str, ModelSource]
    data: DataSet
    batch: int
    steps: int
    resolved: tuple[ResolvedSetting, ...]

    def row_origins(self) -> dict[str, Any]:
        """Return the rows of the data set, and where each setting comes from, for the sizes of a step."""
        origins = {each.name: each.origin for each in self.resolved}
        return {"data_rows": self.data.train.num_rows, "origins": origins}


def cache_folder(cache: Path | None) -> Path:
    """Return the folder for fetched models and made data: the one that is named, or the user's cache."""
    if cache is not None:
        return cache.expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flowgraph"


def described_flow(flow: FlowLike, sets: Sequence[str]) -> tuple[FlowFile, Graph, dict[str, object]]:
    """Find a flow; return its file, its graph as described, and the settings that are for its nodes."""
    file = find_flow(flow)
    own, chosen = split_assignments(list(file.flow.signature.settings.model_fields), sets)
    return file, file.flow.graph(own), chosen


def compiled_flow(workload: Workload) -> Graph:
    """Return the graph of a flow as its passes leave it, with the settings that are chosen."""
    passes = tuple(find_passes(workload.passes))
    _, described, chosen = described_flow(workload.flow, workload.settings)
    return simplified(resolve_settings(named(described), (), chosen)[0], passes)


def find_passes(names: Sequence[str]) -> Iterator[Pass]:
    """Yield the passes of these names: `my.py:name`, or one of the entry points `flowgraph.passes`.

    Raises UnknownNameError for a name that is not there, UsageError for one that is not a function.
    """
    for name in names:
        found, (file, _, function) = None, name.rpartition(":")
        if not file.endswith(".py"):
            found = load("flowgraph.passes", name)
        elif not Path(file).is_file():
            raise UnknownNameError(f"there is no file {file}", where="--pass")
        else:
            module = import_file(Path(file))
            if not hasattr(module, function):
                functions = (each for each, value in vars(module).items() if callable(value) and each[0] != "_")
                raise UnknownNameError.of("pass", function, functions, where=file)
            found = getattr(module, function)
        if not callable(found):
            raise UsageError(
                f"`{name}` is no function", where="--pass", hint="a pass takes a Graph and returns a Graph"
            )
        yield cast("Pass", found)


def read_inputs(workload: Workload) -> FlowInputs:
    """Find everything that a workload names; nothing heavy is loaded."""
    from nodes.data import sets as data_sets

    where, data, seed = cache_folder(workload.cache), workload.data or DEFAULT_DATA, workload.seed or 0
    passes = tuple(find_passes(workload.passes))
    file, described, chosen = described_flow(workload.flow, workload.settings)
    graph = named(described)
    sources = model_sources(graph, workload.model, where)
    rows = data_sets.load(data, cache=where, held_out=workload.held_out, seed=seed)
    tips = [Suggestion(f"known for model {source.name}", source.suggest(), name) for name, source in sources.items()]
    tips.append(Suggestion(f"known for data {rows.data_source}", suggested(rows.data_source)))
    graph, resolved = resolve_settings(graph, tips, chosen)
    graph = simplified(graph, passes)
    main = next(iter(sources.values()), None)
    own_steps = main.suggest().get("run.steps") if main else None
    known = f"known for model {main.name}" if main else ""
    steps = _pick("run.steps", workload.steps, own_steps, known, DEFAULT_STEPS)
    known = f"known for data {rows.data_source}"
    batch = _pick("run.batch", workload.batch, batch_for(rows.data_source), known, 16)
    picked = [
        *(steps, batch, ResolvedSetting(name="run.seed", value=seed, origin="--seed" if seed else "default")),
        *(
            ResolvedSetting(name=f"run.model.{name}", value=source.name, origin=_model_origin(name, workload.model))
            for name, source in sources.items()
        ),
        ResolvedSetting(name="run.data", value=data, origin="--data" if workload.data else "default"),
    ]
    return FlowInputs(
        file=file,
        graph=graph,
        sources=sources,
        data=rows,
        batch=int(batch.value),
        steps=int(steps.value),
        resolved=(*picked, *resolved),
    )


def _pick(name: str, asked: Any, known: Any, origin: str, default: Any) -> ResolvedSetting:
    if asked is not None:
        return ResolvedSetting(name=name, value=asked, origin=f"--{name.partition('.')[2]}")
    return (
        ResolvedSetting(name=name, value=known, origin=origin)
        if known is not None
        else ResolvedSetting(name=name, value=default, origin="default")
    )


def _model_origin(name: str, models: Sequence[str]) -> str:
    return (
        "--model"
        if any(text.startswith(f"{name}=") or "=" not in text.partition(":")[0] for text in models)
        else "default"
    )


def model_params(graph: Graph) -> list[Param]:
    """Return the flow's model parameters, trained ones first."""
    found = [param for param in graph.params if issubclass(param.type, Model)]
    return sorted(found, key=lambda param: not issubclass(param.type, Trainable))


def model_sources(graph: Graph, texts: Sequence[str], cache: Path) -> dict[str, ModelSource]:
    """Return where each model parameter comes from: `PARAM=MODEL`, a bare `MODEL` for the trained one; others as it.

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
