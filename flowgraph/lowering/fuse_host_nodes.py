"""Fuse host nodes: let a host run and the one reader of its results be one task.

Before: `run score on host`, `run group_normalize on host`. After: `run score, group_normalize on host`.

It saves a task and a trip through a store, and costs nothing: runs are fused only where nothing then waits for longer.
So the second reads nothing that was not there when the first began, and nobody else waits for what the first gives.
"""

from __future__ import annotations

from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from flowgraph.language.values import Kind, Record, Value
from flowgraph.lowering.program import HOST, Program, Run, Task, results_of, typed_results, value_name


def fuse_host_nodes(program: Program) -> Program:
    """Give the program with chains of host runs as one run each, at the place of the first of them."""
    chains = _Chains(program)
    for i in chains.runs:
        chains.try_to_fuse(i)
    tasks = (chains.fused(i, task) for i, task in enumerate(program.tasks) if i not in chains.gone)
    return replace(program, tasks=tuple(tasks))


@dataclass
class _Chain:
    """Host runs that are one task: their places in the program, whose results they wait for, how many have effects."""

    members: list[int]
    waits: set[int]
    effects: int


class _Chains:
    """Runs of a program by their places in it, and chains of them as they are found."""

    def __init__(self, program: Program) -> None:
        self.nodes = program.nodes
        self.runs = {i: task for i, task in enumerate(program.tasks) if isinstance(task, Run)}
        self.gone = set[int]()  # fused into the first run of their chain
        self._chains = dict[int, _Chain]()  # by each of their members
        self._returned = {value_name(edge) for edge in program.graph.outputs}
        self._maker, self._readers = dict[str, int](), defaultdict[str, set[int]](set)
        for i, run in self.runs.items():
            self._maker |= dict.fromkeys(self._results(i), i)
            for name in run.reads:
                self._readers[name].add(i)
        self._effects = [i for i in self.runs if self._has_effects(i)]

    def try_to_fuse(self, i: int) -> None:
        """Add a host run to the chain of the last run that it reads from, if nothing waits for longer then."""
        makers = self._makers(i)
        if self.runs[i].place != HOST:
            return
        chain = self._chains.get(max(makers)) if makers else None
        alike = chain is not None and self._waits_alike(makers, chain) and self._alone_waits(i, chain)
        if chain is not None and alike and self._keeps_effects_in_order(i, chain):
            chain.members.append(i)
            chain.effects += self._has_effects(i)
            self._chains[i] = chain
            self.gone.add(i)
        else:
            self._chains[i] = _Chain([i], makers, int(self._has_effects(i)))

    def fused(self, i: int, task: Task) -> Task:
        """Give one run for the chain that begins here; any other task as it is."""
        members = self._chains[i].members if i in self._chains else []
        if len(members) < 2:
            return task
        made = {name for each in members for name in self._results(each)}
        reads = dict.fromkeys(name for each in members for name in self.runs[each].reads if name not in made)
        nodes = tuple(name for each in members for name in self.runs[each].nodes)
        return Run(nodes, HOST, tuple(reads), inner=tuple(self._inner(nodes, {*members})))

    def _results(self, i: int) -> Iterator[str]:
        return (name for each in self.runs[i].nodes for name in results_of(self.nodes[each]))

    def _makers(self, i: int) -> set[int]:
        """Give the runs that make what this one reads."""
        return {self._maker[name] for name in self.runs[i].reads if name in self._maker}

    def _waits_alike(self, makers: set[int], chain: _Chain) -> bool:
        """Say whether what a run reads is made in the chain, or was there when the chain began."""
        others = {each for each in makers if self._chains.get(each) is not chain}
        todo, found = chain.waits, set[int]()
        while others - found and todo:
            found |= todo
            todo = {maker for each in todo for maker in self._makers(each) if maker >= min(others)} - found
        return others <= found

    def _alone_waits(self, i: int, chain: _Chain) -> bool:
        """Say whether nobody else reads what the chain's last run gives; of the others none did when it was added."""
        return all(self._readers[name] <= {i} for name in self._results(chain.members[-1]))

    def _keeps_effects_in_order(self, i: int, chain: _Chain) -> bool:
        """Say whether nodes with effects still run on the host in the order of the flow."""
        first = chain.members[0]
        between = bisect(self._effects, i - 1) - bisect(self._effects, first)
        return not self._has_effects(i) or between == chain.effects - self._has_effects(first)

    def _has_effects(self, i: int) -> bool:
        here = self.runs[i].place == HOST
        return here and not all(self.nodes[name].op.pure for name in self.runs[i].nodes)

    def _inner(self, nodes: tuple[str, ...], members: set[int]) -> Iterator[str]:
        """Name the results that do not leave the task: only its own nodes read them, and a run records none of them."""
        for node in (self.nodes[name] for name in nodes):
            for name, kind in typed_results(node):
                alone = self._readers[name] <= members and name not in self._returned
                if alone and not (len(node.returns) == 1 and _recorded(kind)):
                    yield name


def _recorded(kind: type[Value]) -> bool:
    """Say whether a run records it: what later nodes say of each row is written beside the rollout."""
    return kind.kind is Kind.ROW and not issubclass(kind, Record)
