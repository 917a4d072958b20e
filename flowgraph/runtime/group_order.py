"""Which finished groups each step trains on, if it takes those that finished: the oldest first, and none too late.

All that is known here is names of groups and when they start and finish; rows and weights are elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from flowgraph.errors import DataError, LawError


class GroupName(NamedTuple):
    """A group of responses: the step whose prompts it is of, and the id of its prompt (the row in the data set)."""

    step: int
    prompt: int

    def __str__(self) -> str:
        return f"prompt {self.prompt} of step {self.step}"


@dataclass(eq=False)
class GroupOrder:
    """The groups that have started and are not trained on yet, in the order in which they started.

    Each step takes as many groups as its own prompts have: of the finished ones, those that started first. A group is
    taken at most `behind` steps after the step of its prompts; until it has finished, its last step waits. So each
    group is taken once, and a step of the schedule bounds the age of its weights. `planned` has the groups of steps
    that are known already, by step, and `where` names the file that they are from, for errors.

    >>> order = GroupOrder(behind=1)
    >>> order.start(0, [7, 8])
    >>> order.start(1, [5, 6])
    >>> order.finish(GroupName(0, 8)), order.take(0)
    (None, None)
    >>> order.finish(GroupName(1, 6)), order.take(0)
    (None, (GroupName(step=0, prompt=8), GroupName(step=1, prompt=6)))
    >>> order.finish(GroupName(1, 5)), order.take(1), order.awaited(1)
    (None, None, [GroupName(step=0, prompt=7)])
    """

    behind: int = 0
    planned: Mapping[int, Sequence[GroupName]] = field(default_factory=dict[int, Sequence[GroupName]])
    where: str = ""
    _size: int = field(default=0, init=False)
    _finished: dict[GroupName, bool] = field(default_factory=dict[GroupName, bool], init=False)

    def start(self, step: int, prompts: Sequence[int]) -> None:
        """Note that the groups of a step's prompts have started; call it for each step in order.

        Raises LawError for a prompt that a step has twice, and for steps of different numbers of prompts: with these,
        a step could have more groups to wait for than it trains on.
        """
        size = self._size or len(prompts)
        if len(prompts) != size or len({*prompts}) < size:
            why = "a prompt twice" if len(prompts) == size else f"{len(prompts)} prompts, after {size}"
            raise LawError(f"steps that take finished groups have equally many, different prompts; step {step}: {why}")
        self._size = size
        self._finished |= {GroupName(step, prompt): False for prompt in prompts}

    def restore(self, groups: Sequence[GroupName], size: int) -> None:
        """Note groups that had finished when a run was saved, in the order in which they started; steps take `size`."""
        self._size = size
        self._finished |= dict.fromkeys(groups, True)

    def finish(self, group: GroupName) -> None:
        """Note that a group has finished. Raises LawError for a group that has not started, or has finished before."""
        if self._finished.get(group, True):
            raise LawError(f"the group of {group} has finished, which is not under way")
        self._finished[group] = True

    @property
    def size(self) -> int:
        """Return how many groups a step trains on; 0 before the first group has started."""
        return self._size

    @property
    def waiting(self) -> tuple[GroupName, ...]:
        """Return the groups that have started and are not taken yet, in the order in which they started."""
        return tuple(self._finished)

    @property
    def under_way(self) -> tuple[GroupName, ...]:
        """Return the groups that have started and have not finished, in the order in which they started."""
        return tuple(group for group, finished in self._finished.items() if not finished)

    def awaited(self, step: int) -> list[GroupName]:
        """Return the groups that are not finished, but must be trained on in this step at the latest."""
        return [group for group in self.under_way if group.step + self.behind <= step]

    def take(self, step: int) -> tuple[GroupName, ...] | None:
        """Return the groups that a step trains on, and forget them; None if the step has to wait, with nothing changed.

        Groups that are planned for the step are returned in the planned order, as soon as all have finished. Otherwise,
        the step waits for all `awaited` groups and until enough have finished, and takes the finished ones that started
        first, in that order. Raises DataError if planned groups are too few, too many or repeated, have not started or
        were taken before, or leave out a group that this step has to train on.
        """
        if step in self.planned:
            groups = tuple(self.planned[step])
            self._refuse(step, groups)
            if not all(self._finished[group] for group in groups):
                return None
        else:
            finished = [group for group, finished in self._finished.items() if finished]
            if self.awaited(step) or len(finished) < self._size:
                return None
            groups = tuple(finished[: self._size])
        for group in groups:
            del self._finished[group]
        return groups

    def _refuse(self, step: int, groups: Sequence[GroupName]) -> None:
        """Raise DataError unless a step can train on these groups."""
        overdue = [group for group in self._finished if group.step + self.behind <= step and group not in groups]
        unknown = [group for group in groups if group not in self._finished]
        why = f"leaves out {overdue[0]}, for which it is the last" if overdue else ""
        if not len(groups) == len({*groups}) == self._size:
            why = f"names {len({*groups})} groups, and a step trains on {self._size}"
        elif unknown:
            why = f"names {unknown[0]}, which was not under way"
        if why:
            raise DataError.unusable(self.where, f"step {step} {why}")
