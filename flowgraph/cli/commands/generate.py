"""`generate`: a model's responses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.output import note, print_json
from flowgraph.cli.progress import Progress
from flowgraph.cli.run_ending import INTERRUPTED


def generate(
    subject: opt.AskedModel = None,
    prompt: Annotated[list[str] | None, typer.Option("--prompt", help="a prompt; the response is printed")] = None,
    n: Annotated[int, typer.Option("--n", min=1, help="responses to each prompt")] = 1,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0: greedy")] = 1.0,
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
    out: Annotated[Path | None, typer.Option("-o", "--out", help="the file to write", metavar="FILE.parquet")] = None,
    overwrite: opt.Overwrite = False,
    cache: opt.Cache = None,
    json: opt.Json = False,
) -> None:
    """Draw a model's or a run's responses to prompts, into a Parquet file."""
    request = app.make_request(**app.fields(locals(), but="json"))
    result = app.generate_request(request, note, Progress)
    if json and result.rows:
        print_json(result.data())
    for row in result.rows if not json else ():
        if len(result.rows) > 1:
            print(f"[prompt {row['prompt_index']}, sample {row['sample_index']}]")
        print(row["response"])
    if result.out is not None and not prompt:
        print(result.out)
    raise typer.Exit(INTERRUPTED if result.interrupted else 0)
