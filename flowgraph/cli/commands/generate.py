"""`generate`: a model's responses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.output import note, print_json, say
from flowgraph.cli.progress import Progress
from flowgraph.errors.exit_codes import ExitCode


def generate(
    subject: opt.AskedModel = None,
    prompt: Annotated[
        list[str] | None, opt.workload("--prompt TEXT", "A prompt whose response is printed. Repeat it for more.")
    ] = None,
    n: opt.SamplesPerPrompt = 1,
    temperature: Annotated[float, opt.sampling("--temperature T", "Sampling temperature; 0 is greedy.", min=0.0)] = 1.0,
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
    out: Annotated[Path | None, opt.option("-o, --out FILE.parquet", "The file to write.")] = None,
    overwrite: opt.Overwrite = False,
    cache: opt.Cache = None,
    json: opt.Json = False,
) -> None:
    """Generate responses to prompts with a model or a run.

    They go to a Parquet file; with --prompt, they are printed.
    """
    request = app.make_request(**app.fields(locals(), but="json"))
    result = app.generate_request(request, note, Progress)
    if json and result.rows:
        print_json(result.data())
    for row in result.rows if not json else ():
        if len(result.rows) > 1:
            say(f"[prompt {row['prompt_index']}, sample {row['sample_index']}]")
        say(row["response"])
    if result.out is not None and not prompt:
        say(result.out)
    raise typer.Exit(ExitCode.INTERRUPTED if result.interrupted else ExitCode.DONE)
