"""`run`: train by a plan."""

from __future__ import annotations

import typer

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.run_ending import exit_code, observers
from flowgraph.passes.verify import verified


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
