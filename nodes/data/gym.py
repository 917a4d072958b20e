"""Tasks of reasoning-gym as rows, by name. The package is imported only when a task is loaded."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Iterable
from typing import Any

from flowgraph.errors import DataError
from nodes.data.arrow import Table
from nodes.data.rows import Row, row, table_of

Entry = dict[str, Any]


def reasoning_gym_rows(name: str, *, size: int = 512, held_out: int = 64, seed: int = 0) -> tuple[Table, Table]:
    """Return up to `size` rows to train on and up to `held_out` other rows of a reasoning-gym task.

    No question comes twice. At most a fifth of all questions, but at least one, is held out. `extra_info.entry` is the
    entry as JSON, for the task's scorer; the ground truth of a task that only its scorer can check is null. Raises
    DataError without the package, for an unknown name, for a task that fails, and for fewer than two questions.
    """
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as fault:
        raise DataError.lacks_package(f"reasoning_gym/{name}", "reasoning-gym") from fault
    if name not in DATASETS:
        raise DataError.unknown("reasoning_gym task", name, DATASETS)
    entries: dict[str, tuple[str, Entry]] = {}  # the first of each question, with its split
    for split, count in (("test", held_out), ("train", size)):
        # Seeds far from each other: reasoning-gym seeds entry i with (seed + i).
        first = int.from_bytes(hashlib.sha256(f"{seed} {split}".encode()).digest()[:4], "big") // 2
        try:
            with contextlib.redirect_stdout(sys.stderr):  # some tasks print dots while they search
                drawn: list[Entry] = list(reasoning_gym.create_dataset(name, size=count, seed=first))
        except Exception as fault:  # each task has its own code and checks
            raise DataError.failed(f"reasoning_gym/{name}", "the task returns no questions", fault) from fault
        for entry in drawn:
            entries.setdefault(entry["question"], (split, entry))
    if len(entries) < 2:
        raise DataError.unusable(f"reasoning_gym/{name}", f"has {len(entries)} questions, too few to hold one out")
    tests = [entry for split, entry in entries.values() if split == "test"][: max(1, len(entries) // 5)]
    questions = {entry["question"] for entry in tests}
    trains = [entry for question, (_, entry) in entries.items() if question not in questions]
    return _table(name, "train", trains), _table(name, "test", tests)


def _table(name: str, split: str, entries: Iterable[Entry]) -> Table:
    rows: list[Row] = []
    for index, entry in enumerate(entries):
        truth = None if entry["answer"] is None else str(entry["answer"])
        extra_info = {"dataset": name, "entry": json.dumps(entry, default=str), "split": split, "index": index}
        source = f"reasoning_gym/{name}"
        rows.append(row(source, entry["question"], truth, ability="reasoning", extra_info=extra_info))
    return table_of(rows)
