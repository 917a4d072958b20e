"""Pictures as JSON: read back the same, and what is wrong is said with its place."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from flowgraph.diagrams.model.charts import Curves
from flowgraph.diagrams.model.series import Series
from flowgraph.diagrams.write.as_data import as_json, from_json
from flowgraph.errors import DataError
from tests.unit.flowgraph.diagrams.drawings import EVERY
from tests.unit.flowgraph.diagrams.test_hostile_names import HOSTILE


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("name", [None, *HOSTILE])
def test_every_picture_is_read_back_the_same(name: str | None, kind: str) -> None:
    drawing = EVERY[kind](name)
    text = as_json(drawing)
    assert from_json(text) == drawing
    assert text.isascii() and text.replace("\n", "").isprintable()


def test_a_number_that_is_none_is_read_back() -> None:
    read = from_json(as_json(Curves("run", (Series("x", "", ((0, math.nan), (1, -math.inf))),))))
    assert isinstance(read, Curves)
    (_, first), (_, last) = read.series[0].points
    assert math.isnan(first or 0.0) and last == -math.inf


def changed(kind: str, *path: str | int, to: object) -> str:
    """Give a picture's JSON with one part replaced; a part that is not there is added."""
    told: Any = json.loads(as_json(EVERY[kind](None)))
    part = told
    for each in path[:-1]:
        part = part[each]
    part[path[-1]] = to
    return json.dumps(told)


WRONG = {
    "{": "picture: is not JSON\n    Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
    "[]": "picture: is not a record",
    "{}": "picture: its `schema` is None\n  hint: this version reads 1",
    changed("flow", "picture", to="boxs"): "picture: its `picture` is 'boxs'\n  hint: did you mean `boxes`?",
    changed("flow", "titel", to="x"): "picture: has no field 'titel'\n  hint: did you mean `title`?",
    changed("flow", "boxes", 0, to={"id": "n0"}): "picture.boxes[0]: lacks `label`",
    changed("flow", "boxes", 0, "kind", to="modle"): (
        "picture.boxes[0].kind: is 'modle'\n  hint: did you mean `model`?"
    ),
    changed("flow", "boxes", 0, "id", to='n0"] --> x'): (
        "picture.boxes[0].id: is not small letters and digits, a letter first and a digit last"
    ),
    changed("flow", "boxes", 0, "id", to="n1"): "picture.boxes[1].id: is used twice: n1",
    changed("flow", "boxes", 0, "inside", to="f9"): "picture.boxes[0].inside: is no frame's id",
    changed("flow", "frames", 0, "parent", to="f1"): "picture.frames[0].parent: is around itself",
    changed("flow", "arrows", 0, "target", to="n9"): "picture.arrows[0]: leads from or to what is no box's id",
    changed("sequence", "messages", 0, "target", to="a9"): (
        "picture.messages[0]: goes from or to what is no actor's id"
    ),
    changed("lanes", "end_s", to="9"): "picture.end_s: is '9', not a number",
    changed("lanes", "lanes", 0, "bars", 0, "end_s", to=-1): (
        "picture.lanes[0].bars[0]: ends before it starts, or at no time"
    ),
    changed("lanes", "lanes", 0, "measured", to=1): "picture.lanes[0].measured: is 1, not true or false",
    changed("memory", "stores", 0, "capacity_bytes", to=-1): (
        "picture.stores[0]: has a size that is below zero or none"
    ),
    changed("scatter", "dots", 0, "memory_bytes", to=True): (
        "picture.dots[0].memory_bytes: is True, not a whole number"
    ),
    changed("curves", "series", 1, "points", 0, to=[1]): "picture.series[1].points[0]: has 1 parts, not 2",
    "[" * 100_000: "picture: is not JSON\n    it is nested more than 100 deep",
}


@pytest.mark.parametrize(("text", "said"), WRONG.items(), ids=lambda each: each[:30])
def test_wrong_text_is_said_with_its_place(text: str, said: str) -> None:
    with pytest.raises(DataError) as raised:
        from_json(text)
    assert str(raised.value) == said
