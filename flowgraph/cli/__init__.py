"""The command line: the only package that imports the compiler, the vocabulary and the planner together."""

from __future__ import annotations

import io
import sys

from flowgraph.cli.output import note
from flowgraph.errors import FlowError
from flowgraph.errors.distribution import refuse_other_packages
from flowgraph.errors.exit_codes import ExitCode

LONGEST_SHOWN = 200  # characters of a path


def main() -> None:
    """Run the command in the arguments of this process, and exit with the command's exit code.

    A FlowError is printed to stderr and gives its own exit code; an OSError with a path is printed too and gives 1. An
    interrupt gives 130, a closed pipe 0. Other exceptions are raised.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr does: a path need not be text
    try:
        refuse_other_packages()
        from flowgraph.cli.application import run_command  # imports all packages, which may be another project's

        sys.exit(run_command())
    except FlowError as error:
        note(error)  # names in it may be those of a file that was given to us
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        note("interrupted")
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(ExitCode.DONE)
    except OSError as error:
        if error.filename is None:
            raise
        name = str(error.filename)  # a path that you named, or one under it, which the system refuses
        note(f"{name if len(name) <= LONGEST_SHOWN else f'{name[:LONGEST_SHOWN]}…'}: {error.strerror}")
        sys.exit(ExitCode.FAULT)
