"""Fuse host nodes: join a host run and the only reader of its results into one task.

Before: `run score on host`, `run group_normalize on host`.
After: `run score, group_normalize on host`.
Fusing saves a task and a pass through a store, and delays nothing: the second run reads only values that existed when
the first began, and no other run waits for the results of the first. If groups are handed out in chunks, a run that can
read them is not fused with one that cannot.
"""

from __future__ import annotations

from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from flowgraph.language.values import Kind, Record
from flowgraph.lowering.program import EARLY, HOST, Program, Run, Task, results_of, typed_results, value_name


def fuse_host_nodes(program: Program) -> Program:
    """Return the program with each chain of host runs joined into one run, in the place of the first run of the chain.

    A run joins the chain of the last run that it reads from if this delays no run and keeps the order of side effects.
    """
    chains = _Chains(program)
    for i in chains.runs:
        chains.try_to_fuse(i)
    tasks = (chains.fused(i, task) for i, task in enumerate(program.tasks) if i not in chains.gone)
    return replace(program, tasks=tuple(tasks))


@dataclass
class _Chain:
    """Host runs that become one task: their positions, the runs that they wait for, and how many have side effects."""

    members: list[int]
    waits: set[int]
    effects: int


class _Chains:
    def __init__(self, program: Program) -> None:
        self.nodes = program.nodes
        self.runs = {i: task for i, task in enumerate(program.tasks) if isinstance(task, Run)}
        self.gone = set[int]()  # fused into the first run of their chain
        self._chains = dict[int, _Chain]()  # by the position of every member
        self._returned = {value_name(edge) for edge in program.graph.outputs}
        self._maker, self._readers = dict[str, int](), defaultdict[str, set[int]](set)
        for i, run in self.runs.items():
            self._maker |= dict.fromkeys(self._results(i), i)
            for name in run.reads:
                self._readers[name].add(i)
        self._streams = any(placed.chunks > 1 for placed in program.plan.placed)
        self._effects = [i for i in self.runs if self._has_effects(i)]

    def try_to_fuse(self, i: int) -> None:
        """Add a host run to the chain of the last run that it reads from, or begin a new chain; skip any other run.

        A run begins a new chain if joining would delay a run or change the order of side effects.
        """
        makers = self._makers(i)
        if self.runs[i].place != HOST:
            return
        chain = self._chains.get(max(makers)) if makers else None
        fits = chain is not None and (not self._streams or self._is_early(i) is self._is_early(chain.members[0]))
        if chain and fits and self._adds_no_wait(i, makers, chain) and self._keeps_effects_in_order(i, chain):
            chain.members.append(i)
            chain.effects += self._has_effects(i)
            self._chains[i] = chain
            self.gone.add(i)
        else:
            self._chains[i] = _Chain([i], makers, int(self._has_effects(i)))

    def fused(self, i: int, task: Task) -> Task:
        """Return one run for the chain that begins at position `i`, or `task` if no chain begins there."""
        members = self._chains[i].members if i in self._chains else []
        if len(members) < 2:
            return task
        results = {name for member in members for name in self._results(member)}
        reads = dict.fromkeys(name for member in members for name in self.runs[member].reads if name not in results)
        nodes = tuple(name for member in members for name in self.runs[member].nodes)
        return Run(nodes, HOST, tuple(reads), inner=tuple(self._inner(nodes, {*members})))

    def _results(self, i: int) -> Iterator[str]:
        return (name for node in self.runs[i].nodes for name in results_of(self.nodes[node]))

    def _makers(self, i: int) -> set[int]:
        return {self._maker[name] for name in self.runs[i].reads if name in self._maker}

    def _adds_no_wait(self, i: int, makers: set[int], chain: _Chain) -> bool:
        """Return whether run `i` can join a chain without delaying it.

        It can if all its other inputs existed before the chain began, and if no other run reads the results of the
        chain's last member.
        """
        outside = {maker for maker in makers if self._chains.get(maker) is not chain}
        front, before = chain.waits, set[int]()
        while outside - before and front:
            before |= front
            front = {maker for run in front for maker in self._makers(run) if maker >= min(outside)} - before
        return outside <= before and all(self._readers[name] <= {i} for name in self._results(chain.members[-1]))

    def _keeps_effects_in_order(self, i: int, chain: _Chain) -> bool:
        first = chain.members[0]
        between = bisect(self._effects, i - 1) - bisect(self._effects, first)
        return not self._has_effects(i) or between == chain.effects - self._has_effects(first)

    def _is_early(self, i: int) -> bool:
        return all(self.nodes[name].op.kind in EARLY for name in self.runs[i].nodes)

    def _has_effects(self, i: int) -> bool:
        on_host = self.runs[i].place == HOST
        return on_host and not all(self.nodes[name].op.pure for name in self.runs[i].nodes)

    def _inner(self, nodes: tuple[str, ...], members: set[int]) -> Iterator[str]:
        """Yield the results that stay in the task: only its nodes read them, and they are not recorded.

        A result with one value per row is recorded next to the rollout.
        """
        for node in (self.nodes[name] for name in nodes):
            for name, kind in typed_results(node):
                recorded = len(node.returns) == 1 and kind.kind is Kind.ROW and not issubclass(kind, Record)
                if self._readers[name] <= members and name not in self._returned and not recorded:
                    yield name
