"""Write any picture as JSON, which other programs read, and read it back the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from flowgraph.diagrams.model.charts import Comparison, Curves, Lanes, MemoryChart, Scatter
from flowgraph.diagrams.model.drawing import Drawing
from flowgraph.diagrams.model.picture import Picture
from flowgraph.diagrams.model.sequence import SequenceDiagram
from flowgraph.diagrams.write.check_drawing import check_drawing
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
"""Each kind of picture by the word that JSON has for it."""


def kind_of(drawing: Drawing) -> str:
    """Give the word for a picture's kind."""
    return next(word for word, kind in KINDS.items() if isinstance(drawing, kind))


def as_json(drawing: Drawing) -> str:
    """Give a picture as JSON in ASCII: its kind and its fields, labels as the user wrote them.

    A number that is none (of a run's curve, say) is written as the text "nan", "inf" or "-inf".
    """
    told = {"schema": SCHEMA, "picture": kind_of(drawing)} | to_plain(drawing)
    return json.dumps(told, indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def from_json(text: str, where: str = "picture") -> Drawing:
    """Read what `as_json` wrote; raises `DataError` that says where in it something is wrong.

    Ids must be such as are made here, unique, and of boxes and frames that are there, so that every writer may print
    them as they are.
    """
    told = _parsed(text, where)
    schema, word = told.pop("schema", None), told.pop("picture", None)
    if type(schema) is not int or schema != SCHEMA:
        raise DataError.unusable(where, f"its `schema` is {ascii(schema)[:40]}", f"this version reads {SCHEMA}")
    if not isinstance(word, str) or word not in KINDS:
        raise DataError.unusable(where, f"its `picture` is {ascii(word)[:40]}", nearest(str(word), KINDS))
    drawing: Drawing = from_plain(KINDS[word], told, where)
    check_drawing(drawing, where)
    return drawing


def _parsed(text: str, where: str) -> dict[str, Any]:
    try:
        told = parse_json(text, whole=False)  # labels are written clean, whatever they hold
    except ValueError as fault:
        raise DataError.failed(where, "is not JSON", fault) from None
    if not isinstance(told, dict):
        raise DataError.unusable(where, "is not a record")
    return told
