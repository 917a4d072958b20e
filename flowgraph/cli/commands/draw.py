"""`draw` and `diff`: a picture of a flow, a plan or a run, and the differences between two of them."""

from __future__ import annotations

from typing import Annotated

from flowgraph import app
from flowgraph.cli import completion as complete
from flowgraph.cli import options as opt
from flowgraph.cli.output import note, say
from flowgraph.cli.viewer import show_picture


@opt.takes(
    "what out picture to show steps unfold cluster placement plan depth sync_every chunks contract model data columns "
    "batch prompt_tokens response_tokens settings passes cache"
)
def draw(
    fields: opt.Fields,
    what: opt.What,
    out: opt.DrawnOut = None,
    picture: Annotated[
        str | None,
        opt.option(
            "--picture PICTURE",
            "flow, plan, sequence, timeline, memory, placements, search or run. Default: by what is drawn.",
            complete.pictures,
        ),
    ] = None,
    to: opt.To = None,
    show: opt.Show = False,
    steps: Annotated[int, opt.option("--steps N", "Number of steps of a timeline.", min=1, max=100)] = 2,
    unfold: opt.Unfold = False,
) -> None:
    """Draw a flow, a plan or a run.

    The picture goes to the terminal or to a file; an .html page has all pictures, or the one that --picture names.
    """
    request = app.make_request(**fields, flow=what)
    detail = app.PictureDetail(steps=steps, unfold=unfold)
    show_picture(app.make_drawing(request, picture or "", detail, note), out, to or "", show=show)


def diff(
    old: Annotated[str, opt.argument("OLD", opt.WHAT, complete.draw_targets)],
    new: Annotated[str, opt.argument("NEW", "What to compare it with.", complete.draw_targets)],
    out: opt.DrawnOut = None,
    to: opt.To = None,
    show: opt.Show = False,
    unfold: opt.Unfold = False,
    sets: opt.Sets = None,
) -> None:
    """Show the differences between two flows or two plans.

    A run or a program counts as a plan. With -o, --to or --show, draw both as one picture.
    """
    sides = (app.find_target(app.make_request(flow=side, settings=sets), note) for side in (old, new))
    compared = app.compare_targets(*sides)
    if out is not None or to or show:
        show_picture(compared.drawn(app.PictureDetail(unfold=unfold)), out, to or "", show=show)
        return
    text = compared.text()
    if not text:
        note("no difference")
    say(text, fit=True, end="")
