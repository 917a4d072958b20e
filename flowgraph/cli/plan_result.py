"""A plan as commands have it: where it is for, how it is searched, what it answers, its file, a step's sizes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.cli.flow_request import FlowInputs, FlowRequest
from flowgraph.cli.planning_request import PlanningProblem, PlanRequest
from flowgraph.cluster.plan import Plan
from flowgraph.cluster.this_machine import warnings_for
from flowgraph.errors import PlanError, UsageError
from flowgraph.files.untrusted import read_text
from flowgraph.language.graph import Graph
from flowgraph.runtime.record.fingerprint import without_bits

if TYPE_CHECKING:
    from placements.cuts import BatchSizes
    from placements.finding import Found
    from placements.setting import Setting


@dataclass(frozen=True)
class PlanTarget:
    """What a command line says of where to run: a cluster or a plan's file, this machine's memory, and the runtime.

    `placement` is a named placement on that cluster, such as `split`. `runtime` is "local" (this process) or "ray",
    `address` that of a Ray cluster, `threads` those of each process.
    """

    cluster: str | None = None
    plan: Path | None = None
    memory: str | None = None
    runtime: str | None = None
    address: str | None = None
    threads: int | None = None
    placement: str | None = None

    def __post_init__(self) -> None:
        if self.plan is not None and (self.cluster is not None or self.memory is not None):
            other = "--cluster" if self.cluster is not None else "--memory"
            raise UsageError(f"{other} has no effect: the plan defines its cluster", where=f"--plan {self.plan}")
        if self.plan is not None and self.placement is not None:
            raise UsageError("--placement has no effect: the plan defines its pools", where=f"--plan {self.plan}")

    def __str__(self) -> str:
        return str(self.plan) if self.plan is not None else self.cluster or "this machine"

    def question(self, asked: FlowRequest, **more: Any) -> PlanRequest:
        """Return the question of what to place there; `more` are other fields of it."""
        return PlanRequest(asked, self.cluster or "", memory=self.memory, **more)


@dataclass(frozen=True)
class SearchChoices:
    """How a command line has a plan looked for: the objective, the search, what is fixed, how much is shown."""

    objective: str = "step"
    method: str = "auto"
    placement: str = ""
    pins: tuple[str, ...] = ()
    top: int = 5
    what_if: tuple[str, ...] = ()
    robust: bool = False
    staleness: str = ""
    ratio: str = ""
    streamed: bool = False


@dataclass(frozen=True)
class PlanResult:
    """A plan and what it is an answer to; `found` is the search that made it, None for a plan from a file."""

    posed: PlanningProblem
    plan: Plan
    where: str
    found: Found | None = field(default=None, repr=False)

    @property
    def setting(self) -> Setting:
        """Return the planning problem."""
        return self.posed.setting

    @property
    def graph(self) -> Graph:
        """Return the flow's graph."""
        return self.setting.graph

    @property
    def inputs(self) -> FlowInputs | None:
        """Return the rows and settings of a run; None where only lengths are known."""
        return self.posed.inputs


def batch_lines(planned: PlanResult) -> list[str]:
    """Return the sizes of a step as lines, then what of a plan promises no same bits."""
    from placements.cuts import batch_text

    lines = ["batch", *_indented(batch_text(sizes_of(planned)).splitlines())]
    if loose := without_bits(planned.plan):
        alike = "the same command, or `resume`, gives a run alike on average"
        lines += ["no same bits", *_indented([f"{', '.join(loose)}: {alike}"])]
    return lines


def _indented(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines as they stand beneath a heading, each broken after a comma where it is too long."""
    from placements.text import COLUMNS, broken

    for line in lines:
        first, *rest = broken(line, ", ", COLUMNS - 4)
        yield f"  {first}"
        yield from (f"    {more}" for more in rest)


def warn(posed: PlanningProblem) -> None:
    """Print that CPU devices are more than the cores they run on, where they are."""
    for line in warnings_for(posed.setting.cluster):
        print(line, file=sys.stderr)


def batch_sizes(inputs: FlowInputs) -> BatchSizes:
    """Solve for the sizes of a step, wherever it runs: rows and minibatches; refuse what does not go together."""
    from placements.batch_sizes import solve_batch

    return solve_batch(inputs.graph, inputs.batch, **_rows_of(inputs))


def sizes_of(planned: PlanResult) -> BatchSizes:
    """Solve for the sizes of a planned step: rows, shares of ranks, minibatches; refuse what does not go together."""
    from placements.batch_sizes import solve_batch

    setting, rows = planned.setting, {} if planned.inputs is None else _rows_of(planned.inputs)
    prompt, response = int(setting.prompt.most), None if setting.response is None else int(setting.response.most)
    return solve_batch(
        setting.graph, setting.prompts, plan=planned.plan, prompt_tokens=prompt, response_tokens=response, **rows
    )


def _rows_of(inputs: FlowInputs) -> dict[str, Any]:
    origins = {each.name: each.origin for each in inputs.resolved}
    return {"data_rows": inputs.data.train.num_rows, "origins": origins}


def read_plan(path: Path) -> Plan:
    """Read a plan from its file. Raises PlanError for a file that is not there or holds no plan."""
    try:
        text = read_text(path)
    except OSError as error:
        raise PlanError.unreadable(str(path), "", f"cannot be read: {error.strerror}") from None
    except ValueError:
        raise PlanError.unreadable(str(path), "", "is no text, so no plan") from None
    return Plan.from_json(text, str(path))
