"""`show`: a flow at a stage."""

from __future__ import annotations

from typing import Annotated

import typer

from flowgraph import app
from flowgraph.cli import completion as complete
from flowgraph.cli import options as opt
from flowgraph.cli.output import note, print_json, say
from flowgraph.passes.verify import verified


def show(
    flow: opt.FlowName,
    stage: Annotated[
        str,
        typer.Option(
            "--stage",
            help="The stage: described, named, placed or lowered.",
            metavar="STAGE",
            autocompletion=complete.one_of("described", "named", "placed", "lowered"),
        ),
    ] = "named",
    diff: Annotated[
        tuple[str, str] | None,
        typer.Option("--diff", help="Compare two stages; `flowgraph diff` compares flows.", metavar="STAGE STAGE"),
    ] = None,
    facts: Annotated[
        bool, typer.Option("--facts", help="Print tokens and FLOPs of nodes, bytes on edges, and state.")
    ] = False,
    model: opt.Models = None,
    data: opt.Data = None,
    batch: opt.Batch = None,
    cluster: opt.Clusters = None,
    placement: opt.Placement = None,
    plan: opt.PlanFile = None,
    settings: opt.Sets = None,
    passes: opt.Passes = None,
    cache: opt.Cache = None,
    verify: opt.Verify = False,
    json: opt.Json = False,
) -> None:
    """Print a flow at a stage of the compiler.

    The stages are: as you described it, named (after the passes), placed by a plan, and lowered to a program.
    """
    request = app.make_request(**app.fields(locals(), but="stage diff facts verify json"))
    with verified(verify):
        if diff is None or facts:
            shown = app.flow_facts(request, note) if facts else app.FlowStage(request, stage, note)
            print_json(shown.data()) if json else say(shown.text(), fit=True)
            return
        app.FlowStage(request, stage, note)  # refuses a stage that does not exist
        one, other = (app.FlowStage(request, name, note) for name in diff)
        text = app.compared_stages(one, other)
        if not text:
            note("no difference")
        say(text, fit=True, end="")
