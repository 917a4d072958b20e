"""Write any picture as JSON, and read it back unchanged."""

from __future__ import annotations

import json
from collections.abc import Mapping

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
"""Each kind of picture by its word in JSON."""


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
    check_drawing(drawing, where)
    return drawing
