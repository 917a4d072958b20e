"""The comparison with verl, without verl: our side of each case, and how differences are judged and shown."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from benchmarks import verl_formulas as compare
from benchmarks.verl_batches import KINDS, draw
from benchmarks.verl_case import Case
from benchmarks.verl_formulas import CASES, Outcome, Verdict, apart
from benchmarks.verl_reasons import ONLY_VERL, REASONS, Reason
from tests.looped import looped

ROOT = Path(__file__).parents[2]
CASE = Case("a loss", lambda columns: {"loss": (columns["new"] * columns["mask"]).sum()}, "loss", by="new")
KNOWN = Reason("a choice of ours", ["gradients"], ["a loss"], ["far"])


def outcome(kind: str = "far", *, values: float = 0.0, gradients: float = 0.0, refused: str = "") -> Outcome:
    return Outcome(CASE, kind, {"values": values, "gradients": gradients}, refused)


def verl_says(case: Case, kind: str, seeds: int) -> dict[str, np.ndarray]:
    """Return what verl would write if it did all as we do."""
    found = dict[str, np.ndarray]()
    for seed in range(seeds):
        for name, value in compare.ours(case, draw(kind, seed)).items():
            found[f"{case.key}|{kind}-{seed}|{name}"] = value
    return found


@looped("case", CASES)
def test_our_side_of_each_case_gives_finite_numbers_on_each_kind_of_batch(case: Case) -> None:
    for kind in case.kinds:
        for name, value in compare.ours(case, draw(kind, 0)).items():
            assert np.isfinite(value).all(), (kind, name)


def test_no_two_cases_have_one_key() -> None:
    keys = [case.key for case in CASES]
    assert sorted(set(keys)) == sorted(keys)


def test_each_reason_is_of_cases_and_kinds_that_are_compared() -> None:
    compared = {(case.key, kind) for case in CASES for kind in case.kinds}
    for reason in REASONS:
        named = {(case, kind) for case in reason.cases for kind in reason.kinds}
        assert named <= compared, (reason.why, named - compared)
        assert set(reason.parts) <= {*compare.PARTS, compare.REFUSED}


def test_batches_have_the_trouble_that_their_kind_says() -> None:
    drawn = {kind: draw(kind, 0) for kind in KINDS}
    counts = {kind: np.unique(batch["group"], return_counts=True)[1] for kind, batch in drawn.items()}
    assert {kind for kind, each in counts.items() if each.min() == 1} == {"groups of one"}
    assert {kind for kind, batch in drawn.items() if np.isnan(batch["new"]).any()} == {"NaN"}
    assert {kind for kind, batch in drawn.items() if not batch["mask"].any(1).all()} == {"hidden rows", "one token"}
    assert {kind for kind, batch in drawn.items() if (batch["weights"] == 0).any()} == {"zero weights"}
    assert drawn["one token"]["mask"].sum() == 1
    assert np.abs(drawn["far"]["new"] - drawn["far"]["old"]).max() > 20
    ends = drawn["no holes"]["lengths"]
    assert (drawn["no holes"]["mask"].sum(1) == ends).all() and (drawn["ragged"]["mask"].sum(1) < ends).any()
    flat = {kind for kind, batch in drawn.items() if kind != "groups of one" and _flat(batch)}
    assert flat == {"no signal"}


def _flat(batch: Mapping[str, np.ndarray]) -> bool:
    groups = [batch["scores"][batch["group"] == each] for each in np.unique(batch["group"])]
    return any(len(set(each.tolist())) == 1 for each in groups)


def test_a_batch_is_the_same_for_the_same_kind_and_seed() -> None:
    first, again, other = draw("ragged", 1), draw("ragged", 1), draw("ragged", 2)
    assert all((first[name] == again[name]).all() for name in first)
    assert (first["new"] != other["new"]).any()


def test_what_is_equal_agrees_and_what_is_not_is_found() -> None:
    theirs = verl_says(CASE, "ragged", 2)
    assert compare.compared(CASE, "ragged", 2, theirs).apart == {"values": 0.0, "gradients": 0.0}
    theirs["a loss|ragged-1|gradient"] = theirs["a loss|ragged-1|gradient"] + 1e-3
    assert compare.compared(CASE, "ragged", 2, theirs).differing == {"gradients"}
    del theirs["a loss|ragged-0|loss"], theirs["a loss|ragged-0|gradient"]
    theirs["a loss|ragged-0|error"] = np.array("ValueError: no")
    assert compare.compared(CASE, "ragged", 2, theirs).differing == {"gradients", "refused"}


def test_differences_are_relative_above_one_and_nan_is_equal_to_nan_alone() -> None:
    nan, one = np.array([np.nan, 1.0]), np.array([1.0, 1.0])
    assert apart(np.array([1000.0]), np.array([999.0])) == pytest.approx(1e-3)
    assert apart(np.array([0.01]), np.array([0.02])) == pytest.approx(0.01)
    assert apart(nan, nan) == 0.0
    assert apart(one, nan) == apart(nan, one) == np.inf
    assert apart(nan, one, np.array([False, True])) == 0.0


def test_an_explained_difference_is_expected_with_its_reason() -> None:
    assert Verdict.of(outcome(gradients=1.0), [KNOWN]) == Verdict("differ: a choice of ours", True)
    assert Verdict.of(outcome("ragged"), [KNOWN]) == Verdict("agree", True)


def test_a_difference_without_a_reason_is_not_expected() -> None:
    found = Verdict.of(outcome("ragged", values=1.0, refused="ValueError: no"), [KNOWN])
    assert found == Verdict("NOT EXPLAINED: refused, values ValueError: no", False)


def test_a_reason_does_not_excuse_another_part() -> None:
    assert Verdict.of(outcome(values=1.0, gradients=1.0), [KNOWN]) == Verdict("NOT EXPLAINED: values", False)


def test_an_explained_difference_that_vanished_is_not_expected() -> None:
    assert Verdict.of(outcome(), [KNOWN]) == Verdict("EXPLAINED, BUT AGREE: gradients", False)


def test_the_table_has_a_line_for_each_formula_and_verdict() -> None:
    outcomes = [outcome("ragged", values=2e-9), outcome("hidden rows", values=1e-9), outcome(gradients=0.5)]
    assert compare.table([(each, Verdict.of(each, [KNOWN])) for each in outcomes]).splitlines() == [
        "| formula | batches | values | gradients | metrics | verdict |",
        "| --- | --- | --- | --- | --- | --- |",
        "| a loss | ragged, hidden rows | 2e-09 | 0e+00 |  | agree |",
        "| a loss | far | 0e+00 | 5e-01 |  | differ: a choice of ours |",
    ]


def test_what_only_verl_has_must_be_named() -> None:
    there = {"estimator": ["gae", "grpo"], "loss": ["dro", "new_one", "bypass_mode"], "rejection": ["token_k1"]}
    theirs = {f"all|{kind}": np.array(names) for kind, names in there.items()}
    cases = [case for case in CASES if case.name in ("gae", "rejection token_k1", "bypass ppo_clip")]
    assert compare.uncovered(theirs, cases) == ["estimator grpo", "loss new_one"]
    assert "loss dro" in ONLY_VERL


def test_verls_environment_has_the_torch_that_we_tested_and_one_verl() -> None:
    pins = (compare.HERE / "requirements-verl.txt").read_text("utf-8").splitlines()
    ours = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    assert next(line for line in pins if line.startswith("torch==")) in ours
    assert "verl==0.9.1" in pins


def test_verls_side_imports_nothing_of_ours() -> None:
    tree = ast.parse((compare.HERE / "verl_side.py").read_text("utf-8"))
    named = {each.module for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)}
    named |= {name.name for each in ast.walk(tree) if isinstance(each, ast.Import) for name in each.names}
    assert not {each for each in named if each and each.split(".")[0] in ("flowgraph", "nodes", "benchmarks")}
