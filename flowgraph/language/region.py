"""Run nodes on real values, in order. One interpreter serves flows, and regions part by part."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from flowgraph.errors import FlowError, LawError, UserCodeError
from flowgraph.language.call_laws import check_result
from flowgraph.language.graph import Const, Edge, Node, Op, Param, Region
from flowgraph.language.handle import Ranks, SingleRank
from flowgraph.language.keys import Key
from flowgraph.language.loss import Aggregation, Counts, Loss, Term
from flowgraph.language.mask_counts import mask_of
from flowgraph.language.rows import constant, find, find_all, narrowed, row_count, take, widest
from flowgraph.language.values import Context, Group, Lengths, Measure, Model, Value

if TYPE_CHECKING:
    from torch import Tensor

    from flowgraph.runtime.measure.measured_task import MeasuredTask

Env = dict[Node | Param | Const | Edge, Any]
Shared = tuple[tuple[object, str], ...]


@dataclass
class Observations:
    """What a run of nodes reports: (sum, count) of each metric, and seconds, by node name; what tasks took, by rank."""

    sums: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict[tuple[str, str], tuple[float, float]])
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    measured: list[MeasuredTask] = field(default_factory=list["MeasuredTask"])

    def add(self, node: str, measures: Iterable[Measure]) -> None:
        """Add measures of one node to its sums."""
        for measure in measures:
            total, count = self.sums.get((node, measure.name), (0.0, 0.0))
            self.sums[node, measure.name] = (total + measure.total, count + measure.count)

    def merge(self, other: Observations) -> None:
        """Add what another run of nodes reported."""
        for (node, name), (total, count) in other.sums.items():
            self.add(node, [Measure(name, total, count)])
        self.measured += other.measured

    def means(self) -> dict[str, float]:
        """Give each metric's mean as `node.metric`; a metric nobody counted is left out."""
        return {f"{node}.{name}": total / count for (node, name), (total, count) in self.sums.items() if count}


def read(env: Env, edge: Edge) -> Value:
    """Give the value on an edge: as it was put there, or an output of its source, or a part of one."""
    if edge in env:
        return cast("Value", env[edge])
    value: Any = edge.source.value if isinstance(edge.source, Const) else env[edge.source]
    for name in edge.port.split(".") if edge.port else ():
        value = value[int(name)] if isinstance(value, tuple) else getattr(value, name)
    return cast("Value", value)


def evaluate(nodes: Sequence[Node], env: Env, key: Key, observed: Observations) -> Env:
    """Run `nodes` in the order given, each result put into `env`; metrics and seconds go to `observed`.

    Nodes that read statistics of one model on one batch share one forward pass. Errors come back with the node and the
    flow's line; an exception of a user's body is a `UserCodeError`.
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
            where = shared_inputs(node)
            view = views.setdefault(where, SharedForward(inputs[model].handle, forwards[where]))
            inputs[model] = type(inputs[model])(view, view.version)
        own = replace(key, node=node.name)
        regions = {port: BoundRegion.of(region, env, own, ranks_of(inputs)) for port, region in node.regions}
        env[node] = result = run_body(node, inputs | regions, key)
        observed.add(node.name, measures_of(node, result, inputs))
        for region in regions.values():
            observed.merge(region.observed)
        observed.seconds[node.name] = observed.seconds.get(node.name, 0.0) + time.perf_counter() - start
    return env


def ranks_of(inputs: Mapping[str, Any]) -> Ranks:
    """Give the ranks that a node runs on together: those of the first model that it reads."""
    models = (value for value in inputs.values() if isinstance(value, Model))
    first = next(models, None)
    return first.handle.ranks if first is not None else SingleRank()


def run_body(node: Node, inputs: Mapping[str, Any], key: Key) -> Any:
    """Run one node's body on real inputs and check what it gives."""
    settings = {name: getattr(node.settings, name) for name in node.op.settings.model_fields}
    extra = {node.op.key: replace(key, node=node.name)} if node.op.key else {}
    try:
        result = node.op.body(**as_declared(node.op, inputs), **settings, **extra)
        check_result(node, result, inputs)
    except FlowError as error:
        if error.where:
            _say_where(error, node)
            raise
        raise _placed(error, node) from error
    except Exception as error:
        raise UserCodeError.in_node(node.name or node.op.name, error, str(node.at)) from error
    return result


