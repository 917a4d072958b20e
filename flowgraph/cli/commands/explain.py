"""`explain`, `compare` and `simulate`: why a plan places roles as it does, plans side by side, simulated steps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from flowgraph import app
from flowgraph.cli import completion as complete
from flowgraph.cli import options as opt
from flowgraph.cli.output import layout_columns, note, print_json, print_result, say, write


def explain(
    plan: opt.PlanPath,
    role: Annotated[str | None, opt.argument("ROLE", "A role, e.g. policy.sample. Default: every role.")] = None,
    json: opt.Json = False,
) -> None:
    """Explain why a plan places each role where it does.

    It lists how long a step would take with the role elsewhere.
    """
    result = app.explain_plan(plan, role)
    for fault in result.faults:
        note(fault)
    print_result(result, as_json=json)


def compare(
    plans: Annotated[list[Path], opt.argument("PLAN.json", "Plan files.", complete.plans)], json: opt.Json = False
) -> None:
    """Compare two or more plans side by side in a table."""
    result = app.compare_plans(plans)
    print_json(result.data()) if json else say(result.text(layout_columns()), fit=True)


def simulate(
    plan: opt.PlanPath,
    steps: Annotated[int, opt.option("--steps N", "Number of steps.", min=1, max=1000)] = 2,
    out: Annotated[
        Path | None, opt.option("-o, --out TRACE.json", "Write a Chrome trace, for ui.perfetto.dev.")
    ] = None,
    json: opt.Json = False,
) -> None:
    """Simulate the steps of a plan, without a GPU.

    The timeline shows when each pool works, and what it waits for.
    """
    result = app.simulate_plan(plan, steps)
    write(out, result.trace())
    print_json(result.data()) if json else say(result.text(layout_columns()), fit=True)
    if out is not None:
        note(out)
