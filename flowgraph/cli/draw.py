"""`draw` and `diff`: a picture in the terminal, in a file of any format, or a page of all that can be drawn."""

from __future__ import annotations

import os
import sys
import tempfile
import webbrowser
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from flowgraph.cli.draw_target import DrawTarget
from flowgraph.cli.listings import columns_there
from flowgraph.cli.page import page_of
from flowgraph.cli.pictures import PictureDetail, picture_named
from flowgraph.cli.written_files import write_bytes
from flowgraph.diagrams.model.drawing import Drawing
from flowgraph.diagrams.write.formats import FORMATS, format_of, text_in
from flowgraph.diagrams.write.svg.png import png, uncovered
from flowgraph.errors import UsageError, nearest

FORECASTS = ("plan", "timeline", "memory", "placements", "search")
"""Pictures of seconds and bytes that are forecast."""
PRINTED = tuple(name for name in FORMATS if name not in ("png", "html"))


@dataclass(frozen=True)
class DrawOutput:
    """Where a picture goes: into a file, to stdout in the format `to`, or into a viewer; else to the terminal.

    `picture` names one picture; "" is the one that is meant if none is named, and all of them in a page.
    """

    out: Path | None = None
    to: str = ""
    show: bool = False
    picture: str = ""
    shown: PictureDetail = field(default_factory=PictureDetail)


def draw(subject: DrawTarget, wanted: DrawOutput) -> None:
    """Draw what is wanted of a subject; of a picture of forecasts, print their errors to stderr."""
    from placements.published_errors import error_lines

    def one() -> Drawing:
        return picture_named(wanted.picture or subject.first, subject, wanted.shown)

    def errors() -> Iterable[str]:
        forecast = subject.kind in ("flow", "plan", "run") and (wanted.picture or subject.first) in FORECASTS
        return error_lines(subject.placement.plan) if forecast else ()

    deliver(one, lambda: page_of(subject, wanted.shown, wanted.picture), wanted, errors)


def deliver(
    one: Callable[[], Drawing], page: Callable[[], str], wanted: DrawOutput, notes: Callable[[], Iterable[str]] = tuple
) -> None:
    """Write a picture, or the page that it is on, to where it is wanted, and notes on it to stderr."""
    if wanted.out is not None and wanted.to:
        raise UsageError("says the format again: a file's ending does", where=f"--to {wanted.to}", hint="leave it out")
    if wanted.to and wanted.to not in PRINTED:
        hint = nearest(wanted.to, PRINTED) or f"known: {', '.join(PRINTED)}; a page or PNG needs -o FILE"
        raise UsageError(f"cannot print `{wanted.to}`", where="--to", hint=hint)
    if wanted.out is None and not wanted.show:
        print(_printed(one(), wanted.to).rstrip("\n"))
        _print_notes(notes)
        return
    path = wanted.out or Path(tempfile.mkdtemp(prefix="flowgraph-")) / "picture.html"
    name = format_of(path.suffix, str(path))
    write_bytes(path, page().encode() if name == "html" else _encoded(one(), name))
    _print_notes(notes)
    print(path, file=sys.stderr)
    if wanted.show:
        _open(path)


def _print_notes(notes: Callable[[], Iterable[str]]) -> None:
    for line in notes():
        print(line, file=sys.stderr)


def _printed(drawing: Drawing, name: str) -> str:
    """Write a picture in a format, or as wide as the terminal is; only that needs what writes to terminals."""
    if name not in ("", "text"):
        return text_in(drawing, name)

    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return text_in(drawing, "text", columns=columns_there(), colour=colour)


def _encoded(drawing: Drawing, name: str) -> bytes:
    """Write a picture in a format that is a file's; say which letters a PNG may lack."""
    if name != "png":
        return text_in(drawing, name).encode()

    svg = text_in(drawing, "svg")
    if lacking := uncovered(svg):
        shown = lacking if len(lacking) <= 20 else f"{lacking[:20]}…"
        print(f"a PNG's font has no {shown}: drawn only if a font of this machine has; -o FILE.svg", file=sys.stderr)
    return png(svg)


def _open(path: Path) -> None:
    """Show a file in what this machine shows such files with; say so where it has no screen."""
    screen = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if not screen or not webbrowser.open(path.absolute().as_uri()):
        print("this machine has no screen to show it on; copy the file to one that has", file=sys.stderr)
