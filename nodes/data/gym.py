"""Any task of reasoning-gym by its name, as rows. The package is imported only when a task is asked for."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from flowgraph.errors import DataError
from nodes.data.arrow import Table
from nodes.data.rows import row, table_of

Entry = dict[str, Any]


def reasoning_gym_rows(name: str, *, size: int = 512, held_out: int = 64, seed: int = 0) -> tuple[Table, Table]:
    """Make up to `size` rows to train on and up to `held_out` others of one reasoning-gym task.

    Every question comes once. The held-out ones are at most a fifth of all that were made, so that a task with few
    questions still has some to train on. `extra_info.entry` is the whole entry as JSON, for the task's own scorer;
    a task that only has such a scorer has null as ground truth.
    Raises DataError without the package, for an unknown name, and for a task that makes fewer than two questions.
    """
    aside = _entries(name, held_out, _seed_of(seed, "test"))
    rest = _entries(name, size, _seed_of(seed, "train"))
    every = _by_question([*aside, *rest])
    if len(every) < 2:
        raise DataError.unusable(f"reasoning_gym/{name}", f"makes {len(every)} questions, too few to hold one out")
    tests = list(_by_question(aside).values())[: max(1, len(every) // 5)]
    asked = {each["question"] for each in tests}
    trains = [each for question, each in every.items() if question not in asked]
    return _table(name, "train", trains), _table(name, "test", tests)


def _entries(name: str, size: int, seed: int) -> list[Entry]:
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as fault:
        raise DataError.lacks_package(f"reasoning_gym/{name}", "reasoning-gym") from fault
    if name not in DATASETS:
        raise DataError.unknown("reasoning_gym task", name, DATASETS)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # some tasks print dots while they search
            return list(reasoning_gym.create_dataset(name, size=size, seed=seed))
    except Exception as fault:  # each task is code of its own, with checks of its own
        raise DataError.failed(f"reasoning_gym/{name}", "the task makes no questions", fault) from fault


def _seed_of(seed: int, split: str) -> int:
    """Derive a seed far from its neighbours: an entry of reasoning-gym is seeded by (seed + index)."""
    return int.from_bytes(hashlib.sha256(f"{seed} {split}".encode()).digest()[:4], "big") // 2


def _by_question(entries: Iterable[Entry]) -> dict[str, Entry]:
    """Index entries by question, in their order; of two with the same question the first stays."""
    found: dict[str, Entry] = {}
    for each in entries:
        found.setdefault(each["question"], each)
    return found


def _table(name: str, split: str, entries: Sequence[Entry]) -> Table:
    return table_of([_row(name, split, index, each) for index, each in enumerate(entries)])


def _row(name: str, split: str, index: int, entry: Entry) -> dict[str, Any]:
    truth = None if entry["answer"] is None else str(entry["answer"])
    whole = json.dumps(entry, default=str)
    extra_info = {"dataset": name, "entry": whole, "split": split, "index": index}
    return row(f"reasoning_gym/{name}", entry["question"], truth, ability="reasoning", extra_info=extra_info)
