"""`draw` and `diff`: a picture of a flow, plan or run, or of the differences between two, in any format."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from flowgraph.app.drawing import pictures
from flowgraph.app.drawing.draw_target import DrawTarget, find_target
from flowgraph.app.drawing.page import single_page, target_page
from flowgraph.app.drawing.pictures import PictureDetail, picture_named
from flowgraph.app.drawing.stages import unified_diff
from flowgraph.app.request import Request, Say
from flowgraph.app.user_files import write_bytes
from flowgraph.diagrams.build.diff_picture import diff_picture
from flowgraph.diagrams.model.charts import Drawing
from flowgraph.diagrams.model.labels import printable
from flowgraph.diagrams.model.picture import Picture
from flowgraph.diagrams.write.formats import FORMATS, format_for_extension, text_in
from flowgraph.diagrams.write.svg.png import png, uncovered_characters
from flowgraph.errors import UsageError, nearest
from flowgraph.flows.settings import align_shown_settings
from flowgraph.serialize.graph_text import graph_text
from placements import report

FORECASTS = ("plan", "timeline", "memory", "placements", "search")
"""Pictures of seconds and bytes that are forecast."""
PRINTED = tuple(name for name in FORMATS if name not in ("png", "html"))
COLUMNS = 100  # of a picture as text


@dataclass(frozen=True, kw_only=True, repr=False)
class DrawResult:
    """A picture, drawn on first use, to be written as SVG, PNG, text, Mermaid, Graphviz, JSON or an HTML page."""

    name: str
    make: Callable[[], Drawing]
    make_page: Callable[[], str]
    find_notes: Callable[[], Iterable[str]] = tuple

    @cached_property
    def drawing(self) -> Drawing:
        """Return the picture as data, in no format yet.

        Raises UsageError if the picture cannot be drawn, and the errors of planning if a flow must be planned first.
        """
        return self.make()

    @property
    def notes(self) -> tuple[str, ...]:
        """Return lines about the known errors of the picture's forecasts; empty for a picture without forecasts.

        A flow is planned first, which may raise the errors of planning.
        """
        return tuple(self.find_notes())

    def written(self, to: str = "text", *, columns: int = COLUMNS, colour: bool = False) -> str:
        """Return the picture in a text format: text, svg, mmd, md, dot or json.

        `columns` is the width of the format `text` in characters, and `colour` adds terminal colours to it. Raises
        UsageError for any other format and for a picture that cannot be drawn in this format, and the errors of
        planning.
        """
        self.refuse_format(to)
        return text_in(self.drawing, to, columns=columns, colour=colour)

    def refuse_format(self, to: str) -> None:
        """Raise UsageError if `to` is not a format that can be printed; `png` and `html` are files only."""
        if to not in PRINTED:
            raise UsageError(f"cannot print `{to}`", where="--to", hint=nearest(to, PRINTED))

    def svg(self) -> str:
        """Return the picture as SVG. Raises UsageError if the picture cannot be drawn."""
        return self.written("svg")

    def html(self) -> str:
        """Return the HTML page of the target: one picture if one was named, else all that can be drawn.

        Raises UsageError if the named picture cannot be drawn.
        """
        return self.make_page()

    def save(self, path: str | Path, say: Say = lambda line: None) -> Path:
        """Write the picture to a file in the format of its suffix, replacing an existing file; return the path.

        With the suffix `.html`, the file has the page of `html`. `say` receives a line that lists the characters that
        the font of a PNG lacks, at most 20 of them. Raises UsageError for an unknown suffix, for a picture that cannot
        be drawn, and if the file cannot be written.
        """
        file = Path(path)
        format_name = format_for_extension(file.suffix, str(file))
        if format_name != "png":
            write_bytes(file, (self.html() if format_name == "html" else self.written(format_name)).encode())
            return file
        svg = self.svg()
        if lacking := uncovered_characters(svg):
            letters = lacking if len(lacking) <= 20 else f"{lacking[:20]}…"
            say(f"the font for PNG has no {letters}: they appear only if a system font has them; use -o FILE.svg")
        write_bytes(file, png(svg))
        return file

    def __repr__(self) -> str:
        return f"<picture of {self.name}>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": self.written(), "image/svg+xml": self.svg()}


def draw_result(target: DrawTarget, picture: str, detail: PictureDetail) -> DrawResult:
    """Return a picture of a target that is drawn on first use, which may raise the errors of `picture_named`.

    `picture` is the name of the picture; with "" it is the target's default picture, and the HTML page has all
    pictures.
    """

    def errors() -> Iterable[str]:
        forecast = target.kind in ("flow", "plan", "run") and (picture or target.first) in FORECASTS
        return report.error_lines(target.placement.plan) if forecast else ()

    return DrawResult(
        name=target.name,
        make=lambda: picture_named(picture or target.first, target, detail),
        make_page=lambda: target_page(target, detail, picture),
        find_notes=errors,
    )


def make_drawing(request: Request, picture: str, detail: PictureDetail, say: Say) -> DrawResult:
    """Return a picture of what a request names: a flow, a plan or program file, or a run's folder.

    `picture` is the name of the picture, "" for the default one, and `say` receives each note of planning. Raises the
    errors of `find_target`; those of drawing are raised on first use of the result.
    """
    return draw_result(find_target(request, say), picture, detail)


@dataclass(frozen=True, kw_only=True)
class ComparedTargets:
    """Two flows, or two plans, to compare. Flows show only the settings that at least one of them changes."""

    old: DrawTarget
    new: DrawTarget

    def text(self) -> str:
        """Return a unified diff of the two flows or plans, with all lines; "" if both texts are equal."""
        return unified_diff(printable(_text(self.old)), printable(_text(self.new)), self.old.name, self.new.name)

    def drawn(self, detail: PictureDetail) -> DrawResult:
        """Return one picture, drawn on first use, of the differences between the two flows, or else the two plans."""

        def picture() -> Picture:
            draw = pictures.flow if self.old.kind == "flow" else pictures.plan
            return diff_picture(draw(self.old, detail), draw(self.new, detail))

        name = f"{self.old.name} and {self.new.name}"
        return DrawResult(name=name, make=picture, make_page=lambda: single_page(name, picture()))


def compare_targets(old: DrawTarget, new: DrawTarget) -> ComparedTargets:
    """Return two flows, or two plans, as a pair to compare; a program or a run counts as a plan.

    Flows show only the settings that at least one of the two changes. Raises UsageError if only one of the two is a
    flow, and the errors of `compiled_flow` if a flow cannot be read.
    """
    if (old.kind == "flow") != (new.kind == "flow"):
        what = f"is a {new.kind}, but {old.name} is a {old.kind}: they cannot be compared"
        raise UsageError(what, where=new.name, hint="two flows, or two plans: `flowgraph plan FLOW -o plan.json`")
    if old.kind == "flow" and old.graph is not None and new.graph is not None:
        graphs = align_shown_settings(old.graph, new.graph)  # whoever wrote a default down
        old, new = replace(old, flow=lambda: graphs[0]), replace(new, flow=lambda: graphs[1])
    return ComparedTargets(old=old, new=new)


def _text(target: DrawTarget) -> str:
    if target.kind == "flow" and target.graph is not None:
        return graph_text(target.graph, sites=False)
    return "\n".join(report.plan_lines(target.placement.plan))
