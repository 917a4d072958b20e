"""The frame of every SVG: its title, its sentences, its page, and its style where it stands alone.

A picture holds no script and asks for nothing from outside.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.write.style import stylesheet
from flowgraph.diagrams.write.svg.geometry import TITLE_CHARACTERS, heading, short
from flowgraph.diagrams.write.svg.marks import Mark, escaped, group, words, written

ABOUT_CHARACTERS = 4000
SCREEN_PX = 1600  # CSS pixels: letters of a picture a third wider than it can still be read
WIDE_PX = 1200  # a page lets a wider picture scroll by itself


@dataclass(frozen=True)
class Look:
    """What is around a picture: `embedded` in a page that has the style, and the names of the page's pools in order."""

    embedded: bool = False
    pools: tuple[str, ...] = ()

    def pool(self, name: str) -> str:
        """Return the class of a pool, which the page's filter goes by: `p0`, or nothing for one that it does not have.

        >>> Look(pools=("train", "generate")).pool("generate")
        'p1'
        """
        return f"p{self.pools.index(name)}" if name in self.pools else ""


ALONE = Look()


def framed(kind: str, marks: Iterable[Mark], look: Look, *, title: str, about: str, width: float, height: float) -> str:
    """Return marks as one SVG with its title above them; lengths are in units of the picture (CSS pixels).

    `title` names the picture and `about` describes it in sentences, both as a user wrote them. A picture wider than a
    screen is shown as wide as one.
    """
    page = Mark("rect", {"class": "page", "width": width, "height": height})
    picture = group(f"fg {kind}", page, words(heading(title, width)), *marks)
    scale = min(1.0, SCREEN_PX / width)
    style = () if look.embedded else ("<style>", stylesheet(picture.classes()), "</style>")
    classes = f"fg {kind}{' wide' if width > WIDE_PX else ''}"
    size = f'width="{short(scale * width)}" height="{short(scale * height)}"'
    box = f'viewBox="0 0 {short(width)} {short(height)}"'
    lines = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{classes}" role="img" {size} {box}>',
        f"<title>{escaped(clean(title, TITLE_CHARACTERS))}</title>",
        f"<desc>{escaped(clean(about or title, ABOUT_CHARACTERS))}</desc>",
        *style,
        *(text for mark in picture.children for text in written(mark)),
        "</svg>",
    )
    return "\n".join(lines)
