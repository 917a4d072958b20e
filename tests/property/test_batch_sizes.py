"""Random batch sizes: what the solver says is what the functions that cut a batch do, and what it offers goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, count
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import event, given
from hypothesis import strategies as st

from flowgraph import Graph, Loss, flow
from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.analysis.roles import roles
from flowgraph.cluster.cluster import Cluster, Device, Machine
from flowgraph.cluster.plan import Layout, PlacedRole, Plan, Pool
from flowgraph.errors import BatchError
from flowgraph.language import Key
from flowgraph.language.graph import rewrite
from flowgraph.passes import compile_graph
from flowgraph.runtime.row_identity import rows_of_rank
from nodes import Policy, Prompts, Reference, clipped, generate, group_normalize, kl_k3, logprobs, score, update
from nodes.refill import refill
from nodes.training import micro_batches, minibatches
from placements.workload.batch_partition import AdjustableSize, SizeConflict, UpdatePartition
from placements.workload.batch_sizes import (
    EvenMinibatches,
    faults,
    least_minibatch,
    most_ranks,
    nearest_values,
    sizes_of,
    solve_batch,
)


@flow
def plain(prompts: Prompts, policy: Policy, ref: Reference) -> Policy:
    rollout = generate(policy, prompts)
    advantages = group_normalize(score(rollout), rollout.group)
    ref_logprobs = logprobs(ref, rollout)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        surrogate = clipped(new, advantages, rollout.mask, old=rollout.logprobs)
        return surrogate + 0.1 * kl_k3(new, rollout.mask, ref=ref_logprobs)

    return update(policy, loss)


@flow
def refilled(prompts: Prompts, policy: Policy) -> Policy:
    rollout = refill(policy, prompts, groups=1)
    advantages = group_normalize(rollout.scores, rollout.group)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)

    return update(policy, loss)


PLAIN, REFILLED = compile_graph(plain.graph()), compile_graph(refilled.graph())
DEVICE = Device(kind="cpu", memory_bytes=2**30)
LAPTOP = Machine(name="laptop", devices=(DEVICE,), host_memory_bytes=2**30, cores=1)


@dataclass(frozen=True)
class Case:
    """Sizes of a step; `groups` 0 is a sampler that keeps all that it draws."""

    prompts: int
    data_rows: int | None = None
    n: int = 2
    max_tokens: int = 5
    prompt_tokens: int = 3
    groups: int = 0
    minibatch: int = 0
    epochs: int = 1
    budget: int = 16
    train: int = 1
    sample: int = 1

    @property
    def trained(self) -> int:
        """Return the prompts that reach the update, at most."""
        return self.groups or self.prompts


CASES = st.builds(
    Case,
    prompts=st.integers(1, 24),
    data_rows=st.none() | st.integers(1, 24),
    n=st.integers(1, 4),
    max_tokens=st.integers(1, 9),
    prompt_tokens=st.integers(1, 6),
    groups=st.just(0) | st.integers(1, 24),
    minibatch=st.just(0) | st.integers(1, 26),
    epochs=st.integers(1, 3),
    budget=st.integers(1, 70),
    train=st.integers(1, 8),
    sample=st.integers(1, 8),
)


def graph_of(case: Case) -> Graph:
    told = {
        "n": case.n,
        "max_tokens": case.max_tokens,
        "minibatch": case.minibatch,
        "epochs": case.epochs,
        "micro_batch_tokens": case.budget,
        "groups": case.groups,
    }

    def change(node: Any) -> Any:
        known = {name: value for name, value in told.items() if name in type(node.settings).model_fields}
        return replace(node, settings=node.settings.model_copy(update=known))

    return rewrite(REFILLED if case.groups else PLAIN, change)


HASHES = {id(graph): structure_hash(graph) for graph in (PLAIN, REFILLED)}


def plan_of(case: Case) -> Plan:
    graph = REFILLED if case.groups else PLAIN
    ranks = {"train": case.train, "sample": case.sample, "infer": case.sample}
    return Plan(
        flow=graph.name,
        structure_hash=HASHES[id(graph)],
        cluster=Cluster(nodes=(LAPTOP,)),
        pools=(Pool(name="all", devices=(("laptop", 0),)),),
        placed=tuple(
            PlacedRole(role=role.name, pool="all", engine="local", layout=Layout(data=ranks[role.use]))
            for role in roles(graph)
        ),
    )


def found(case: Case) -> tuple[SizeConflict, ...]:
    return tuple(faults(sizes_of(graph_of(case), case.prompts, plan=plan_of(case), data_rows=case.data_rows)))


# ------------------------------------------------------------------------------- what the runtime does with it


def dealt(prompts: int, n: int, ranks: int) -> list[list[int]]:
    """Return the prompt of each row that each rank is dealt, by the runtime's own function."""
    table = pa.table({"#group": np.repeat(np.arange(prompts) * 7 % 1009, n)})
    return [rows_of_rank(table, rank, ranks, "rows").column("#group").to_pylist() for rank in range(ranks)]


