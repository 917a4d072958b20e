"""The language: `@node` makes a typed function that describes itself on edges and runs on real values; `@flow` a graph.

No tracer, no context: a call on edges returns edges that hold the call. Laws are in `laws.py`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import traceback
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypedDict, TypeVar, Unpack, cast, overload

from flowgraph.errors import FlowError, FlowTypeError, SettingError, UserCodeError, nearest
from flowgraph.language import call_laws, laws
from flowgraph.language.call_site import Site, call_site
from flowgraph.language.description import RecordedCalls, heard, left_open, overhearing
from flowgraph.language.graph import Const, Edge, Graph, Node, NodeKind, Op, Param, Port, Region
from flowgraph.language.hints import wrong_type
from flowgraph.language.keys import Key
from flowgraph.language.mask_counts import counted
from flowgraph.language.notebook import mimebundle
from flowgraph.language.region import BoundRegion, as_declared, ranks_of
from flowgraph.language.signature import Signature, defined_at, make_settings, read_signature, setting_faults, type_name
from flowgraph.language.traits import RowTrait
from flowgraph.language.values import Metric, Model, Record, Value

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=Model)


class Traits(TypedDict, total=False):
    """What `@node` can be told of a function beyond its signature; see `graph.Op`."""

    kind: NodeKind
    pure: bool
    carries: str
    stat: str
    separable: bool
    rows: RowTrait
    regroups: bool
    on_policy: bool
    samples: Sequence[str]
    metrics: Sequence[Metric]


@overload
def node(fn: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def node(**traits: Unpack[Traits]) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def node(fn: Callable[..., Any] | None = None, /, **traits: Unpack[Traits]) -> Any:
    """Make a node of a typed function.

    Positional parameters are ports (values, or a region as `Callable[[Model], Loss]`); keyword-only ones are ports if
    their type is a value, take the random `Key` if it is that, and are settings otherwise. Called on edges it
    describes itself; called on real values it runs. `carries` names the port whose next version is returned; `stat`
    the statistic of a model's forward pass that it reads; `pure=False` is for effects outside (a key or a carry
    implies it). `rows="new"` is for a node that filters, reorders or makes rows: its result is a record with their ids.
    `on_policy=True` refuses rows that stale weights drew. `samples` names the settings whose product is how many
    responses a generate node draws to each prompt, by which a step is costed: `n` unless it is told.

    Raises `FlowTypeError` for a signature that a graph cannot hold, two positional ports of one type included, and
    for a default that its own type refuses.
    """
    if fn is None:
        for name in traits:
            if name not in Traits.__annotations__:
                hint = nearest(name, Traits.__annotations__)
                raise FlowTypeError.bad_node(str(call_site()), "", f"there is no trait `{name}`", hint)
        return lambda fn: _make_node(fn, traits)
    return _make_node(fn, traits)


def _make_node(fn: Callable[..., Any], traits: Traits) -> Callable[..., Any]:
    signature, kind = read_signature(fn, "node"), traits.get("kind", "host")
    draws = kind == "generate" and any(call_laws.has_ids(call_laws.bound_type(each)) for each in signature.returns)
    rows = traits.get("rows", "new" if draws else "kept")
    counts = traits.get("samples", ("n",) if "n" in signature.settings.model_fields else None)
    op = Op(
        name=fn.__name__,
        module=fn.__module__,
        kind=kind,
        ports=signature.ports,
        returns=signature.returns,
        settings=signature.settings,
        body=fn,
        pure=traits.get("pure", True) and signature.key is None and "carries" not in traits,
        key=signature.key,
        carries=traits.get("carries"),
        stat=traits.get("stat"),
        separable=traits.get("separable", True),
        rows=rows,
        regroups=traits.get("regroups", rows == "new" and kind != "generate"),
        on_policy=traits.get("on_policy", False),
        samples=None if counts is None else tuple(counts),
        metrics=tuple(_listed(traits.get("metrics", ()))),
        about=(inspect.getdoc(fn) or "").partition("\n")[0],
    )
    call_laws.check_op(op, signature)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        overheard = heard()
        if overheard is None or not overheard.going_on:
            return _call(op, signature, args, kwargs)
        try:
            if not any(isinstance(each, Value) and left_open(each.edge) for each in (*args, *kwargs.values())):
                return _call(op, signature, args, kwargs)
        except FlowError as error:
            overheard.faults.append(error)
        return _outputs(_stand_in(op, signature, args, kwargs, overheard))

    call.__dict__["op"] = op
    return call


def _listed(metrics: object) -> Iterable[Any]:
    return metrics if isinstance(metrics, Iterable) else [metrics]


def op_of(fn: Callable[..., Any]) -> Op | None:
    """Give the op of a `@node` function, or None."""
    op = getattr(fn, "op", None)
    return op if isinstance(op, Op) else None


def _call(op: Op, signature: Signature, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Any:
    site = call_site()
    bound = signature.bind(args, kwargs, str(site))
    given = {port.name: bound[port.name] for port in op.ports if port.name in bound}
    kinds = _check_types(op, given, site)
    values = {name: bound[name] for name in op.settings.model_fields if name in bound}
    settings = make_settings(op.settings, values, op.name, str(site))
    regions = {
        port.name: describe_region(op, port, cast("Callable[..., Any]", given[port.name]), kinds[port.type], site)
        for port in op.ports
        if port.region
    }
    inputs = {name: value for name, value in given.items() if isinstance(value, Value)}
    if op.key in bound and not isinstance(bound[op.key], Key):
        raise FlowTypeError.wrong_type(str(site), f"{op.name}({op.key}=)", "Key", type(bound[op.key]).__name__)
    if any(value.edge for value in inputs.values()):
        if op.key in bound:
            why = f"`{op.key}` is filled in when the flow runs"
            raise FlowTypeError.bad_call(str(site), op.name, why, "leave it out")
        edges = tuple((name, value.edge or Edge(Const(value, site), type(value))) for name, value in inputs.items())
        returns = tuple(kinds.get(each) or call_laws.bound_type(each) for each in op.returns)
        return _outputs(Node(op, edges, settings, tuple(regions.items()), returns, site))
    if any(not isinstance(edge.source, Const) for region in regions.values() for edge in region.captures):
        captured = next(e for r in regions.values() for e in r.captures if not isinstance(e.source, Const))
        raise FlowTypeError.bad_call(str(site), op.name, f"real values meet an edge: {captured} {captured.made()}")
    ranks = ranks_of(inputs)
    bound_regions = {name: BoundRegion.of(counted(region), {}, ranks=ranks) for name, region in regions.items()}
    real = as_declared(op, inputs) | bound_regions
    extra = {op.key: bound[op.key]} if op.key and op.key in bound else {}
    return op.body(**real, **{name: getattr(settings, name) for name in op.settings.model_fields}, **extra)


def _stand_in(
    op: Op, signature: Signature, args: Sequence[object], kwargs: Mapping[str, object], overheard: RecordedCalls
) -> Node:
    """Give a node for a call that has a fault, with what is right of it, and find what else is wrong with it."""
    given, site = dict(zip(signature.positional, args, strict=False)) | dict(kwargs), call_site()
    edges, regions = list[tuple[str, Edge]](), list[tuple[str, Region]]()
    kinds: dict[Any, Any] = {}
    for port in op.ports:
        value = given.get(port.name)
        if port.region and inspect.isfunction(value):
            try:
                model = kinds.get(port.type) or _declared(value, port.value_type)
                regions.append((port.name, describe_region(op, port, value, model, site)))
            except FlowError as error:
                overheard.faults.append(error)
        elif not port.region and isinstance(value, Value):
            if not _fits(port, value):
                others = [each for each in given.values() if isinstance(each, Value)]
                overheard.faults.append(wrong_type(op, port, port.value_type, value, others, site))
            elif value.edge is not None:
                edges.append((port.name, value.edge))
                kinds |= {} if left_open(value.edge) else {port.type: type(value)}
    chosen = {name: value for name, value in given.items() if name in op.settings.model_fields}
    overheard.faults += setting_faults(op.settings, chosen, op.name, str(site))
    returns = tuple(kinds.get(each) or call_laws.bound_type(each) for each in op.returns)
    made = Node(op, tuple(edges), op.settings.model_construct(), tuple(regions), returns, site)
    if any(isinstance(each, TypeVar) and each not in kinds for each in op.returns):
        overheard.unknown.add(made)
    return made


def _declared(fn: Callable[..., Any], bound: type[Value]) -> type[Value]:
    """Give the model that a loss says it is of, where the call does not tell."""
    told: Any = next(iter(_local_hints(fn).values()), bound)
    return told if isinstance(told, type) and issubclass(told, bound) else bound


def _check_types(op: Op, given: Mapping[str, object], site: Site) -> dict[Any, type[Value]]:
    """Check each argument against its port; give what each type stands for, TypeVars bound from the arguments."""
    kinds: dict[Any, type[Value]] = {port.type: port.value_type for port in op.ports}
    bound = set[Any]()
    for port in op.ports:
        value = given.get(port.name)
        if port.region:
            if not inspect.isfunction(value):
                raise FlowTypeError.wrong_type(
                    str(site), f"{op.name}({port.name}=)", "a function of a model", type(value).__name__
                )
        elif value is None and port.optional:
            continue
        elif not _fits(port, value) or (port.type in bound and type(value) is not kinds[port.type]):
            others = [each for each in given.values() if isinstance(each, Value)]
            raise wrong_type(op, port, kinds[port.type], value, others, site)
        elif isinstance(port.type, TypeVar) and isinstance(value, Value):
            kinds[port.type] = type(value)
            bound.add(port.type)
    stale = [v.edge for v in given.values() if isinstance(v, Value) and v.edge is not None and v.edge.at_most]
    if stale and op.kind != "generate":
        raise call_laws.stale_read(op, stale[0], site)
    return kinds


def _fits(port: Port, value: object) -> bool:
    if isinstance(value, Value) and left_open(value.edge):
        return issubclass(type(value), port.value_type) or issubclass(port.value_type, type(value))
    return isinstance(value, port.value_type) and port.kind in (None, value.kind)


def _outputs(made: Node) -> Any:
    overheard = heard()
    if overheard is not None:
        overheard.calls.append(made)
    if len(made.returns) == 1:
        return made.returns[0].at(Edge(made, made.returns[0]))
    return tuple(kind.at(Edge(made, kind, str(i))) for i, kind in enumerate(made.returns))


def describe_region(op: Op, port: Port, fn: Callable[..., Any], kind: type[Value], site: Site) -> Region:
    """Describe the function given to a region port: what reads its parameter is inner, the rest is captured.

    Raises `FlowTypeError` when it is a function of another model or returns no loss, `LawError` when it draws.
    """
    at = defined_at(fn)
    names = list(inspect.signature(fn).parameters)
    hints = _local_hints(fn)
    if len(names) != 1:
        raise FlowTypeError.bad_call(str(at), fn.__name__, f"a region takes one model, but this takes {len(names)}")
    declared = hints.get(names[0], kind)
    if not (isinstance(declared, type) and issubclass(kind, declared)):
        raise FlowTypeError.wrong_type(
            str(site),
            f"{op.name}({port.name}=)",
            f"a loss of the {kind.__name__} that it updates",
            f"one of {type_name(declared)}",
            f"`{fn.__name__}` at {at}",
        )
    overheard = heard()
    before = len(overheard.faults) if overheard is not None else 0
    param = Param(names[0], kind, f"the loss `{fn.__name__}` at {at}", at)
    out = fn(kind.at(Edge(param, kind)))
    wanted = port.region_returns or Value
    if not isinstance(out, wanted) or out.edge is None:
        got = "a real value" if isinstance(out, wanted) else type(out).__name__
        raise FlowTypeError.wrong_type(
            str(site),
            f"{op.name}({port.name}=)",
            f"a function that returns {wanted.__name__}",
            got,
            f"`{fn.__name__}` at {at}",
        )
    region = Region.of(fn.__name__, (param,), out.edge, at)
    if overheard is None or len(overheard.faults) == before:  # what a faulty call lacks would be told as a fault too
        call_laws.check_region(op, region, site)
    return region


def _local_hints(fn: Callable[..., Any]) -> dict[str, Any]:
    cells = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
    try:
        return typing.get_type_hints(fn, localns=dict(_filled(cells)))
    except Exception as error:  # noqa: BLE001 - an annotation is any expression of the user's
        what = f"an annotation cannot be read: {error}"
        raise FlowTypeError.bad_call(str(defined_at(fn)), fn.__name__, what) from None


def _filled(cells: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, object]]:
    """Give what a function closes over and has a value by now."""
    for name, cell in cells:
        with contextlib.suppress(ValueError):
            yield name, cell.cell_contents


def stale(model: M, *, at_most: int, corrected: bool = True) -> M:
    """Let a sampling read lag the newest weights by up to `at_most` updates; the plan chooses the lag within it.

    Only a generate node may read the result. A loss on what it draws must correct for the lag (`old=` the log-probs it
    was drawn with), unless the flow says `corrected=False`. On real values nothing changes.
    """
    if not isinstance(cast("object", model), Model):
        raise FlowTypeError.wrong_type(str(call_site()), "stale(model=)", "Model", type(model).__name__)
    if type(at_most) is not int or at_most < 0:
        raise SettingError.refused(str(call_site()), "stale.at_most", at_most, "should be a whole number, 0 or more")
    return type(model).at(replace(model.edge, at_most=at_most, corrected=corrected)) if model.edge else model


class Flow(Generic[P, R]):
    """A typed function of nodes. Called on edges it joins the caller's graph; on real values it runs."""

    def __init__(self, fn: Callable[P, R]) -> None:
        functools.update_wrapper(self, fn)
        self.fn, self.name = fn, fn.__name__
        self.signature = read_signature(fn, "flow")
        self.about = (inspect.getdoc(fn) or "").partition("\n")[0]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Join the caller's graph if called on edges; run on real values."""
        site = call_site()
        bound = self.signature.bind(args, kwargs, str(site))
        fit = _check_arguments(self.name, self.signature.ports, bound, site)
        values = {name: bound[name] for name in self.signature.settings.model_fields if name in bound}
        settings = make_settings(self.signature.settings, values, self.name, str(site))
        out = cast("Callable[..., R]", self.fn)(**bound | {name: getattr(settings, name) for name in values})
        if fit and any(isinstance(value, Value) and value.edge is not None for value in bound.values()):
            self._check_returns(out if isinstance(out, tuple) else (out,))
        return out

    def _check_returns(self, outputs: tuple[Any, ...]) -> None:
        """Hold results to the annotation, but for those that a faulty call leaves open."""
        if not any(isinstance(value, Value) and left_open(value.edge) for value in outputs):
            call_laws.check_returns(self.name, self.signature, outputs)

    def graph(self, settings: Mapping[str, object] | None = None) -> Graph:
        """Describe the flow, with these settings of its keyword-only parameters; checked against the laws.

        Raises errors of ours only: an exception in the flow's own lines is a `UserCodeError` with the line.
        """
        with overhearing() as overheard:
            graph, outputs = self._described(settings or {})
        self._check_returns(outputs)
        graph = _finished(graph, outputs, overheard.calls)
        laws.check("described", graph)
        return graph

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return mimebundle(self)

    def faults(self, settings: Mapping[str, object] | None = None) -> list[FlowError]:
        """Describe the flow and give every fault that is found, in the order of its lines; none for a right one.

        A call that has a fault stands as it can, so that what comes after it is looked at too, by the laws as well; an
        exception in the flow's own lines ends that.
        """
        with overhearing(going_on=True) as overheard:
            try:
                graph, outputs = self._described(settings or {})
                self._check_returns(outputs)
            except FlowError as error:
                return _distinct([*overheard.faults, error])
        told = {fault.where for fault in overheard.faults}
        broken = laws.faults("described", _finished(graph, outputs, overheard.calls))
        return _distinct([*overheard.faults, *(fault for fault in broken if fault.where not in told)])

    def _described(self, settings: Mapping[str, object]) -> tuple[Graph, tuple[Any, ...]]:
        """Call the function on edges; give its graph without results, and what it returned."""
        at, chosen = self.signature.at, make_settings(self.signature.settings, settings, self.name, "--set")
        params = tuple(
            Param(port.name, port.value_type, f"flow {self.name}", at, initial=port.initial)
            for port in self.signature.ports
        )
        arguments: dict[str, Any] = {param.name: param.type.at(Edge(param, param.type)) for param in params}
        arguments |= {name: getattr(chosen, name) for name in self.signature.settings.model_fields}
        try:
            out: Any = cast("Callable[..., Any]", self.fn)(**arguments)
        except FlowError:
            raise
        except (Exception, SystemExit) as error:
            raise UserCodeError.raised(
                f"flow {self.name}", error, line_of(error, at.file), _in_a_body(error)
            ) from error
        return Graph(self.name, params, (), at, chosen), out if isinstance(out, tuple) else (out,)


