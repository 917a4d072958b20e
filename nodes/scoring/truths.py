"""Check, before anything is sampled, that rows have the ground truths that shipped rules compare with.

The rows of your own rules are checked one by one as they are scored: see `nodes.scoring.grader_process`.
"""

from __future__ import annotations

import inspect
from typing import Any

from flowgraph.errors import RuleError
from nodes.scoring.grader_process import columns_of, described, is_missing
from nodes.scoring.rules import RULES, rule_for


def refuse_missing_truths(by: str, table: Any, name: str) -> None:
    """Raise RuleError for the first row of a table that lacks the ground truth which its shipped rule compares with.

    `by` is a rule's name, or "data" for the rule of each row's `data_source`; `name` is that of the data set. A table
    in which no row has a ground truth is left to the rules.
    """
    columns = [column for column in ("ground_truth", "reward_model", "data_source") if column in table.column_names]
    rows = [columns_of(row) for row in table.select(columns).to_pylist()]
    if not any("ground_truth" in row for row in rows):
        return
    for index, row in enumerate(rows):
        truth = row.get("ground_truth")
        if is_missing(truth, shipped=True):
            rule = by if by != "data" else _rule_of(row.get("data_source", ""))
            if _compares(rule):
                raise RuleError.lacks_truth(rule, described(truth), f"row {index} (from 0) of {name}")


def _rule_of(source: object) -> str:
    try:
        return rule_for(str(source))
    except RuleError:
        return ""  # scoring refuses it


def _compares(rule: str) -> bool:
    """Return whether a shipped rule requires a ground truth."""
    truth = inspect.signature(RULES[rule]).parameters.get("ground_truth") if rule in RULES else None
    return truth is not None and truth.default is truth.empty