def cut_by_hand(case: Case, seed: int) -> Iterator[tuple[list[torch.Tensor], int]]:
    """Yield each minibatch as the rows of each rank, with the prompts that it holds; rows are indices of a rank's."""
    shares = [torch.tensor(groups, dtype=torch.int64) for groups in dealt(case.trained, case.n, case.train)]
    prompts = torch.unique(torch.cat(shares))
    for epoch in range(case.epochs):
        cut = [minibatches(groups, prompts, case.minibatch, Key(seed), epoch) for groups in shares]
        for parts in zip(*cut, strict=True):
            held = {int(groups[row]) for groups, rows in zip(shares, parts, strict=True) for row in rows}
            yield list(parts), len(held)


def goes(case: Case) -> bool:
    """Return whether the runtime can do it and no rank is without a row for certain, in a role or in a minibatch."""
    if case.data_rows is not None and case.prompts > case.data_rows:
        return False
    if case.groups > case.prompts:
        return False
    roles_of = [(case.prompts, case.sample), (case.trained, case.train)]
    if not case.groups:
        roles_of.append((case.prompts, case.sample))  # the reference
    if not all(rows for prompts, ranks in roles_of for rows in dealt(prompts, case.n, ranks)):
        return False
    return all(held >= case.train for _, held in cut_by_hand(case, 0))


@given(CASES)
def test_what_is_refused_is_what_leaves_a_rank_without_a_row_or_cannot_be_had(case: Case) -> None:
    refused = bool(found(case))
    event("refused" if refused else "goes")
    assert refused == (not goes(case))
    if refused:
        with pytest.raises(BatchError):
            solve_batch(graph_of(case), case.prompts, plan=plan_of(case), data_rows=case.data_rows)


@given(CASES, st.integers(0, 99))
def test_a_minibatch_of_fewer_prompts_than_ranks_leaves_one_without_a_row_whatever_is_drawn(
    case: Case, seed: int
) -> None:
    least = next(iter(sizes_of(graph_of(case), case.prompts, plan=plan_of(case)).updates)).smallest
    idle = [any(not len(rows) for rows in parts) for parts, _ in cut_by_hand(case, seed)]
    if least < case.train:
        assert any(idle)
    elif case.minibatch == 0:
        assert not any(idle)


@given(CASES, st.integers(0, 9))
def test_counts_are_those_of_the_functions_that_cut(case: Case, seed: int) -> None:
    sizes = sizes_of(graph_of(case), case.prompts, plan=plan_of(case), prompt_tokens=case.prompt_tokens)
    (cut,), width = sizes.updates, case.prompt_tokens + case.max_tokens
    done = list(cut_by_hand(case, seed))
    assert (cut.optimizer_steps, cut.row_tokens) == (len(done), width)
    assert (cut.smallest, cut.largest) == (min(held for _, held in done), max(held for _, held in done))
    assert max(len(rows) for parts, _ in done for rows in parts) <= cut.rank_rows
    tokens = torch.full((case.trained * case.n,), width)
    counts = [len(micro_batches(tokens, rows, case.budget)) for parts, _ in done for rows in parts]
    assert max(counts) <= (cut.micro_batches or 0)
    if case.minibatch == 0:
        assert max(counts) == cut.micro_batches
    for share in sizes.shares:
        shares = [len(set(rows)) for rows in dealt(share.prompts.value, case.n, share.ranks)]
        smallest, over = divmod(share.prompts.value, share.ranks)
        assert (smallest, smallest + bool(over)) == (min(shares), max(shares))
    assert sum(each.rows for each in sizes.samplers) == case.prompts * case.n


@given(CASES, st.data())
def test_shorter_rows_make_no_more_micro_batches(case: Case, data: st.DataObject) -> None:
    cut = sizes_of(graph_of(case), case.prompts, prompt_tokens=case.prompt_tokens).updates[0]
    longest = case.prompt_tokens + case.max_tokens
    lengths = data.draw(st.lists(st.integers(1, longest), min_size=cut.rank_rows, max_size=cut.rank_rows))
    parts = micro_batches(torch.tensor(lengths), torch.arange(len(lengths)), case.budget)
    assert len(parts) <= (cut.micro_batches or 0)


