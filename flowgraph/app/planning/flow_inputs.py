"""The inputs of a flow: its graph after passes, settings, models and rows, each setting with its origin."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from flowgraph.app.request import FlowLike, Workload
from flowgraph.errors import UnknownNameError, UsageError, nearest
from flowgraph.flows.entry_points import load
from flowgraph.flows.flow_files import FlowFile, find_flow, import_file
from flowgraph.flows.settings import ResolvedSetting, Suggestion, resolve_settings, split_assignments
from flowgraph.language.graph import Graph, Param
from flowgraph.language.values import Model, State, Trainable
from flowgraph.models.loading import chat_tokenizer
from flowgraph.models.sources import ModelSource, resolve
from flowgraph.passes import Pass, named, simplified
from nodes.data.suggestions import batch_for, suggested

if TYPE_CHECKING:
    from nodes.data.arrow import Table
    from nodes.data.prompt_lengths import PromptCounts
    from nodes.data.sets import DataSet

DEFAULT_MODEL, DEFAULT_DATA, DEFAULT_STEPS, DEFAULT_BATCH = "tiny", "digits", 100, 16


@dataclass(frozen=True, kw_only=True)
class FlowInputs:
    """A flow with the models, rows and settings that a run or a plan needs; `batch` is in prompts per step."""

    file: FlowFile
    graph: Graph
    sources: Mapping[str, ModelSource]
    data: DataSet
    batch: int
    steps: int
    resolved: tuple[ResolvedSetting, ...]
    long_prompts: Mapping[str, PromptCounts] = field(default_factory=dict)
    """What became of long prompts, of `train` and `held-out` rows; empty without a maximum."""
    cache: Path | None = None
    """The folder of downloaded models; None for the default one."""

    def notes(self) -> Iterator[str]:
        """Yield notes on the data: the shares of the prompts if sets have weights, and what became of long prompts."""
        shares = [f"{part.name} {float(part.share):.1%}" for part in self.data.sets if part.share is not None]
        if shares:
            yield f"shares of the prompts: {', '.join(shares)}"
        yield from (f"{split} rows: {counted}" for split, counted in self.long_prompts.items())

    def row_origins(self) -> dict[str, Any]:
        """Return `data_rows`, the number of training rows, and `origins`, each setting's origin by name.

        They are arguments of `PlanningProblem.batch_sizes`.
        """
        origins = {setting.name: setting.origin for setting in self.resolved}
        return {"data_rows": self.data.train.num_rows, "origins": origins}


def cache_folder(cache: Path | None) -> Path:
    """Return `cache` with `~` expanded; for None, the folder `flowgraph` in `$XDG_CACHE_HOME` or else in `~/.cache`."""
    if cache is not None:
        return cache.expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flowgraph"


def described_flow(flow: FlowLike, sets: Sequence[str]) -> tuple[FlowFile, Graph, dict[str, object]]:
    """Return the file of a flow, its graph before passes, and the settings of its nodes by name.

    `sets` are texts `name=value`. The settings of the flow itself are applied in the graph, and not returned. Raises
    UnknownNameError for an unknown flow, SettingError for a text of another form, and the errors of the flow's own
    code.
    """
    file = find_flow(flow)
    flow_settings, node_settings = split_assignments(list(file.flow.signature.settings.model_fields), sets)
    return file, file.flow.graph(flow_settings), node_settings


def compiled_flow(workload: Workload) -> Graph:
    """Return the graph of a workload's flow after all passes, with the workload's settings; no data set is read.

    Raises UnknownNameError for an unknown flow or pass, SettingError for an invalid setting, and the errors of
    `simplified` and of the flow's own code.
    """
    passes = tuple(find_passes(workload.passes))
    _, described, chosen = described_flow(workload.flow, workload.settings)
    return simplified(resolve_settings(named(described), (), chosen)[0], passes)


def find_passes(names: Sequence[str]) -> Iterator[Pass]:
    """Yield the pass for each name: `my.py:name`, or an entry point of the group `flowgraph.passes`.

    The file of a pass is imported, which runs its code. Raises UnknownNameError for a file or a name that does not
    exist, UsageError for a name that is not a function, and the errors of `import_file` and `load`.
    """
    for name in names:
        function: object
        file, _, function_name = name.rpartition(":")
        if not file.endswith(".py"):
            function = load("flowgraph.passes", name)
        elif not Path(file).is_file():
            raise UnknownNameError(f"no such file: {file}", where="--pass")
        else:
            module = import_file(Path(file))
            functions = (name for name, value in vars(module).items() if callable(value) and name[0] != "_")
            if not hasattr(module, function_name):
                raise UnknownNameError.of("pass", function_name, functions, where=file)
            function = getattr(module, function_name)
        if not callable(function):
            hint = "a pass takes a Graph and returns a Graph"
            raise UsageError(f"`{name}` is not a function", where="--pass", hint=hint)
        yield cast("Pass", function)


def read_inputs(workload: Workload) -> FlowInputs:
    """Read the flow, passes, models, rows and settings that a workload names, and return them; no weights are loaded.

    A value that the workload does not set is the one that suits its model or data, if one is known, or else a default.
    `epochs` sets the number of steps, rounded up, unless `steps` is given. Raises, for example, UnknownNameError for an
    unknown flow, SettingError for an invalid setting, ModelError for an unknown model, and DataError for bad rows.
    """
    where, seed = cache_folder(workload.cache), workload.seed or 0
    passes = tuple(find_passes(workload.passes))
    file, described, chosen = described_flow(workload.flow, workload.settings)
    graph = named(described)
    sources = model_sources(graph, workload.model, where)
    main = next(iter(sources.values()), None)
    rows, long_prompts = read_data(workload, workload.data or (DEFAULT_DATA,), main, seed)
    tips = [Suggestion(f"known for model {source.name}", source.suggest(), name) for name, source in sources.items()]
    tips.append(Suggestion(f"known for data {rows.data_source}", suggested(*rows.data_sources)))
    graph, resolved = resolve_settings(graph, tips, chosen)
    graph = simplified(graph, passes)
    of_data = f"known for data {rows.data_source}"
    main_steps, of_main = (main.suggest().get("run.steps"), f"known for model {main.name}") if main else (None, "")
    steps = _pick("steps", workload.steps, DEFAULT_STEPS, main_steps, of_main)
    batch = _pick("batch", workload.batch, DEFAULT_BATCH, batch_for(*rows.data_sources), of_data)
    if workload.epochs is not None and workload.steps is None:
        prompts = Fraction(str(workload.epochs)) * rows.train.num_rows
        steps = replace(steps, value=ceil(prompts / int(batch.value)), origin=f"--epochs {workload.epochs:g}")
    rows.mixed(int(batch.value))  # refuses a set that is too small for its share
    named_models = {text.partition("=")[0] if "=" in text.partition(":")[0] else "" for text in workload.model}
    models = (
        ResolvedSetting(
            name=f"run.model.{name}",
            value=source.name,
            origin="--model" if {name, ""} & named_models else "default",
        )
        for name, source in sources.items()
    )
    data = workload.data[0] if len(workload.data) == 1 else list(workload.data) or None
    seed_setting, data_setting = _pick("seed", seed or None, 0), _pick("data", data, DEFAULT_DATA)
    return FlowInputs(
        file=file,
        graph=graph,
        sources=sources,
        data=rows,
        batch=int(batch.value),
        steps=int(steps.value),
        resolved=(steps, batch, seed_setting, *models, data_setting, *resolved),
        long_prompts=long_prompts,
        cache=workload.cache,
    )


def read_data(
    workload: Workload, data: Sequence[str], model: ModelSource | None, seed: int
) -> tuple[DataSet, dict[str, PromptCounts]]:
    """Read data sets and return them as one, with long prompts dropped or cut, and counts of long prompts by split.

    `data` are the names of the data sets, and `seed` generates built-in ones. The workload's held-out sets replace the
    held-out rows, and its `columns` rename columns. Tokens of prompts are counted with the tokenizer of `model`;
    without a model or a limit in the workload, prompts stay as they are and the counts are empty. Raises, for example,
    DataError for rows that cannot be used, such as a long prompt if the workload refuses these, and ModelError for a
    tokenizer that cannot be read.
    """
    from nodes.data import columns, prompt_lengths
    from nodes.data import sets as data_sets

    cache, limit = cache_folder(workload.cache), workload.max_prompt_tokens
    mapping = columns.parse_columns(workload.columns)
    rows = data_sets.load(data, cache=cache, held_out=workload.held_out or None, seed=seed, columns=mapping)
    counted: dict[str, PromptCounts] = {}
    if limit is None or model is None:
        return rows, counted
    encode = chat_tokenizer(model, cache, lambda line: None).encode

    def fit(split: str, table: Table) -> tuple[Table, Sequence[bool]]:
        name = rows.name if split == "train" else f"{rows.name}, held-out rows,"
        table, stays, counted[split] = prompt_lengths.fit_prompts(
            table, encode, limit, workload.long_prompts or "refuse", name
        )
        return table, stays

    return data_sets.kept(rows, fit), counted


def _pick(name: str, option: Any, default: Any, tip: Any = None, tip_origin: str = "") -> ResolvedSetting:
    value, origin = (default, "default") if tip is None else (tip, tip_origin)
    if option is not None:
        value, origin = option, f"--{name}"
    return ResolvedSetting(name=f"run.{name}", value=value, origin=origin)


def model_params(graph: Graph) -> list[Param]:
    """Return the model parameters of a graph, trainable ones first, otherwise in the order of the graph."""
    params = [param for param in graph.params if issubclass(param.type, Model)]
    return sorted(params, key=lambda param: not issubclass(param.type, Trainable))


def model_sources(graph: Graph, texts: Sequence[str], cache: Path) -> dict[str, ModelSource]:
    """Return the source of each model parameter by name, from texts `PARAM=MODEL` or `MODEL`.

    A bare `MODEL` is for the first of `model_params`, a trainable one if there is any; by default its model is `tiny`.
    Any other parameter without a text gets the same model, without adapters if the parameter is frozen. `cache` is the
    folder of downloaded models. Raises UsageError for an unknown parameter and for two bare models, and ModelError for
    a model that is not found.
    """
    params = model_params(graph)
    names, named, bare = [param.name for param in params], dict[str, str](), list[str]()
    for text in texts:
        name, equals, source = text.partition("=")
        if not (equals and name.isidentifier()):
            bare.append(text)
        elif name in names:
            named[name] = source
        else:
            hint = nearest(name, names)
            raise UsageError(f"flow {graph.name} has no model `{name}`", where=f"--model {text}", hint=hint)
    if len(bare) > 1:
        raise UsageError(f"two models without a parameter: {', '.join(bare)}", where="--model", hint="--model policy=…")
    if not params:
        return {}
    main = resolve(named.get(names[0]) or (bare[0] if bare else DEFAULT_MODEL), cache=cache)
    sources = {name: resolve(text, cache=cache) for name, text in named.items()}
    return {p.name: sources.get(p.name, main if issubclass(p.type, State) else main.base) for p in params}
