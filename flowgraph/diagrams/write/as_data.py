"""Write any picture as JSON, and read it back unchanged.

pydantic would ignore a field that a standard dataclass does not have, and refuse text with half a surrogate pair, which
a label may hold.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from flowgraph.diagrams.model.charts import Comparison, Curves, Drawing, Lanes, MemoryChart, Scatter
from flowgraph.diagrams.model.labels import shortened
from flowgraph.diagrams.model.picture import Picture, SequenceDiagram
from flowgraph.errors import DataError, nearest
from flowgraph.files.untrusted import parse_json

SCHEMA = 1

KINDS: Mapping[str, type[Drawing]] = {
    "boxes": Picture,
    "sequence": SequenceDiagram,
    "lanes": Lanes,
    "memory": MemoryChart,
    "comparison": Comparison,
    "scatter": Scatter,
    "curves": Curves,
}
"""Each kind of picture by its word in JSON."""
WORDS = {kind: word for word, kind in KINDS.items()}

SCALARS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}

Fault = tuple[str, str]  # its place, and what is wrong there

# A letter first and a digit last, so that no id is a word of Mermaid or DOT.
_ID = re.compile(r"[a-z][a-z0-9_]{0,38}[0-9]")


def as_json(drawing: Drawing) -> str:
    """Return a picture as ASCII JSON with the schema number, the kind of picture and its fields, for `from_json`.

    Labels are unchanged. NaN and infinities, as in a run's curve, are written as the texts "nan", "inf" or "-inf".
    """
    fields = {"schema": SCHEMA, "picture": WORDS[type(drawing)]} | to_plain(drawing)
    return json.dumps(fields, indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def from_json(text: str, where: str = "picture") -> Drawing:
    """Return the picture in a JSON text that `as_json` wrote.

    Raises DataError, with `where` and the place of the first fault, if the text is not a JSON object of this schema and
    a known kind, if a field is missing, unknown or of another type, if an id is malformed or used twice, if a box,
    frame, arrow or message refers to an unknown id, if a frame is inside itself, or if a forecast size or a time is not
    a finite number of 0 or more, or a bar ends before it starts. The points of curves are not checked.
    """
    try:
        fields = parse_json(text, whole=False)  # labels are cleaned when they are written
    except ValueError as fault:
        raise DataError.failed(where, "is not JSON", fault) from None
    if not isinstance(fields, dict):
        raise DataError.unusable(where, "is not a record")
    schema, word = fields.pop("schema", None), fields.pop("picture", None)
    if type(schema) is not int or schema != SCHEMA:
        raise DataError.unusable(where, f"its `schema` is {ascii(schema)[:40]}", f"this version reads {SCHEMA}")
    if not isinstance(word, str) or word not in KINDS:
        raise DataError.unusable(where, f"its `picture` is {ascii(word)[:40]}", nearest(str(word), KINDS))
    drawing: Drawing = from_plain(KINDS[word], fields, where)
    for place, reason in _faults(drawing):
        raise DataError.unusable(f"{where}.{place}", reason)
    return drawing


def _faults(drawing: Drawing) -> Iterator[Fault]:
    match drawing:
        case Picture():
            yield from _picture_faults(drawing)
        case SequenceDiagram(actors=actors):
            ids = [actor.id for actor in actors]
            yield from _id_faults(actors=ids)
            for place, message in enumerate(drawing.messages):
                if not {message.source, message.target} <= set(ids):
                    yield f"messages[{place}]", "its source or target is not the id of an actor"
        case Lanes():
            yield from _lane_faults(drawing)
        case MemoryChart() | Comparison() | Scatter():
            for place_text, size in _sizes(drawing):
                if not 0 <= size < math.inf:
                    yield place_text, "has a size that is not a finite number of 0 or more"
        case _:
            return


def _picture_faults(picture: Picture) -> Iterator[Fault]:
    boxes, parents = [box.id for box in picture.boxes], {frame.id: frame.parent for frame in picture.frames}
    yield from _id_faults(boxes=boxes, frames=[frame.id for frame in picture.frames])
    for place, box in enumerate(picture.boxes):
        if box.inside is not None and box.inside not in parents:
            yield f"boxes[{place}].inside", "is not the id of a frame"
    for place, frame in enumerate(picture.frames):
        if frame.parent is not None and frame.parent not in parents:
            yield f"frames[{place}].parent", "is not the id of a frame"
        around, outer = {frame.id}, frame.parent
        while outer is not None and outer in parents:
            if outer in around:
                yield f"frames[{place}].parent", "is inside itself"
                break
            around.add(outer)
            outer = parents[outer]
    for place, arrow in enumerate(picture.arrows):
        if not {arrow.source, arrow.target} <= set(boxes):
            yield f"arrows[{place}]", "its source or target is not the id of a box"


def _lane_faults(lanes: Lanes) -> Iterator[Fault]:
    if not 0 <= lanes.end_s < math.inf:
        yield "end_s", "must be a finite number of seconds, 0 or more"
    for i, lane in enumerate(lanes.lanes):
        for j, bar in enumerate(lane.bars):
            if not 0 <= bar.start_s <= bar.end_s < math.inf:
                yield f"lanes[{i}].bars[{j}]", "must start at 0 s or later, and end no sooner than it starts"


def _id_faults(**fields: Iterable[str]) -> Iterator[Fault]:
    used = set[str]()
    for field, ids in fields.items():
        for place, name in enumerate(ids):
            if not _ID.fullmatch(name):
                yield f"{field}[{place}].id", "must be lowercase letters and digits, a letter first and a digit last"
            if name in used:
                yield f"{field}[{place}].id", f"is used twice: {name}"
            used.add(name)


def _sizes(drawing: MemoryChart | Comparison | Scatter) -> Iterator[tuple[str, float]]:
    match drawing:
        case MemoryChart(stores=stores):
            for i, store in enumerate(stores):
                yield f"stores[{i}]", min(store.capacity_bytes, store.room_bytes)
                for j, phase in enumerate(store.phases):
                    sizes = [*(size for _, size in phase.held), phase.measured_bytes or 0]
                    yield from ((f"stores[{i}].phases[{j}]", size) for size in sizes)
        case Comparison(strips=strips):
            yield from ((f"strips[{i}]", strip.seconds or 0.0) for i, strip in enumerate(strips))
        case Scatter(dots=dots):
            yield from ((f"dots[{i}]", size) for i, dot in enumerate(dots) for size in (dot.seconds, dot.memory_bytes))


def to_plain(value: Any) -> Any:
    """Return a value as JSON-compatible data; `from_plain` is the inverse.

    Dataclasses become dicts by field, tuples and lists become lists, and enums their values; infinities and NaN become
    texts such as "nan". Other values are returned unchanged.

    >>> to_plain((1, float("nan"), "a"))
    [1, 'nan', 'a']
    """
    if dataclasses.is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value.value if isinstance(value, enum.Enum) else value


def from_plain(kind: Any, value: Any, where: str) -> Any:
    """Return JSON-compatible data, as `to_plain` makes it, as a value of type `kind`.

    `kind` is a dataclass, a tuple type, a union, a Literal, an Enum or a scalar type. `where` names `value` in error
    messages; nested fields are appended to this name, as in `steps[1]`. Raises DataError if the data does not fit.

    >>> from_plain(tuple[int, ...], [1, 2], "steps")
    (1, 2)
    """
    if dataclasses.is_dataclass(kind):
        return _record(kind, value, where)
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise _wrong(where, value, "a list")
        kinds = get_args(kind)
        kinds = kinds[:1] * len(value) if kinds[-1] is Ellipsis else kinds
        if len(kinds) != len(value):
            raise DataError.unusable(where, f"has {len(value)} parts, not {len(kinds)}")
        items = enumerate(zip(kinds, value, strict=True))
        return tuple(from_plain(item_kind, item, f"{where}[{place}]") for place, (item_kind, item) in items)
    if get_origin(kind) in (Union, types.UnionType, Literal) or issubclass(kind, enum.Enum):
        return _choice(kind, value, where)
    if kind is float and value in ("nan", "inf", "-inf"):
        return float(value)
    if not isinstance(value, (int, float) if kind is float else kind) or (kind is not bool and isinstance(value, bool)):
        raise _wrong(where, value, SCALARS[kind])
    return value


def _record(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise _wrong(where, value, "a record")
    fields, kinds = {field.name: field for field in dataclasses.fields(kind)}, get_type_hints(kind)
    for name in value:
        if name not in fields:
            raise DataError.unusable(where, f"has no field {shortened(ascii(name), 40)}", nearest(str(name), fields))
    for name, field in fields.items():
        if name not in value and field.default is dataclasses.MISSING:
            raise DataError.unusable(where, f"lacks `{name}`")
    return kind(**{name: from_plain(kinds[name], value[name], f"{where}.{name}") for name in value})


def _choice(kind: Any, value: Any, where: str) -> Any:
    choices = _choices(kind)
    if value is None and type(None) in choices:
        return None
    for choice in choices:
        if isinstance(choice, type) and choice is not type(None):
            return from_plain(choice, value, where)
        if isinstance(value, str) and choice == value:
            return choice
    names = [str(choice) for choice in choices]
    hint = nearest(value, names) if isinstance(value, str) else f"known: {', '.join(names)}"
    raise DataError.unusable(where, f"is {shortened(ascii(value), 40)}", hint)


def _choices(kind: Any) -> list[Any]:
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return list(kind)
    if get_origin(kind) in (Union, types.UnionType):
        return [choice for part in get_args(kind) for choice in _choices(part)]
    return list(get_args(kind)) if get_origin(kind) is Literal else [kind]


def _wrong(where: str, value: Any, kind: str) -> DataError:
    return DataError.unusable(where, f"is {shortened(ascii(value), 40)}, not {kind}")
