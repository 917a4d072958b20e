"""The language: `@node` makes a function that describes itself on edges and runs on real values; `@flow` makes a graph.

No tracer, no context: a call on edges returns edges that hold the call. Laws are in `laws.py`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import traceback
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypedDict, TypeVar, Unpack, cast, overload

from flowgraph.errors import FlowError, FlowTypeError, LawError, SettingError, UserCodeError, nearest
from flowgraph.language import call_laws, laws
from flowgraph.language.call_site import Site, call_site
from flowgraph.language.description import RecordedCalls, current_record, has_unknown_type, recording
from flowgraph.language.graph import Const, Edge, Graph, Node, NodeKind, Op, Param, Port, Region, lag_text
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
    """The arguments of `@node` beyond a function's signature; see `graph.Op`."""

    kind: NodeKind
    pure: bool
    carries: str
    stat: str
    separable: bool
    rows: RowTrait
    regroups: bool
    on_policy: bool
    hands_out: bool
    samples: Sequence[str]
    metrics: Sequence[Metric]


@overload
def node(fn: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def node(**traits: Unpack[Traits]) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def node(fn: Callable[..., Any] | None = None, /, **traits: Unpack[Traits]) -> Any:
    """Return a function that adds a node to the graph of a flow that is described, and runs `fn` on real values.

    Without `fn`, return a decorator. Positional parameters of `fn` are ports (values, or a loss as `Callable[[Model],
    Loss]`). A keyword-only parameter of such a type is a port too; one of type `Key` is the random key, and any other a
    setting. `carries` names the port whose next version the node returns, `stat` the statistic of a model's forward
    pass that it reads; `pure=False` is for effects outside (a key or `carries` implies it). `rows="new"` is for a node
    that filters or makes rows, `rows="reordered"` for one that reorders them: its result is a record with their ids.
    `on_policy=True` refuses rows that stale weights sampled. `samples` names the settings whose product is the number
    of responses that a generate node samples for each prompt, by default `n`. `graph.Op` describes the other traits.

    Raises FlowTypeError for an unknown trait or an invalid value of one, for a default that its own type refuses, and
    for a signature that a graph cannot hold, for example with two positional ports of one type.
    """
    if fn is not None:
        return _make_node(fn, traits)
    for name in traits:
        if name not in Traits.__annotations__:
            hint = nearest(name, Traits.__annotations__)
            raise FlowTypeError.bad_node(str(call_site()), "", f"no trait `{name}`", hint)
    return lambda fn: _make_node(fn, traits)


def _make_node(fn: Callable[..., Any], traits: Traits) -> Callable[..., Any]:
    signature, kind = read_signature(fn, "node"), traits.get("kind", "host")
    makes_rows = kind == "generate" and any(map(call_laws.has_ids, map(call_laws.bound_type, signature.returns)))
    rows = traits.get("rows", "new" if makes_rows else "kept")
    counts = traits.get("samples", ("n",) if "n" in signature.settings.model_fields else None)
    metrics: object = traits.get("metrics", ())
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
        hands_out=traits.get("hands_out", False),
        samples=None if counts is None else tuple(counts),
        metrics=tuple(cast("Iterable[Metric]", metrics if isinstance(metrics, Iterable) else [metrics])),
        about=(inspect.getdoc(fn) or "").partition("\n")[0],
    )
    call_laws.check_op(op, signature)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        record = current_record()
        if record is None or not record.going_on:
            return _call(op, signature, args, kwargs)
        try:
            if not any(
                isinstance(value, Value) and has_unknown_type(value.edge) for value in (*args, *kwargs.values())
            ):
                return _call(op, signature, args, kwargs)
        except FlowError as error:
            record.faults.append(error)
        return _outputs(_stand_in(op, signature, args, kwargs, record))

    call.__dict__["op"] = op
    return call


def op_of(fn: Callable[..., Any]) -> Op | None:
    """Return the op of a `@node` function, or None for any other function."""
    op = getattr(fn, "op", None)
    return op if isinstance(op, Op) else None


