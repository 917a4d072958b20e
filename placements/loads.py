"""What each node of a flow asks of whatever runs it: rows, lengths, passes, in the order the step lets them work.

No device, layout or engine is known here. Not here: the largest pass that a device holds (`work`), and how long it all
takes (`training`, `generation`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from flowgraph.analysis.roles import Role, roles
from flowgraph.errors import FlowTypeError
from flowgraph.language.graph import Graph, Node, reachable
from placements.batch_sizes import sizes_of
from placements.cuts import BatchSizes, many
from placements.lengths import Lengths
from placements.packing import filled_share, rows_tokens
from placements.training import Tokens
from placements.work import (
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


@dataclass(frozen=True)
class Load:
    """One node that runs a model: `prompts` contexts, each with `samples` responses, of these lengths in tokens.

    Nodes of one `stage` wait for none of each other; those of the next wait for one of it. An update passes its rows
    `epochs` times, in `steps` optimizer steps in all. `stats` names what a pass reads out beside log-probs. What draws
    has its prompts in `rounds`, one after another. An update takes at most `minibatch` prompts to a step (0: all) and
    lets `micro_batch_tokens` through at once where no plan says otherwise (0: all rows). `responses` names each sampler
    whose responses the node makes or reads, with their most tokens in a step.
    """

    node: str
    role: Role
    phase: Phase
    stage: int
    prompts: int
    samples: int
    prompt: Lengths
    response: Lengths
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
        """Return the rows of a step."""
        return self.prompts * self.samples

    @property
    def round_prompts(self) -> int:
        """Return the prompts of the largest round."""
        return -(-self.prompts // self.rounds)

    @property
    def round_rows(self) -> int:
        """Return the rows of the largest round, which are drawn side by side."""
        return self.round_prompts * self.samples

    @property
    def row_tokens(self) -> float:
        """Return the mean tokens of a row, its context included."""
        return self.prompt.mean + self.response.mean

    @property
    def longest_tokens(self) -> int:
        """Return the most tokens that a row can have."""
        return int(self.prompt.most + self.response.most)

    def tokens_in(self, micro_batch_tokens: int) -> Tokens:
        """Return what passes the model once, in micro-batches of at most so many tokens; no row is cut."""
        if micro_batch_tokens not in self._filled:
            rows = rows_tokens(self.prompt, self.response, self.rows)
            self._filled[micro_batch_tokens] = filled_share(rows, micro_batch_tokens)
        return replace(self.tokens, filled=self._filled[micro_batch_tokens])

    @cached_property
    def _filled(self) -> dict[int, float]:
        return {}

    @cached_property
    def tokens(self) -> Tokens:
        """Return what passes the model once, each row with its context.

        Of a row of p and r tokens, (p + r)² / 2 pairs of a token and one that it sees.
        """
        squares = self.prompt.square_mean + 2 * self.prompt.mean * self.response.mean + self.response.square_mean
        return Tokens(
            tokens=self.rows * self.row_tokens,
            pairs=self.rows * squares / 2,
            read_out=self.rows * self.response.mean,
            rows=self.rows,
        )


def loads(graph: Graph, prompts: int, prompt: Lengths, response: Lengths | None = None) -> tuple[Load, ...]:
    """Return the load of every node of a named graph that passes rows through a model, of a step of so many prompts.

    `response` are the lengths of responses; without it all have the most tokens that what makes them lets them have.
    A node whose pass another has made already (log-probs and entropy of the same rows) has no load of its own. What may
    stop after any of its rounds is taken to draw them all, which is the most; `taken` says so. A role whose nodes pass
    no rows is held all the same: it has a load of no rows, by its own name.

    Raises FlowTypeError for a node that does not say how many responses it draws to each prompt, though it may be many.
    """
    _refuse_uncounted(graph)
    role_of = {name: role for role in reversed(roles(graph)) for name in role.nodes}
    stages, seen, found = _stages(graph, role_of), set[object](), list[Load]()
    sizes = sizes_of(graph, prompts)
    for node in graph.nodes:
        if node not in stages or pass_of(node) in seen:
            continue
        seen.add(pass_of(node))
        found.append(_load(node, role_of[node.name], stages[node], sizes, prompt, response))
    busy, last = {each.role for each in found}, max(0, stage_count(found) - 1)
    nothing = Lengths.fixed(1), Lengths.fixed(0)
    idle = (Load(role.name, role, "logprob", last, 0, 1, *nothing) for role in roles(graph) if role not in busy)
    return (*found, *idle)


def _refuse_uncounted(graph: Graph) -> None:
    for node in graph.nodes:
        settings = uncounted(node)
        if settings:
            names = ", ".join(f"`{name}`" for name in settings)
            why = f"does not say how many responses it draws to each prompt, so no step of it can be costed: {names}?"
            hint = f'say it: @node(kind="generate", samples={[*settings]!r}), or samples=[] if it is one'
            raise FlowTypeError.bad_node(str(node.at), node.op.name, why, hint)


def taken(graph: Graph, prompts: int) -> tuple[str, ...]:
    """Say what the loads of a step of so many prompts take for granted, one sentence each.

    That all rounds are drawn, though fewer may do; that host nodes run no model that they read; and that what moves
    weights without a loss needs no time.
    """
    return (*_rounds_taken(graph, prompts), *_nodes_taken(graph))


def _rounds_taken(graph: Graph, prompts: int) -> Iterator[str]:
    for each in sizes_of(graph, prompts).drawn:
        if each.kept is not None and each.least_rounds < each.most_rounds:
            rounds = f"{each.node} is taken to draw to all {many(each.prompts, 'prompt')} in {each.most_rounds} rounds"
            first = f"the first {many(each.tried(each.least_rounds), 'prompt')}"
            yield f"{rounds}, the most: it needs {each.least_rounds} if it keeps {each.kept.value:,} of {first}"


def _nodes_taken(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        if node.op.kind == "generate" and node.op.rows == "new" and node.op.samples is None:
            yield f"{node.name} is taken to draw one response to each prompt: it names no setting that says how many"
        model = node.model()
        if model is None or passes_rows(node):
            continue
        if moves_weights(node):
            yield f"{node.name} moves weights without a loss: that is taken to need no time"
        else:
            yield f"{node.name} is a host node: it is taken to pass no rows through `{model}`, which it reads"


def stage_count(found: Sequence[Load]) -> int:
    """Return the stages of a step."""
    return max((each.stage for each in found), default=-1) + 1


def _stages(graph: Graph, role_of: dict[str, Role]) -> dict[Node, int]:
    """Return the stage of each node that runs a model: one more than the last of those that it depends on.

    An update depends on what its loss reads. Weights bring no stage: who reads the next version waits for the next
    step, or is another node of the same model.
    """
    found = dict[Node, int]()
    for node in graph.nodes:
        if node.name in role_of and passes_rows(node):
            before = (found[each] for each in reachable(node.edges()) if isinstance(each, Node) and each in found)
            found[node] = max(before, default=-1) + 1
    return found


def _load(node: Node, role: Role, stage: int, sizes: BatchSizes, prompt: Lengths, response: Lengths | None) -> Load:
    samplers = samplers_read(node)
    cut = next((each for each in sizes.cuts if each.node == node.name), None)
    drawn = next((each for each in sizes.drawn if each.node == node.name), None)
    most = max((whole_setting(each, "max_tokens", 0) for each in samplers), default=0)
    phase: Phase = "generate" if node.op.kind == "generate" else "update" if node.regions else "logprob"
    inner = (each for _, region in node.regions for each in region.inner)
    prompts, tokens = prompts_reaching(node, sizes.batch.value), response or Lengths.fixed(most or 1024)
    return Load(
        node=node.name,
        role=role,
        phase=phase,
        stage=stage,
        prompts=prompts,
        samples=max((samples_of(each) for each in samplers), default=1),
        prompt=prompt,
        response=tokens,
        epochs=cut.epochs if cut is not None else 1,
        steps=cut.optimizer_steps if cut is not None else 0,
        stats=frozenset(each.op.stat for each in (node, *inner) if each.op.stat is not None),
        optimizer=getattr(node.settings, "optimizer", "adamw") if phase == "update" else "",
        rounds=drawn.most_rounds if drawn is not None else 1,
        minibatch=whole_setting(node, "minibatch", 0) if phase == "update" else 0,
        micro_batch_tokens=whole_setting(node, "micro_batch_tokens", 0) if phase == "update" else 0,
        responses=tuple((each.name, int(prompts * samples_of(each) * tokens.most)) for each in samplers),
    )


def of_role(found: Sequence[Load], role: str) -> Iterator[Load]:
    """Return the loads of one role."""
    return (each for each in found if each.role.name == role)
