"""Batch sizes: one solver for prompts, samples, minibatches, token budgets and data ranks, as the runtime cuts them.

Prompts are shared out whole, so nothing has to divide. Refused is what cannot be had, or leaves a rank without a row
for certain; what only wastes is told. Not here: bytes (`memory`), and the rules of one number (`size_rules`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from flowgraph.analysis.roles import Role, roles
from flowgraph.errors import BatchError
from flowgraph.language.graph import Graph, Node
from flowgraph.language.values import Group
from placements.cuts import DATA, BatchSizes, Cut, Drawn, Fault, Share, Size, many, span
from placements.size_rules import AtLeast, AtMost, Blocks, Rule, least_minibatch, nearest_values
from placements.work import prompts_reaching, row_sources, samplers_read, samples_of, whole_setting

if TYPE_CHECKING:
    from flowgraph.cluster.plan import Plan

IDLE_SHARE = 0.01  # of minibatches in which a rank has no row by chance: more is told

Longest = tuple[int | None, int | None]
"""The tokens of the longest prompt and of the longest response; None for what is not known."""


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
    """Return how a step of `prompts` prompts is cut by a named graph's settings, and by the data ranks of a plan.

    `data_rows` are those of the data set, `prompt_tokens` those of the longest prompt and `response_tokens` of
    the longest response, in place of what samplers allow; `origins` says by name (`run.batch`,
    `policy.update.minibatch`) where a setting's value comes from. Settings are read by name: `n`,
    `max_tokens`, `groups` and `rounds` of what samples; `minibatch`, `micro_batch_tokens` and `epochs` of what updates.

    Raises BatchError for sizes that do not go together, with the nearest values of each setting that do.
    """
    longest = {"prompt_tokens": prompt_tokens, "response_tokens": response_tokens}
    sizes = sizes_of(graph, prompts, plan=plan, data_rows=data_rows, **longest, origins=origins)
    found = list(faults(sizes))
    if found:
        raise error_of(found)
    return replace(sizes, told=tuple(_told(sizes, graph)))


def most_ranks(graph: Graph, prompts: int) -> int:
    """Return the most data ranks with which no role and no minibatch of a named graph leaves a rank without a row."""
    sizes = sizes_of(graph, prompts)
    kept = [each.value for each in _kept(sizes)]
    return max(1, min([prompts, *kept, *(cut.least for cut in sizes.cuts)]))


def error_of(found: Sequence[Fault]) -> BatchError:
    """Make one error of several faults: the first whole, the others in a line each."""
    first, *others = found
    sizes = [(str(size), size.origin) for size in first.sizes]
    return BatchError.disagree(
        first.what, first.why, sizes, [str(each) for each in first.nearest], [each.what for each in others]
    )


# ------------------------------------------------------------------------------------------- what a graph says


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
    """Return the sizes as they are, whether they go together or not; parameters are those of `solve_batch`."""
    origins = origins or {}
    batch = Size("", "batch", prompts, origins.get("run.batch", ""))
    drawn = tuple(_drawn(node, prompts, response_tokens, origins) for node in graph.nodes if node.op.kind == "generate")
    ranks = {each.role: each.layout.data for each in plan.placed} if plan is not None else {}
    return BatchSizes(
        batch,
        data_rows,
        prompt_tokens,
        drawn,
        _shares(graph, batch, ranks, origins),
        tuple(_cuts(graph, batch, ranks, (prompt_tokens, response_tokens), origins)),
    )


def _drawn(node: Node, prompts: int, response_tokens: int | None, origins: Mapping[str, str]) -> Drawn:
    kept = _setting(node, "groups", 0, origins)
    return Drawn(
        node.name,
        prompts_reaching(node, prompts),
        samples_of(node),
        response_tokens or whole_setting(node, "max_tokens", 0) or None,
        kept if kept.value else None,
        whole_setting(node, "rounds", 0),
    )


def _setting(node: Node, name: str, otherwise: int, origins: Mapping[str, str]) -> Size:
    return Size(node.name, name, whole_setting(node, name, otherwise), origins.get(f"{node.name}.{name}", ""))


def _supply(node: Node, batch: Size, origins: Mapping[str, str]) -> Size:
    """Return the size that says how many prompts' rows a node reads: the batch, or the groups that a sampler keeps."""
    before = [each for each in samplers_read(node) if each is not node]
    if not before or any(whole_setting(each, "groups", 0) == 0 for each in before):
        return batch
    found = [_setting(each, "groups", batch.value, origins) for each in before]
    return max(found, key=lambda size: size.value)


