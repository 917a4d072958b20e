"""Batch sizes: one solver for prompts, samples, minibatches, token budgets and data ranks, as the runtime cuts them.

Prompts are never split, so no size has to divide another. Sizes that are impossible, or that certainly leave a rank
without a row, are refused; notes describe sizes that are only wasteful. Not here: bytes (`memory`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flowgraph.analysis.roles import roles
from flowgraph.errors import BatchError
from flowgraph.language.graph import Graph, Node
from flowgraph.language.values import Group
from placements.workload.batch_partition import (
    DATA,
    AdjustableSize,
    BatchSizes,
    RankShare,
    SamplerBatch,
    SizeConflict,
    UpdatePartition,
    many,
    span,
)
from placements.workload.graph_workload import prompts_reaching, row_sources, samplers_read, samples_of, whole_setting

if TYPE_CHECKING:
    from flowgraph.cluster.plan import Plan

IDLE_SHARE = 0.01  # of minibatches in which a rank has no row by chance: more gets a note
MAX_VALUE = 2**24  # no value beyond is offered: more prompts than any step reads


def solve_batch(
    graph: Graph,
    prompts: int,
    *,
    plan: Plan | None = None,
    data_rows: int | None = None,
    prompt_tokens: int | None = None,
    response_tokens: int | None = None,
    origins: Mapping[str, str] | None = None,
) -> BatchSizes:
    """Return how one step of `prompts` prompts is divided into samples, minibatches, micro-batches and data ranks.

    Data ranks are those of `plan`; without one, nothing is divided among ranks. `data_rows` is the number of rows of
    the data set, `prompt_tokens` the length of the longest prompt, `response_tokens` that of the longest response
    (default: the maximum that samplers allow). `origins` maps setting names (`run.batch`, `policy.update.minibatch`) to
    the place where the value was set. Settings are read by name: `n`, `max_tokens`, `groups` and `rounds` of samplers;
    `minibatch`, `micro_batch_tokens` and `epochs` of updates. The result has notes on sizes that may not be intended.

    Raises BatchError for sizes that contradict each other, with the nearest values of each setting that work.
    """
    longest = {"prompt_tokens": prompt_tokens, "response_tokens": response_tokens}
    sizes = sizes_of(graph, prompts, plan=plan, data_rows=data_rows, **longest, origins=origins)
    conflicts = list(faults(sizes))
    if conflicts:
        first, *rest = conflicts
        wrong = [(str(size), size.origin) for size in first.sizes]
        nearest = [str(size) for size in first.nearest]
        raise BatchError.disagree(first.what, first.why, wrong, nearest, [conflict.what for conflict in rest])
    return replace(sizes, notes=tuple(_notes(sizes, graph)))


def most_ranks(graph: Graph, prompts: int) -> int:
    """Return the maximum number of data ranks with which every rank has rows in each role and minibatch; at least 1."""
    sizes = sizes_of(graph, prompts)
    groups = [size.value for size in _kept_groups(sizes)]
    return max(1, min([prompts, *groups, *(update.smallest for update in sizes.updates)]))


# ------------------------------------------------------------------------------------------- the sizes of a graph


def sizes_of(
    graph: Graph,
    prompts: int,
    *,
    plan: Plan | None = None,
    data_rows: int | None = None,
    prompt_tokens: int | None = None,
    response_tokens: int | None = None,
    origins: Mapping[str, str] | None = None,
) -> BatchSizes:
    """Return the batch sizes of a step as `solve_batch` does, from the same parameters, without checks and notes."""
    ranks = {placed.role: placed.layout.data for placed in plan.placed} if plan is not None else {}
    return _SizeReader(graph, prompts, ranks, prompt_tokens, response_tokens, origins or {}).sizes(data_rows)


@dataclass(frozen=True)
class _SizeReader:
    graph: Graph
    prompts: int
    ranks: Mapping[str, int]
    prompt_tokens: int | None
    response_tokens: int | None
    origins: Mapping[str, str]

    @property
    def batch(self) -> AdjustableSize:
        return AdjustableSize("", "batch", self.prompts, self.origins.get("run.batch", ""))

    def sizes(self, data_rows: int | None) -> BatchSizes:
        samplers = [
            SamplerBatch(
                node=node.name,
                prompts=prompts_reaching(node, self.prompts),
                n=samples_of(node),
                tokens=self._max_tokens(node) or None,
                groups=groups if (groups := self._setting(node, "groups", 0)).value else None,
                rounds=whole_setting(node, "rounds", 0),
            )
            for node in self.graph.nodes
            if node.op.kind == "generate"
        ]
        nodes = {node.name: node for node in self.graph.nodes}
        alike = dict[tuple[int, AdjustableSize], list[str]]()
        for role in roles(self.graph):
            if role.name in self.ranks:
                supplies = [self._supply(nodes[name]) for name in role.nodes if name in nodes] or [self.batch]
                largest = self.batch if self.batch in supplies else max(supplies, key=_value)
                alike.setdefault((self.ranks[role.name], largest), []).append(role.name)
        shares = tuple(RankShare(tuple(names), count, prompts) for (count, prompts), names in alike.items())
        updates = tuple(self._updates())
        return BatchSizes(self.batch, data_rows, self.prompt_tokens, tuple(samplers), shares, updates)

    def _setting(self, node: Node, name: str, default: int) -> AdjustableSize:
        origin = self.origins.get(f"{node.name}.{name}", "")
        return AdjustableSize(node.name, name, whole_setting(node, name, default), origin)

    def _max_tokens(self, sampler: Node) -> int:
        return self.response_tokens or whole_setting(sampler, "max_tokens", 0)

    def _supply(self, node: Node) -> AdjustableSize:
        groups = [self._setting(sampler, "groups", 0) for sampler in samplers_read(node) if sampler is not node]
        return max(groups, key=_value) if groups and all(size.value for size in groups) else self.batch

    def _updates(self) -> Iterator[UpdatePartition]:
        role_of = {name: role.name for role in roles(self.graph) if role.use == "train" for name in role.nodes}
        for node in self.graph.nodes:
            if node.regions and node.op.carries is not None and node.name in role_of:
                # The longest row has all that its loss captures, each once.
                contexts, responses = row_sources(node)
                tokens = [0 if sampler is None else self._max_tokens(sampler) for sampler in responses.values()]
                is_known = all(tokens) and not (contexts and self.prompt_tokens is None)
                row_tokens = max(1, sum(tokens) + len(contexts) * (self.prompt_tokens or 0)) if is_known else None
                yield UpdatePartition(
                    node=node.name,
                    role=role_of[node.name],
                    ranks=self.ranks.get(role_of[node.name], 1),
                    prompts=self._supply(node),
                    epochs=whole_setting(node, "epochs", 1),
                    minibatch=self._setting(node, "minibatch", 0),
                    n=max((samples_of(sampler) for sampler in samplers_read(node)), default=1),
                    row_tokens=row_tokens,
                    budget_tokens=whole_setting(node, "micro_batch_tokens", 0) or None,
                )


def _value(size: AdjustableSize) -> int:
    return size.value


# ------------------------------------------------------------------------------------------- what is refused


def faults(sizes: BatchSizes) -> Iterator[SizeConflict]:
    """Yield each conflict between batch sizes for which `solve_batch` raises BatchError.

    If a step has no prompt, this is the only conflict.
    """
    batch, rows = sizes.batch, sizes.data_rows
    if batch.value < 1:
        yield SizeConflict(f"{batch} reads no prompt", "a step reads at least one", (batch,), _nearest(sizes, batch))
        return
    if rows is not None and batch.value > rows:
        what = f"{batch} reads more prompts than the data set has: {many(rows, 'row')}"
        yield SizeConflict(what, "the prompts of one step are all different", (batch,), _nearest(sizes, batch))
    for group in _kept_groups(sizes):
        if group.value > batch.value:
            what = f"{batch} is too few for {group}: the batch would never be full"
            why = "a group is the responses to one prompt, and a step samples each prompt once"
            yield SizeConflict(what, why, (batch, group), _nearest(sizes, batch, group))
    for share in sizes.shares:
        if share.ranks > share.prompts.value:
            idle, names = many(share.ranks - share.prompts.value, "rank"), ", ".join(share.roles)
            ranks = AdjustableSize(names, DATA, share.ranks, "the plan")
            what = f"{share.prompts} on {share.ranks} data ranks of {names}: {idle} would never have a row"
            why = "ranks share prompts, not rows: the responses to a prompt stay on one rank"
            yield SizeConflict(what, why, (share.prompts, ranks), _nearest(sizes, share.prompts, ranks))
    for update in sizes.updates:
        if update.smallest < update.ranks <= update.prompts.value:
            ranks = AdjustableSize(update.role, DATA, update.ranks, "the plan")
            prompts = span(update.prompts.value, update.minibatches)
            parts = f"{many(update.minibatches, 'minibatch', 'minibatches')} of {prompts}"
            what = (
                f"{update.minibatch} cuts {update.prompts} into {parts} for {update.ranks} data ranks of {update.role}"
            )
            idle = many(update.ranks - update.smallest, "rank")
            why = f"{idle} would have no row in an optimizer step, whichever prompts it has, and wait for the others"
            wrong = update.minibatch, update.prompts, ranks
            yield SizeConflict(what, why, wrong, _nearest(sizes, *wrong))


def _kept_groups(sizes: BatchSizes) -> list[AdjustableSize]:
    return [sampler.groups for sampler in sizes.samplers if sampler.groups is not None]


def _nearest(sizes: BatchSizes, *wrong: AdjustableSize) -> tuple[AdjustableSize, ...]:
    nearest = list[AdjustableSize]()
    for size in wrong:
        if size.setting == DATA:
            names = size.owner.split(", ")
            limits = [share.prompts.value for share in sizes.shares if set(share.roles) & set(names)]
            limits += [update.smallest for update in sizes.updates if update.role in names]
            values = [min(limits)] if min(limits, default=0) >= 1 else []
        elif size.setting == "minibatch":
            update = next(update for update in sizes.updates if update.minibatch == size)
            values = [least_minibatch(update.prompts.value, update.ranks)]
        else:  # the batch, or the groups that a sampler keeps
            is_batch = size == sizes.batch
            low = [share.ranks for share in sizes.shares if share.prompts == size]
            low += [group.value for group in _kept_groups(sizes)] if is_batch else []
            high = sizes.data_rows if is_batch else sizes.batch.value
            cuts = [
                EvenMinibatches(update.minibatch.value, update.ranks)
                for update in sizes.updates
                if update.prompts == size and update.minibatch.value
            ]
            values = nearest_values(size.value, cuts, low=max([1, *low]), high=high)
        nearest += [replace(size, value=value) for value in values]
    return tuple(nearest)


@dataclass(frozen=True)
class EvenMinibatches:
    """A condition on a number of prompts: cut evenly into minibatches of at most `size`, each has at least `minimum`.

    `minimum` is at most `size`. The numbers from (count - 1) · size + 1 to count · size make `count` minibatches; of
    these, the condition holds from count · minimum on.

    >>> [prompts for prompts in range(1, 10) if EvenMinibatches(3, 2).moved(prompts, up=True) == prompts]
    [2, 3, 4, 5, 6, 7, 8, 9]
    """

    size: int
    minimum: int

    def moved(self, value: int, *, up: bool) -> int:
        """Return the first number from `value` up (`up`) or down that meets the condition; 0 if no lower one does."""
        count = max(1, -(-value // self.size))
        return value if value >= count * self.minimum else count * self.minimum if up else (count - 1) * self.size


def nearest_values(
    value: int, cuts: Sequence[EvenMinibatches] = (), *, low: int = 1, high: int | None = None
) -> list[int]:
    """Return the nearest values below and above `value` that satisfy all cuts and are from `low` to `high`, ascending.

    `high` is at most 2²⁴, also if it is None. `value` itself is never returned, and a side without a valid value is
    left out. The list is empty if a cut has a `minimum` above its `size`.

    >>> nearest_values(5, low=8), nearest_values(9, low=3, high=8), nearest_values(5, [EvenMinibatches(4, 4)])
    ([8], [8], [4, 8])
    """
    if any(cut.minimum > cut.size for cut in cuts):
        return []
    limit, nearest = min(MAX_VALUE, MAX_VALUE if high is None else high), list[int]()
    for up, start in (False, min(value - 1, limit)), (True, max(value + 1, low)):
        reached, last = start, 0
        while low <= reached <= limit and reached != last:  # no cut moves further than it must, so no value is missed
            last = reached
            for cut in cuts:
                reached = cut.moved(reached, up=up)
        nearest += [reached] if low <= reached <= limit else []
    return nearest


def least_minibatch(prompts: int, minimum: int) -> int:
    """Return the smallest minibatch size with which every even minibatch has at least `minimum` of the `prompts`.

    >>> least_minibatch(7, 4), least_minibatch(9, 2), least_minibatch(16, 4)
    (7, 3, 4)

    Raises ValueError for fewer prompts than `minimum`.
    """
    if prompts < minimum:
        raise ValueError(f"{prompts} prompts are too few for a minibatch of {minimum}")
    return -(-prompts // (prompts // minimum))


# ------------------------------------------------------------------------------------------- notes


def _notes(sizes: BatchSizes, graph: Graph) -> Iterator[str]:
    for update in sizes.updates:
        if update.minibatch.value > update.prompts.value:
            there = f"the {update.prompts.value} prompts there are"
            yield f"{update.minibatch} is more than {there}: they are one minibatch"
        budget_tokens, row_tokens = update.budget_tokens, update.row_tokens
        if row_tokens is not None and budget_tokens is not None and row_tokens > budget_tokens:
            budget = f"{update.node}.micro_batch_tokens={budget_tokens}"
            yield f"{budget} is less than the longest row, {row_tokens} tokens: such a row goes alone"
        if update.idle_share >= IDLE_SHARE:
            what = f"a rank of {update.role} has no row in up to {update.idle_share:.0%} of optimizer steps"
            yield f"{what}: a minibatch is drawn from the prompts of all ranks"
    for sampler in sizes.samplers:
        yield from _round_notes(sampler, sizes.shares)
    for node in graph.nodes:
        if node.op.kind == "advantage" and any(issubclass(edge.type, Group) for edge in node.edges()):
            names = (sampler.name for sampler in samplers_read(node) if samples_of(sampler) == 1)
            yield from (
                f"{node.name} compares the responses to a prompt, but {name} samples only one" for name in names
            )
        if node.op.rows == "new" and node.op.kind != "generate":
            yield f"{node.name} makes new rows: nodes that read them may have other counts"


def _round_notes(sampler: SamplerBatch, shares: Sequence[RankShare]) -> Iterator[str]:
    if sampler.groups is not None:
        spare = sampler.prompts - sampler.groups.value
        what = (
            f"{sampler.groups} of {sampler.prompts} prompts, {many(spare, 'prompt') if spare else 'no prompt'} to spare"
        )
        yield f"{what}: later nodes have fewer if too few are kept"
    if not sampler.rounds:
        return
    if sampler.rounds > sampler.prompts:
        yield f"{sampler.node}.rounds={sampler.rounds} of {many(sampler.prompts, 'prompt')}: a round samples one"
    ranks = max((share.ranks for share in shares for role in share.roles if role.endswith(".sample")), default=1)
    smallest = sampler.prompts // min(sampler.rounds, sampler.prompts)
    if smallest < ranks:
        yield f"{sampler.node} samples {many(smallest, 'prompt')} a round on {ranks} ranks: the others wait"
