"""`diff`: what differs between two flows or two plans."""

from __future__ import annotations

from typing import Annotated

import typer

from flowgraph import app
from flowgraph.cli import completion as complete
from flowgraph.cli import options as opt
from flowgraph.cli.output import note, say
from flowgraph.cli.viewer import show_picture


def diff(
    old: Annotated[str, typer.Argument(help=opt.WHAT, metavar="OLD", autocompletion=complete.drawable)],
    new: Annotated[
        str, typer.Argument(help="What to compare it with.", metavar="NEW", autocompletion=complete.drawable)
    ],
    out: opt.DrawnOut = None,
    to: opt.To = None,
    show: opt.Show = False,
    unfold: opt.Unfold = False,
    sets: opt.Sets = None,
) -> None:
    """Show the differences between two flows or two plans.

    With -o, draw both as one picture.
    """
    old_side, new_side = (app.find_target(app.make_request(flow=each, settings=sets), note) for each in (old, new))
    compared = app.compare_targets(old_side, new_side)
    if out is not None or to or show:
        show_picture(compared.drawn(app.PictureDetail(unfold=unfold)), out, to or "", show=show)
        return
    text = compared.text()
    if not text:
        note("no difference")
    say(text, fit=True, end="")
