"""`run` and `resume`: train by a plan, and continue a run."""

from __future__ import annotations

from collections.abc import Mapping

import typer

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.output import note, say
from flowgraph.errors.exit_codes import ExitCode
from flowgraph.passes.verify import verified

EXIT_CODES: Mapping[str, ExitCode] = {
    "finished": ExitCode.DONE,
    "interrupted": ExitCode.INTERRUPTED,
    "failed": ExitCode.RESUMABLE,  # a process or the disk failed; other errors are raised
}


def run(
    flow: opt.MaybeFlow = "",
    model: opt.Models = None,
    data: opt.Data = None,
    held_out: opt.HeldOut = None,
    steps: opt.Steps = None,
    batch: opt.Batch = None,
    seed: opt.Seed = 0,
    settings: opt.Sets = None,
    eval_every: opt.EvalEvery = 20,
    eval_rows: opt.EvalRows = 200,
    out: opt.RunOut = None,
    checkpoint_every: opt.CheckpointEvery = 50,
    keep: opt.Keep = 2,
    replay: opt.ReplayOf = None,
    sample_rows: opt.SampleRows = 256,
    forward_tokens: opt.ForwardTokens = 4096,
    cluster: opt.Clusters = None,
    placement: opt.Placement = None,
    plan: opt.PlanFile = None,
    memory: opt.Memory = None,
    runtime: opt.Runtime = None,
    address: opt.Address = None,
    threads: opt.Threads = None,
    log: opt.Log = None,
    profile: opt.Profile = None,
    attach: opt.Attach = None,
    passes: opt.Passes = None,
    cache: opt.Cache = None,
    verify: opt.Verify = False,
) -> None:
    """Train a flow into a run folder.

    The first Ctrl-C stops after the current step, the second at once.
    """
    request = app.make_request(**app.fields(locals(), but="verify"))
    with verified(verify):
        result = app.run_flow(request, observers())
    raise typer.Exit(exit_code(result))


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


def observers() -> app.Observers:
    """Return what prints the lines of a run and shows its metrics."""
    from flowgraph.cli.display import Display

    return app.Observers(say=note, show=lambda graph, steps, start: Display(graph, steps, start=start))


def exit_code(result: app.RunResult) -> ExitCode:
    """Print the run's folder if its weights are there; return the exit code."""
    if result.saved:
        say(result.folder)
    return EXIT_CODES[result.status]
