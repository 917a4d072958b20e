"""Run the bodies of nodes on real values, in order: those of a flow, and those of a loss for each micro-batch."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from flowgraph.errors import FlowError, LawError, UserCodeError, interrupt_behind
from flowgraph.language.call_laws import check_result
from flowgraph.language.graph import Const, Edge, Node, Op, Param, Region
from flowgraph.language.handle import Ranks, SingleRank
from flowgraph.language.keys import Key
from flowgraph.language.loss import Aggregation, Counts, Loss, Term
from flowgraph.language.mask_counts import mask_of
from flowgraph.language.rows import find, find_all, narrowed, row_count, take, widest, without_gradient
from flowgraph.language.values import Context, Group, Lengths, Measure, Model, Value

if TYPE_CHECKING:
    from torch import Tensor

    from flowgraph.runtime.measure.measured_task import MeasuredTask

Env = dict[Node | Param | Const | Edge, Any]
Shared = tuple[tuple[object, str], ...]


@dataclass
class Observations:
    """What nodes report when they run: (sum, count) of each metric, seconds by node name, and measured tasks.

    Of a chunk of a batch, `terms` has the measures that have a term for each row or group, by (node, metric), if it is
    not None: their sums are those of the batch, which `runtime.join_chunks` computes.
    """

    sums: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict[tuple[str, str], tuple[float, float]])
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    measured: list[MeasuredTask] = field(default_factory=list["MeasuredTask"])
    terms: dict[tuple[str, str], Measure] | None = None

    def add(self, node: str, measures: Iterable[Measure]) -> None:
        """Add the measures of a node to `sums`; if `terms` is not None, measures with `rows` are put there instead."""
        for measure in measures:
            if self.terms is not None and measure.rows is not None:
                self.terms[node, measure.name] = measure
                continue
            total, count = self.sums.get((node, measure.name), (0.0, 0.0))
            self.sums[node, measure.name] = (total + measure.total, count + measure.count)

    def merge(self, other: Observations) -> None:
        """Add the sums and measured tasks of `other` to these observations, but not its seconds and terms."""
        for (node, name), (total, count) in other.sums.items():
            self.add(node, [Measure(name, total, count)])
        self.measured += other.measured

    def means(self) -> dict[str, float]:
        """Return the mean of each metric, named `node.metric`; metrics with count 0 are left out."""
        return {f"{node}.{name}": total / count for (node, name), (total, count) in self.sums.items() if count}


def read(env: Env, edge: Edge) -> Value:
    """Return the value on an edge.

    This is the entry for the edge in `env`, or else the result of its source, or the part of that result that
    `edge.port` names. Raises KeyError if `env` has neither.
    """
    if edge in env:
        return cast("Value", env[edge])
    value: Any = edge.source.value if isinstance(edge.source, Const) else env[edge.source]
    for name in edge.port.split(".") if edge.port else ():
        value = value[int(name)] if isinstance(value, tuple) else getattr(value, name)
    return cast("Value", value)


def evaluate(nodes: Sequence[Node], env: Env, key: Key, observed: Observations) -> Env:
    """Run `nodes` in order, add their results to `env`, and return `env`; metrics and seconds are added to `observed`.

    `env` maps nodes, parameters and edges to values; nodes that it already has are skipped. Nodes that read statistics
    of one model on the same batch share one forward pass. `key` names the run's random numbers. Raises the errors of
    `run_body` and `measures_of`, and KeyError if `env` lacks an input.
    """
    forwards = shared_forwards(nodes)
    views: dict[Shared, SharedForward] = {}
    for node in nodes:
        if node in env:
            continue
        start = time.perf_counter()
        inputs: dict[str, Any] = {port: read(env, edge) for port, edge in node.inputs}
        if node.op.stat is not None:
            model = next(port for port, value in inputs.items() if isinstance(value, Model))
            shared = shared_inputs(node)
            view = views.setdefault(shared, SharedForward(inputs[model].handle, forwards[shared]))
            inputs[model] = type(inputs[model])(view, view.version)
        node_key, ranks = replace(key, node=node.name), ranks_of(inputs)
        regions = {port: BoundRegion.of(region, env, node_key, ranks) for port, region in node.regions}
        env[node] = result = run_body(node, inputs | regions, key)
        observed.add(node.name, measures_of(node, result, inputs))
        for region in regions.values():
            observed.merge(region.observed)
        observed.seconds[node.name] = observed.seconds.get(node.name, 0.0) + time.perf_counter() - start
    return env


def ranks_of(inputs: Mapping[str, Any]) -> Ranks:
    """Return the data-parallel ranks that run a node together: those of the first model in `inputs`, else one rank."""
    model = next((value for value in inputs.values() if isinstance(value, Model)), None)
    return model.handle.ranks if model is not None else SingleRank()


def run_body(node: Node, inputs: Mapping[str, Any], key: Key) -> Any:
    """Run a node's body on real inputs, by port, check the result with `check_result`, and return it.

    The body gets records with only the parts that their ports declare, the node's settings and, if it uses random
    numbers, `key` with the node's name. A FlowError of the body or of the check is raised with the node's line: as its
    `where` if that is empty, and else in a note, unless `where` is a line of the same file. Any other exception is
    raised as a UserCodeError. But an exception raised while a KeyboardInterrupt was handled is replaced by that
    interrupt.
    """
    settings = {name: getattr(node.settings, name) for name in node.op.settings.model_fields}
    keys = {node.op.key: replace(key, node=node.name)} if node.op.key else {}
    name = node.name or node.op.name
    try:
        result = node.op.body(**as_declared(node.op, inputs), **settings, **keys)
        check_result(node, result, inputs)
    except Exception as error:
        if (interrupt := interrupt_behind(error)) is not None:
            raise interrupt from None
        if not isinstance(error, FlowError):
            raise UserCodeError.in_node(name, error, str(node.at)) from error
        if not error.where:
            what = f"{name}: {error.what}"
            raise type(error)(what, where=str(node.at), notes=error.notes, hint=error.hint) from error
        line = f"in {name} at {node.at}"  # the error names a line elsewhere: of a user's rule, of a data file
        if not error.where.startswith(f"{Path(node.at.file).name}:") and line not in error.notes:
            error.notes = (*error.notes, line)
        raise
    return result


def as_declared(op: Op, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of a node's body, with each record reduced to the parts that its port declares."""
    parts = {port.name: port.parts for port in op.ports if port.parts}
    return {name: narrowed(value, parts[name]) if name in parts else value for name, value in inputs.items()}


