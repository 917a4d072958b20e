"""What a graph determines of its nodes' work: which pass rows through a model, whose responses, of how many prompts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal

from flowgraph.analysis.roles import roles
from flowgraph.language.graph import Const, Graph, Node, Param, carried_from, reachable
from flowgraph.language.rows import leaf_paths
from flowgraph.language.values import Context, Lengths, Model
from flowgraph.lowering.program import read_by

Place = tuple[Node | Param | Const, str]
"""A value by its source and its path there."""

OTHER_COUNTS = ("max_tokens", "groups", "rounds", "workers")
"""Whole-number settings that planners read and that do not count the responses to a prompt."""

Phase = Literal["generate", "logprob", "update"]


@dataclass(frozen=True)
class StepWorkload:
    """What one step reads: `prompts`, each of at most `prompt_tokens`.

    Responses of a sampler without `max_tokens` are assumed to have `response_tokens`. On each device,
    `sample_rows` are decoded side by side, and a pass without gradients holds `forward_tokens`.
    """

    prompts: int
    prompt_tokens: int
    response_tokens: int = 1024
    sample_rows: int = 256
    forward_tokens: int = 16384


def passes_rows(node: Node) -> bool:
    """Return whether a node that reads a model passes rows through it.

    A host node reads what comes with the weights, such as a tokenizer; a node that moves a model without a loss, such
    as an average, reads its weights.
    """
    runs = node.op.kind != "host" or node.op.stat is not None
    return bool(node.regions) or (runs and not moves_weights(node))


def moves_weights(node: Node) -> bool:
    """Return whether a node makes the next version of a model."""
    edge = node.carried()
    return edge is not None and issubclass(edge.type, Model)


def samplers_read(node: Node) -> list[Node]:
    """Return the samplers whose responses a node makes or reads directly, or else any that it depends on.

    Where nothing is sampled, responses are those of a data set: then it is the nodes that make rows of them.
    """
    direct = [node, *dict.fromkeys(edge.source for edge in node.edges() if isinstance(edge.source, Node))]
    if samplers := [node for node in direct if node.op.kind == "generate"]:
        return samplers
    before = [source for source in reachable(node.edges()) if isinstance(source, Node)]
    if samplers := [node for node in before if node.op.kind == "generate"]:
        return samplers
    makers = [node for node in direct if node.op.rows == "new"]
    return makers or [node for node in before if node.op.rows == "new"]


def row_sources(node: Node) -> tuple[set[Place], dict[Place, Node | None]]:
    """Return where the rows of a node's losses come from: their contexts, and the samplers of their responses.

    Keys are values that a loss captures, by themselves or as parts of a record; None where no sampler is known.
    """
    contexts, responses = set[Place](), dict[Place, Node | None]()
    for edge in (edge for _, region in node.regions for edge in region.captures):
        for path, kind in leaf_paths(edge.type, edge.port):
            if issubclass(kind, Context):
                contexts.add((edge.source, path))
            elif issubclass(kind, Lengths):
                samplers = samplers_read(edge.source) if isinstance(edge.source, Node) else []
                responses[edge.source, path] = samplers[0] if samplers else None
    return contexts, responses


def prompts_reaching(node: Node, prompts: int) -> int:
    """Return the maximum of a step's prompts whose rows a node reads: a sampler may keep only some `groups`."""
    samplers = (sampler for sampler in samplers_read(node) if sampler is not node)
    return min(prompts, max((whole_setting(sampler, "groups", prompts) for sampler in samplers), default=prompts))


def whole_setting(node: Node, name: str, default: int) -> int:
    """Return a whole number among a node's settings; a user's own node may have none by this name."""
    value = getattr(node.settings, name, default)
    return value if isinstance(value, int) else default


def samples_of(node: Node) -> int:
    """Return how many responses a node samples for each prompt: the product of the settings that it names, else 1."""
    return prod(whole_setting(node, name, 1) for name in node.op.samples or ())


def uncounted(node: Node) -> tuple[str, ...]:
    """Return the settings of a node that may count its responses to each prompt, where it names none.

    A node that keeps its rows, such as a judge, samples one for each.
    """
    if node.op.kind != "generate" or node.op.rows != "new" or node.op.samples is not None:
        return ()
    fields = node.op.settings.model_fields
    return tuple(name for name, field in fields.items() if field.annotation is int and name not in OTHER_COUNTS)


def pass_of(node: Node) -> object:
    """Return a key of a node's forward pass, the same for nodes that share a pass; else the node itself."""
    return tuple((edge.source, edge.port) for _, edge in node.inputs) if node.op.stat is not None else node


def read_together(graph: Graph) -> Iterator[frozenset[str]]:
    """Yield the roles of each node of a named graph that reads models in several roles: they must share a pool."""
    role_of = {(role.param, name): role.name for role in roles(graph) for name in role.nodes}
    for node in graph.nodes:
        models = ((edge, reader) for edge, reader in read_by(node) if issubclass(edge.type, Model))
        read = {role_of[root.name, reader] for edge, reader in models if (root := carried_from(edge)) is not None}
        if len(read) > 1:
            yield frozenset(read)
