"""`plan`, and what `run`, `show` and `draw` plan by: the cluster, the plan made or read, whether it fits. No torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

from flowgraph.check_plan import check_plan
from flowgraph.cli.inputs import Asked, Inputs, read_inputs
from flowgraph.cli.show import write_text
from flowgraph.cluster import Cluster, parse_bytes
from flowgraph.cluster_text import read_cluster
from flowgraph.errors import PlanError, UsageError
from flowgraph.graph import Graph
from flowgraph.machine import laptop, warnings_for
from flowgraph.models.shapes import ModelShape, shape
from flowgraph.plan import Plan
from flowgraph.runtime.hosting import heads_of

if TYPE_CHECKING:
    from placements import Decision, Workload
    from placements.cuts import BatchSizes

DEFAULT_CLUSTER = "laptop"
RULE = "colocated"  # where no placement is named
SAMPLE_ROWS, FORWARD_TOKENS = 256, 4096  # rows decoded side by side, and padded tokens of a pass without gradients
CHARACTERS_PER_TOKEN = 3  # English is near 4 with the tokenizers of today; fewer keeps the forecast on the safe side
TEMPLATE_TOKENS = 48  # what a chat template adds, a default system prompt included


@dataclass(frozen=True)
class Where:
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
            raise UsageError(f"a plan has its own cluster, so {other} says nothing", where=f"--plan {self.plan}")
        if self.plan is not None and self.placement is not None:
            raise UsageError("a plan has its own pools, so --placement says nothing", where=f"--plan {self.plan}")

    def __str__(self) -> str:
        return str(self.plan) if self.plan is not None else self.cluster or "this machine"


@dataclass(frozen=True)
class Planned:
    """A flow and the plan that it runs by, with the decisions that led there (none for a plan from a file).

    `inputs` is None for a plan for costing, which says itself what it was made for.
    """

    graph: Graph
    plan: Plan
    trace: tuple[str, ...]
    shapes: Mapping[str, ModelShape]
    work: Workload
    inputs: Inputs | None = None


def plan_flow(asked: Asked, where: Where, out: Path | None, as_json: bool) -> None:
    """Print the plan of a flow, and write it to `out` as a file to edit; refuse one that does not fit."""
    from flowgraph.runtime.fingerprint import without_bits
    from placements import plan_text
    from placements.cuts import batch_text
    from placements.found_text import plan_lines
    from placements.text import flowing

    found = planned_for(asked, where)
    if out is not None:
        write_text(out, found.plan.to_json())
    if as_json:
        print(json.dumps({"plan": json.loads(found.plan.to_json()), "trace": found.trace}, indent=1))
    else:
        text = "\n".join(plan_lines(found.plan)) if found.plan.step is not None else plan_text(found.plan)
        print(f"{text}\nbatch\n{indent(batch_text(sizes_of(found)), '  ')}")
        if not found.plan.costed and (loose := without_bits(found.plan)):
            print(f"no same bits\n  {', '.join(loose)}: the same command, or `resume`, gives a run alike on average")
        if where.placement is not None:
            print("\n".join(["why", *flowing([[line] for line in found.trace])]))
    if out is not None:
        print(out, file=sys.stderr)


def planned_for(asked: Asked, where: Where, *, fits: bool = True) -> Planned:
    """Plan a flow, or read its plan, which may be for costing: then it says itself for which models, rows and lengths.

    Refuses a plan that does not fit unless told not to.
    """
    plan = None if where.plan is None else read_plan(where.plan)
    if plan is None or not plan.costed or plan.assumed is None:
        return planned(read_inputs(asked), where, fits=fits)
    from flowgraph.cli.reforecast import planned_again

    return planned_again(plan, asked, str(where.plan), fits=fits)


def planned(
    inputs: Inputs,
    where: Where,
    sample_rows: int = SAMPLE_ROWS,
    forward_tokens: int = FORWARD_TOKENS,
    *,
    fits: bool = True,
) -> Planned:
    """Plan the flow on its cluster, or read the plan that is named; refuse one that does not fit unless told not to."""
    from placements import forecast_plan

    heads = heads_of(inputs.graph)
    shapes = {name: shape(source, heads[name]) for name, source in inputs.sources.items()}
    work = workload(inputs, sample_rows, forward_tokens)
    if where.plan is None:
        decision = _searched(inputs, where, shapes, work)
        plan, trace = decision.plan, decision.trace
    else:
        plan, trace = read_plan(where.plan), ()
        check_plan(plan, inputs.graph, str(where.plan))
        plan = plan if plan.costed else forecast_plan(plan, inputs.graph, shapes, work)
    for line in warnings_for(plan.cluster):
        print(line, file=sys.stderr)
    found = Planned(inputs.graph, plan, trace, shapes, work, inputs)
    if fits:
        sizes_of(found)
    if fits and not plan.costed:
        refuse_what_does_not_fit(found, where)
    return found


def refuse_what_does_not_fit(found: Planned, where: Where) -> None:
    """Refuse a plan that needs more memory than a device has."""
    from placements import check_fits

    check_fits(found.plan, found.graph, found.shapes, found.work, on=str(where))


def batch_sizes(inputs: Inputs) -> BatchSizes:
    """Solve for the sizes of a step, wherever it runs: rows and minibatches; refuse what does not go together."""
    from placements.batch_sizes import solve_batch

    return solve_batch(inputs.graph, inputs.batch, **_told(inputs))


def sizes_of(found: Planned) -> BatchSizes:
    """Solve for the sizes of a planned step: rows, shares of ranks, minibatches; refuse what does not go together."""
    from placements.batch_sizes import solve_batch

    told = {} if found.inputs is None else _told(found.inputs)
    tokens = found.work.prompt_tokens
    return solve_batch(found.graph, found.work.prompts, plan=found.plan, prompt_tokens=tokens, **told)


def _told(inputs: Inputs) -> dict[str, Any]:
    origins = {each.name: each.origin for each in inputs.resolved}
    return {"data_rows": inputs.data.train.num_rows, "origins": origins}


def _searched(inputs: Inputs, where: Where, shapes: Any, work: Workload) -> Decision:
    from placements import search
    from placements.named import variant
    from placements.profiles import known_devices

    memory = None if where.memory is None else parse_bytes(where.memory)

    def here(devices: int) -> Cluster:
        return laptop(devices, memory)

    cluster = read_cluster(DEFAULT_CLUSTER if where.cluster is None else where.cluster, here, known_devices())
    if memory is not None and all(device.kind == "gpu" for node in cluster.nodes for device in node.devices):
        what = f"is of this machine, and {where.cluster} has devices of its own"
        raise UsageError(what, where=f"--memory {where.memory}", hint="say it of the devices, as in 2x8xgpu-40GiB")
    rule = RULE if where.placement is None else variant(where.placement).name
    return search(rule, inputs.graph, cluster, shapes, work)


def read_plan(path: Path) -> Plan:
    """Read a plan from its file. Raises PlanError for a file that is not there or holds no plan."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise PlanError.unreadable(str(path), "", f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise PlanError.unreadable(str(path), "", "is no text, so no plan") from None
    return Plan.from_json(text, str(path))


def workload(inputs: Inputs, sample_rows: int = SAMPLE_ROWS, forward_tokens: int = FORWARD_TOKENS) -> Workload:
    """Say what a step reads: its prompts, and an upper estimate of their tokens from their characters."""
    from placements import Workload

    prompts: list[list[dict[str, Any]]] = inputs.data.train.column("prompt").to_pylist()
    longest = max(sum(len(message["content"]) for message in messages) for messages in prompts)
    real = any(source.kind != "tiny" for source in inputs.sources.values())
    tokens = longest // CHARACTERS_PER_TOKEN + TEMPLATE_TOKENS if real else longest + 2
    return Workload(prompts=inputs.batch, prompt_tokens=tokens, sample_rows=sample_rows, forward_tokens=forward_tokens)
