"""`draw`: a picture of a flow, a plan or a run."""

from __future__ import annotations

from typing import Annotated

import typer

from flowgraph import app
from flowgraph.cli import completion as complete
from flowgraph.cli import options as opt
from flowgraph.cli.output import note
from flowgraph.cli.viewer import show_picture


def draw(
    what: opt.What,
    out: opt.DrawnOut = None,
    picture: Annotated[
        str | None,
        typer.Option(
            "--picture",
            help="flow, plan, sequence, timeline, memory, placements, search or run. Default: by what is drawn.",
            metavar="PICTURE",
            autocompletion=complete.pictures,
        ),
    ] = None,
    to: opt.To = None,
    show: opt.Show = False,
    steps: Annotated[
        int, typer.Option("--steps", min=1, max=100, help="Number of steps of a timeline.", metavar="N")
    ] = 2,
    unfold: opt.Unfold = False,
    cluster: opt.Clusters = None,
    placement: opt.Placement = None,
    plan: opt.PlanFile = None,
    model: opt.Models = None,
    data: opt.Data = None,
    batch: opt.Batch = None,
    prompt_tokens: opt.PromptTokens = None,
    response_tokens: opt.ResponseTokens = None,
    settings: opt.Sets = None,
    passes: opt.Passes = None,
    cache: opt.Cache = None,
) -> None:
    """Draw a flow, a plan or a run.

    The picture goes to the terminal or to a file; an .html page has all pictures.
    """
    request = app.make_request(**app.fields(locals(), but="what out picture to show steps unfold"), flow=what)
    detail = app.PictureDetail(steps=steps, unfold=unfold)
    show_picture(app.make_drawing(request, picture or "", detail, note), out, to or "", show=show)
