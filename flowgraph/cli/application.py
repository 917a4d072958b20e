"""The commands in the order in which `--help` lists them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import typer

from flowgraph.cli.commands.calibrate import calibrate
from flowgraph.cli.commands.check import check
from flowgraph.cli.commands.compare import compare
from flowgraph.cli.commands.cp import cp
from flowgraph.cli.commands.data import data_command
from flowgraph.cli.commands.diff import diff
from flowgraph.cli.commands.doctor import doctor
from flowgraph.cli.commands.draw import draw
from flowgraph.cli.commands.engines import group
from flowgraph.cli.commands.evaluate import eval_command
from flowgraph.cli.commands.explain import explain
from flowgraph.cli.commands.export import export_command
from flowgraph.cli.commands.fit import fit
from flowgraph.cli.commands.flows import flows
from flowgraph.cli.commands.generate import generate
from flowgraph.cli.commands.import_run import import_command
from flowgraph.cli.commands.models import models
from flowgraph.cli.commands.plan import plan
from flowgraph.cli.commands.report import report
from flowgraph.cli.commands.resume import resume
from flowgraph.cli.commands.run import run
from flowgraph.cli.commands.runs import runs
from flowgraph.cli.commands.show import show
from flowgraph.cli.commands.simulate import simulate
from flowgraph.cli.commands.trace import trace

commands = typer.Typer(
    name="flowgraph",
    help="Write an RL algorithm as a typed function; check it, draw it, plan it, run it.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: Mapping[str, Callable[..., None]] = {
    "show": show,
    "check": check,
    "run": run,
    "resume": resume,
    "data": data_command,
    "models": models,
    "flows": flows,
    "cp": cp,
    "runs": runs,
    "report": report,
    "trace": trace,
    "doctor": doctor,
    "eval": eval_command,
    "generate": generate,
    "plan": plan,
    "fit": fit,
    "explain": explain,
    "compare": compare,
    "simulate": simulate,
    "calibrate": calibrate,
    "export": export_command,
    "import": import_command,
    "draw": draw,
    "diff": diff,
}
for name, command in COMMANDS.items():
    commands.command(name)(command)
commands.add_typer(group, name="engines")
