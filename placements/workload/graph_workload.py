"""The work that a graph determines: which nodes pass rows through a model, whose responses, and of how many prompts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal

from flowgraph.analysis.roles import roles
from flowgraph.language.graph import Const, Graph, Node, Param, carried_from, reachable
from flowgraph.language.rows import leaf_paths
from flowgraph.language.values import Context, Lengths, Model
from flowgraph.lowering.program import edges_read

Place = tuple[Node | Param | Const, str]
"""A value by its source and its path there."""

OTHER_COUNTS = ("max_tokens", "groups", "rounds", "workers")
"""Whole-number settings that planners read and that do not count the responses to a prompt."""

Phase = Literal["generate", "logprob", "update"]


@dataclass(frozen=True)
class StepWorkload:
    """The input of one step: `prompts` prompts, each of at most `prompt_tokens` tokens.

    Responses of a sampler without `max_tokens` are assumed to have `response_tokens` tokens. On each device,
    `sample_rows` rows are decoded at a time, and a pass without gradients reads `forward_tokens` tokens.
    """

    prompts: int
    prompt_tokens: int
    response_tokens: int = 1024
    sample_rows: int = 256
    forward_tokens: int = 16384


def passes_rows(node: Node) -> bool:
    """Return whether a node runs rows through the model that it reads, forward or in an update.

    False for a host node without a statistic, which reads only data that comes with the weights, such as a tokenizer,
    and for a node that changes weights without a loss, such as an average. The result is meaningless for nodes without
    a model.
    """
    runs = node.op.kind != "host" or node.op.stat is not None
    return bool(node.regions) or (runs and not moves_weights(node))


def moves_weights(node: Node) -> bool:
    """Return whether a node returns a new version of a model that it takes."""
    edge = node.carried()
    return edge is not None and issubclass(edge.type, Model)


def samplers_read(node: Node) -> list[Node]:
    """Return the samplers whose responses a node generates or reads directly; if none, all that it depends on.

    If there are none either, the responses come from a data set: then the nodes that create rows are returned, those
    that it reads directly or else all that it depends on. The result may be empty.
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
    """Return the places of the contexts that a node's losses read, and those of the responses, with their samplers.

    A place is a source (a node or parameter) and the path of a field in its value, or of the value itself if it is
    plain. If a response depends on several samplers, the first is returned; None if no sampler is known.
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
    """Return the maximum number of a step's prompts whose rows a node reads.

    It is below `prompts` if the samplers before the node keep only some groups (their setting `groups`).
    """
    samplers = (sampler for sampler in samplers_read(node) if sampler is not node)
    return min(prompts, max((whole_setting(sampler, "groups", prompts) for sampler in samplers), default=prompts))


def whole_setting(node: Node, name: str, default: int) -> int:
    """Return an integer setting of a node by name; `default` if the node has no integer setting by this name."""
    value = getattr(node.settings, name, default)
    return value if isinstance(value, int) else default


def samples_of(node: Node) -> int:
    """Return the number of responses of a node to each prompt: the product of the settings in its `samples`, else 1."""
    return prod(whole_setting(node, name, 1) for name in node.op.samples or ())


def uncounted(node: Node) -> tuple[str, ...]:
    """Return the names of a sampler's integer settings that may count its responses to a prompt, if it declares none.

    Returns () for other nodes, and for samplers that keep their rows, such as judges, which generate one response for
    each row.
    """
    if node.op.kind != "generate" or node.op.rows != "new" or node.op.samples is not None:
        return ()
    fields = node.op.settings.model_fields
    return tuple(name for name, field in fields.items() if field.annotation is int and name not in OTHER_COUNTS)


def pass_of(node: Node) -> object:
    """Return a key for a node's forward pass, which nodes that share a pass have in common.

    Nodes that compute statistics, such as log-probs and entropy, share a pass if they have the same inputs; the key of
    any other node is the node itself.
    """
    return tuple((edge.source, edge.port) for _, edge in node.inputs) if node.op.stat is not None else node


def read_together(graph: Graph) -> Iterator[frozenset[str]]:
    """Yield the roles of each node that reads several models, as a set of names; these roles must share a pool."""
    role_of = {(role.param, name): role.name for role in roles(graph) for name in role.nodes}
    for node in graph.nodes:
        models = ((edge, reader) for edge, reader in edges_read(node) if issubclass(edge.type, Model))
        read = {role_of[root.name, reader] for edge, reader in models if (root := carried_from(edge)) is not None}
        if len(read) > 1:
            yield frozenset(read)
