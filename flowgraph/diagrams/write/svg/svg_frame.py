"""What every SVG has: its title, its sentences, its page, its style where it stands alone, and its legend.

A picture holds no script and asks for nothing from outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from flowgraph.diagrams.model.charts import Drawing
from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.write.style import stylesheet
from flowgraph.diagrams.write.svg.geometry import MARGIN, WIDTH, Rect, short
from flowgraph.diagrams.write.svg.marks import (
    Mark,
    circle,
    escaped,
    group,
    hatching,
    line,
    rect,
    star,
    stripes,
    text_mark,
    xml_lines,
)
from flowgraph.diagrams.write.svg.text_lines import LINE, TextLine, baseline, clean_and_cut, width_of

TITLE_BASELINE, TITLE_CHARACTERS, ABOUT_CHARACTERS = 28.0, 100, 4000
SCREEN_PX = 1600  # CSS pixels: letters of a picture a third wider than it can still be read
WIDE_PX = 1200  # a page lets a wider picture scroll by itself
SWATCH_WIDTH, SWATCH_HEIGHT, SWATCH_GAP, ROW, NAME_MAX = 20.0, 14.0, 18.0, 20.0, 320.0  # of a legend


@dataclass(frozen=True)
class Look:
    """Where a picture is shown: alone, or `embedded` in a page that has the style sheet; and the page's `pools`."""

    embedded: bool = False
    pools: tuple[str, ...] = ()

    def pool(self, name: str) -> str:
        """Return the CSS class by which the page filters a pool, `p0` for the first; "" for an unknown pool.

        >>> Look(pools=("train", "generate")).pool("generate")
        'p1'
        """
        return f"p{self.pools.index(name)}" if name in self.pools else ""


ALONE = Look()


def svg_document(
    kind: str, drawing: Drawing, marks: Iterable[Mark], look: Look, *, height: float, width: float = WIDTH
) -> str:
    """Return marks as the text of one SVG, with the title of the drawing above them; lengths are in CSS pixels.

    `kind` is the CSS class of the picture. An embedded picture has no style sheet of its own. A picture wider than
    1,600 pixels is scaled down to that width.
    """
    title = TextLine(
        MARGIN, TITLE_BASELINE, clean_and_cut(drawing.title, width - 2 * MARGIN, "head", TITLE_CHARACTERS), "head"
    )
    page = Mark("rect", {"class": "page", "width": width, "height": height})
    picture = group(f"fg {kind}", page, text_mark(title), *marks)
    scale = min(1.0, SCREEN_PX / width)
    classes = f"fg {kind}{' wide' if width > WIDE_PX else ''}"
    size = f'width="{short(scale * width)}" height="{short(scale * height)}"'
    box = f'viewBox="0 0 {short(width)} {short(height)}"'
    lines = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{classes}" role="img" {size} {box}>',
        f"<title>{escaped(clean(drawing.title, TITLE_CHARACTERS))}</title>",
        f"<desc>{escaped(clean(drawing.about or drawing.title, ABOUT_CHARACTERS))}</desc>",
        *(() if look.embedded else ("<style>", stylesheet(picture.classes()), "</style>")),
        *(text for mark in picture.children for text in xml_lines(mark)),
        "</svg>",
    )
    return "\n".join(lines)


@dataclass(frozen=True)
class Entry:
    """An entry of a legend: its name, the CSS classes and shape of its sample, and a short key on the sample."""

    classes: str
    name: str
    key: str = ""
    sample: Literal["box", "hatched", "stripes", "line", "mark", "dot", "star"] = "box"


def legend(entries: Sequence[Entry], top: float, right: float = WIDTH - MARGIN) -> tuple[Mark, float]:
    """Return a legend at height `top`, and the height that it needs with the gap below; 0 without entries.

    Entries continue on a new row where they would reach beyond `right`; lengths are in pixels.

    >>> legend([], 40)[1], len(legend([Entry("bar-generate", "generate")], 40)[0].children)
    (0.0, 2)
    """
    marks, x, y = list[Mark](), MARGIN, top
    for entry in entries:
        name = clean_and_cut(entry.name, NAME_MAX, "small")
        width = SWATCH_WIDTH + 6 + width_of(name, "small")
        if x + width > right and x > MARGIN:
            x, y = MARGIN, y + ROW
        area = Rect(x, y, SWATCH_WIDTH, SWATCH_HEIGHT)
        text_y = baseline(area.middle, "small")
        key = TextLine(area.centre, text_y, entry.key, "on small", "middle")
        centre, ends = (area.centre, area.middle), ((area.left, area.middle), (area.right, area.middle))
        match entry.sample:
            case "star":
                sample = [star("shape", *centre, 7.0)]
            case "dot":
                sample = [circle("shape", centre, 4)]
            case "line":
                sample = [line("line", *ends)]
            case "mark":
                sample = [line("mark", *ends), circle("mark-dot", centre, 3.5)]
            case _:
                over = {"stripes": [stripes(area)], "hatched": [hatching("hatch", area)]}
                sample = [rect("shape", area, 2), *over.get(entry.sample, [])]
        marks += [
            group(entry.classes, *sample, text_mark(key) if entry.key else None),
            text_mark(TextLine(area.right + 6, text_y, name, "small")),
        ]
        x += width + SWATCH_GAP
    return group("legend", *marks), y + ROW - top + (LINE - 6) if marks else 0.0
