"""`plan`, and the check of memory that `run` makes: which role runs where and what it needs. No torch is loaded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.cli.inputs import Inputs, read_inputs
from flowgraph.cluster import Cluster, parse_bytes
from flowgraph.machine import laptop
from flowgraph.models.shapes import shape

if TYPE_CHECKING:
    from placements import Decision, Workload

CHARACTERS_PER_TOKEN = 3  # English is near 4 with the tokenizers of today; fewer keeps the forecast on the safe side
TEMPLATE_TOKENS = 48  # what a chat template adds, a default system prompt included


def plan_flow(
    flow: str,
    models: Sequence[str],
    data: str | None,
    batch: int | None,
    sets: Sequence[str],
    memory: str | None,
    cache: Path | None,
    as_json: bool,
) -> None:
    """Print the plan of a flow on this machine; refuse one that does not fit."""
    from placements import plan_text

    inputs = read_inputs(flow, models, data, None, batch, None, 0, sets, cache)
    decision = checked(inputs, memory)
    if as_json:
        print(json.dumps({"plan": json.loads(decision.plan.to_json()), "trace": decision.trace}, indent=1))
    else:
        print(plan_text(decision.plan))


def checked(inputs: Inputs, memory: str | None, sample_rows: int = 256, forward_tokens: int = 4096) -> Decision:
    """Plan the flow on this machine, or on one device of this much memory; refuse what does not fit."""
    from placements import check_fits, search

    cluster: Cluster = laptop(None if memory is None else parse_bytes(memory))
    shapes = {name: shape(source) for name, source in inputs.sources.items()}
    work = workload(inputs, sample_rows, forward_tokens)
    decision = search("colocated", inputs.graph, cluster, shapes, work)
    check_fits(decision, inputs.graph, shapes, work)
    return decision


def workload(inputs: Inputs, sample_rows: int, forward_tokens: int) -> Workload:
    """Say what a step reads: its prompts, and an upper estimate of their tokens from their characters."""
    from placements import Workload

    prompts: list[list[dict[str, Any]]] = inputs.data.train.column("prompt").to_pylist()
    longest = max(sum(len(message["content"]) for message in messages) for messages in prompts)
    real = any(source.kind != "tiny" for source in inputs.sources.values())
    tokens = longest // CHARACTERS_PER_TOKEN + TEMPLATE_TOKENS if real else longest + 2
    return Workload(prompts=inputs.batch, prompt_tokens=tokens, sample_rows=sample_rows, forward_tokens=forward_tokens)
