"""The journal of groups: what a resumed run repeats, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowgraph.errors import DataError
from flowgraph.runtime.finished_groups import TakenGroup
from flowgraph.runtime.group_order import GroupName
from flowgraph.runtime.record.group_journal import AGAIN, GROUPS, groups_to_repeat, keep_to_repeat, read_groups


def journal(run: Path, *steps: list[list[int]], name: str = GROUPS, first: int = 0) -> None:
    """Write a line for each step, with (step, prompt, first version) of each group."""
    lines = ({"step": first + step, "groups": groups} for step, groups in enumerate(steps))
    (run / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_resumed_run_repeats_the_steps_after_its_checkpoint(tmp_path: Path) -> None:
    journal(tmp_path, [[0, 1, 0]], [[2, 5, 0]], [[1, 3, 0]], [[3, 7, 1]])
    again = groups_to_repeat(tmp_path, 2, 10)
    assert again == {2: (TakenGroup(GroupName(1, 3), 0),), 3: (TakenGroup(GroupName(3, 7), 1),)}
    assert groups_to_repeat(tmp_path, 4, 10) == {}


def test_a_step_with_a_group_of_a_step_that_the_run_does_not_have_is_not_repeated(tmp_path: Path) -> None:
    journal(tmp_path, [[0, 1, 0]], [[1, 3, 0]], [[3, 7, 0]], [[2, 5, 1]])
    assert list(groups_to_repeat(tmp_path, 1, 4)) == [1, 2, 3]
    assert list(groups_to_repeat(tmp_path, 1, 3)) == [1], "step 2 trained on a group of step 3"


def test_what_was_to_be_repeated_is_kept_until_it_has_been(tmp_path: Path) -> None:
    journal(tmp_path, [[0, 1, 0]], [[2, 5, 0]], [[1, 3, 0]], [[3, 7, 1]])
    planned = groups_to_repeat(tmp_path, 1, 10)
    keep_to_repeat(tmp_path, planned)
    journal(tmp_path, [[0, 1, 0]], [[2, 5, 0]])  # the run was cut to its checkpoint, repeated step 1, and was killed
    assert groups_to_repeat(tmp_path, 1, 10) == planned
    journal(tmp_path, [[0, 1, 0]])  # and from an older checkpoint
    assert groups_to_repeat(tmp_path, 0, 10).keys() == {0, 1, 2, 3}
    keep_to_repeat(tmp_path, {})
    assert not (tmp_path / AGAIN).exists()
    keep_to_repeat(tmp_path, {})


def test_a_journal_that_ends_before_the_checkpoint_is_refused(tmp_path: Path) -> None:
    journal(tmp_path, [[0, 1, 0]])
    with pytest.raises(DataError, match=r"groups\.jsonl: ends before step 1, and the checkpoint is after 2 steps"):
        groups_to_repeat(tmp_path, 2, 10)
    (tmp_path / GROUPS).unlink()
    with pytest.raises(DataError, match="ends before step 0"):
        groups_to_repeat(tmp_path, 2, 10)
    assert read_groups(tmp_path) is None


def test_what_is_to_be_repeated_is_read_with_the_same_care(tmp_path: Path) -> None:
    journal(tmp_path, [[0, 1, 0]])
    journal(tmp_path, [[2, 5, 0]], [[2, 5, 0]], name=AGAIN, first=1)
    with pytest.raises(DataError, match=r"groups_again\.jsonl, line 2: has the group of .* a second time"):
        groups_to_repeat(tmp_path, 1, 10)
