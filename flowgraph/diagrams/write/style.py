"""The look of every SVG and page: one table of rules, each with what changes in the dark.

A picture outside of a page follows its viewer's choice of light or dark; in a page, the page's. No class is a user's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from flowgraph.diagrams.write.palette import ARROW_INKS, BAR_INKS, FRAME_LINES, INKS, STATUS_INKS, TEXT, TONES, WARNING

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif'
SIZE_PX, SMALL_PX, HEAD_PX = 12.0, 11.0, 16.0

WIDTHS_PX: Mapping[str, float] = {"weights": 2, "stale": 2, "carry": 2.5, "transfer": 2, "sync": 3.5}
DASHES: Mapping[str, str] = {"stale": "5 4", "carry": "5 4"}


@dataclass(frozen=True)
class StyleRule:
    """The CSS properties of a selector inside a picture: those in light mode, and those that differ in dark mode."""

    selector: str
    light: str
    dark: str = ""


def rules() -> Iterator[StyleRule]:
    """Yield every style rule of pictures, including charts; a later rule overrides an earlier one, as in CSS."""
    yield StyleRule("text", f"fill:#1f2328;font-family:{FONT};font-size:{SIZE_PX:g}px", "fill:#e6edf3")
    yield StyleRule(".page", "fill:#ffffff", "fill:#0d1117")
    yield StyleRule(".small", f"font-size:{SMALL_PX:g}px")
    yield StyleRule(".head", f"font-size:{HEAD_PX:g}px;font-weight:600")
    yield StyleRule(".strong", "font-weight:600")
    yield StyleRule(".muted", "fill:#57606a", "fill:#9aa4ae")
    yield StyleRule(".grid", "stroke:#e4e7ea;fill:none", "stroke:#262c34")
    yield StyleRule(".axis", "stroke:#8c959f;fill:none", "stroke:#6e7681")
    yield StyleRule(
        ".halo", "paint-order:stroke;stroke:#ffffff;stroke-width:4px;stroke-linejoin:round", "stroke:#0d1117"
    )
    yield StyleRule(".on", f"fill:{TEXT}", f"fill:{TEXT}")  # text on a filled shape
    yield StyleRule(".shape", "stroke-width:1.5px")
    yield StyleRule(".line", "fill:none;stroke:#57606a;stroke-width:1.25px", "stroke:#9aa4ae")
    yield StyleRule(".tip", "fill:#57606a", "fill:#9aa4ae")
    for kind, ink in INKS.items():
        yield StyleRule(f".kind-{kind} .shape", f"fill:{ink.fill};stroke:{ink.border}")
    for bar, ink in BAR_INKS.items():
        yield StyleRule(f".bar-{bar} .shape", f"fill:{ink.fill};stroke:{ink.border};stroke-width:1px")
    for style, colour in ARROW_INKS.items():
        dashes = f";stroke-dasharray:{DASHES[style]}" if style in DASHES else ""
        stroke = f"stroke:{colour};stroke-width:{WIDTHS_PX[style]:g}px{dashes}"
        yield StyleRule(f".style-{style} .line", stroke, f"stroke:{colour}")
        yield StyleRule(f".style-{style} .tip", f"fill:{colour}", f"fill:{colour}")
    for frame, border in FRAME_LINES.items():
        yield StyleRule(f".frame-{frame} .border", f"fill:none;{border}")
    for status, colour in STATUS_INKS.items():
        yield StyleRule(f".status-{status} .shape", f"stroke:{colour};stroke-width:3px")
        yield StyleRule(f".status-{status} .border", f"stroke:{colour};stroke-width:2px")
        yield StyleRule(f".status-{status} .line", f"stroke:{colour};stroke-width:2.5px", f"stroke:{colour}")
        yield StyleRule(f".status-{status} .tip", f"fill:{colour}", f"fill:{colour}")
    yield StyleRule(".status-removed .shape", "stroke-dasharray:6 3")
    yield StyleRule(".status-removed .line", "stroke-dasharray:6 3")
    yield from chart_rules()


def chart_rules() -> Iterator[StyleRule]:
    """Yield the style rules that only charts need: bars, columns, strips, dots, messages and curves."""
    yield StyleRule(".band", "fill:#f6f8fa", "fill:#161b22")
    idle = "fill:#444c56;paint-order:stroke;stroke:#e6e6e6;stroke-width:4px"
    yield StyleRule(".bar-idle text", idle, "fill:#9aa4ae;stroke:#21262d")
    yield StyleRule(".stripes", "stroke:#ffffff;stroke-dasharray:1.5 5", "stroke:#30363d")
    yield StyleRule(".hatch", "fill:none;stroke:#1f2328;stroke-opacity:0.3;stroke-width:1px", "stroke:#1f2328")
    yield StyleRule(".bar-idle .shape", "stroke-dasharray:3 2", "fill:#21262d;stroke:#484f58")
    yield StyleRule(".edge", "stroke:#57606a;stroke-width:1.25px;stroke-dasharray:6 3;fill:none", "stroke:#9aa4ae")
    for place, ink in enumerate(TONES):
        yield StyleRule(f".tone-{place} .shape", f"fill:{ink.fill};stroke:{ink.border};stroke-width:1px")
    yield StyleRule(".part-hatch", "fill:none;stroke:#1f2328;stroke-opacity:0.25;stroke-width:1px", "stroke:#1f2328")
    yield StyleRule(".outline", "fill:none;stroke:#57606a;stroke-width:1px", "stroke:#9aa4ae")
    yield StyleRule(".passing .outline", "stroke-dasharray:3 2")
    yield StyleRule(".passing .shape", "fill-opacity:0.6;stroke-opacity:0.35", "fill-opacity:0.85")
    yield StyleRule(".over .outline", f"stroke:{WARNING};stroke-width:3px;stroke-dasharray:none", "stroke:#ff7b72")
    yield StyleRule(".over .hatch", f"stroke:{WARNING};stroke-opacity:1;stroke-width:1.5px", f"stroke:{WARNING}")
    yield StyleRule("text.alarm", f"fill:{WARNING};font-weight:600", "fill:#ff7b72")
    yield StyleRule(".capacity .line", "stroke:#1f2328;stroke-width:2px", "stroke:#e6edf3")
    yield StyleRule(".beyond .line", "stroke:#57606a;stroke-dasharray:1 4", "stroke:#9aa4ae")
    yield StyleRule(".room .line", "stroke:#57606a;stroke-dasharray:5 3", "stroke:#9aa4ae")
    yield StyleRule(".mark", "stroke:#1f2328;stroke-width:3px", "stroke:#ffffff")
    yield StyleRule(".casing", "stroke:#ffffff;stroke-width:6px", "stroke:#0d1117")
    yield StyleRule(".mark-dot", "fill:#1f2328;stroke:#ffffff;stroke-width:1px", "fill:#ffffff;stroke:#0d1117")
    yield StyleRule(".part .shape", f"fill:{INKS['model'].fill};stroke:{INKS['model'].border};stroke-width:1px")
    yield StyleRule(".unused .shape", "fill:none;stroke:#808080;stroke-width:1px;stroke-dasharray:4 4")
    yield StyleRule(".length .shape", "fill:#d0d7de;stroke:#6b6b6b;stroke-width:1px", "fill:#6e7681;stroke:#9aa4ae")
    yield StyleRule(".chosen .length .shape", "fill:#57606a;stroke:#1f2328", "fill:#c9d1d9;stroke:#e6edf3")
    yield StyleRule(".front-line", "fill:none;stroke:#0072b2;stroke-width:1.75px", "stroke:#56b4e9")
    yield StyleRule(".dot-other .shape", "fill:#d0d7de;stroke:#6b6b6b;stroke-width:1px", "fill:#6e7681;stroke:#9aa4ae")
    yield StyleRule(".dot-front .shape", "fill:#0072b2;stroke:#ffffff", "fill:#56b4e9;stroke:#0d1117")
    yield StyleRule(".dot-best .shape", "fill:#d55e00;stroke:#1f2328;stroke-width:1px", "stroke:#ffffff")
    yield StyleRule(".style-reply .line", "stroke-dasharray:5 4")
    yield StyleRule(".around-pool .band", "fill:none;stroke:#afb8c1;stroke-width:1px", "fill:none;stroke:#484f58")
    yield StyleRule(".lifeline", "stroke-dasharray:2 3")
    yield StyleRule(".curve", "fill:none;stroke:#4d5a66;stroke-width:1.75px;stroke-linejoin:round", "stroke:#b3bcc5")
    yield StyleRule(".curve.pale", "stroke-width:1px;stroke-opacity:0.35")
    yield StyleRule(".unit", "fill:#57606a;font-weight:400", "fill:#9aa4ae")
    yield StyleRule(".point", "fill:#4d5a66", "fill:#b3bcc5")
    yield StyleRule(".headline .curve", "stroke:#0072b2", "stroke:#56b4e9")
    yield StyleRule(".headline .point", "fill:#0072b2", "fill:#56b4e9")
    yield StyleRule(".around", "fill:none;stroke:#1f2328;stroke-width:2.5px", "stroke:#e6edf3")


def stylesheet(classes: Collection[str]) -> str:
    """Return the CSS of a picture that is not in a page: the rules whose CSS classes are all in `classes`.

    The viewer's `prefers-color-scheme` selects light or dark.
    """
    used = [rule for rule in rules() if classes_in(rule.selector) <= set(classes)]
    light = (f".fg {rule.selector}{{{rule.light}}}" for rule in used)
    dark = (f".fg {rule.selector}{{{rule.dark}}}" for rule in used if rule.dark)
    return "\n".join([*light, "@media (prefers-color-scheme: dark){", *dark, "}"])


def classes_in(selector: str) -> set[str]:
    """Return the class names in a CSS selector.

    >>> sorted(classes_in(".kind-host .shape")), classes_in("text")
    (['kind-host', 'shape'], set())
    """
    return set(re.findall(r"\.([\w-]+)", selector))


def page_stylesheet() -> str:
    """Return the CSS of all pictures that are embedded in an HTML page; printed pages are light.

    The page's `data-theme` selects light or dark; without it, the viewer's `prefers-color-scheme` does.
    """
    light = [f".fg {rule.selector}{{{rule.light}}}" for rule in rules()]
    dark = [rule for rule in rules() if rule.dark]
    chosen = [f':root[data-theme="dark"] .fg {rule.selector}{{{rule.dark}}}' for rule in dark]
    followed = [f":root:not([data-theme]) .fg {rule.selector}{{{rule.dark}}}" for rule in dark]
    screen = ["@media screen{", *chosen, "}", "@media screen and (prefers-color-scheme: dark){", *followed, "}"]
    return "\n".join([*light, *screen])
