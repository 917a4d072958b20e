"""The command line: the only place that knows the compiler, the vocabulary and the planner."""

from __future__ import annotations

import io
import sys

from flowgraph.cli.interrupts import INTERRUPTED
from flowgraph.errors import FlowError

LONGEST_SHOWN = 200  # characters of a path


def main() -> None:
    """Run a command; an error of ours is printed whole and ends with its exit code."""
    from flowgraph.cli.draw_commands import app
    from flowgraph.flows.flow_files import refuse_shadowed_packages

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr does: a path need not be text
    try:
        refuse_shadowed_packages()
        app()
    except FlowError as error:
        from flowgraph.diagrams.model.labels import seen

        print(seen(str(error)), file=sys.stderr)  # names in it may be those of a file that was given to us
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        if error.filename is None:
            raise
        from flowgraph.diagrams.model.labels import seen

        name = str(error.filename)  # a path that was named, or one under it, which the system refuses
        shown = name if len(name) <= LONGEST_SHOWN else f"{name[:LONGEST_SHOWN]}…"
        print(seen(f"{shown}: {error.strerror}"), file=sys.stderr)
        sys.exit(1)
