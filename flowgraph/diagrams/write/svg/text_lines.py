"""Lines of text, and how wide they are: an upper bound, for nobody knows the font that a viewer will have.

The look of a text depends on its classes, as `style` has them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from flowgraph.diagrams.model.labels import LABEL_CHARACTERS, clean
from flowgraph.diagrams.write.style import HEAD_PX, SIZE_PX, SMALL_PX
from flowgraph.diagrams.write.svg.geometry import Rect

# Thousandths of an em, from the space to the tilde, of DejaVu Sans 2.37: the widest of the sans-serif fonts in use.
_WIDTHS = (
    *(318, 401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361, 318, 337, 636, 636, 636, 636, 636, 636),
    *(636, 636, 636, 636, 337, 337, 838, 838, 838, 531, 1000, 684, 686, 698, 770, 632, 575, 775, 752, 295, 295, 656),
    *(557, 863, 748, 787, 603, 787, 695, 635, 611, 732, 684, 989, 685, 611, 685, 390, 337, 390, 838, 500, 500, 613),
    *(635, 550, 635, 615, 352, 635, 634, 278, 278, 579, 278, 974, 634, 612, 635, 635, 411, 521, 392, 634, 592, 818),
    *(592, 592, 525, 636, 337, 636, 838),
)
_WIDE, _OTHER = 1000, 750  # of East Asian letters and emoji; of any other
BOLD = 1.11  # times the width
TEXT_CHARACTERS = 200  # of a text that is broken into lines
_BREAKS = re.compile(r" (?!(?:[KMGT]i)?B\b)")  # not between a number and its unit
ASCENT = 0.76  # of the size of a font: what letters need above their baseline
LINE = 14.0  # from one baseline to the next in small text

Anchor = Literal["start", "middle", "end"]


@dataclass(frozen=True)
class TextLine:
    """A line of text: the x coordinate of its `anchor` and the y coordinate of its baseline, in pixels."""

    x: float
    y: float
    text: str
    classes: str = ""
    anchor: Anchor = "start"

    @property
    def size_px(self) -> float:
        """Return the font size in pixels."""
        return size_px(self.classes)

    @property
    def width(self) -> float:
        """Return an upper bound on the width of the text, in pixels."""
        return width_of(self.text, self.classes)

    @property
    def rect(self) -> Rect:
        """Return the rectangle that the text covers at most, in pixels."""
        left = self.x - self.width * {"start": 0.0, "middle": 0.5, "end": 1.0}[self.anchor]
        return Rect(left, self.y - ASCENT * self.size_px, self.width, self.size_px)


def size_px(classes: str) -> float:
    """Return the font size in pixels of text with these CSS classes, separated by spaces.

    >>> size_px("small muted"), size_px("head"), size_px("")
    (11.0, 16.0, 12.0)
    """
    names = classes.split()
    return SMALL_PX if "small" in names else HEAD_PX if "head" in names else SIZE_PX


def width_of(text: str, classes: str = "") -> float:
    """Return an upper bound on the width in pixels of a line of text with these CSS classes, in any usual font.

    >>> width_of("policy"), width_of("", "small"), width_of("模型", "head")
    (35.34, 0.0, 35.52)
    """
    bold = {"head", "strong"} & set(classes.split())
    return round(sum(map(_thousandths, text)) * size_px(classes) / 1000 * (BOLD if bold else 1), 2)


def _thousandths(letter: str) -> int:
    place = ord(letter) - 32
    if 0 <= place < len(_WIDTHS):
        return _WIDTHS[place]
    if unicodedata.combining(letter):
        return 0
    return _WIDE if unicodedata.east_asian_width(letter) in "WF" or ord(letter) > 0xFFFF else _OTHER


def widest(texts: Iterable[str], classes: str = "") -> float:
    """Return an upper bound on the width in pixels of the widest of `texts` with these CSS classes; 0 for no texts."""
    return max((width_of(text, classes) for text in texts), default=0.0)


def baseline(middle: float, classes: str = "") -> float:
    """Return the y coordinate of the baseline of a text whose vertical centre is `middle`, in pixels.

    `classes` are the CSS classes of the text.

    >>> baseline(100.0, "small")
    103.96
    """
    return middle + 0.36 * size_px(classes)


def cut_to_width(text: str, room_px: float, classes: str = "") -> str:
    """Return a text cut to `room_px` pixels, with an ellipsis if it was cut; "" if fewer than two letters fit.

    `classes` are the CSS classes of the text.

    >>> cut_to_width("policy.generate", 72), cut_to_width("policy", 72), cut_to_width("policy", 5)
    ('policy.gen…', 'policy', '')
    """
    if width_of(text, classes) <= room_px:
        return text
    shortened = text
    while shortened and width_of(shortened + "…", classes) > room_px:
        shortened = shortened[:-1]
    return shortened.rstrip() + "…" if len(shortened) > 1 else ""


def clean_and_cut(text: str, room_px: float, classes: str = "", limit_characters: int = LABEL_CHARACTERS) -> str:
    """Return a user's text as one printable line of at most `room_px` pixels and `limit_characters` characters.

    The text is cleaned by `clean`, and ends in an ellipsis if it was cut; "" if fewer than two letters fit. `classes`
    are the CSS classes of the text.
    """
    return cut_to_width(clean(text, limit_characters), room_px, classes)


def wrapped(text: str, room_px: float, classes: str = "", *, max_lines: int = 3) -> tuple[str, ...]:
    """Return a user's text as at most `max_lines` printable lines of at most `room_px` pixels, broken at spaces.

    The text is first cut to 200 characters. A word that is too wide is cut, with an ellipsis, and so is the last line
    if the text needs more lines. `classes` are the CSS classes of the text.

    >>> wrapped("n=16, temperature=1, max_tokens=512", 130, "small")
    ('n=16, temperature=1,', 'max_tokens=512')
    """
    lines = [""]
    for word in _BREAKS.split(clean(text, TEXT_CHARACTERS)):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and width_of(longer, classes) > room_px:
            lines.append(word)
        else:
            lines[-1] = longer
    if len(lines) > max_lines:
        lines[max_lines - 1 :] = [" ".join(lines[max_lines - 1 :])]
    return tuple(cut_to_width(line, room_px, classes) or "…" for line in lines)
