"""`eval`: score a model's responses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.output import note, print_json
from flowgraph.cli.progress import Progress
from flowgraph.cli.run_ending import INTERRUPTED
from flowgraph.cli.score_tables import print_scores


def eval_command(
    subject: opt.AskedModel = None,
    generations: Annotated[
        Path | None, typer.Option("--generations", help="score these again, without a model", metavar="FILE.parquet")
    ] = None,
    by: Annotated[
        str | None, typer.Option("--by", help="the rule: its name, path.py:name, or data", metavar="RULE")
    ] = None,
    n: Annotated[int, typer.Option("--n", min=1, help="responses to each prompt")] = 1,
    temperature: Annotated[
        float | None, typer.Option("--temperature", min=0.0, help="default 0 (greedy) for n=1, else 1")
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
        Path | None, typer.Option("-o", "--out", help="FILE.parquet: responses and scores; FILE.json")
    ] = None,
    overwrite: opt.Overwrite = False,
    cache: opt.Cache = None,
    json: opt.Json = False,
) -> None:
    """Score a model's or a run's responses to held-out prompts: mean, pass@k, lengths."""
    request = app.make_request(**app.fields(locals(), but="json"))
    result = app.evaluate_request(request, note, Progress)
    if result.report is not None:
        print_json(result.data()) if json else print_scores(result)
    raise typer.Exit(INTERRUPTED if result.interrupted else 0)
