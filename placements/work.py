"""What a graph says of the work of its nodes: which pass rows through a model, whose responses, of how many prompts."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from flowgraph.language.graph import Const, Node, Param, reachable
from flowgraph.language.rows import leaf_paths
from flowgraph.language.values import Context, Lengths, Model

Place = tuple[Node | Param | Const, str]
"""A value by what made it, and its path in there."""

OTHER_COUNTS = ("max_tokens", "groups", "rounds", "workers")
"""Whole-number settings that planners read, none of which says how many responses are drawn to a prompt."""

Phase = Literal["generate", "logprob", "update"]


@dataclass(frozen=True)
class Workload:
    """What one step reads: `prompts`, each of at most `prompt_tokens`.

    Responses of a sampler that states no `max_tokens` are taken to have `response_tokens`. On each device,
    `sample_rows` are decoded side by side, and a pass without gradients holds `forward_tokens`.
    """

    prompts: int
    prompt_tokens: int
    response_tokens: int = 1024
    sample_rows: int = 256
    forward_tokens: int = 16384


def passes_rows(node: Node) -> bool:
    """Say whether a node that reads a model passes rows through it.

    A host node reads what is beside the weights, such as a tokenizer; what moves a model without a loss, as an average
    does, reads its weights.
    """
    runs = node.op.kind != "host" or node.op.stat is not None
    return bool(node.regions) or (runs and not moves_weights(node))


def moves_weights(node: Node) -> bool:
    """Say whether a node makes the next version of a model."""
    edge = node.carried()
    return edge is not None and issubclass(edge.type, Model)


def samplers_read(node: Node) -> list[Node]:
    """Return the samplers whose responses a node makes or reads directly, or else any it depends on.

    Where nothing is drawn, responses are those that a data set holds: then it is the nodes that make rows of them.
    """
    direct = [node, *dict.fromkeys(edge.source for edge in node.edges() if isinstance(edge.source, Node))]
    if found := _samplers(direct):
        return found
    before = [each for each in reachable(node.edges()) if isinstance(each, Node)]
    return _samplers(before) or _makers(direct) or _makers(before)


def _samplers(nodes: list[Node]) -> list[Node]:
    return [each for each in nodes if each.op.kind == "generate"]


def _makers(nodes: list[Node]) -> list[Node]:
    return [each for each in nodes if each.op.rows == "new"]


def row_sources(node: Node) -> tuple[set[Place], dict[Place, Node | None]]:
    """Return where the rows of a node's losses come from: their contexts, and of their responses the samplers.

    Each is one value that a loss captures, by itself or as a part of a record; None where no sampler is known.
    """
    contexts, responses = set[Place](), dict[Place, Node | None]()
    for edge in (edge for _, region in node.regions for edge in region.captures):
        for path, kind in leaf_paths(edge.type, edge.port):
            if issubclass(kind, Context):
                contexts.add((edge.source, path))
            elif issubclass(kind, Lengths):
                found = samplers_read(edge.source) if isinstance(edge.source, Node) else []
                responses[edge.source, path] = found[0] if found else None
    return contexts, responses


def prompts_reaching(node: Node, prompts: int) -> int:
    """Return the most prompts, of those of a step, whose rows a node reads: a sampler may keep so many `groups`."""
    before = [each for each in samplers_read(node) if each is not node]
    return min(prompts, max((whole_setting(each, "groups", prompts) for each in before), default=prompts))


def whole_setting(node: Node, name: str, otherwise: int) -> int:
    """Return a setting of a node that has it as a whole number; a user's own node may have none by this name."""
    value = getattr(node.settings, name, otherwise)
    return value if isinstance(value, int) else otherwise


def samples_of(node: Node) -> int:
    """Return how many responses a node draws to each prompt: the product of the settings that it names, else 1."""
    return prod(whole_setting(node, name, 1) for name in node.op.samples or ())


def uncounted(node: Node) -> tuple[str, ...]:
    """Return the settings of a node that may say how many responses it draws to each prompt, where it names none.

    What keeps its rows, as a judge, draws one to each.
    """
    if node.op.kind != "generate" or node.op.rows != "new" or node.op.samples is not None:
        return ()
    fields = node.op.settings.model_fields
    return tuple(name for name, field in fields.items() if field.annotation is int and name not in OTHER_COUNTS)


def pass_of(node: Node) -> object:
    """Name the forward pass of a node, so that nodes which read one pass name the same; else the node itself."""
    return tuple((edge.source, edge.port) for _, edge in node.inputs) if node.op.stat is not None else node