def _in_a_body(error: BaseException) -> str:
    """Say where arithmetic on values belongs, if that is what a flow tried."""
    tried = isinstance(error, TypeError) and "unsupported operand" in str(error)
    tried |= isinstance(error, AttributeError) and isinstance(error.obj, Value) and not isinstance(error.obj, Record)
    return "a value holds data only in the body of a @node: what computes with it belongs there" if tried else ""


def _distinct(faults: Sequence[FlowError]) -> list[FlowError]:
    """Give each fault once, by line: a loss is described again where the call that takes it has a fault."""
    return sorted({str(fault): fault for fault in faults}.values(), key=_line)


def _line(fault: FlowError) -> tuple[str, int]:
    file, _, line = fault.where.rpartition(":")
    return (file, int(line)) if line.isdecimal() else (fault.where, 0)


def _finished(graph: Graph, outputs: Sequence[Any], calls: Sequence[Node]) -> Graph:
    """Add a flow's results, and the calls that they do not reach."""
    whole = replace(graph, outputs=tuple(cast("Edge", value.edge) for value in outputs))
    read = set(whole.all_nodes)
    return replace(whole, dropped=tuple(call for call in calls if call not in read))


def _check_arguments(name: str, ports: Sequence[Port], bound: Mapping[str, object], site: Site) -> bool:
    """Refuse what does not fit a flow's parameters; where faults are collected, say whether all fits."""
    fit = True
    for port in ports:
        value = bound[port.name]
        if not _fits(port, value):
            fit = False
            made = value.edge.made() if isinstance(value, Value) and value.edge else ""
            wanted, got = port.value_type.__name__, type(value).__name__
            error = FlowTypeError.wrong_type(str(site), f"{name}({port.name}=)", wanted, got, made)
            overheard = heard()
            if overheard is None or not overheard.going_on:
                raise error
            overheard.faults.append(error)
    return fit


def line_of(error: BaseException, file: str) -> str:
    """Give the line of `file` at which an exception was raised, or that called what raised it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{Path(file).name}:{frames[-1].lineno}" if frames else Path(file).name


def flow(fn: Callable[P, R]) -> Flow[P, R]:
    """Make a flow of a typed function; it is described when first asked for its graph, never when imported."""
    return Flow(fn)
