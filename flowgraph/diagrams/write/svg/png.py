"""Turn an SVG into a PNG, in a font that is included, so that it is the same on every machine."""

from __future__ import annotations

import re
from importlib import resources

from flowgraph.errors import UsageError
from flowgraph.errors.distribution import install_command

FONT = "Roboto"
ZOOM = 2  # pixels for each unit of the picture: sharp on the screens of today
LARGEST_PX = 16_000  # of a side: a larger picture is scaled down, or it would take gigabytes

# For other letters resvg uses a font of the machine, if one has them.
_COVERED = re.compile("[\u0000-\u03e1\u03f0-\u052f\u1e00-\u1fff\u2000-\u206f\u20a0-\u20be\u2122\u2212\u2264\u2265]*")


def png(svg: str) -> bytes:
    """Return an SVG as the bytes of a PNG in light colours, with 2 pixels for each pixel of the SVG.

    A picture that would have a side of more than 16,000 pixels is scaled down to that. Raises UsageError if `resvg_py`
    or the font is not installed, and AssertionError if the SVG has no width and height.
    """
    try:
        import resvg_py

        folder = resources.files("font_roboto").joinpath("files")
    except ImportError as error:
        hint = f"{install_command('draw')}; or -o FILE.svg"
        raise UsageError(f"needs {error.name}, which is not installed", where="a PNG", hint=hint) from None
    size = re.search(r'width="([\d.]+)" height="([\d.]+)"', svg)
    assert size is not None, "an SVG of a picture has a size"
    fonts = [str(folder.joinpath(f"{FONT}-{weight}.ttf")) for weight in ("Regular", "Medium", "Bold")]
    zoom = min(ZOOM, LARGEST_PX / max(float(size[1]), float(size[2])))
    return resvg_py.svg_to_bytes(svg_string=svg, zoom=zoom, font_family=FONT, sans_serif_family=FONT, font_files=fonts)


def uncovered_characters(svg: str) -> str:
    """Return the distinct characters of an SVG's `<text>` elements that the font for PNGs lacks, as they first appear.

    >>> uncovered_characters("<title>a → b</title><text>policy ≤ 4 политика</text>")
    ''
    >>> uncovered_characters("<text>模型 → 模</text>")
    '模型→'
    """
    letters = "".join(re.findall(r"<text[^>]*>([^<]*)", svg))
    return "".join(dict.fromkeys(letter for letter in letters if not _COVERED.fullmatch(letter)))
