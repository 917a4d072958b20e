"""A PNG is drawn from the SVG, the same on every machine, and says what it may lack."""

from __future__ import annotations

import struct
import sys

import pytest

from flowgraph.diagrams.model.charts import Lanes
from flowgraph.diagrams.write.formats import svg
from flowgraph.diagrams.write.svg.png import LARGEST_PX, ZOOM, png, uncovered_characters
from flowgraph.errors import UsageError

pytest.importorskip("resvg_py")

MADE = svg(Lanes("a picture", (), 1.0))


def size_px(data: bytes) -> tuple[int, int]:
    """Read the size from a PNG's first chunk (PNG, third edition, 11.2.1)."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and data[12:16] == b"IHDR"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def sides(width: float, height: float) -> str:
    return f'<svg xmlns="http://www.w3.org/2000/svg" class="fg" width="{width}" height="{height}"><rect/></svg>'


def test_it_has_twice_the_pixels_of_the_picture_and_is_the_same_each_time() -> None:
    first = png(MADE)
    assert size_px(first)[0] == 960 * ZOOM
    assert png(MADE) == first


def test_a_picture_too_large_is_drawn_smaller() -> None:
    assert max(size_px(png(sides(40_000, 10)))) <= LARGEST_PX


def test_letters_are_drawn_and_not_left_out() -> None:
    blank = MADE.replace("a picture", "  ")
    assert len(png(MADE)) > len(png(blank))


def test_letters_that_its_font_lacks_are_named_once() -> None:
    assert uncovered_characters("<text>模型, 模: policy ≤ 4</text>") == "模型"
    assert uncovered_characters("<text>каждый × · … – −</text>") == ""


def test_without_its_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(UsageError, match="needs resvg_py, which is not installed") as told:
        png(MADE)
    assert "pip install 'flowgraph-rl[draw]'" in str(told.value)
