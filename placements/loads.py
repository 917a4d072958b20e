"""What each node of a flow asks of whatever runs it: rows, lengths, passes, in the order the step lets them work.

No device, layout or engine is known here. Not here: the largest pass that a device holds (`work`), and how long it all
takes (`training`, `generation`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flowgraph.graph import Graph, Node, reachable
from flowgraph.roles import Role, roles
from placements.batch_sizes import sizes_of
from placements.cuts import Cut
from placements.lengths import Lengths
from placements.training import Tokens
from placements.work import Phase, pass_of, prompts_reaching, samplers_read, whole_setting


@dataclass(frozen=True)
class Load:
    """One node that runs a model: `prompts` contexts, each with `samples` responses, of these lengths in tokens.

    Nodes of one `stage` wait for none of each other; those of the next wait for one of it. An update passes its rows
    `epochs` times, in `steps` optimizer steps in all. `stats` names what a pass reads out beside log-probs.
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

    @property
    def rows(self) -> int:
        """Give the rows of a step."""
        return self.prompts * self.samples

    @property
    def row_tokens(self) -> float:
        """Give the mean tokens of a row, its context included."""
        return self.prompt.mean + self.response.mean

    @property
    def longest_tokens(self) -> int:
        """Give the most tokens that a row can have."""
        return int(self.prompt.most + self.response.most)

    @property
    def tokens(self) -> Tokens:
        """Give what passes the model once, each row with its context.

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
    """Give the load of every node of a named graph that runs a model, of a step of so many prompts.

    `response` are the lengths of responses; without it all have the most tokens that their sampler lets them have.
    A node whose pass another has made already (log-probs and entropy of the same rows) has no load of its own.
    """
    role_of = {name: role for role in reversed(roles(graph)) for name in role.nodes}
    stages, seen, found = _stages(graph, role_of), set[object](), list[Load]()
    cuts = {cut.node: cut for cut in sizes_of(graph, prompts).cuts}
    for node in graph.nodes:
        if node not in stages or pass_of(node) in seen:
            continue
        seen.add(pass_of(node))
        found.append(_load(node, role_of[node.name], stages[node], cuts.get(node.name), prompts, prompt, response))
    return tuple(found)


def stage_count(found: Sequence[Load]) -> int:
    """Give the stages of a step."""
    return max((each.stage for each in found), default=-1) + 1


def _stages(graph: Graph, role_of: dict[str, Role]) -> dict[Node, int]:
    """Give the stage of each node that runs a model: one more than the last of those that it depends on.

    An update depends on what its loss reads. Weights bring no stage: who reads the next version waits for the next
    step, or is another node of the same model.
    """
    found = dict[Node, int]()
    for node in graph.nodes:
        if node.name in role_of and (node.regions or node.op.carries is None):
            before = (found[each] for each in reachable(node.edges()) if isinstance(each, Node) and each in found)
            found[node] = max(before, default=-1) + 1
    return found


def _load(
    node: Node, role: Role, stage: int, cut: Cut | None, prompts: int, prompt: Lengths, response: Lengths | None
) -> Load:
    samplers = samplers_read(node)
    most = max((whole_setting(each, "max_tokens", 0) for each in samplers), default=0)
    phase: Phase = "generate" if node.op.kind == "generate" else "update" if node.regions else "logprob"
    inner = (each for _, region in node.regions for each in region.inner)
    return Load(
        node=node.name,
        role=role,
        phase=phase,
        stage=stage,
        prompts=prompts_reaching(node, prompts),
        samples=max((whole_setting(each, "n", 1) for each in samplers), default=1),
        prompt=prompt,
        response=response or Lengths.fixed(most or 1024),
        epochs=cut.epochs if cut is not None else 1,
        steps=cut.optimizer_steps if cut is not None else 0,
        stats=frozenset(each.op.stat for each in (node, *inner) if each.op.stat is not None),
        optimizer=getattr(node.settings, "optimizer", "adamw") if phase == "update" else "",
    )


def of_role(found: Sequence[Load], role: str) -> Iterator[Load]:
    """Give the loads of one role."""
    return (each for each in found if each.role.name == role)
