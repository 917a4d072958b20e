"""What follows a run on the command line, and the exit code with which it ends."""

from __future__ import annotations

from flowgraph import app
from flowgraph.cli.output import note

INTERRUPTED = 130
RESUMABLE = 3  # exit code: a process or the disk failed, and `resume` goes on


def observers() -> app.Observers:
    """Return what prints the lines of a run and shows its metrics."""
    from flowgraph.cli.display import display

    return app.Observers(say=note, show=display)


def exit_code(result: app.RunResult) -> int:
    """Print the run's folder if its weights are there; return the exit code."""
    if result.saved:
        print(result.folder)
    return {"finished": 0, "interrupted": INTERRUPTED, "failed": RESUMABLE}[result.status]