def measures_of(node: Node, result: Any, inputs: Mapping[str, Any]) -> list[Measure]:
    """Return the measures that a node's result reports, without those that came with its inputs.

    Raises LawError for a metric that the op does not declare.
    """
    reported = {id(measure) for value in inputs.values() for measure in getattr(value, "measures", ())}
    values = result if isinstance(result, tuple) else (result,)
    measures = [measure for value in values for measure in value.measures if id(measure) not in reported]
    declared = {metric.name for metric in node.op.metrics}
    for measure in measures:
        if not declared & {measure.name, "*"}:
            raise LawError(f"{node.op.name} reports `{measure.name}`, which it does not declare", where=str(node.at))
    return measures


class SharedForward:
    """A view of a handle whose forward passes compute the statistics `stats`, for all nodes that share a pass."""

    def __init__(self, handle: Any, stats: tuple[str, ...]) -> None:
        self._handle, self._stats, self._results = handle, stats, dict[tuple[object, ...], Any]()

    def token_stats(self, rows: Any, wanted: tuple[str, ...]) -> Any:
        """Run a forward pass over `rows` and return all statistics that nodes of this view read, not only `wanted`.

        Later calls with the same tensors, temperature and truncation return the result of the first pass. An assertion
        fails if `wanted` names a statistic that none of the nodes declares.
        """
        assert set(wanted) <= set(self._stats), "a node reads a statistic that its op does not name"
        batch = (id(rows.context), id(rows.tokens), id(rows.lengths), rows.temperature, rows.truncation)
        if batch not in self._results:
            self._results[batch] = rows, self._handle.token_stats(rows, self._stats)
        return self._results[batch][1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)


def shared_inputs(node: Node) -> Shared:
    """Return a key of a node's inputs; nodes with equal keys read the same values, and can share a forward pass."""
    sources = ((edge.source, edge.port) for _, edge in node.inputs)
    return tuple((source.value if isinstance(source, Const) else source, port) for source, port in sources)


def shared_forwards(nodes: Sequence[Node]) -> dict[Shared, tuple[str, ...]]:
    """Return the sorted statistics that each forward pass of `nodes` must compute, by the nodes' `shared_inputs`."""
    stats = defaultdict[Shared, set[str]](set)
    for node in nodes:
        if node.op.stat is not None:
            stats[shared_inputs(node)].add(node.op.stat)
    return {inputs: tuple(sorted(names)) for inputs, names in stats.items()}


