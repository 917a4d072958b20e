"""Write any picture as JSON, and read it back unchanged."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping

from flowgraph.diagrams.model.charts import Comparison, Curves, Lanes, MemoryChart, Scatter
from flowgraph.diagrams.model.drawing import Drawing
from flowgraph.diagrams.model.picture import Picture, SequenceDiagram
from flowgraph.diagrams.write.json_codec import from_plain, to_plain
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


Fault = tuple[str, str]  # its place, and what is wrong there

# A letter first and a digit last, so that no id is a word of Mermaid or DOT.
_ID = re.compile(r"[a-z][a-z0-9_]{0,38}[0-9]")


def kind_of(drawing: Drawing) -> str:
    """Return the word for a picture's kind."""
    return next(word for word, kind in KINDS.items() if isinstance(drawing, kind))


def as_json(drawing: Drawing) -> str:
    """Return a picture as JSON in ASCII: its kind and its fields, labels as the user wrote them.

    NaN and infinities (of a run's curve, say) are written as the texts "nan", "inf" or "-inf".
    """
    fields = {"schema": SCHEMA, "picture": kind_of(drawing)} | to_plain(drawing)
    return json.dumps(fields, indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def from_json(text: str, where: str = "picture") -> Drawing:
    """Read a text of `as_json`. Raises DataError with the place of a fault.

    Ids must have the form of generated ones and be unique, and refer to boxes and frames of the picture, so that every
    writer may print them unchanged.
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
    """Yield the faults of the ids of things, by the fields that hold these."""
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
                    yield from ((f"stores[{i}].phases[{j}]", size) for _, size in phase.held)
        case Comparison(strips=strips):
            yield from ((f"strips[{i}]", strip.seconds or 0.0) for i, strip in enumerate(strips))
        case Scatter(dots=dots):
            yield from ((f"dots[{i}]", min(dot.seconds, dot.memory_bytes)) for i, dot in enumerate(dots))
