"""Values, which travel on the edges of a graph.

A value is an edge while a flow is described and holds data while a node runs. One class serves both, so that type
checkers, `@node` and diagrams read one annotation. Losses are in `loss.py`.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar, cast, dataclass_transform

from flowgraph.errors import FlowTypeError, LawError, nearest
from flowgraph.language.call_site import call_site

if TYPE_CHECKING:
    from torch import Tensor

    from flowgraph.language.graph import Edge
    from flowgraph.language.handle import Handle


_OPERATORS = dict[str, Callable[..., Any]]()


Function = TypeVar("Function", bound=Callable[..., Any])


def cached(function: Function) -> Function:
    """Return a function that keeps its results, as `functools.cache` does, and may be called with classes of values.

    For mypy a class is not Hashable if its instances are not, so that it refuses a call of the function of `cache`.
    """
    return cast("Function", cache(function))


def set_operators(**nodes: Callable[..., Any]) -> None:
    """Set the nodes that operators of values call: `add` for `+`, `scale` for a factor, `multiply` for a product."""
    _OPERATORS.update(nodes)


Head = Literal["tokens", "values", "rewards", "score"]
"""The output of a model's last layer: logits of the next token, a number at each token, or one for the whole text."""


class Kind(enum.StrEnum):
    """The shape of a value in a batch of B rows with up to T tokens each."""

    ROW = "row"  # [B, ...]: one entry a row
    TOKEN = "row x token"  # [B, T]: padded, aligned with the responses
    SCALAR = "scalar"  # one for the batch
    MODEL = "model"  # weights behind a handle
    STATE = "state"  # small carried state other than a model


@dataclass(frozen=True)
class Metric:
    """A number that a node reports: its name, its unit, and whether displays lead with it.

    The name `*` stands for any: a node that declares it may report numbers whose names come from its data.
    """

    name: str
    unit: str = ""
    headline: bool = False
    about: str = ""


@dataclass(frozen=True)
class Measure:
    """One metric as (sum, count), so that means over micro-batches and ranks are exact.

    `rows` has the terms of the total: one for each row, or for each group if `groups` has their numbers. With them, the
    total over several chunks of a batch is that of the whole batch, bit for bit; else the totals of chunks are added.
    """

    name: str
    total: float
    count: float
    rows: Any = field(default=None, compare=False, repr=False)
    groups: Any = field(default=None, compare=False, repr=False)

    @classmethod
    def of_rows(cls, name: str, rows: Tensor, groups: Tensor | None = None) -> Measure:
        """Return the measure of terms [B] or [B, T] of B rows, or [G] of the G groups whose numbers are `groups`.

        Its total is the sum of the terms, and its count the number of rows or groups.
        """
        return cls(name, float(rows.sum()), len(rows), rows, groups)


class Value:
    """One typed value: an edge while a flow is described, data while a node runs.

    `data` is a `torch.Tensor`, a `pyarrow` array or table, or of the type in the subclass' docstring. Reading the data
    of an edge, or using an edge as a condition, raises `FlowTypeError`.
    """

    kind: ClassVar[Kind] = Kind.SCALAR
    dtype: ClassVar[str] = ""  # of an entry of its column, as numpy names it, or "text" or "table"; "" for any
    _edge: Edge | None = None
    _data: Any = None
    measures: tuple[Measure, ...] = ()
    extras: tuple[str, ...] = ()
    """What else is known of each row, a JSON object each: it is recorded with the row, and nodes cannot read it."""

    def __init__(self, data: Any, measures: Sequence[Measure] = ()) -> None:
        self._data, self.measures = data, tuple(measures)

    @classmethod
    def at(cls, edge: Edge) -> Self:
        """Return a symbolic value that represents `edge` in the description of a flow."""
        value = cls.__new__(cls)
        value._edge = edge
        return value

    @property
    def edge(self) -> Edge | None:
        """Return the edge that this value represents in a description, or None if it holds data."""
        return self._edge

    @property
    def data(self) -> Any:
        """Return the data. Raises FlowTypeError if the value only represents an edge in a description."""
        self._refuse("the flow reads the data of")
        return self._data

    def _refuse(self, use: str) -> None:
        if self._edge is not None:
            raise FlowTypeError.not_data(_here(), type(self).__name__, use, self._edge.made())

    if not TYPE_CHECKING:  # or a checker would accept any attribute

        def __setattr__(self, name: str, value: object) -> None:
            self._refuse(f"the flow sets `{name}` of")
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._edge}>" if self._edge else f"{type(self).__name__}({self._data!r})"


def _here() -> str:
    return str(call_site())


def _refusing(name: str, use: str) -> Callable[..., Any]:
    def method(self: Value, *args: object) -> object:
        self._refuse(use)  # pyright: ignore[reportPrivateUsage]
        return _ON_DATA[name](self, *args)

    return method