@dataclass(eq=False)
class BoundRegion:
    """A loss with real values for what it captures, as the body of an updating node gets it.

    Captured values with rows are cut to the rows of a micro-batch; others are used whole. `rows` are always indices
    into this rank's batch. If several `ranks` train together, each has its own rows, and all counts are summed.
    """

    region: Region
    captured: dict[Edge, Value]
    key: Key = Key()
    ranks: Ranks = field(default_factory=SingleRank)
    observed: Observations = field(default_factory=Observations)

    @classmethod
    def of(cls, region: Region, env: Env, key: Key = Key(), ranks: Ranks | None = None) -> BoundRegion:
        """Return a loss with the values of its captures from `env`, detached so that no gradient flows into them.

        `ranks` of None is one rank by itself. Raises KeyError if `env` lacks a value.
        """
        constants = dict[int, Value]()  # a value that is read twice stays one
        captured = dict[Edge, Value]()
        for edge in region.captures:
            value = read(env, edge)
            captured[edge] = constants.setdefault(id(value), without_gradient(value))
        return cls(region, captured, key, ranks or SingleRank())

    def __len__(self) -> int:
        return row_count(self.captured.values())

    def groups(self) -> Tensor:
        """Return the index of each row's prompt: [B] int64. Raises `LawError` if no captured record has a Group."""
        group = find(self.captured.values(), Group)
        if group is None:
            raise LawError("the loss captures no record that says which prompt each row answers")
        ids: Tensor = group.data
        return ids

    def prompts(self) -> Tensor:
        """Return the distinct prompt indices of the rows on all ranks, in ascending order: [P] int64.

        All ranks must call it. Raises LawError as `groups` does.
        """
        import torch

        prompts: Tensor = torch.unique(self.ranks.union(self.groups()))
        return prompts

    def level(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return the micro-batches `parts`, followed by empty ones up to the largest number on any rank.

        A micro-batch is a tensor of row indices. All ranks must call it.
        """
        import torch

        count = int(self.ranks.union(torch.tensor([len(parts)])).max())
        return [*parts, *(torch.zeros(0, dtype=torch.int64) for _ in range(count - len(parts)))]

    def tokens(self) -> Tensor:
        """Return the number of response and context tokens of each row, over all captures: [B] int64, at least 1.

        Raises `LawError` if captures have different numbers of rows.
        """
        import torch

        total = torch.zeros(len(self), dtype=torch.int64)
        for lengths in find_all(self.captured.values(), Lengths):
            total += lengths.data.cpu()
        return (total + self.contexts()).clamp(min=1)

    def contexts(self) -> Tensor:
        """Return the number of context tokens of each row, over all captures: [B] int64.

        Raises `LawError` if captures have different numbers of rows.
        """
        import torch

        total = torch.zeros(len(self), dtype=torch.int64)
        for context in find_all(self.captured.values(), Context):
            total += torch.from_numpy(context.data.value_lengths().to_numpy().astype("int64"))
        return total

    def __call__(self, model: Model, rows: Tensor | None = None) -> Loss:
        """Return the loss of these rows (all by default) under `model`; metrics add up in `observed`."""
        import torch

        env = self._bind(rows)
        env[self.region.params[0]] = model
        evaluate(self.region.inner, env, self.key, self.observed)
        for node in self.region.inner:
            mask, part = mask_of(node), env[node]
            if mask is None:
                continue
            if len(part.terms) != 1 or not torch.equal(part.terms[0].mask.float(), read(env, mask).data.float()):
                what = f"{node.op.name} must return one term over the mask that it takes, whose count divides the term"
                hint = "zero values to leave tokens out, or take the narrower mask"
                raise LawError(what, where=str(node.at), hint=hint)
        loss = read(env, self.region.output)
        assert isinstance(loss, Loss)
        return loss

    def counts(self, rows: Tensor) -> tuple[Counts, ...]:
        """Return the counts of each term's mask over `rows` of all ranks, in the order of the terms; no model runs.

        All ranks must call it. Raises LawError for a term with a mask that the region does not count.
        """
        import torch

        env = self._bind(rows)
        masks = {id(mask): mask for mask in (read(env, edge).data for edge in self.region.counts)}
        local = [Term(None, mask, Aggregation.TOKEN_MEAN).counts() for mask in masks.values()]
        numbers = torch.tensor([(count.tokens, count.rows) for count in local], dtype=torch.float64).flatten()
        totals = self.ranks.total(numbers).reshape(-1, 2).tolist()
        counts = {name: Counts(tokens, rows) for name, (tokens, rows) in zip(masks, totals, strict=True)}
        for node in self.region.inner:
            mask = mask_of(node)
            if mask is not None:
                env[node] = Loss([Term(None, read(env, mask).data, Aggregation.TOKEN_MEAN)])
            elif issubclass(node.returns[0], Loss):
                env[node] = run_body(node, {port: read(env, edge) for port, edge in node.inputs}, self.key)
        loss = read(env, self.region.output)
        assert isinstance(loss, Loss)
        for term in loss.terms:
            if id(term.mask) not in counts:
                raise LawError.not_counted(self.region.name, str(self.region.at))
        return tuple(counts[id(term.mask)] for term in loss.terms)

    def _bind(self, rows: Tensor | None) -> Env:
        values = {id(value): value for value in self.captured.values()}
        if rows is not None:
            width = widest(values.values(), rows)
            values = {name: take(value, rows, width) for name, value in values.items()}
        return {edge: values[id(value)] for edge, value in self.captured.items()}
