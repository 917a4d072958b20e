"""`show` and `draw`: a flow as text, JSON, or a diagram. No torch is loaded."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from flowgraph.errors import UsageError
from flowgraph.files import FlowFile, find_flow
from flowgraph.graph import Graph
from flowgraph.passes import compile_graph
from flowgraph.settings import resolve_settings, split_assignments
from flowgraph.store import flat, full_hash, structure_hash
from flowgraph.text import graph_text


def compiled(flow: str, sets: Sequence[str]) -> tuple[FlowFile, Graph, dict[str, object]]:
    """Find and compile a flow; give its file, its graph, and the settings that are for its nodes."""
    found = find_flow(flow)
    own, chosen = split_assignments(list(found.flow.signature.settings.model_fields), sets)
    return found, compile_graph(found.flow.graph(own)), chosen


def show_flow(flow: str, sets: Sequence[str], as_json: bool) -> None:
    """Print a flow's graph."""
    _, graph, chosen = compiled(flow, sets)
    graph, _ = resolve_settings(graph, (), chosen)
    if as_json:
        hashes = {"structure_hash": structure_hash(graph), "full_hash": full_hash(graph)}
        print(json.dumps(flat(graph) | hashes, indent=1))
    else:
        print(graph_text(graph))


def draw_flow(flow: str, out: Path | None, sets: Sequence[str]) -> None:
    """Draw a flow as Mermaid text, to stdout or a file."""
    from flowgraph.diagrams.flow_picture import flow_picture
    from flowgraph.diagrams.mermaid import mermaid

    if out is not None and out.suffix not in (".mmd", ".mermaid", ".md"):
        raise UsageError(
            f"cannot draw a {out.suffix or 'file without an ending'}", where=str(out), hint="write FILE.mmd"
        )
    _, graph, chosen = compiled(flow, sets)
    graph, _ = resolve_settings(graph, (), chosen)
    text = mermaid(flow_picture(graph))
    if out is None:
        print(text)
        return
    fenced = f"```mermaid\n{text}\n```\n" if out.suffix == ".md" else f"{text}\n"
    write_text(out, fenced)
    print(out, file=sys.stderr)


def write_text(path: Path, text: str) -> None:
    """Write a file that a user named."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(path)) from error
