"""`show` and `draw`: a flow, its plan or its program, as text, JSON or a diagram. No torch is loaded."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flowgraph.errors import UsageError
from flowgraph.files import FlowFile, find_flow
from flowgraph.graph import Graph
from flowgraph.passes import compile_graph
from flowgraph.settings import resolve_settings, split_assignments
from flowgraph.store import flat, full_hash, structure_hash
from flowgraph.text import graph_text

if TYPE_CHECKING:
    from flowgraph.cli.plan import Planned, Where
    from flowgraph.lowering.program import Program

STAGES = ("named", "placed", "lowered")


def compiled(flow: str, sets: Sequence[str]) -> tuple[FlowFile, Graph, dict[str, object]]:
    """Find and compile a flow; give its file, its graph, and the settings that are for its nodes."""
    found = find_flow(flow)
    own, chosen = split_assignments(list(found.flow.signature.settings.model_fields), sets)
    return found, compile_graph(found.flow.graph(own)), chosen


def show_flow(flow: str, sets: Sequence[str], stage: str, where: Where, as_json: bool) -> None:
    """Print a flow's graph, the graph with its places, or its program."""
    _check_stage(stage, STAGES)
    _, graph, chosen = compiled(flow, sets)
    graph, _ = resolve_settings(graph, (), chosen)
    if as_json:
        if stage != "named":
            raise UsageError("JSON is for the graph", where="--json", hint="flowgraph plan --json gives the plan")
        hashes = {"structure_hash": structure_hash(graph), "full_hash": full_hash(graph)}
        print(json.dumps(flat(graph) | hashes, indent=1))
    elif stage == "named":
        print(graph_text(graph))
    else:
        _show_planned(flow, sets, stage, where)


def _show_planned(flow: str, sets: Sequence[str], stage: str, where: Where) -> None:
    from flowgraph.lowering.program import program_text
    from flowgraph.placed_text import placed_text

    found = _planned(flow, sets, where)
    print(placed_text(found.inputs.graph, found.plan) if stage == "placed" else program_text(_lowered(found, where)))


def _planned(flow: str, sets: Sequence[str], where: Where) -> Planned:
    """Plan a flow, whether the plan fits or not."""
    from flowgraph.cli.inputs import read_inputs
    from flowgraph.cli.plan import planned

    return planned(read_inputs(flow, [], None, None, None, None, 0, sets, None), where, fits=False)


def _lowered(found: Planned, where: Where) -> Program:
    from flowgraph.lowering.lower import lower

    return lower(found.inputs.graph, found.plan, where=str(where))


def draw_flow(flow: str, out: Path | None, sets: Sequence[str], stage: str, where: Where) -> None:
    """Draw a flow, or its plan, as Mermaid text, to stdout or a file."""
    _check_stage(stage, STAGES[:2])
    if out is not None and out.suffix not in (".mmd", ".mermaid", ".md"):
        raise UsageError(
            f"cannot draw a {out.suffix or 'file without an ending'}", where=str(out), hint="write FILE.mmd"
        )
    text = _drawn(flow, sets, stage, where)
    if out is None:
        print(text)
        return
    fenced = f"```mermaid\n{text}\n```\n" if out.suffix == ".md" else f"{text}\n"
    write_text(out, fenced)
    print(out, file=sys.stderr)


def _drawn(flow: str, sets: Sequence[str], stage: str, where: Where) -> str:
    from flowgraph.diagrams.flow_picture import flow_picture
    from flowgraph.diagrams.mermaid import mermaid

    if stage == "named":
        _, graph, chosen = compiled(flow, sets)
        return mermaid(flow_picture(resolve_settings(graph, (), chosen)[0]))
    from flowgraph.diagrams.plan_picture import plan_picture

    return mermaid(plan_picture(_lowered(_planned(flow, sets, where), where)))


def _check_stage(stage: str, known: Sequence[str]) -> None:
    if stage not in known:
        raise UsageError(f"no stage `{stage}`", where="--stage", hint=f"known: {', '.join(known)}")


def write_text(path: Path, text: str) -> None:
    """Write a file that a user named."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(path)) from error