_ON_DATA: Mapping[str, Callable[..., object]] = {
    "__bool__": lambda self: bool(self.data),
    "__eq__": lambda self, other: self is other,
    "__len__": lambda self: len(self.data),
    "__iter__": lambda self: iter(self.data),
    "__getitem__": lambda self, index: self.data[index],
    "__float__": lambda self: float(self.data),
    "__int__": lambda self: int(self.data),
    "__lt__": lambda self, other: NotImplemented,
    "__le__": lambda self, other: NotImplemented,
    "__gt__": lambda self, other: NotImplemented,
    "__ge__": lambda self, other: NotImplemented,
}
_USES = {"__bool__": "the flow asks for the truth of"} | dict.fromkeys(
    ("__eq__", "__lt__", "__le__", "__gt__", "__ge__"), "the flow compares"
)
for _name in _ON_DATA:
    setattr(Value, _name, _refusing(_name, _USES.get(_name, "the flow reads")))


class State(Value):
    """A value that a run carries from step to step: a parameter of the flow, whose next version the flow returns."""

    kind = Kind.STATE


@dataclass(frozen=True)
class VersionRange:
    """The versions of weights that may draw the tokens of one step, from `oldest` to `newest`."""

    oldest: int
    newest: int

    def __contains__(self, version: int) -> bool:
        return self.oldest <= version <= self.newest

    def __str__(self) -> str:
        return f"{self.oldest}" if self.oldest == self.newest else f"{self.oldest} to {self.newest}"


class Model(Value):
    """Weights behind a handle, at one version, or at any version of a range while responses are drawn.

    Real values are made from a handle. `handle` raises LawError once the weights have been updated, because an update
    is in place and this version no longer exists. `version` is the oldest version of a range, `newest` the newest.
    """

    kind = Kind.MODEL
    head: ClassVar[Head] = "tokens"

    def __init__(self, handle: Handle, version: int | VersionRange = 0) -> None:
        super().__init__(handle)
        versions = version if isinstance(version, VersionRange) else VersionRange(oldest=version, newest=version)
        self.version, self.newest = versions.oldest, versions.newest

    @property
    def handle(self) -> Handle:
        """Return the handle that hosts the model's weights, which are still at this version or range.

        Raises LawError if an update has replaced them, and FlowTypeError if this model only represents an edge.
        """
        handle = cast("Handle", self.data)
        if not self.version <= handle.version <= self.newest:
            what = f"version {self.version} of these weights was consumed by an update; they are at {handle.version}"
            raise LawError(what, hint="use the model that `update` returned")
        return handle

    def advanced(self) -> Self:
        """Add 1 to the version of the handle, whose weights an update has changed, and return a model of that version.

        Reading `handle` of this model then raises LawError, unless its range has the new version too. Raises LawError
        if an earlier update has replaced the version of this model.
        """
        handle = self.handle
        handle.version += 1
        return type(self)(handle, handle.version)


class Trainable(Model, State):
    """A model that `update` can train: its weights and optimizer are carried state."""

    kind = Kind.MODEL


class Linear(Value):
    """A value that can be added to another and multiplied by a number; each operation is a node of the graph."""

    def plus(self, other: Self) -> Self:
        """Return the sum of two values that hold data, with the measures of both."""
        return type(self)(self.data + other.data, (*self.measures, *other.measures))

    def times(self, factor: float) -> Self:
        """Return a value with its data multiplied by `factor`; its measures are not multiplied."""
        return type(self)(self.data * factor, self.measures)

    def __add__(self, other: Self) -> Self:
        return cast("Self", _OPERATORS["add"](self, to=other))

    def __radd__(self, start: int) -> Self:
        if type(start) is int and start == 0:
            return self  # `sum` starts from it
        return NotImplemented

    def __truediv__(self, divisor: float) -> Self:
        if isinstance(divisor, Value) or not divisor:
            raise self._no_operator(f"is divided by {'another value' if isinstance(divisor, Value) else 0}")
        return self * (1 / divisor)

    def _no_operator(self, why: str) -> FlowTypeError:
        hint = f"{type(self).__name__} can be added, and multiplied and divided by numbers; write a @node for the rest"
        return FlowTypeError.bad_call(_here(), type(self).__name__, why, hint)

    def __mul__(self, factor: float) -> Self:
        if isinstance(factor, Value):
            raise self._no_operator(f"is multiplied by {type(factor).__name__}")
        return cast("Self", _OPERATORS["scale"](self, factor=factor))

    __rmul__ = __mul__

    def __neg__(self) -> Self:
        return self * -1.0

    def __sub__(self, other: Self) -> Self:
        return self + other * -1.0


class Elementwise(Linear):
    """A value that adds, and whose entries can also be multiplied by those of another of its type."""

    def multiplied(self, factors: Self) -> Self:
        """Return the product, entry by entry, of two values that hold data, with the measures of both."""
        return type(self)(self.data * factors.data, (*self.measures, *factors.measures))

    def __mul__(self, factor: float | Self) -> Self:
        if isinstance(factor, Elementwise):
            return cast("Self", _OPERATORS["multiply"](self, by=factor))
        return super().__mul__(factor)

    __rmul__ = __mul__


class Mask(Value):
    """Which tokens count: [B, T] of 0 and 1."""

    kind = Kind.TOKEN
    dtype = "float32"


class Tokens(Value):
    """The token ids of the responses: [B, T] int64."""

    kind = Kind.TOKEN
    dtype = "int64"


