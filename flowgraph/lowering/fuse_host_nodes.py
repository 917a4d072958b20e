"""Fuse host nodes: let a host run and the one reader of its results be one task.

Before: `run score on host`, `run group_normalize on host`. After: `run score, group_normalize on host`.

It saves a task and a trip through a store, and costs nothing: runs are fused only where nothing then waits for longer.
So the second reads nothing that was not there when the first began, and nobody else waits for what the first gives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from flowgraph.lowering.program import HOST, Program, Run, results_of, typed_results, value_name
from flowgraph.values import Kind, Record, Value


def fuse_host_nodes(program: Program) -> Program:
    """Give the program with chains of host runs as one run each, at the place of the first of them."""
    chains = _Chains(program)
    for i in chains.runs:
        chains.try_to_fuse(i)
    tasks = (
        chains.fused(i) if i in chains.members else task
        for i, task in enumerate(program.tasks)
        if chains.first.get(i, i) == i
    )
    return replace(program, tasks=tuple(tasks))


class _Chains:
    """Runs of a program by their places in it; chains of host runs by that of their first, as they are found."""

    def __init__(self, program: Program) -> None:
        self.nodes = program.nodes
        self.runs = {i: task for i, task in enumerate(program.tasks) if isinstance(task, Run)}
        self.first, self.members = dict[int, int](), dict[int, list[int]]()
        self._returned = {value_name(edge) for edge in program.graph.outputs}
        self._maker, self._readers = dict[str, int](), defaultdict[str, set[int]](set)
        for i, run in self.runs.items():
            self._maker |= dict.fromkeys(self._results(i), i)
            for name in run.reads:
                self._readers[name].add(i)

    def try_to_fuse(self, i: int) -> None:
        """Add a host run to the chain of the last run that it reads from, if nothing waits for longer then."""
        makers = self._makers([i])
        if self.runs[i].place != HOST or not makers:
            return
        first = self.first.get(max(makers), max(makers))
        chain = self.members.get(first, [first])
        alike = self._waits_alike(makers, chain) and self._nobody_else_waits(i, chain)
        if self.runs[first].place == HOST and alike and self._keeps_effects_in_order(i, chain):
            self.members[first] = [*chain, i]
            self.first[i] = first

    def fused(self, first: int) -> Run:
        """Give one run for a chain."""
        chain = self.members[first]
        made = {name for i in chain for name in self._results(i)}
        reads = dict.fromkeys(name for i in chain for name in self.runs[i].reads if name not in made)
        nodes = tuple(name for i in chain for name in self.runs[i].nodes)
        return Run(nodes, HOST, tuple(reads), inner=tuple(self._inner(nodes, chain)))

    def _results(self, i: int) -> Iterator[str]:
        return (name for each in self.runs[i].nodes for name in results_of(self.nodes[each]))

    def _makers(self, chain: Sequence[int]) -> set[int]:
        """Give the runs that make what these read."""
        return {self._maker[name] for i in chain for name in self.runs[i].reads if name in self._maker}

    def _waits_alike(self, makers: set[int], chain: Sequence[int]) -> bool:
        """Say whether what a run reads is made in the chain, or was there when the chain began."""
        todo, found = self._makers(chain), set[int]()
        others = makers - {*chain} - todo
        while others - found and todo:
            found |= todo
            todo = {each for each in self._makers(sorted(todo)) if each >= min(others)} - found
        return others <= found

    def _nobody_else_waits(self, i: int, chain: Sequence[int]) -> bool:
        return all(self._readers[name] <= {*chain, i} for each in chain for name in self._results(each))

    def _keeps_effects_in_order(self, i: int, chain: Sequence[int]) -> bool:
        """Say whether nodes with effects still run on the host in the order of the flow."""
        between = (each for each in self.runs if chain[0] < each < i and each not in chain)
        return not self._has_effects(i) or not any(self._has_effects(each) for each in between)

    def _has_effects(self, i: int) -> bool:
        here = self.runs[i].place == HOST
        return here and not all(self.nodes[name].op.pure for name in self.runs[i].nodes)

    def _inner(self, nodes: Sequence[str], chain: Sequence[int]) -> Iterator[str]:
        """Name the results that do not leave the task: only its own nodes read them, and a run records none of them."""
        for node in (self.nodes[name] for name in nodes):
            for name, kind in typed_results(node):
                alone = self._readers[name] <= {*chain} and name not in self._returned
                if alone and not (len(node.returns) == 1 and _recorded(kind)):
                    yield name


def _recorded(kind: type[Value]) -> bool:
    """Say whether a run records it: what later nodes say of each row is written beside the rollout."""
    return kind.kind is Kind.ROW and not issubclass(kind, Record)
