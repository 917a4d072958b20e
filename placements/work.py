"""How much each node of a role holds at once, in rows and tokens, read from the graph's settings. Bytes: `memory`.

All counts are of one device: of the data rank, of those that a role's rows are split over, that has the most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from flowgraph.graph import Const, Graph, Node, Param, reachable
from flowgraph.roles import Role, roles
from flowgraph.rows import leaf_paths
from flowgraph.values import Context, Lengths, Model

Place = tuple[Node | Param | Const, str]
"""A value by what made it, and its path in there."""

Phase = Literal["generate", "logprob", "update"]
PHASES: tuple[Phase, ...] = ("generate", "logprob", "update")


@dataclass(frozen=True)
class Workload:
    """What one step reads, and how the executor cuts it.

    `prompts` a step, each of at most `prompt_tokens`; responses of a sampler that states no `max_tokens` are taken to
    have `response_tokens`. `sample_rows` are decoded side by side; a pass without gradients holds `forward_tokens`:
    both on each device.
    """

    prompts: int
    prompt_tokens: int
    response_tokens: int = 1024
    sample_rows: int = 256
    forward_tokens: int = 16384


@dataclass(frozen=True)
class Sampling:
    """What is known of responses: how many to a prompt, their most tokens, and whether their logits are divided."""

    n: int
    tokens: int
    heated: bool


@dataclass(frozen=True)
class Work:
    """One node's largest pass: `rows` side by side, each a context and a response of at most these many tokens.

    `contexts` distinct ones are read once and shared. `padded_tokens` is what the cut into passes counts. `responses`
    says of each sampler whose responses it makes or reads how many tokens the whole step has of them. `heated` logits
    are divided by a temperature.
    """

    node: str
    role: Role
    phase: Phase
    rows: int
    contexts: int
    prompt_tokens: int
    response_tokens: int
    padded_tokens: int
    responses: tuple[tuple[str, int], ...]
    stats: frozenset[str] = frozenset()
    heated: bool = False
    optimizer: str = ""

    @property
    def width(self) -> int:
        """Give the tokens of one row, its context included."""
        return self.prompt_tokens + self.response_tokens

    @property
    def context_tokens(self) -> int:
        """Give the tokens of the distinct contexts."""
        return self.contexts * self.prompt_tokens

    @property
    def read_out(self) -> int:
        """Give the tokens of the responses, each of which has logits."""
        return -(-self.padded_tokens * self.response_tokens // self.width)


def work_of(graph: Graph, workload: Workload, ranks: Mapping[str, int] | None = None) -> tuple[Work, ...]:
    """Give the work of every node of the flow that runs a model, in the order they were written.

    `ranks` says by role over how many data ranks its rows are split (1 if not named), a prompt's group kept whole.

    Settings are read by name where a node has them: `n`, `max_tokens` and `groups` of what samples, `minibatch`,
    `micro_batch_tokens` and `optimizer` of what updates. Without `micro_batch_tokens` a minibatch is one pass.
    Rows are taken at their longest, so this is the most that a step can hold.
    """
    role_of = {name: role for role in reversed(roles(graph)) for name in role.nodes}
    running = (node for node in graph.nodes if node.name in role_of and passes_rows(node))
    return tuple(_work(node, role_of[node.name], workload, ranks or {}) for node in running)


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


def _work(node: Node, role: Role, workload: Workload, ranks: Mapping[str, int]) -> Work:
    sampling, phase = sampled(node, workload), _phase(node)
    share = -(-prompts_reaching(node, workload.prompts) // ranks.get(role.name, 1))
    prompts, width = share, workload.prompt_tokens + sampling.tokens
    if phase == "update":
        # A minibatch is drawn from the prompts of all ranks, and may lie on one of them.
        prompts = min(whole_setting(node, "minibatch", 0), prompts) or prompts
    padded_tokens = _cut(node, phase, prompts * sampling.n, width, workload)
    rows = -(-padded_tokens // width)
    return Work(
        node=node.name,
        role=role,
        phase=phase,
        rows=rows,
        # Rows of an update are sorted by length, so that those of one prompt need not lie together.
        contexts=min(prompts, rows if phase == "update" else -(-rows // sampling.n) + 1),
        prompt_tokens=workload.prompt_tokens,
        response_tokens=sampling.tokens,
        padded_tokens=padded_tokens,
        responses=tuple((each.name, _response_tokens(each, share, workload)) for each in samplers_read(node)),
        stats=frozenset(each.op.stat for each in (node, *_inner(node)) if each.op.stat is not None),
        heated=sampling.heated,
        optimizer=getattr(node.settings, "optimizer", "adamw") if phase == "update" else "",
    )


def _cut(node: Node, phase: Phase, rows: int, width: int, workload: Workload) -> int:
    """Give the padded tokens of the largest pass over `rows` rows of `width` tokens; a row is never cut."""
    if phase == "generate":
        return min(rows, workload.sample_rows) * width
    budget = workload.forward_tokens if phase == "logprob" else whole_setting(node, "micro_batch_tokens", rows * width)
    return min(rows * width, max(budget, width))


def _phase(node: Node) -> Phase:
    if node.op.kind == "generate":
        return "generate"
    return "update" if node.regions else "logprob"


def _inner(node: Node) -> tuple[Node, ...]:
    return tuple(each for _, region in node.regions for each in region.inner)


def sampled(node: Node, workload: Workload) -> Sampling:
    """Give what is known of the responses that a node makes or reads.

    Where there are several samplers, the most of each.
    """
    samplers, tokens = samplers_read(node), workload.response_tokens
    return Sampling(
        n=max((whole_setting(each, "n", 1) for each in samplers), default=1),
        tokens=max((whole_setting(each, "max_tokens", tokens) for each in samplers), default=tokens),
        heated=any(getattr(each.settings, "temperature", 1.0) not in (0, 1) for each in samplers),
    )


def samplers_read(node: Node) -> list[Node]:
    """Give the samplers whose responses a node makes or reads directly, or else any it depends on.

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


def _response_tokens(sampler: Node, prompts: int, workload: Workload) -> int:
    sampling = sampled(sampler, workload)
    return prompts * sampling.n * sampling.tokens


def row_sources(node: Node) -> tuple[set[Place], dict[Place, Node | None]]:
    """Give where the rows of a node's losses come from: their contexts, and of their responses the samplers.

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
    """Give the most prompts, of those of a step, whose rows a node reads: a sampler may keep only so many `groups`."""
    before = [each for each in samplers_read(node) if each is not node]
    return min(prompts, max((whole_setting(each, "groups", prompts) for each in before), default=prompts))


def whole_setting(node: Node, name: str, otherwise: int) -> int:
    """Give a setting of a node that has it as a whole number; a user's own node may have none by this name."""
    value = getattr(node.settings, name, otherwise)
    return value if isinstance(value, int) else otherwise


def pass_of(node: Node) -> object:
    """Name the forward pass of a node, so that nodes which read one pass name the same; else the node itself."""
    return tuple((edge.source, edge.port) for _, edge in node.inputs) if node.op.stat is not None else node
