"""The commands in the order in which `--help` lists them."""

from __future__ import annotations

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
for each in (show, check, run, resume):
    commands.command()(each)
commands.command("data")(data_command)
for each in (models, flows, cp, runs, report, trace, doctor):
    commands.command()(each)
commands.command("eval")(eval_command)
for each in (generate, plan, fit, explain, compare, simulate, calibrate):
    commands.command()(each)
commands.command("export")(export_command)
commands.command("import")(import_command)
for each in (draw, diff):
    commands.command()(each)
commands.add_typer(group, name="engines")
