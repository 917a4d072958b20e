"""`eval` and `generate`: the responses of a model, with or without scores."""

from __future__ import annotations

import typer

from flowgraph import app
from flowgraph.cli import options as opt
from flowgraph.cli.output import Progress, note, print_json, say
from flowgraph.cli.score_tables import print_scores
from flowgraph.errors.exit_codes import ExitCode


@opt.takes(
    "subject generations by n temperature=eval_temperature data held_out columns max_prompt_tokens long_prompts "
    "split rows max_tokens batch=prompts_per_batch seed=sampling_seed param settings sample_rows cluster plan memory "
    "runtime address threads out=scores_file overwrite cache json"
)
def eval_command(fields: opt.Fields, json: opt.Json = False) -> None:
    """Score the responses of a model or run: mean, pass@k, lengths."""
    request = app.make_request(**fields)
    result = app.evaluate_request(request, note, Progress)
    if result.report is not None:
        print_json(result.data()) if json else print_scores(result)
    raise typer.Exit(ExitCode.INTERRUPTED if result.interrupted else ExitCode.DONE)


@opt.takes(
    "subject prompt n temperature data held_out columns max_prompt_tokens long_prompts split rows max_tokens "
    "batch=prompts_per_batch seed=sampling_seed param settings sample_rows cluster plan memory runtime address threads "
    "out=responses_file overwrite cache json"
)
def generate(fields: opt.Fields, json: opt.Json = False) -> None:
    """Generate responses to prompts with a model or a run.

    They go to a Parquet file; with --prompt they are printed, and written only with -o.
    """
    request = app.make_request(**fields)
    result = app.generate_request(request, note, Progress)
    if json and result.rows:
        print_json(result.data())
    for row in result.rows if not json else ():
        if len(result.rows) > 1:
            say(f"[prompt {row['prompt_index']}, sample {row['sample_index']}]")
        say(row["response"])
    if result.out is not None and not fields["prompt"]:
        say(result.out)
    raise typer.Exit(ExitCode.INTERRUPTED if result.interrupted else ExitCode.DONE)