@given(CASES.filter(lambda case: 1 < case.train <= case.trained and case.minibatch))
def test_the_chance_of_no_row_is_that_of_drawing_only_other_prompts(case: Case) -> None:
    cut = sizes_of(graph_of(case), case.prompts, plan=plan_of(case)).updates[0]
    if cut.smallest < cut.prompts.value <= 12:
        own = cut.prompts.value // cut.ranks
        drawn = [set(each) for each in combinations(range(cut.prompts.value), cut.smallest)]
        without = sum(not each & set(range(own)) for each in drawn)
        assert cut.idle_share == pytest.approx(without / len(drawn))


# ------------------------------------------------------------------------------- what is offered


def changed(case: Case, size: AdjustableSize) -> Case:
    """Return the case with one size at another value, as its owner says whose it is."""
    if size.setting != "data":
        name = {"batch": "prompts"}.get(size.setting, size.setting)
        return replace(case, **{name: size.value})
    uses = {name.rpartition(".")[2] for name in size.owner.split(", ")}
    case = replace(case, train=size.value) if "train" in uses else case
    return replace(case, sample=size.value) if uses & {"sample", "infer"} else case


def names(size: AdjustableSize) -> tuple[str, str]:
    return size.owner, size.setting


def still_refused(case: Case, size: AdjustableSize) -> bool:
    """Return whether anything refuses a size; roles of a size of ranks may stand in other groups by then."""
    owners = set(size.owner.split(", "))

    def same(other: AdjustableSize) -> bool:
        return other.setting == size.setting and (size.setting != "data" or bool(owners & set(other.owner.split(", "))))

    return any(same(other) for fault in found(case) for other in fault.sizes)


@given(CASES)
def test_each_value_that_is_offered_goes_and_no_nearer_one_does(case: Case) -> None:
    for fault in found(case):
        event(fault.what.partition(" ")[0].partition("=")[0])
        wrong = {names(size): size.value for size in fault.sizes}
        for size in fault.nearest:
            assert not still_refused(changed(case, size), size), f"{size} of {fault}"
            start = wrong[names(size)]
            step = 1 if size.value > start else -1
            for value in range(start, size.value, step):
                assert still_refused(changed(case, replace(size, value=value)), size)


@given(CASES)
def test_what_is_not_offered_does_not_go(case: Case) -> None:
    """Of each size that is named, on each side: where nothing is offered, nothing up to three times its size goes."""
    for fault in found(case):
        for size in fault.sizes:
            offered = [each.value for each in fault.nearest if names(each) == names(size)]
            tried = {-1: range(1, size.value), 1: range(size.value + 1, 3 * size.value + 30)}
            for side, values in tried.items():
                if not any((value - size.value) * side > 0 for value in offered):
                    assert all(still_refused(changed(case, replace(size, value=value)), size) for value in values)


@given(CASES)
def test_the_most_ranks_are_those_up_to_which_nothing_is_refused(case: Case) -> None:
    case = replace(case, data_rows=None, prompts=max(case.prompts, case.groups))
    most = most_ranks(graph_of(case), case.prompts)
    assert not found(replace(case, train=most, sample=most))
    assert found(replace(case, train=most + 1, sample=most + 1))


CUTS = st.lists(st.builds(EvenMinibatches, st.integers(1, 12), st.integers(1, 12)), max_size=3)


@given(st.integers(1, 60), CUTS, st.integers(1, 30), st.none() | st.integers(1, 200))
def test_the_nearest_values_are_those_that_a_walk_finds(
    value: int, cuts: Sequence[EvenMinibatches], low: int, high: int | None
) -> None:
    def holds(size: int) -> bool:
        bounded = low <= size <= (size if high is None else high)
        return bounded and all(size // -(-size // cut.size) >= cut.minimum for cut in cuts)

    below = next((size for size in range(value - 1, 0, -1) if holds(size)), None)
    above = next((size for size in range(value + 1, 3000) if holds(size)), None)
    assert nearest_values(value, cuts, low=low, high=high) == [size for size in (below, above) if size is not None]


@given(st.integers(1, 60), st.integers(1, 60))
def test_the_least_minibatch_is_the_first_that_a_walk_finds(prompts: int, least: int) -> None:
    if prompts < least:
        with pytest.raises(ValueError, match="too few for a minibatch"):
            least_minibatch(prompts, least)
        return
    size = AdjustableSize("", "batch", prompts)
    cuts = (
        UpdatePartition("u", "r", least, size, 1, AdjustableSize("u", "minibatch", each), 1, None, None)
        for each in count(1)
    )
    assert least_minibatch(prompts, least) == next(cut.minibatch.value for cut in cuts if cut.smallest >= least)
