"""The verbs that ask a model, with their options; what each does is in its own file, imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowgraph.cli.commands import (
    Address,
    Cache,
    Clusters,
    Data,
    HeldOut,
    Json,
    Memory,
    PlanFile,
    Runtime,
    SampleRows,
    Sets,
    Threads,
    app,
    every,
)
from flowgraph.cluster.plan import MOST_PROMPTS

__all__ = ["app"]

AskedModel = Annotated[
    str | None, typer.Argument(help="a model, as --model takes it, or a run's folder", metavar="MODEL_OR_RUN")
]
Split = Annotated[str | None, typer.Option("--split", help="held-out (if there are such rows), or train")]
EvalPrompts = Annotated[int | None, typer.Option("--rows", min=1, help="how many prompts at most")]
BatchPrompts = Annotated[int | None, typer.Option("--batch", min=1, max=MOST_PROMPTS, help="prompts at once")]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", min=1, help="default the run's, or known for the data")]
SampleSeed = Annotated[
    int | None, typer.Option("--seed", min=0, max=2**63 - 1, help="names the draws; default the run's")
]
WhichParam = Annotated[str | None, typer.Option("--param", help="which of a run's models")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="replace the file if it is there")]


@app.command("eval")
def eval_command(
    model: AskedModel = None,
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
    data: Data = None,
    held_out: HeldOut = None,
    split: Split = None,
    rows: EvalPrompts = None,
    max_tokens: MaxTokens = None,
    batch: BatchPrompts = None,
    seed: SampleSeed = None,
    param: WhichParam = None,
    sets: Sets = None,
    sample_rows: SampleRows = 256,
    cluster: Clusters = None,
    plan: PlanFile = None,
    memory: Memory = None,
    runtime: Runtime = None,
    address: Address = None,
    threads: Threads = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="FILE.parquet: responses and scores; FILE.json")
    ] = None,
    overwrite: Overwrite = False,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """Score a model's or a run's responses to held-out prompts: mean, pass@k, lengths."""
    from flowgraph.cli.evaluate import Output, eval_asked
    from flowgraph.cli.plan_result import PlanTarget
    from flowgraph.cli.sampling import SamplingRequest

    heat = temperature if temperature is not None else float(n > 1)
    where = PlanTarget(cluster, plan, memory, runtime, address, threads)
    wanted = SamplingRequest(
        data, held_out, split, rows, batch, n, heat, max_tokens, seed, every(sets), cache, where, sample_rows
    )
    raise typer.Exit(eval_asked(model, generations, param, wanted, by, Output(out, overwrite, json)))


@app.command()
def generate(
    model: AskedModel = None,
    prompts: Annotated[list[str] | None, typer.Option("--prompt", help="a prompt; the response is printed")] = None,
    n: Annotated[int, typer.Option("--n", min=1, help="responses to each prompt")] = 1,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0: greedy")] = 1.0,
    data: Data = None,
    held_out: HeldOut = None,
    split: Split = None,
    rows: EvalPrompts = None,
    max_tokens: MaxTokens = None,
    batch: BatchPrompts = None,
    seed: SampleSeed = None,
    param: WhichParam = None,
    sets: Sets = None,
    sample_rows: SampleRows = 256,
    cluster: Clusters = None,
    plan: PlanFile = None,
    memory: Memory = None,
    runtime: Runtime = None,
    address: Address = None,
    threads: Threads = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="the file to write", metavar="FILE.parquet")] = None,
    overwrite: Overwrite = False,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """Draw a model's or a run's responses to prompts, into a Parquet file."""
    from flowgraph.cli.evaluate import Output
    from flowgraph.cli.generate import generate_responses
    from flowgraph.cli.plan_result import PlanTarget
    from flowgraph.cli.sampling import SamplingRequest

    where = PlanTarget(cluster, plan, memory, runtime, address, threads)
    wanted = SamplingRequest(
        data, held_out, split, rows, batch, n, temperature, max_tokens, seed, every(sets), cache, where, sample_rows
    )
    raise typer.Exit(generate_responses(model, param, wanted, every(prompts), Output(out, overwrite, json)))
