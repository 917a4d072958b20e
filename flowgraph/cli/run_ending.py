"""What follows a run on the command line, and the exit code with which it ends."""

from __future__ import annotations

from collections.abc import Mapping

from flowgraph import app
from flowgraph.cli.output import note, say
from flowgraph.errors.exit_codes import ExitCode

EXIT_CODES: Mapping[str, ExitCode] = {
    "finished": ExitCode.DONE,
    "interrupted": ExitCode.INTERRUPTED,
    "failed": ExitCode.RESUMABLE,  # a process or the disk failed; other errors are raised
}


def observers() -> app.Observers:
    """Return what prints the lines of a run and shows its metrics."""
    from flowgraph.cli.display import display

    return app.Observers(say=note, show=display)


def exit_code(result: app.RunResult) -> ExitCode:
    """Print the run's folder if its weights are there; return the exit code."""
    if result.saved:
        say(result.folder)
    return EXIT_CODES[result.status]
