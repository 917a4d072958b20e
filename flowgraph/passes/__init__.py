"""Passes over graphs, one file each; the pipeline is the two literal tuples below, and what a user adds."""

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
"""Run first: settings are chosen by names, so no name depends on what is left out later."""

PASSES: tuple[Pass, ...] = (prune_nodes, dedupe_nodes, count_masks)
"""Run when every setting is chosen. What pruning leaves may be equal; what is equal never makes a factor 0."""


def compile_graph(graph: Graph) -> Graph:
    """Run the pipeline on a described graph, with the settings that its text and defaults give."""
    return simplified(named(graph))


def named(graph: Graph) -> Graph:
    """Name the nodes of a described graph, so that settings can be chosen."""
    return _through(NAMING, graph)


def simplified(graph: Graph, passes: Sequence[Pass] = ()) -> Graph:
    """Run the passes on a named graph whose settings are chosen, and a user's `passes` after them.

    After a user's pass all laws are asked again, and the error says which pass broke one. Raises UserCodeError for a
    pass that raises, FlowTypeError for one that gives no graph.
    """
    graph = _through(PASSES, graph)
    for each in passes:
        graph = _of_a_user(each, graph)
    return graph if passes else _lawful(graph)


def _through(passes: Sequence[Pass], graph: Graph) -> Graph:
    for each in passes:
        graph = each(graph)
        if verifying():
            laws.check("described", graph, after=name_of(each))
    return graph


def _of_a_user(each: Pass, graph: Graph) -> Graph:
    try:
        given = cast("object", each(graph))
    except FlowError:
        raise
    except (Exception, SystemExit) as error:
        raise UserCodeError.raised(f"pass {name_of(each)}", error, "") from error
    if not isinstance(given, Graph):
        raise FlowTypeError.bad_call("", name_of(each), f"gave {type(given).__name__}, and a pass gives a Graph")
    if _face(given) != _face(graph):
        why = "changed the parameters or the types of what the flow returns"
        raise FlowTypeError.bad_call("", name_of(each), why, "a pass changes what is between them")
    return _lawful(given, after=name_of(each))


def _lawful(graph: Graph, *, after: str = "") -> Graph:
    """Give a graph that keeps the laws of both its stages; raise the first that it breaks."""
    laws.check("described", graph, after=after)
    laws.check("named", graph, after=after)
    return graph


def _face(graph: Graph) -> tuple[object, ...]:
    """Give what a flow shows to who calls it."""
    return graph.name, graph.params, tuple(edge.type for edge in graph.outputs)


def name_of(each: Pass) -> str:
    """Give a pass the name of its function."""
    return getattr(each, "__name__", type(each).__name__)