def _shares(graph: Graph, batch: Size, ranks: Mapping[str, int], origins: Mapping[str, str]) -> tuple[Share, ...]:
    """Return the share of each role, roles of as many ranks and prompts together; without a plan there is none."""
    nodes = {node.name: node for node in graph.nodes}
    alike = dict[tuple[int, Size], list[str]]()
    for role in roles(graph):
        inner = [nodes[name] for name in role.nodes if name in nodes]
        supplies = [_supply(node, batch, origins) for node in inner] or [batch]
        if role.name in ranks:
            most = batch if batch in supplies else max(supplies, key=lambda size: size.value)
            alike.setdefault((ranks[role.name], most), []).append(role.name)
    return tuple(Share(tuple(names), count, prompts) for (count, prompts), names in alike.items())


def _cuts(
    graph: Graph, batch: Size, ranks: Mapping[str, int], longest: Longest, origins: Mapping[str, str]
) -> Iterator[Cut]:
    role_of: dict[str, Role] = {name: role for role in roles(graph) if role.use == "train" for name in role.nodes}
    for node in graph.nodes:
        if node.regions and node.op.carries is not None and node.name in role_of:
            role = role_of[node.name].name
            yield Cut(
                node.name,
                role,
                ranks.get(role, 1),
                _supply(node, batch, origins),
                whole_setting(node, "epochs", 1),
                _setting(node, "minibatch", 0, origins),
                max((samples_of(each) for each in samplers_read(node)), default=1),
                _row_tokens(node, *longest),
                whole_setting(node, "micro_batch_tokens", 0) or None,
            )


def _row_tokens(node: Node, prompt_tokens: int | None, response_tokens: int | None) -> int | None:
    """Return the tokens that an update counts for its longest row: of all that its loss captures, each once."""
    contexts, responses = row_sources(node)
    samplers = [each for each in responses.values() if each is not None]
    most = [response_tokens or whole_setting(each, "max_tokens", 0) for each in samplers]
    if len(most) < len(responses) or not all(most) or (contexts and prompt_tokens is None):
        return None
    return max(1, sum(most) + len(contexts) * (prompt_tokens or 0))


# ------------------------------------------------------------------------------------------- what is refused


def faults(sizes: BatchSizes) -> Iterator[Fault]:
    """Return everything that `solve_batch` refuses in sizes, one after another."""
    batch, rows = sizes.batch, sizes.data_rows
    if batch.value < 1:
        yield Fault(f"{batch} reads no prompt", "a step reads one at least", (batch,), _nearest(sizes, batch))
        return
    if rows is not None and batch.value > rows:
        what = f"{batch} reads more prompts than the data set has: {many(rows, 'row')}"
        yield Fault(what, "the prompts of one step are all different", (batch,), _nearest(sizes, batch))
    for kept in _kept(sizes):
        if kept.value > batch.value:
            what = f"{batch} is too few for {kept}: the batch would never be full"
            why = "a group is the responses to one prompt, and a prompt is drawn to once a step"
            yield Fault(what, why, (batch, kept), _nearest(sizes, batch, kept))
    for share in sizes.shares:
        if share.ranks > share.prompts.value:
            yield _never(sizes, share)
    for cut in sizes.cuts:
        if cut.least < cut.ranks <= cut.prompts.value:
            yield _idle(sizes, cut)


def _kept(sizes: BatchSizes) -> list[Size]:
    """Return how many groups each sampler that drops some keeps."""
    return [drawn.kept for drawn in sizes.drawn if drawn.kept is not None]


def _never(sizes: BatchSizes, share: Share) -> Fault:
    """Say that a role has more data ranks than there are prompts."""
    left, names = share.ranks - share.prompts.value, ", ".join(share.roles)
    ranks = Size(names, DATA, share.ranks, "the plan")
    what = f"{share.prompts} on {share.ranks} data ranks of {names}: {many(left, 'rank')} would never have a row"
    why = "ranks share prompts, not rows: the responses to a prompt stay on one rank"
    return Fault(what, why, (share.prompts, ranks), _nearest(sizes, share.prompts, ranks))


def _idle(sizes: BatchSizes, cut: Cut) -> Fault:
    """Say that a minibatch holds fewer prompts than there are ranks to train on it."""
    ranks = Size(cut.role, DATA, cut.ranks, "the plan")
    held = f"{many(cut.minibatches, 'minibatch', 'minibatches')} of {span(cut.least, cut.most, 'prompt')}"
    left = many(cut.ranks - cut.least, "rank")
    what = f"{cut.minibatch} cuts {cut.prompts} into {held} for {cut.ranks} data ranks of {cut.role}"
    why = f"{left} would have no row in an optimizer step, whichever prompts it draws, and wait for the others"
    sizes_of = (cut.minibatch, cut.prompts, ranks)
    return Fault(what, why, sizes_of, _nearest(sizes, *sizes_of))


