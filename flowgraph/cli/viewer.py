"""Show a picture: on the terminal, on stdout in a format, in a file, or in this machine's viewer."""

from __future__ import annotations

import os
import sys
import tempfile
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from flowgraph.cli.output import layout_columns, note, print_exact
from flowgraph.errors import UsageError

if TYPE_CHECKING:
    from flowgraph import app


def show_picture(picture: app.DrawResult, out: Path | None, to: str, *, show: bool) -> None:
    """Print a picture, or write it to a file; its notes, and the name of the file, go to stderr.

    The picture is written if `out` is given or `show` is set. Otherwise it is printed in the format `to`, by default as
    text for a terminal. With `show`, the file, by default a temporary HTML page, is opened in this machine's viewer;
    without a screen, a note says so. Raises UsageError for `to` together with `out` or `show`, for a format that cannot
    be printed, for a picture that cannot be drawn, and for a file that cannot be written.
    """
    if out is not None and to:
        raise UsageError(
            "cannot be combined with -o, whose file ending sets the format", where=f"--to {to}", hint="leave it out"
        )
    if to and show:
        raise UsageError("cannot be combined with --show, which opens a page", where=f"--to {to}", hint="leave it out")
    if to:
        picture.refuse_format(to)
    if out is None and not show:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        print_exact(picture.written(to or "text", columns=layout_columns(), colour=colour).rstrip("\n"))
        path = None
    else:
        path = picture.save(out or Path(tempfile.mkdtemp(prefix="flowgraph-")) / "picture.html", note)
    for line in picture.notes:
        note(line)
    if path is None:
        return
    note(path)
    screen = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if show and not (screen and webbrowser.open(path.absolute().as_uri())):
        note("this machine has no screen to show it on; copy the file to one that has")
