"""The work of each node of a flow: rows, lengths and passes, in the order of a step.

It does not depend on devices, layouts or engines. Not here: the largest pass that a device holds (`memory`), and how
long the work takes (`time.training`, `time.generation`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from flowgraph.analysis.roles import Role, roles
from flowgraph.errors import FlowTypeError
from flowgraph.language.graph import Graph, Node, reachable
from placements.workload.batch_partition import BatchSizes, many
from placements.workload.batch_sizes import sizes_of
from placements.workload.graph_workload import (
    Phase,
    moves_weights,
    pass_of,
    passes_rows,
    prompts_reaching,
    samplers_read,
    samples_of,
    uncounted,
    whole_setting,
)
from placements.workload.lengths import LengthDistribution

ROWS = 64
"""How many rows represent all of them where micro-batches are filled: 256 would fill 1 to 2 % more."""


@dataclass(frozen=True)
class PassTokens:
    """The size of one pass through a model, on all its devices together.

    `pairs` are attention pairs: half the sum of the rows' squared lengths. `read_out` counts the tokens that have
    logits. `filled` is the mean share of a micro-batch's token budget that whole rows fill.
    """

    tokens: float
    pairs: float
    read_out: float
    rows: float
    filled: float = 1.0


@dataclass(frozen=True)
class NodeWorkload:
    """The work of one node that runs a model: `prompts` contexts, each with `samples` responses; lengths are in tokens.

    Nodes of the same `stage` do not wait for each other; those of the next stage wait for at least one of them. An
    update passes its rows `epochs` times, in `steps` optimizer steps in all. `stats` names what a pass computes in
    addition to log-probs. A sampler takes its prompts in `rounds`, one after another. An update takes at most
    `minibatch` prompts for each optimizer step (0: all) and, if no plan decides, `micro_batch_tokens` at once (0: all
    rows). `responses` pairs each sampler whose responses the node generates or reads with the maximum number of their
    tokens in a step.
    """

    node: str
    role: Role
    phase: Phase
    stage: int
    prompts: int
    samples: int
    prompt: LengthDistribution
    response: LengthDistribution
    epochs: int = 1
    steps: int = 0
    stats: frozenset[str] = frozenset()
    optimizer: str = ""
    rounds: int = 1
    minibatch: int = 0
    micro_batch_tokens: int = 0
    responses: tuple[tuple[str, int], ...] = ()

    def __hash__(self) -> int:
        return hash(self.node)  # by which the loads of one flow differ: a search asks often

    @property
    def rows(self) -> int:
        """Return the number of rows (responses with their contexts) of a step."""
        return self.prompts * self.samples

    @property
    def round_prompts(self) -> int:
        """Return the number of prompts in the largest round."""
        return -(-self.prompts // self.rounds)

    @property
    def round_rows(self) -> int:
        """Return the number of rows in the largest round, which are generated at the same time."""
        return self.round_prompts * self.samples

    @property
    def row_tokens(self) -> float:
        """Return the mean number of tokens of a row, context included."""
        return self.prompt.mean + self.response.mean

    @property
    def longest_tokens(self) -> int:
        """Return the maximum number of tokens of a row, context included, rounded down."""
        return int(self.prompt.most + self.response.most)

    def tokens_in(self, micro_batch_tokens: int) -> PassTokens:
        """Return the size of one pass over all rows, cut into micro-batches of at most `micro_batch_tokens` tokens.

        Its `filled` is the mean share (0 to 1) of that budget that rows fill, since rows are never split.
        """
        if micro_batch_tokens not in self._filled:
            rows = rows_tokens(self.prompt, self.response, self.rows)
            self._filled[micro_batch_tokens] = filled_share(rows, micro_batch_tokens)
        return replace(self.tokens, filled=self._filled[micro_batch_tokens])

    @cached_property
    def _filled(self) -> dict[int, float]:
        return {}

    @cached_property
    def tokens(self) -> PassTokens:
        """Return the size of one pass over all rows, each with its context.

        A row with p context and r response tokens has (p + r)² / 2 attention pairs.
        """
        squares = self.prompt.square_mean + 2 * self.prompt.mean * self.response.mean + self.response.square_mean
        return PassTokens(
            tokens=self.rows * self.row_tokens,
            pairs=self.rows * squares / 2,
            read_out=self.rows * self.response.mean,
            rows=self.rows,
        )


def node_workloads(
    graph: Graph, prompts: int, prompt: LengthDistribution, response: LengthDistribution | None = None
) -> tuple[NodeWorkload, ...]:
    """Return the work of each node that passes rows through a model, in a step of `prompts` prompts, in graph order.

    The nodes of `graph` must be named. `response` are the lengths of responses; None: all have the `max_tokens` of
    their sampler (the largest of several), or 1,024 tokens without that setting. A node that shares the pass of another
    (log-probs and entropy of the same rows) has no entry. A sampler that may stop after any of its rounds is assumed to
    need them all (see `taken`). A role whose nodes pass no rows still takes memory: it gets an entry with no rows, at
    the end and under the role's name.

    Raises FlowTypeError for a node that may generate several responses to a prompt without declaring how many.
    """
    for node in graph.nodes:
        if settings := uncounted(node):
            names = ", ".join(f"`{name}`" for name in settings)
            why = f"does not declare how many responses it generates for each prompt, so its cost is unknown: {names}?"
            hint = (
                f'declare it: @node(kind="generate", samples={[*settings]!r}), or samples=[] if it generates only one'
            )
            raise FlowTypeError.bad_node(str(node.at), node.op.name, why, hint)
    role_of = {name: role for role in reversed(roles(graph)) for name in role.nodes}
    stages, passes, loads = dict[Node, int](), set[object](), list[NodeWorkload]()
    sizes = sizes_of(graph, prompts)
    for node in graph.nodes:
        if node.name in role_of and passes_rows(node):
            # An update depends on what its loss reads. Weights add no stage: a node that reads the next version waits
            # for the next step, or is another node of the same model.
            before = (
                stages[source] for source in reachable(node.edges()) if isinstance(source, Node) and source in stages
            )
            stages[node] = max(before, default=-1) + 1
            if pass_of(node) not in passes:
                passes.add(pass_of(node))
                loads.append(_load(node, role_of[node.name], stages[node], sizes, prompt, response))
    busy, last = {load.role for load in loads}, max(0, stage_count(loads) - 1)
    nothing = LengthDistribution.fixed(1), LengthDistribution.fixed(0)
    idle = (NodeWorkload(role.name, role, "logprob", last, 0, 1, *nothing) for role in roles(graph) if role not in busy)
    return (*loads, *idle)


def taken(graph: Graph, prompts: int) -> tuple[str, ...]:
    """Return what `node_workloads` assumes about a graph, one sentence for each assumption; () if it assumes nothing.

    The possible assumptions are that all rounds of a sampler run, though fewer may be enough; that a sampler without a
    declared count generates one response to each prompt; that host nodes pass no rows through the models that they
    read; and that nodes that change weights without a loss take no time.
    """
    notes = list[str]()
    for sampler in sizes_of(graph, prompts).samplers:
        if sampler.groups is not None and sampler.min_rounds < sampler.max_rounds:
            rounds = f"all {many(sampler.prompts, 'prompt')} in {sampler.max_rounds} rounds"
            first = f"the first {many(sampler.prompts_in(sampler.min_rounds), 'prompt')}"
            fewer = f"it needs {sampler.min_rounds} if it keeps {sampler.groups.value:,} of {first}"
            notes.append(f"{sampler.node} is assumed to sample {rounds}, the maximum: {fewer}")
    for node in graph.nodes:
        if node.op.kind == "generate" and node.op.rows == "new" and node.op.samples is None:
            notes.append(f"{node.name} is assumed to sample one response to each prompt: no setting says how many")
        model = node.model()
        if model is not None and not passes_rows(node):
            if moves_weights(node):
                notes.append(f"{node.name} moves weights without a loss: that is assumed to take no time")
            else:
                what = f"it is assumed to pass no rows through `{model}`, which it reads"
                notes.append(f"{node.name} is a host node: {what}")
    return tuple(notes)


def stage_count(loads: Sequence[NodeWorkload]) -> int:
    """Return the number of stages of a step whose nodes have these workloads; 0 without any."""
    return max((load.stage for load in loads), default=-1) + 1


def _load(
    node: Node,
    role: Role,
    stage: int,
    sizes: BatchSizes,
    prompt: LengthDistribution,
    response: LengthDistribution | None,
) -> NodeWorkload:
    samplers = samplers_read(node)
    update = next((update for update in sizes.updates if update.node == node.name), None)
    sampler = next((sampler for sampler in sizes.samplers if sampler.node == node.name), None)
    max_tokens = max((whole_setting(sampler, "max_tokens", 0) for sampler in samplers), default=0) or 1024
    phase: Phase = "generate" if node.op.kind == "generate" else "update" if node.regions else "logprob"
    inner = (reader for _, region in node.regions for reader in region.inner)
    prompts, tokens = prompts_reaching(node, sizes.batch.value), response or LengthDistribution.fixed(max_tokens)
    return NodeWorkload(
        node=node.name,
        role=role,
        phase=phase,
        stage=stage,
        prompts=prompts,
        samples=max((samples_of(sampler) for sampler in samplers), default=1),
        prompt=prompt,
        response=tokens,
        epochs=update.epochs if update is not None else 1,
        steps=update.optimizer_steps if update is not None else 0,
        stats=frozenset(reader.op.stat for reader in (node, *inner) if reader.op.stat is not None),
        optimizer=getattr(node.settings, "optimizer", "adamw") if phase == "update" else "",
        rounds=sampler.max_rounds if sampler is not None else 1,
        minibatch=whole_setting(node, "minibatch", 0) if phase == "update" else 0,
        micro_batch_tokens=whole_setting(node, "micro_batch_tokens", 0) if phase == "update" else 0,
        responses=tuple((sampler.name, int(prompts * samples_of(sampler) * tokens.most)) for sampler in samplers),
    )


def rows_tokens(prompt: LengthDistribution, response: LengthDistribution, rows: int) -> list[float]:
    """Return the tokens, context included, of at most 64 typical rows that represent all `rows` rows; longest first.

    At least one row is returned. Each has the mean context; the lengths of responses are evenly spaced quantiles.
    """
    count = max(1, min(rows, ROWS))
    return [prompt.mean + response.quantile((count - place - 0.5) / count) for place in range(count)]


def filled_share(rows: Sequence[float], budget_tokens: float) -> float:
    """Return the share (0 to 1) of the token budgets of micro-batches that is used if rows are never split.

    `rows` are the tokens of each row in descending order; each row goes into the first micro-batch with enough space. A
    row that exceeds the budget gets a micro-batch of its own. The emptiest micro-batch is left out, since the given
    rows represent more rows, which would fill it; with a single micro-batch the result is 1. Source: Johnson 1973,
    first fit decreasing.
    """
    room = list[float]()
    for tokens in rows:
        place = next((place for place, left in enumerate(room) if left >= tokens), None)
        if place is None:
            room.append(budget_tokens - tokens)
        else:
            room[place] -= tokens
    if len(room) < 2:
        return 1.0
    filled = sum(rows) - (budget_tokens - max(room))
    return min(1.0, filled / ((len(room) - 1) * budget_tokens))