def _nearest(sizes: BatchSizes, *wrong: Size) -> tuple[Size, ...]:
    """Return the nearest values of each size, below and above, with which nothing refuses it any more."""
    found = list[Size]()
    for size in wrong:
        if size.setting == DATA:
            values = _nearest_ranks(sizes, size)
        elif size.setting == "minibatch":
            values = _nearest_minibatch(sizes, size)
        else:
            values = nearest_values(size.value, list(_rules(sizes, size)))
        found += [replace(size, value=value) for value in values]
    return tuple(found)


def _rules(sizes: BatchSizes, supply: Size) -> Iterator[Rule]:
    """Return what must hold of the batch, or of the groups that a sampler keeps."""
    yield AtLeast(1)
    if supply == sizes.batch:
        yield from (AtLeast(kept.value) for kept in _kept(sizes))
        yield from (AtMost(rows) for rows in [sizes.data_rows] if rows is not None)
    else:
        yield AtMost(sizes.batch.value)
    yield from (AtLeast(share.ranks) for share in sizes.shares if share.prompts == supply)
    for cut in sizes.cuts:
        if cut.prompts == supply and cut.minibatch.value:
            yield Blocks(cut.minibatch.value, cut.ranks)


def _nearest_ranks(sizes: BatchSizes, ranks: Size) -> list[int]:
    names = ranks.owner.split(", ")
    most = [share.prompts.value for share in sizes.shares if set(share.roles) & set(names)]
    most += [cut.least for cut in sizes.cuts if cut.role in names]
    return [min(most)] if min(most, default=0) >= 1 else []


def _nearest_minibatch(sizes: BatchSizes, size: Size) -> list[int]:
    cut = next(each for each in sizes.cuts if each.minibatch == size)
    return [least_minibatch(cut.prompts.value, cut.ranks)]


# ------------------------------------------------------------------------------------------- what is told


def _told(sizes: BatchSizes, graph: Graph) -> Iterator[str]:
    for cut in sizes.cuts:
        yield from _told_of_cut(cut)
    for drawn in sizes.drawn:
        yield from _told_of_rounds(drawn, sizes.shares)
    for node in graph.nodes:
        if node.op.kind == "advantage" and any(issubclass(edge.type, Group) for edge in node.edges()):
            single = [each.name for each in samplers_read(node) if samples_of(each) == 1]
            yield from (f"{node.name} compares the responses to a prompt, of which {each} draws one" for each in single)
        if node.op.rows == "new" and node.op.kind != "generate":
            yield f"{node.name} makes rows of its own: what reads them may have other counts than these"


def _told_of_cut(cut: Cut) -> Iterator[str]:
    if cut.minibatch.value > cut.prompts.value:
        yield f"{cut.minibatch} is more than the {cut.prompts.value} prompts there are: they are one minibatch"
    if cut.row_tokens is not None and cut.budget_tokens is not None and cut.row_tokens > cut.budget_tokens:
        budget = f"{cut.node}.micro_batch_tokens={cut.budget_tokens}"
        yield f"{budget} holds no row of {cut.row_tokens} tokens, the longest there may be: such a row goes alone"
    if cut.idle_share >= IDLE_SHARE:
        what = f"a rank of {cut.role} has no row in up to {cut.idle_share:.0%} of optimizer steps"
        yield f"{what}: a minibatch is drawn from the prompts of all ranks"


def _told_of_rounds(drawn: Drawn, shares: Sequence[Share]) -> Iterator[str]:
    if drawn.kept is not None:
        spare = drawn.prompts - drawn.kept.value
        left = many(spare, "prompt") if spare else "no prompt"
        yield f"{drawn.kept} of {drawn.prompts} prompts, {left} to spare: what follows has fewer if too few are kept"
    if not drawn.rounds:
        return
    if drawn.rounds > drawn.prompts:
        yield f"{drawn.node}.rounds={drawn.rounds} of {many(drawn.prompts, 'prompt')}: a round draws to one"
    ranks = max((share.ranks for share in shares for role in share.roles if role.endswith(".sample")), default=1)
    least = drawn.prompts // min(drawn.rounds, drawn.prompts)
    if least < ranks:
        yield f"{drawn.node} draws to {many(least, 'prompt')} a round on {ranks} ranks: the others wait"
