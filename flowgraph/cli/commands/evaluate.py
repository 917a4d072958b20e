"""`eval`: score a model's responses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.output import note, print_json
from flowgraph.cli.progress import Progress
from flowgraph.cli.score_tables import print_scores
from flowgraph.errors.exit_codes import ExitCode


def eval_command(
    subject: opt.AskedModel = None,
    generations: Annotated[
        Path | None,
        opt.workload("--generations FILE.parquet", "Score the responses of this file again, without a model."),
    ] = None,
    by: Annotated[
        str | None,
        opt.workload("--by RULE", "The scoring rule: its name, path.py:name, or `data` for the rule of the data set."),
    ] = None,
    n: opt.SamplesPerPrompt = 1,
    temperature: Annotated[
        float | None,
        opt.sampling("--temperature T", "Sampling temperature. Default: 0 (greedy) for n=1, otherwise 1.", min=0.0),
    ] = None,
    data: opt.Data = None,
    held_out: opt.HeldOut = None,
    split: opt.Split = None,
    rows: opt.EvalPrompts = None,
    max_tokens: opt.MaxTokens = None,
    batch: opt.BatchPrompts = None,
    seed: opt.SampleSeed = None,
    param: opt.WhichParam = None,
    settings: opt.Sets = None,
    sample_rows: opt.SampleRows = 256,
    cluster: opt.Clusters = None,
    plan: opt.PlanFile = None,
    memory: opt.Memory = None,
    runtime: opt.Runtime = None,
    address: opt.Address = None,
    threads: opt.Threads = None,
    out: Annotated[
        Path | None, opt.option("-o, --out FILE", "Write responses and scores (.parquet) or the report (.json).")
    ] = None,
    overwrite: opt.Overwrite = False,
    cache: opt.Cache = None,
    json: opt.Json = False,
) -> None:
    """Score the responses of a model or run: mean, pass@k, lengths."""
    request = app.make_request(**app.fields(locals(), but="json"))
    result = app.evaluate_request(request, note, Progress)
    if result.report is not None:
        print_json(result.data()) if json else print_scores(result)
    raise typer.Exit(ExitCode.INTERRUPTED if result.interrupted else ExitCode.DONE)
