"""Turn an SVG of ours into a PNG, in a font that comes along, so that it is the same on every machine."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from flowgraph.errors import UsageError

FONT = "Roboto"
ZOOM = 2  # pixels for each unit of the picture: sharp on the screens of today
LARGEST_PX = 16_000  # of a side: a larger picture is drawn smaller, else it would take gigabytes

# What Roboto has no glyph for is drawn by a font of the machine, if one has it.
_COVERED = re.compile("[\u0000-\u03e1\u03f0-\u052f\u1e00-\u1fff\u2000-\u206f\u20a0-\u20be\u2122\u2212\u2264\u2265]*")


def png(svg: str) -> bytes:
    """Draw an SVG as pixels, light, on a white page. Raises UsageError where its library is not installed."""
    try:
        import resvg_py

        fonts = _font_files()
    except ImportError as error:
        hint = "pip install 'flowgraph[draw]'; or -o FILE.svg"
        raise UsageError(f"needs {error.name}, which is not installed", where="a PNG", hint=hint) from None
    zoom = min(ZOOM, LARGEST_PX / max(_sides_px(svg)))
    return resvg_py.svg_to_bytes(
        svg_string=svg, zoom=zoom, font_family=FONT, sans_serif_family=FONT, font_files=list(fonts)
    )


def uncovered(svg: str) -> str:
    """Give the letters of an SVG's texts that a PNG may have to leave out: its font has none of them.

    >>> uncovered("<title>a → b</title><text>policy ≤ 4 политика</text>"), uncovered("<text>模型 → 模</text>")
    ('', '模型→')
    """
    return "".join(dict.fromkeys(letter for letter in _texts(svg) if not _COVERED.fullmatch(letter)))


def _texts(svg: str) -> str:
    """Give what is written in an SVG, without what is only told when it is pointed at."""
    return "".join(re.findall(r"<text[^>]*>([^<]*)", svg))


def _sides_px(svg: str) -> tuple[float, float]:
    found = re.search(r'width="([\d.]+)" height="([\d.]+)"', svg)
    assert found is not None, "every SVG of ours says its size"
    return float(found[1]), float(found[2])


@cache
def _font_files() -> tuple[str, ...]:
    folder = resources.files("font_roboto").joinpath("files")
    return tuple(str(folder.joinpath(f"{FONT}-{weight}.ttf")) for weight in ("Regular", "Medium", "Bold"))
