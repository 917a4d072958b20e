"""Check a picture that was read from a file: its ids, what they name, and its numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from flowgraph.diagrams.model.charts import Comparison, Lanes, MemoryChart, Scatter
from flowgraph.diagrams.model.drawing import Drawing
from flowgraph.diagrams.model.picture import Frame, Picture
from flowgraph.diagrams.model.sequence import SequenceDiagram
from flowgraph.errors import DataError

# A letter first and a digit last, so that no id is a word of Mermaid or DOT.
_ID = re.compile(r"[a-z][a-z0-9_]{0,38}[0-9]")


def check_drawing(drawing: Drawing, where: str) -> None:
    """Raise `DataError` at the first fault of a picture."""
    for place, fault in _faults(drawing):
        raise DataError.unusable(f"{where}.{place}", fault)


def _faults(drawing: Drawing) -> Iterator[tuple[str, str]]:
    match drawing:
        case Picture():
            yield from _picture_faults(drawing)
        case SequenceDiagram():
            yield from _sequence_faults(drawing)
        case Lanes():
            yield from _lane_faults(drawing)
        case MemoryChart() | Comparison() | Scatter():
            yield from _size_faults(drawing)
        case _:
            return


def _picture_faults(picture: Picture) -> Iterator[tuple[str, str]]:
    boxes = {box.id for box in picture.boxes}
    frames = {frame.id: frame for frame in picture.frames}
    named = [(f"frames[{i}]", each.id) for i, each in enumerate(picture.frames)]
    yield from _id_faults([*((f"boxes[{i}]", each.id) for i, each in enumerate(picture.boxes)), *named])
    for i, box in enumerate(picture.boxes):
        if box.inside is not None and box.inside not in frames:
            yield f"boxes[{i}].inside", "is no frame's id"
    for i, frame in enumerate(picture.frames):
        if frame.parent is not None and frame.parent not in frames:
            yield f"frames[{i}].parent", "is no frame's id"
        elif _in_itself(frame, frames):
            yield f"frames[{i}].parent", "is around itself"
    for i, arrow in enumerate(picture.arrows):
        if not {arrow.source, arrow.target} <= boxes:
            yield f"arrows[{i}]", "leads from or to what is no box's id"


def _in_itself(frame: Frame, frames: Mapping[str, Frame]) -> bool:
    seen, outer = {frame.id}, frame.parent
    while outer is not None and outer in frames:
        if outer in seen:
            return True
        seen.add(outer)
        outer = frames[outer].parent
    return False


def _sequence_faults(diagram: SequenceDiagram) -> Iterator[tuple[str, str]]:
    actors = {actor.id for actor in diagram.actors}
    yield from _id_faults([(f"actors[{i}]", each.id) for i, each in enumerate(diagram.actors)])
    for i, message in enumerate(diagram.messages):
        if not {message.source, message.target} <= actors:
            yield f"messages[{i}]", "goes from or to what is no actor's id"


def _id_faults(named: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    seen = set[str]()
    for place, name in named:
        if not _ID.fullmatch(name):
            yield f"{place}.id", "is not small letters and digits, a letter first and a digit last"
        if name in seen:
            yield f"{place}.id", f"is used twice: {name}"
        seen.add(name)


def _lane_faults(lanes: Lanes) -> Iterator[tuple[str, str]]:
    if not 0 <= lanes.end_s < math.inf:
        yield "end_s", "is no length of time"
    for i, lane in enumerate(lanes.lanes):
        for j, bar in enumerate(lane.bars):
            if not 0 <= bar.start_s <= bar.end_s < math.inf:
                yield f"lanes[{i}].bars[{j}]", "ends before it starts, or at no time"


def _size_faults(drawing: MemoryChart | Comparison | Scatter) -> Iterator[tuple[str, str]]:
    """Say where a number is below zero or none."""
    for place, size in _sizes(drawing):
        if not 0 <= size < math.inf:
            yield place, "has a size that is below zero or none"


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
