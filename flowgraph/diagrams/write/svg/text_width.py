"""How wide a text is drawn, without the font that a viewer will have: never narrower than it."""

from __future__ import annotations

import re
import unicodedata

from flowgraph.diagrams.model.labels import clean

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
TEXT_CHARACTERS = 200  # of what is broken into lines
_BREAKS = re.compile(r" (?!(?:[KMGT]i)?B\b)")  # not between a number and its unit


def text_width_px(text: str, size_px: float, *, bold: bool = False) -> float:
    """Give the width of one line in a font of this size.

    >>> text_width_px("policy", 10), text_width_px("", 10), text_width_px("模型", 10)
    (29.45, 0.0, 20.0)
    """
    thousandths = sum(map(_width, text))
    return round(thousandths * size_px / 1000 * (BOLD if bold else 1), 2)


def _width(letter: str) -> int:
    place = ord(letter) - 32
    if 0 <= place < len(_WIDTHS):
        return _WIDTHS[place]
    if unicodedata.combining(letter):
        return 0
    return _WIDE if unicodedata.east_asian_width(letter) in "WF" or ord(letter) > 0xFFFF else _OTHER


def fitted(text: str, room_px: float, size_px: float, *, bold: bool = False) -> str:
    """Cut a text to the room that it has, and show that it was cut; nothing where not even two letters fit.

    >>> fitted("policy.generate", 60, 10), fitted("policy", 60, 10), fitted("policy", 5, 10)
    ('policy.gen…', 'policy', '')
    """
    if text_width_px(text, size_px, bold=bold) <= room_px:
        return text
    kept = text
    while kept and text_width_px(kept + "…", size_px, bold=bold) > room_px:
        kept = kept[:-1]
    return kept.rstrip() + "…" if len(kept) > 1 else ""


def wrapped(text: str, room_px: float, size_px: float, *, bold: bool = False, most: int = 3) -> tuple[str, ...]:
    """Break a text at its spaces into lines that fit in a room, `most` at most; what is too long is cut.

    >>> wrapped("n=16, temperature=1, max_tokens=512", 130, 11)
    ('n=16, temperature=1,', 'max_tokens=512')
    """
    lines = [""]
    for word in _BREAKS.split(clean(text, TEXT_CHARACTERS)):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and text_width_px(longer, size_px, bold=bold) > room_px:
            lines.append(word)
        else:
            lines[-1] = longer
    kept = lines if len(lines) <= most else [*lines[: most - 1], " ".join(lines[most - 1 :])]
    return tuple(fitted(line, room_px, size_px, bold=bold) or "…" for line in kept)
