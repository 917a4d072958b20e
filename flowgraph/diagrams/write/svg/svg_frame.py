"""What every SVG shares: its title, its style, its page, and how a template of ours is filled in.

Each value that a template writes is escaped. A picture holds no script and asks for nothing from outside.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.write.style import stylesheet

if TYPE_CHECKING:
    from jinja2 import Environment

TITLE_CHARACTERS, ABOUT_CHARACTERS = 100, 4000
SCREEN_PX = 1600  # CSS pixels: letters of a picture a third wider than it can still be read
NO_STYLE = "<style></style>"  # what a template leaves room by; no text of a user can be it, for each is escaped

_ILLEGAL = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")


@dataclass(frozen=True)
class Look:
    """What is around a picture: `embedded` in a page that has the style, and the names of the page's pools in order."""

    embedded: bool = False
    pools: tuple[str, ...] = ()

    def pool(self, name: str) -> str:
        """Give the class of a pool, which the page's filter goes by: `p0`, or nothing for one that it has not.

        >>> Look(pools=("train", "generate")).pool("generate")
        'p1'
        """
        return f"p{self.pools.index(name)}" if name in self.pools else ""


ALONE = Look()


def framed(template: str, look: Look, *, title: str, about: str, width: float, height: float, **parts: Any) -> str:
    """Fill in `templates/TEMPLATE`, which extends `base.svg.j2`; lengths are in units of the picture (CSS pixels).

    `title` names the picture and `about` tells it in sentences, both as a user wrote them. A picture wider than a
    screen is shown as wide as one.
    """
    shown = {"title": clean(title, TITLE_CHARACTERS), "about": clean(about or title, ABOUT_CHARACTERS)}
    scale = min(1.0, SCREEN_PX / width)
    size = {"width": width, "height": height, "shown_width": scale * width, "shown_height": scale * height}
    drawn = environment().get_template(template).render(look=look, **shown, **size, **parts)
    return drawn if look.embedded else drawn.replace(NO_STYLE, f"<style>\n{_style(drawn)}\n</style>")


def _style(drawn: str) -> str:
    """Give the style of the classes that a picture has."""
    return stylesheet({name for names in re.findall('class="([^"]*)"', drawn) for name in names.split()})


def short(length: float) -> str:
    """Write a length to a hundredth of a unit.

    >>> short(12.0), short(1234.567)
    ('12', '1234.57')
    """
    return f"{length:.2f}".rstrip("0").rstrip(".") if length else "0"


@cache
def environment() -> Environment:
    """Give the templates of ours, each of whose values is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folder = FileSystemLoader(Path(__file__).parents[1] / "templates", encoding="utf-8")
    made = Environment(
        loader=folder,
        autoescape=True,
        finalize=_legal,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["short"] = short
    return made


def _legal(value: object) -> object:
    r"""Leave out of a text what no XML may hold, escaped or not (XML 1.0, section 2.2).

    >>> _legal("a\x1b[31m\ud83d b")
    'a[31m b'
    """
    return _ILLEGAL.sub("", value) if isinstance(value, str) and _ILLEGAL.search(value) else value
