"""Passes over graphs, one per file; the pipeline is the two tuples below, then the passes of a user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from flowgraph.errors import FlowError, FlowTypeError, UserCodeError
from flowgraph.language import laws
from flowgraph.language.graph import Graph
from flowgraph.passes.count_masks import count_masks
from flowgraph.passes.dedupe_nodes import dedupe_nodes
from flowgraph.passes.name_nodes import name_nodes
from flowgraph.passes.prune_nodes import prune_nodes
from flowgraph.passes.verify import verifying

Pass = Callable[[Graph], Graph]

NAMING: tuple[Pass, ...] = (name_nodes,)
"""Run first: settings are chosen by name, so names must not depend on later passes."""

PASSES: tuple[Pass, ...] = (prune_nodes, dedupe_nodes, count_masks)
"""Run once all settings are chosen. Pruning may leave equal nodes; deduplication never makes a factor 0."""


def compile_graph(graph: Graph) -> Graph:
    """Return a described graph after all built-in passes: named, pruned, deduplicated, and with masks counted.

    No setting is changed. Raises a FlowError, such as LawError, for the first broken law.
    """
    return simplified(named(graph))


def named(graph: Graph) -> Graph:
    """Return the graph of a flow with a unique name for every node; settings are chosen by these names."""
    return _through(NAMING, graph)


def simplified(graph: Graph, passes: Sequence[Pass] = ()) -> Graph:
    """Return a named graph after pruning, deduplication and the counting of masks, and then a user's `passes`.

    Its settings must already be chosen. The laws are checked after each of `passes`, or once if there are none, and an
    error names the pass that broke a law. Raises UserCodeError for a pass that raises an exception, but a FlowError is
    raised unchanged; FlowTypeError for a pass that does not return a graph, or that changes the flow's name, parameters
    or result types; and a FlowError, such as LawError, for the first broken law.
    """
    graph = _through(PASSES, graph)
    for user_pass in passes:
        name = pass_name(user_pass)
        try:
            changed = cast("object", user_pass(graph))
        except FlowError:
            raise
        except (Exception, SystemExit) as error:
            raise UserCodeError.raised(f"pass {name}", error, "") from error
        if not isinstance(changed, Graph):
            raise FlowTypeError.bad_call("", name, f"returned {type(changed).__name__}, but a pass returns a Graph")
        if _interface(changed) != _interface(graph):
            why = "changed the parameters or the types of what the flow returns"
            raise FlowTypeError.bad_call("", name, why, "a pass changes only what is between them")
        graph = _lawful(changed, after=name)
    return graph if passes else _lawful(graph)


def _through(passes: Sequence[Pass], graph: Graph) -> Graph:
    for change in passes:
        graph = change(graph)
        if verifying():
            laws.check("described", graph, after=pass_name(change))
    return graph


def _lawful(graph: Graph, *, after: str = "") -> Graph:
    laws.check("described", graph, after=after)
    laws.check("named", graph, after=after)
    return graph


def _interface(graph: Graph) -> tuple[object, ...]:
    return graph.name, graph.params, tuple(edge.type for edge in graph.outputs)


def pass_name(graph_pass: Pass) -> str:
    """Return the name of a pass for error messages: its `__name__`, or else the name of its class."""
    return getattr(graph_pass, "__name__", type(graph_pass).__name__)