def _call(op: Op, signature: Signature, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Any:
    site, label = call_site(), ""
    if signature.named_by_call and "name" in kwargs:
        label = signature.label(kwargs["name"], str(site))
        kwargs = {name: value for name, value in kwargs.items() if name != "name"}
    bound = signature.bind(args, kwargs, str(site))
    arguments = {port.name: bound[port.name] for port in op.ports if port.name in bound}
    kinds = _check_types(op, arguments, site)
    values = {name: bound[name] for name in op.settings.model_fields if name in bound}
    settings = make_settings(op.settings, values, op.name, str(site))
    regions = {
        port.name: describe_region(op, port, cast("Callable[..., Any]", arguments[port.name]), kinds[port.type], site)
        for port in op.ports
        if port.region
    }
    inputs = {name: value for name, value in arguments.items() if isinstance(value, Value)}
    if op.key in bound and not isinstance(bound[op.key], Key):
        raise FlowTypeError.wrong_type(str(site), f"{op.name}({op.key}=)", "Key", type(bound[op.key]).__name__)
    if any(value.edge for value in inputs.values()):
        if op.key in bound:
            why = f"`{op.key}` is filled in when the flow runs"
            raise FlowTypeError.bad_call(str(site), op.name, why, "leave it out")
        edges = tuple((name, value.edge or Edge(Const(value, site), type(value))) for name, value in inputs.items())
        returns = tuple(kinds.get(hint) or call_laws.bound_type(hint) for hint in op.returns)
        return _outputs(Node(op, edges, settings, tuple(regions.items()), returns, site, label=label))
    captures = (edge for region in regions.values() for edge in region.captures)
    if captured := next((edge for edge in captures if not isinstance(edge.source, Const)), None):
        why = f"real values are mixed with edges: {captured} {captured.made()}"
        raise FlowTypeError.bad_call(str(site), op.name, why)
    ranks = ranks_of(inputs)
    bound_regions = {name: BoundRegion.of(counted(region), {}, ranks=ranks) for name, region in regions.items()}
    real = as_declared(op, inputs) | bound_regions
    key = {op.key: bound[op.key]} if op.key and op.key in bound else {}
    return op.body(**real, **{name: getattr(settings, name) for name in op.settings.model_fields}, **key)


def _stand_in(
    op: Op, signature: Signature, args: Sequence[object], kwargs: Mapping[str, object], record: RecordedCalls
) -> Node:
    """Return a node for the valid part of a call that has a fault, and record the other faults of the call."""
    arguments, site = dict(zip(signature.positional, args, strict=False)) | dict(kwargs), call_site()
    edges, regions = list[tuple[str, Edge]](), list[tuple[str, Region]]()
    kinds: dict[Any, Any] = {}
    for port in op.ports:
        value = arguments.get(port.name)
        if port.region and inspect.isfunction(value):
            try:
                model = kinds.get(port.type) or _declared_model(value, port.value_type)
                regions.append((port.name, describe_region(op, port, value, model, site)))
            except FlowError as error:
                record.faults.append(error)
        elif not port.region and isinstance(value, Value):
            if not _fits(port, value):
                record.faults.append(wrong_type(op, port, port.value_type, value, arguments.values(), site))
            elif value.edge is not None:
                edges.append((port.name, value.edge))
                kinds |= {} if has_unknown_type(value.edge) else {port.type: type(value)}
    chosen = {name: value for name, value in arguments.items() if name in op.settings.model_fields}
    record.faults += setting_faults(op.settings, chosen, op.name, str(site))
    returns = tuple(kinds.get(hint) or call_laws.bound_type(hint) for hint in op.returns)
    node = Node(op, tuple(edges), op.settings.model_construct(), tuple(regions), returns, site)
    if any(isinstance(hint, TypeVar) and hint not in kinds for hint in op.returns):
        record.unknown.add(node)
    return node


def _declared_model(fn: Callable[..., Any], bound: type[Value]) -> type[Value]:
    declared: Any = next(iter(_local_hints(fn).values()), bound)
    return declared if isinstance(declared, type) and issubclass(declared, bound) else bound


def _check_types(op: Op, arguments: Mapping[str, object], site: Site) -> dict[Any, type[Value]]:
    """Check arguments against their ports; return the classes that types stand for, TypeVars bound by arguments."""
    kinds: dict[Any, type[Value]] = {port.type: port.value_type for port in op.ports}
    bound = set[Any]()
    for port in op.ports:
        value = arguments.get(port.name)
        if port.region:
            if not inspect.isfunction(value):
                name = f"{op.name}({port.name}=)"
                raise FlowTypeError.wrong_type(str(site), name, "a function of a model", type(value).__name__)
        elif value is None and port.optional:
            continue
        elif not _fits(port, value) or (port.type in bound and type(value) is not kinds[port.type]):
            raise wrong_type(op, port, kinds[port.type], value, arguments.values(), site)
        elif isinstance(port.type, TypeVar) and isinstance(value, Value):
            kinds[port.type] = type(value)
            bound.add(port.type)
    edges = (value.edge for value in arguments.values() if isinstance(value, Value))
    stale_edge = next((edge for edge in edges if edge is not None and edge.at_most), None)
    if stale_edge is not None and op.kind != "generate":
        what = f"{op.name} reads {stale_edge} {lag_text(stale_edge.at_most)}; only generate nodes may do so"
        raise LawError(what, where=str(site), hint="give the stale model to a generate node only")
    return kinds


def _fits(port: Port, value: object) -> bool:
    if isinstance(value, Value) and has_unknown_type(value.edge):
        return issubclass(type(value), port.value_type) or issubclass(port.value_type, type(value))
    return isinstance(value, port.value_type) and port.kind in (None, value.kind)


def _outputs(node: Node) -> Any:
    record = current_record()
    if record is not None:
        record.calls.append(node)
    if len(node.returns) == 1:
        return node.returns[0].at(Edge(node, node.returns[0]))
    return tuple(kind.at(Edge(node, kind, str(i))) for i, kind in enumerate(node.returns))


def describe_region(op: Op, port: Port, fn: Callable[..., Any], kind: type[Value], site: Site) -> Region:
    """Return, as a Region, the loss that `fn` describes when it is called on the edge of a model of type `kind`.

    Nodes that depend on the parameter of `fn` are `inner`; other values that these nodes read are captured. `op`,
    `port` and `site` are the call that takes the loss. Raises FlowTypeError if `fn` has an annotation that cannot be
    read, does not take exactly one model of this type, or does not return a loss that is an edge; LawError if the loss
    breaks a law of `check_region`, unless faults of `fn` were recorded. Exceptions in `fn` pass through.
    """
    at = defined_at(fn)
    names = list(inspect.signature(fn).parameters)
    hints = _local_hints(fn)
    if len(names) != 1:
        raise FlowTypeError.bad_call(str(at), fn.__name__, f"a region takes one model, but this takes {len(names)}")

    def wrong(expected: str, got: str) -> FlowTypeError:
        return FlowTypeError.wrong_type(
            str(site), f"{op.name}({port.name}=)", expected, got, f"`{fn.__name__}` at {at}"
        )

    declared = hints.get(names[0], kind)
    if not (isinstance(declared, type) and issubclass(kind, declared)):
        raise wrong(f"a loss of the {kind.__name__} that it updates", f"one of {type_name(declared)}")
    record = current_record()
    before = len(record.faults) if record is not None else 0
    param = Param(names[0], kind, f"the loss `{fn.__name__}` at {at}", at)
    out = fn(kind.at(Edge(param, kind)))
    loss = port.region_returns or Value
    if not isinstance(out, loss) or out.edge is None:
        got = "a real value" if isinstance(out, loss) else type(out).__name__
        raise wrong(f"a function that returns {loss.__name__}", got)
    region = Region.of(fn.__name__, (param,), out.edge, at)
    if record is None or len(record.faults) == before:  # what a faulty call lacks would be reported again
        call_laws.check_region(op, region, site)
    return region


def _local_hints(fn: Callable[..., Any]) -> dict[str, Any]:
    names = dict[str, object]()
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # the name has no value yet
            names[name] = cell.cell_contents
    try:
        return typing.get_type_hints(fn, localns=names)
    except Exception as error:  # noqa: BLE001 - an annotation is any expression of the user's
        what = f"an annotation cannot be read: {error}"
        raise FlowTypeError.bad_call(str(defined_at(fn)), fn.__name__, what) from None


def stale(model: M, *, at_most: int, corrected: bool = True) -> M:
    """Return a model whose weights may be up to `at_most` updates older than the newest; the plan chooses how many.

    Only a generate node may read the returned model. A loss on its samples must correct for the lag (`old=` the
    log-probs they were sampled with), unless the flow says `corrected=False`. Real values are returned unchanged.
    Raises FlowTypeError for anything but a model, and SettingError if `at_most` is not a whole number of at least 0.
    """
    if not isinstance(cast("object", model), Model):
        raise FlowTypeError.wrong_type(str(call_site()), "stale(model=)", "Model", type(model).__name__)
    if type(at_most) is not int or at_most < 0:
        raise SettingError.refused(str(call_site()), "stale.at_most", at_most, "should be a whole number, 0 or more")
    return type(model).at(replace(model.edge, at_most=at_most, corrected=corrected)) if model.edge else model


class Flow(Generic[P, R]):
    """A typed function of nodes: called on edges, it adds its nodes to the caller's graph; on real values, it runs."""

    def __init__(self, fn: Callable[P, R]) -> None:
        functools.update_wrapper(self, fn)
        self.fn, self.name = fn, fn.__name__
        self.signature = read_signature(fn, "flow")
        self.about = (inspect.getdoc(fn) or "").partition("\n")[0]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the flow's results: edges if called on edges, or values if called on real values."""
        site = call_site()
        bound = self.signature.bind(args, kwargs, str(site))
        record, fit = current_record(), True
        for port in self.signature.ports:
            value = bound[port.name]
            if not _fits(port, value):
                fit = False
                origin = value.edge.made() if isinstance(value, Value) and value.edge else ""
                name, expected, got = f"{self.name}({port.name}=)", port.value_type.__name__, type(value).__name__
                error = FlowTypeError.wrong_type(str(site), name, expected, got, origin)
                if record is None or not record.going_on:
                    raise error
                record.faults.append(error)
        values = {name: bound[name] for name in self.signature.settings.model_fields if name in bound}
        settings = make_settings(self.signature.settings, values, self.name, str(site))
        out = cast("Callable[..., R]", self.fn)(**bound | {name: getattr(settings, name) for name in values})
        if fit and any(isinstance(value, Value) and value.edge is not None for value in bound.values()):
            self._check_returns(out if isinstance(out, tuple) else (out,))
        return out

    def _check_returns(self, outputs: tuple[Any, ...]) -> None:
        if not any(isinstance(value, Value) and has_unknown_type(value.edge) for value in outputs):
            call_laws.check_returns(self.name, self.signature, outputs)

    def graph(self, settings: Mapping[str, object] | None = None) -> Graph:
        """Return the graph of the flow, after a check of the laws; `settings` are its keyword-only parameters by name.

        Each call describes the flow again. Raises a FlowError for invalid settings, a fault of the description or a
        broken law; an exception in the flow's own lines becomes a UserCodeError with the line.
        """
        with recording() as record:
            graph, outputs = self._described(settings or {})
        self._check_returns(outputs)
        graph = _with_results(graph, outputs, record.calls)
        laws.check("described", graph)
        return graph

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return mimebundle(self)

    def faults(self, settings: Mapping[str, object] | None = None) -> list[FlowError]:
        """Return the distinct faults of the flow in the order of its lines; an empty list for a correct flow.

        `settings` are values of its keyword-only parameters by name. After a faulty call, the description continues
        with the valid part of the call. Invalid settings or results, or an exception in the flow's own lines, end the
        description, and then the laws are not checked. A broken law is left out if its line has another fault.
        """
        with recording(going_on=True) as record:
            try:
                graph, outputs = self._described(settings or {})
                self._check_returns(outputs)
            except FlowError as error:
                return _distinct([*record.faults, error])
        lines = {fault.where for fault in record.faults}
        broken = laws.faults("described", _with_results(graph, outputs, record.calls))
        return _distinct([*record.faults, *(fault for fault in broken if fault.where not in lines)])

    def _described(self, settings: Mapping[str, object]) -> tuple[Graph, tuple[Any, ...]]:
        """Call the function on edges; return its graph without results, and what it returned."""
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
            owner = error.obj if isinstance(error, AttributeError) else None
            computes = isinstance(error, TypeError) and "unsupported operand" in str(error)
            computes = computes or (isinstance(owner, Value) and not isinstance(owner, Record))  # a method of data
            hint = "compute with a value in the body of a @node, where it holds data" if computes else ""
            raise UserCodeError.raised(f"flow {self.name}", error, traceback_line(error, at.file), hint) from error
        return Graph(self.name, params, (), at, chosen), out if isinstance(out, tuple) else (out,)


def _distinct(faults: Sequence[FlowError]) -> list[FlowError]:
    """Return distinct faults by line; a loss is described a second time where the call that takes it has a fault."""

    def line(fault: FlowError) -> tuple[str, int]:
        file, _, number = fault.where.rpartition(":")
        return (file, int(number)) if number.isdecimal() else (fault.where, 0)

    return sorted({str(fault): fault for fault in faults}.values(), key=line)


def _with_results(graph: Graph, outputs: Sequence[Any], calls: Sequence[Node]) -> Graph:
    complete = replace(graph, outputs=tuple(cast("Edge", value.edge) for value in outputs))
    read = set(complete.all_nodes)
    return replace(complete, dropped=tuple(call for call in calls if call not in read))


def traceback_line(error: BaseException, file: str) -> str:
    """Return `name:line` of the innermost frame of `file` in an exception's traceback; `name` alone if it has none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{Path(file).name}:{frames[-1].lineno}" if frames else Path(file).name


def flow(fn: Callable[P, R]) -> Flow[P, R]:
    """Return a `Flow` of a typed function; the function is first called when the flow is called or its graph is needed.

    Raises FlowTypeError if the function's signature cannot be that of a flow.
    """
    return Flow(fn)
