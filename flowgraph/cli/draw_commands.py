"""The verbs that draw, with their options; what each does is in a file of its own, imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowgraph.cli.commands import Batch, Cache, Clusters, Data, Models, Passes, Placement, PlanFile, Sets, every
from flowgraph.cli.plan_commands import PromptTokens, ResponseTokens, app

__all__ = ["app"]

WHAT = "a flow, a file of a plan, program or picture, or a run's folder"
What = Annotated[str, typer.Argument(help=WHAT, metavar="WHAT")]
DrawnOut = Annotated[
    Path | None, typer.Option("-o", "--out", help="write .svg .png .html .mmd .md .dot .json .txt", metavar="FILE")
]
To = Annotated[str | None, typer.Option("--to", help="print it as text, svg, mmd, md, dot or json", metavar="FORMAT")]
Show = Annotated[bool, typer.Option("--show", help="open it in this machine's viewer; without -o a page")]
Unfold = Annotated[bool, typer.Option("--unfold", help="each machine of a pool, however many there are")]


@app.command()
def draw(
    what: What,
    out: DrawnOut = None,
    picture: Annotated[
        str | None,
        typer.Option("--picture", help="flow, plan, sequence, timeline, memory, placements, search or run"),
    ] = None,
    to: To = None,
    show: Show = False,
    steps: Annotated[int, typer.Option("--steps", min=1, max=100, help="of a timeline")] = 2,
    unfold: Unfold = False,
    cluster: Clusters = None,
    placement: Placement = None,
    plan: PlanFile = None,
    model: Models = None,
    data: Data = None,
    batch: Batch = None,
    prompt_tokens: PromptTokens = None,
    response_tokens: ResponseTokens = None,
    sets: Sets = None,
    passes: Passes = None,
    cache: Cache = None,
) -> None:
    """Draw a flow, a plan or a run: in the terminal, as a file of any format, or all of it as a page (.html)."""
    from flowgraph.cli.draw import DrawOutput, draw
    from flowgraph.cli.draw_target import subject_of
    from flowgraph.cli.flow_request import FlowRequest
    from flowgraph.cli.pictures import PictureDetail
    from flowgraph.cli.plan_result import PlanTarget
    from flowgraph.cli.planning_request import PlanRequest

    asked = FlowRequest(what, every(model), data, None, batch, None, 0, every(sets), every(passes), cache)
    question = PlanRequest(asked, cluster or "", prompt_tokens, response_tokens)
    subject = subject_of(question, PlanTarget(cluster, plan, placement=placement))
    draw(subject, DrawOutput(out, to or "", show, picture or "", PictureDetail(steps, unfold)))


@app.command()
def diff(
    old: Annotated[str, typer.Argument(help=WHAT, metavar="OLD")],
    new: Annotated[str, typer.Argument(help="what it is compared with", metavar="NEW")],
    out: DrawnOut = None,
    to: To = None,
    show: Show = False,
    unfold: Unfold = False,
    sets: Sets = None,
) -> None:
    """Say what differs between two flows or two plans; with -o, draw both as one."""
    from flowgraph.cli.diff import diff_subjects
    from flowgraph.cli.draw import DrawOutput
    from flowgraph.cli.draw_target import subject_of
    from flowgraph.cli.flow_request import FlowRequest
    from flowgraph.cli.pictures import PictureDetail
    from flowgraph.cli.plan_result import PlanTarget
    from flowgraph.cli.planning_request import PlanRequest

    sides = [subject_of(PlanRequest(FlowRequest(side, sets=every(sets)), ""), PlanTarget()) for side in (old, new)]
    diff_subjects(sides[0], sides[1], DrawOutput(out, to or "", show, "", PictureDetail(unfold=unfold)))
