"""Whether the rows of a data set have the ground truths that shipped rules compare with, before anything is sampled.

A rule of one's own is asked row by row as it scores: see `nodes.grader_process`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from flowgraph.errors import RuleError
from nodes.grader_process import described, is_missing
from nodes.rules import RULES, rule_for


def refuse_missing_truths(by: str, table: Any, name: str) -> None:
    """Raise RuleError for the first row of a table whose rule is shipped and compares with a truth that is none.

    `by` is a rule's name, or "data" for the rule of each row's `data_source`; `name` is what the data set is called.
    """
    truths, sources = _truths(table), _column(table, "data_source")
    for index, truth in enumerate(truths):
        rule = by if by != "data" else _rule_of(sources[index] if sources else "")
        if is_missing(truth, shipped=True) and _compares(rule):
            raise RuleError.lacks_truth(rule, described(truth), f"row {index} (from 0) of {name}")


def _truths(table: Any) -> Sequence[object]:
    """Return the ground truth of each row, as a rule is given it; nothing where no column has any."""
    own = _column(table, "ground_truth")
    if own:
        return own
    judged = _column(table, "reward_model")
    return list(_inside(judged)) if any(isinstance(each, dict) and "ground_truth" in each for each in judged) else []


def _inside(judged: Sequence[object]) -> Iterator[object]:
    for each in judged:
        yield each.get("ground_truth") if isinstance(each, dict) else None


def _column(table: Any, name: str) -> list[object]:
    found: list[object] = table.column(name).to_pylist() if name in table.column_names else []
    return found


def _rule_of(source: object) -> str:
    try:
        return rule_for(str(source))
    except RuleError:
        return ""  # refused where it is asked for


def _compares(rule: str) -> bool:
    """Tell whether a shipped rule cannot do without a ground truth."""
    found = inspect.signature(RULES[rule]).parameters.get("ground_truth") if rule in RULES else None
    return found is not None and found.default is found.empty
