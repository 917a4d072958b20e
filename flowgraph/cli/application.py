"""The commands, in the sections and the order of `--help`."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from flowgraph.cli.commands.calibrate import calibrate
from flowgraph.cli.commands.data import data_command, models
from flowgraph.cli.commands.draw import diff, draw
from flowgraph.cli.commands.evaluate import eval_command, generate
from flowgraph.cli.commands.explain import compare, explain, simulate
from flowgraph.cli.commands.flows import cp, flows
from flowgraph.cli.commands.interop import export_command, import_command
from flowgraph.cli.commands.machine import doctor, group
from flowgraph.cli.commands.plan import fit, plan
from flowgraph.cli.commands.rollouts import rollouts
from flowgraph.cli.commands.run import resume, run
from flowgraph.cli.commands.runs import report, runs, trace
from flowgraph.cli.commands.show import check, show
from flowgraph.cli.help_pages import CONTEXT, Commands, OneCommand, show_version
from flowgraph.cli.output import say
from flowgraph.errors.exit_codes import MEANINGS, ExitCode

BAD_COMMAND_LINE: Any = typer.BadParameter.__mro__[2]  # ClickException, which typer may keep a copy of
Command = Callable[..., None] | typer.Typer

SECTIONS: Mapping[str, Mapping[str, Command]] = {
    "Start": {"flows": flows, "cp": cp, "data": data_command, "models": models, "engines": group, "doctor": doctor},
    "Describe": {"show": show, "check": check, "draw": draw, "diff": diff},
    "Plan": {
        "plan": plan,
        "fit": fit,
        "explain": explain,
        "compare": compare,
        "simulate": simulate,
        "calibrate": calibrate,
        "export": export_command,
        "import": import_command,
    },
    "Run": {"run": run, "resume": resume, "eval": eval_command, "generate": generate},
    "Inspect": {"runs": runs, "report": report, "rollouts": rollouts, "trace": trace},
}

CODES = "\b\nExit codes:\n" + "\n".join(f"  {int(code):<4} {meaning}" for code, meaning in MEANINGS.items())

commands = typer.Typer(
    name="flowgraph",
    cls=Commands,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=CONTEXT,
    epilog=CODES,
)


@commands.callback()
def flowgraph(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=show_version, is_eager=True)
    ] = False,
) -> None:
    """Describe RL training of language models as typed flows; check, draw, plan and run them."""


for section, members in SECTIONS.items():
    for name, command in members.items():
        if isinstance(command, typer.Typer):
            commands.add_typer(command, name=name, rich_help_panel=section)
        else:
            commands.command(name, cls=OneCommand, rich_help_panel=section)(command)


def run_command() -> int:
    """Run the command in the arguments of this process, and return its exit code; 130 if the user aborted it.

    A fault in the command line is printed to stderr, and the exit code is 2. Other errors are raised.
    """
    try:
        code = commands(standalone_mode=False)
    except typer.Abort:
        return ExitCode.INTERRUPTED
    except BAD_COMMAND_LINE as error:
        message = io.StringIO()
        error.show(message)
        say(message.getvalue().rstrip("\n"), file=sys.stderr)
        return ExitCode.USAGE
    return code if isinstance(code, int) else ExitCode.DONE