class Context(Value):
    """The token ids that each row's response follows: B lists of int32 (`pyarrow.ListArray`)."""

    kind = Kind.ROW
    dtype = "int32"


class Lengths(Value):
    """How many tokens of each row are real: [B] int64. Token columns of the same record are padded beyond."""

    kind = Kind.ROW
    dtype = "int64"


class Versions(Value):
    """The version of the policy that sampled each token: [B, T] int64; an update may change it within a response."""

    kind = Kind.TOKEN
    dtype = "int64"


class Group(Value):
    """Which prompt each row answers: [B] int64. The first part of a row's identity."""

    kind = Kind.ROW
    dtype = "int64"


class Sample(Value):
    """Which sample of its prompt each row is: [B] int64. The second part of a row's identity."""

    kind = Kind.ROW
    dtype = "int64"


class Trajectory(Value):
    """Which trajectory of its sample each row is: [B] int64, 0 for a sample with only one. The third part."""

    kind = Kind.ROW
    dtype = "int64"


@dataclass_transform(kw_only_default=True)
class Record(Value):
    """A value with named parts, declared as annotations; each part is a port of the same node."""

    kind = Kind.ROW

    def __init__(self, **parts: Value) -> None:
        super().__init__(None)
        known, record = fields(type(self)), type(self).__name__
        for name in sorted(known.keys() ^ parts.keys()):
            why = f"lacks its part `{name}`" if name in known else f"has no part `{name}`"
            raise FlowTypeError.bad_call(_here(), record, why, f"its parts: {', '.join(known)}")
        for name, part in parts.items():
            if not isinstance(part, known[name]):
                raise FlowTypeError.wrong_type(_here(), f"{record}({name}=)", known[name].__name__, type(part).__name__)
            part._refuse("the flow makes a record of")  # pyright: ignore[reportPrivateUsage]
        self.__dict__.update(parts)

    @property
    def data(self) -> Any:
        """Raise FlowTypeError, since a record has no data: its parts do."""
        self._refuse("the flow reads the data of")
        why = "holds parts, and they hold the data"
        raise FlowTypeError.bad_call(_here(), type(self).__name__, why, f"its parts: {', '.join(self.parts)}")

    def measured(self, *measures: Measure) -> Self:
        """Replace the measures of this record, which its node reports as metrics, and return the record."""
        self.measures = measures
        return self

    @classmethod
    def of(cls, parts: Mapping[str, Value], measures: Sequence[Measure] = ()) -> Self:
        """Return a record of parts that hold data; reading a part that is not in `parts` raises LawError."""
        record = cls.__new__(cls)
        record.__dict__.update(parts)
        record.measures = tuple(measures)
        return record

    @property
    def parts(self) -> dict[str, Any]:
        """Return the parts by name, in the order of declaration; a narrowed record has only some of them.

        For type checkers they may have any type, so that `Other(**record.parts, more=value)` passes.
        """
        names = (name for name in fields(type(self)) if self._edge is not None or name in self.__dict__)
        return {name: getattr(self, name) for name in names}

    @property
    def narrowed(self) -> bool:
        """Return whether this record lacks some of the declared parts; False if it represents an edge."""
        return len(self.parts) < len(fields(type(self)))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Value:
            known, record = fields(type(self)) if not name.startswith("_") else {}, type(self).__name__
            if name not in known:
                hint = nearest(name, known)
                raise AttributeError(f"{record} has no part `{name}`" + (f" ({hint})" if hint else ""))
            if self._edge is None:
                raise LawError.narrowed(record, name, self.parts)
            return known[name].at(self._edge.part(name, known[name]))


@cached
def fields(record: type[Record]) -> dict[str, type[Value]]:
    """Return the type of each part that a record type declares, by name, including inherited parts.

    Raises FlowTypeError for a part whose type cannot be read, is not a value, or is the record's own type or one
    derived from it, and for a part with the name of an attribute of every record.

    >>> class Pair(Record):
    ...     mask: Mask
    >>> list(fields(Pair))
    ['mask']
    """

    def refuse(why: str, hint: str = "") -> FlowTypeError:
        return FlowTypeError.bad_call(_here(), record.__name__, why, hint)

    classes = [cls for cls in reversed(record.__mro__) if issubclass(cls, Record) and cls is not Record]
    try:
        parts = {name: hint for cls in classes for name, hint in inspect.get_annotations(cls, eval_str=True).items()}
    except NameError as error:
        hint = "types are looked up at the top level of its file"
        raise refuse(f"the type of a part is not defined: {error}", hint) from None
    except Exception as error:  # noqa: BLE001 - an annotation is any expression of the user's
        raise refuse(f"the type of a part cannot be read: {error}") from None
    for name, kind in parts.items():
        if not (isinstance(kind, type) and issubclass(kind, Value)):
            raise refuse(f"its part `{name}` is {getattr(kind, '__name__', kind)}, which is not a value")
        if record in kind.__mro__:
            raise refuse(f"its part `{name}` is such a record itself")
        if hasattr(Record, name):
            raise refuse(f"a part cannot be named `{name}`: every record has an attribute of that name")
    return parts