def as_declared(op: Op, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Give a body its inputs, of each record the parts that its port declares."""
    parts = {port.name: port.parts for port in op.ports if port.parts}
    return {name: narrowed(value, parts[name]) if name in parts else value for name, value in inputs.items()}


def _say_where(error: FlowError, node: Node) -> None:
    """Add the flow's line to an error that names a line elsewhere: a user's rule, a data file."""
    flow_line = f"in {node.name or node.op.name} at {node.at}"
    if not error.where.startswith(f"{Path(node.at.file).name}:") and flow_line not in error.notes:
        error.notes = (*error.notes, flow_line)


def _placed(error: FlowError, node: Node) -> FlowError:
    return type(error)(
        f"{node.name or node.op.name}: {error.what}", where=str(node.at), notes=error.notes, hint=error.hint
    )


def measures_of(node: Node, result: Any, inputs: Mapping[str, Any]) -> list[Measure]:
    """Give what a result reports; a metric that its op does not declare is refused.

    What came with an input, which is handed on or added up, has been reported by the node that made it.
    """
    told = {id(measure) for value in inputs.values() for measure in getattr(value, "measures", ())}
    values = result if isinstance(result, tuple) else (result,)
    measures = [measure for value in values for measure in value.measures if id(measure) not in told]
    declared = {metric.name for metric in node.op.metrics}
    for measure in measures:
        if measure.name not in declared:
            raise LawError(f"{node.op.name} reports `{measure.name}`, which it does not declare", where=str(node.at))
    return measures


class SharedForward:
    """A view of a handle for nodes that read one model on one batch: the first asks for all, the others take theirs."""

    def __init__(self, handle: Any, wanted: tuple[str, ...]) -> None:
        self._handle, self._wanted, self._read = handle, wanted, dict[tuple[object, ...], Any]()

    def token_stats(self, rows: Any, wanted: tuple[str, ...]) -> Any:
        """Run the forward pass once for the same rows and temperature, and give its statistics."""
        assert set(wanted) <= set(self._wanted), "a node reads a statistic that its op does not name"
        where = (id(rows.context), id(rows.tokens), id(rows.lengths), rows.temperature)
        if where not in self._read:
            self._read[where] = rows, self._handle.token_stats(rows, self._wanted)
        return self._read[where][1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)


def shared_inputs(node: Node) -> Shared:
    """Name what a node reads, so that two nodes that read the same have the same name; a real value is itself."""
    edges = [edge for _, edge in node.inputs]
    return tuple((e.source.value if isinstance(e.source, Const) else e.source, e.port) for e in edges)


def shared_forwards(nodes: Sequence[Node]) -> dict[Shared, tuple[str, ...]]:
    """Group the nodes that read one forward pass: their common inputs, and the statistics wanted of it."""
    wanted = defaultdict[Shared, set[str]](set)
    for node in nodes:
        if node.op.stat is not None:
            wanted[shared_inputs(node)].add(node.op.stat)
    return {inputs: tuple(sorted(stats)) for inputs, stats in wanted.items()}


@dataclass(eq=False)
class BoundRegion:
    """A region with its captures filled in: what the body of an updating node is given in its region's place.

    Captures are cut by rows, broadcast, or a model, by their kind; `rows` are always indices into the batch that is
    here. Where `ranks` train together each has rows of its own, and counts are those of all.
    """

    region: Region
    captured: dict[Edge, Value]
    key: Key = Key()
    ranks: Ranks = field(default_factory=SingleRank)
    observed: Observations = field(default_factory=Observations)

    @classmethod
    def of(cls, region: Region, env: Env, key: Key = Key(), ranks: Ranks | None = None) -> BoundRegion:
        """Fill in the captures from what has run. They are constants of the loss: no gradient reaches beyond them."""
        values = dict[int, Value]()  # one real value that is read twice stays one
        captured = dict[Edge, Value]()
        for edge in region.captures:
            value = read(env, edge)
            captured[edge] = values.setdefault(id(value), constant(value))
        return cls(region, captured, key, ranks or SingleRank())

    def __len__(self) -> int:
        return row_count(self.captured.values())

    def groups(self) -> Tensor:
        """Give the prompt of each row: [B] int64. Raises `LawError` when nothing captured tells."""
        group = find(self.captured.values(), Group)
        if group is None:
            raise LawError("the loss captures no record that says which prompt each row answers")
        ids: Tensor = group.data
        return ids

    def prompts(self) -> Tensor:
        """Give the prompts that rows of any rank answer, each once, in ascending order: [P] int64."""
        import torch

        everywhere: Tensor = torch.unique(self.ranks.union(self.groups()))
        return everywhere

    def level(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Add empty parts to these micro-batches until this rank has as many as the one that has most (law 7)."""
        import torch

        most = int(self.ranks.union(torch.tensor([len(parts)])).max())
        return [*parts, *(torch.zeros(0, dtype=torch.int64) for _ in range(most - len(parts)))]

    def tokens(self) -> Tensor:
        """Give the tokens of each row, over all that is captured and with what it follows: [B] int64, at least 1.

        Raises `LawError` when what is captured differs in its rows.
        """
        import torch

        total = torch.zeros(len(self), dtype=torch.int64)
        for lengths in find_all(self.captured.values(), Lengths):
            total += lengths.data.cpu()
        return (total + self.contexts()).clamp(min=1)

    def contexts(self) -> Tensor:
        """Give how many tokens each row's responses follow: [B] int64."""
        import torch

        total = torch.zeros(len(self), dtype=torch.int64)
        for context in find_all(self.captured.values(), Context):
            total += torch.from_numpy(context.data.value_lengths().to_numpy().astype("int64"))
        return total

    def __call__(self, model: Model, rows: Tensor | None = None) -> Loss:
        """Compute the loss of these rows (all by default) under `model`; metrics add up in `observed`."""
        env = self._bind(rows)
        env[self.region.params[0]] = model
        evaluate(self.region.inner, env, self.key, self.observed)
        for node in self.region.inner:
            mask = mask_of(node)
            if mask is not None:
                _check_mask(node, env[node], read(env, mask))
        loss = read(env, self.region.output)
        assert isinstance(loss, Loss)
        return loss

    def counts(self, rows: Tensor) -> tuple[Counts, ...]:
        """Count the mask of each of the loss's terms over `rows` of all ranks, without running the model.

        Raises `LawError` when a term's mask is none of those that the region counts.
        """
        import torch

        env = self._bind(rows)
        masks = {id(mask): Term(None, mask, Aggregation.TOKEN_MEAN) for mask in self._masks(env)}
        here = [(each.tokens, each.rows) for each in (term.counts() for term in masks.values())]
        totals = self.ranks.total(torch.tensor(here, dtype=torch.float64).flatten()).reshape(-1, 2).tolist()
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

    def _masks(self, env: Env) -> list[Tensor]:
        return [read(env, edge).data for edge in self.region.counts]

    def _bind(self, rows: Tensor | None) -> Env:
        values = {id(value): value for value in self.captured.values()}
        if rows is not None:
            width = widest(values.values(), rows)
            values = {name: take(value, rows, width) for name, value in values.items()}
        return {edge: values[id(value)] for edge, value in self.captured.items()}


def _check_mask(node: Node, loss: Loss, mask: Value) -> None:
    """Refuse terms over another mask than the one their node takes, which is what is counted."""
    import torch

    if len(loss.terms) != 1 or not torch.equal(loss.terms[0].mask.float(), mask.data.float()):
        what = f"{node.op.name} must give one term, over the mask that it takes: that is what the term is divided by"
        raise LawError(what, where=str(node.at), hint="zero values to leave tokens out, or take the narrower mask")
