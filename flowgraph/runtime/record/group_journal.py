"""The journal of a run whose steps take finished groups, `groups.jsonl`: which groups each step trained on, in order.

A line is written when a step ends. What is read is not trusted: a file can be cut, changed, or of another run. A run
that is resumed repeats the steps after its checkpoint in their order; until it has, `groups_again.jsonl` keeps their
lines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt

from flowgraph.errors import DataError
from flowgraph.files.untrusted import json_as, read_bytes
from flowgraph.runtime.finished_groups import TakenGroup
from flowgraph.runtime.group_order import GroupName

GROUPS, AGAIN = "groups.jsonl", "groups_again.jsonl"
MAX_GROUPS_BYTES = 2**30  # of the journal: ten million groups and more

Number = Annotated[int, Field(ge=0, lt=2**62)]


class GroupsLine(BaseModel):
    """A line of the journal: a step, and (step of its prompt, prompt, oldest version that drew it) of each group."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    step: NonNegativeInt
    groups: list[tuple[Number, Number, Number]]


def groups_line(step: int, groups: Sequence[TakenGroup]) -> str:
    """Return the line of the journal, with its line break, for a step that trained on these groups.

    >>> groups_line(3, [TakenGroup(GroupName(2, 17), 1)]).strip()
    '{"step": 3, "groups": [[2, 17, 1]]}'
    """
    rows = [(*group.name, group.first_version) for group in groups]
    return json.dumps({"step": step, "groups": rows}) + "\n"


def read_groups(run: Path) -> dict[int, tuple[TakenGroup, ...]] | None:
    """Return the groups that each step of a run trained on, by step; None if the run has no journal.

    A last line without an end is left out: it was being written when the run was killed. Raises DataError if the file
    cannot be read, and, with the number of the line, for an invalid line, for steps that are not in order from 0, and
    for a group that comes twice.
    """
    path = run / GROUPS
    return _read(path) if path.is_file() else None


def groups_to_repeat(run: Path, start: int, steps: int) -> dict[int, tuple[TakenGroup, ...]]:
    """Return the groups that a run has trained on in steps from `start` on, by step, as a resumed run repeats them.

    These are the steps of the journal, followed by those that an earlier resumed run was to repeat and has not. The
    first step that trained on a group of step `steps` or later, which a run of `steps` steps does not have, and all
    after it are left out. Raises DataError as `read_groups` does, and for a journal without the steps before `start`.
    """
    taken = read_groups(run) or {}
    if len(taken) < start:
        raise DataError.unusable(
            run / GROUPS, f"ends before step {len(taken)}, and the checkpoint is after {start} steps"
        )
    if (run / AGAIN).is_file():
        again = _read(run / AGAIN, first=None)
        for step in range(len(taken), max(again, default=-1) + 1):
            if step not in again:
                break
            taken[step] = again[step]
    kept = dict[int, tuple[TakenGroup, ...]]()
    for step in range(start, len(taken)):
        if step >= steps or any(group.name.step >= steps for group in taken[step]):
            break
        kept[step] = taken[step]
    return kept


def keep_to_repeat(run: Path, groups: Mapping[int, Sequence[TakenGroup]]) -> None:
    """Write the groups that a resumed run is to repeat to `groups_again.jsonl`; without any, remove this file."""
    path = run / AGAIN
    if not groups:
        path.unlink(missing_ok=True)
        return
    draft = path.with_suffix(".part")
    draft.write_text("".join(groups_line(step, groups[step]) for step in sorted(groups)), "utf-8")
    draft.replace(path)


def _read(path: Path, first: int | None = 0) -> dict[int, tuple[TakenGroup, ...]]:
    """Return the groups of each step in a file whose steps begin with `first`; None: with any step."""
    steps, seen = dict[int, tuple[TakenGroup, ...]](), set[GroupName]()
    try:
        lines = read_bytes(path, MAX_GROUPS_BYTES).split(b"\n")[:-1]
    except (OSError, ValueError) as error:
        raise DataError.failed(path, "is not a journal of groups", error) from error
    for number, text in enumerate(lines, 1):
        try:
            line = json_as(GroupsLine, text)
        except ValueError as error:
            raise DataError.failed(f"{path}, line {number}", "is not a step of a journal of groups", error) from error
        steps[line.step] = tuple(TakenGroup(GroupName(step, prompt), first) for step, prompt, first in line.groups)
        names = [group.name for group in steps[line.step]]
        again = next((name for place, name in enumerate(names) if name in seen or name in names[:place]), None)
        seen |= {*names}
        first = line.step if first is None else first
        if line.step != (due := first + number - 1):
            raise DataError.unusable(f"{path}, line {number}", f"is of step {line.step}, not {due}")
        if again is not None:
            raise DataError.unusable(f"{path}, line {number}", f"has the group of {again} a second time")
    return steps
