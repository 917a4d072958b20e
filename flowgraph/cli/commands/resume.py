"""`resume`: go on with a run."""

from __future__ import annotations

import typer

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.run_ending import exit_code, observers
from flowgraph.passes.verify import verified


def resume(
    run: opt.RunPath,
    steps: opt.TotalSteps = None,
    cluster: opt.Clusters = None,
    placement: opt.Placement = None,
    plan: opt.PlanFile = None,
    memory: opt.Memory = None,
    runtime: opt.Runtime = None,
    address: opt.Address = None,
    threads: opt.Threads = None,
    verify: opt.Verify = False,
) -> None:
    """Resume a run from its newest checkpoint.

    Exit code 3: it failed again and can be resumed; 4: it cannot be resumed.
    """
    request = app.make_request(**app.fields(locals(), but="run verify"))
    with verified(verify):
        result = app.resume_run(run, request, observers())
    raise typer.Exit(exit_code(result))
