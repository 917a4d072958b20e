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


@opt.takes(
    "flow=run_flow model data held_out columns max_prompt_tokens long_prompts steps epochs batch seed settings "
    "eval_every eval_rows eval_n "
    "eval_temperature=check_temperature out=run_folder checkpoint_every keep keep_best record_tokens warnings replay "
    "sample_rows forward_tokens cluster placement plan depth sync_every chunks contract memory runtime address threads "
    "log profile attach passes cache verify"
)
def run(fields: opt.Fields, verify: opt.Verify = False) -> None:
    """Train a flow into a run folder.

    The first Ctrl-C stops after the current step, the second at once.
    """
    request = app.make_request(**fields)
    with verified(verify):
        result = app.run_flow(request, observers())
    raise typer.Exit(exit_code(result))


@opt.takes(
    "run steps=total_steps cluster placement plan depth sync_every chunks contract memory runtime address threads "
    "verify"
)
def resume(fields: opt.Fields, run: opt.RunPath, verify: opt.Verify = False) -> None:
    """Resume a run from its newest checkpoint.

    Exit code 3: it failed again and can be resumed; 4: it cannot be resumed.
    """
    request = app.make_request(**fields)
    with verified(verify):
        result = app.resume_run(run, request, observers())
    raise typer.Exit(exit_code(result))


def observers() -> app.Observers:
    """Return observers of a run that print its notes to stderr and display its progress and metrics."""
    from flowgraph.cli.display import Display

    return app.Observers(say=note, show=lambda graph, steps, start: Display(graph, steps, start=start))


def exit_code(result: app.RunResult) -> ExitCode:
    """Return the exit code for the result of a run; print the run's folder if its newest weights are saved there."""
    if result.saved:
        say(result.folder)
    return EXIT_CODES[result.status]
