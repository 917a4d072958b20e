"""The planner's serving forecasts beside aiconfigurator's kept answers: how far apart, and how that is told."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks import serving_opinion as opinion
from benchmarks.serving_opinion_answers import GIB, PINS, SNAPSHOT, Answer, Opinion, Snapshot, reason, rounded, snapshot
from benchmarks.serving_opinion_grid import Question, Setup, fp8, grid
from benchmarks.serving_opinion_ours import forecast

SETUP = Setup("Qwen/Qwen3-8B", "h200_sxm", "sglang", "bfloat16")
CASE = Question(SETUP, 1024, 1024, 32)
TOLD = {"first_ms": 98.76919, "each_ms": 7.41245, "prefill_ms": 778.552, "step_ms": 6.77502, "memory_gib": 28.58545}
BOUNDS = {  # median and p90 of the sizes, and Spearman; docs/second_opinion.md says what they were
    "request latency": (0.27, 0.75, 0.965),
    "time per output token": (0.29, 0.77, 0.955),
    "memory of a device": (0.035, 0.10, 0.998),
}


@cache
def kept() -> Snapshot:
    return Snapshot.read()


@cache
def found() -> list[opinion.Pair]:
    return opinion.pairs(grid(), kept())


def within(part: list[opinion.Pair], figure: str, bounds: tuple[float, float, float]) -> None:
    apart = opinion.difference(part, opinion.FIGURES[figure])
    assert apart is not None and apart.spearman is not None
    most, p90, least = bounds
    assert (apart.median <= most, apart.p90 <= p90, apart.spearman >= least) == (True, True, True), apart


@pytest.mark.parametrize("figure", BOUNDS)
def test_both_opinions_are_within_bounds_of_each_other(figure: str) -> None:
    assert len(found()) > 5_000
    within(found(), figure, BOUNDS[figure])


def where_kernels_are_most(*, experts: bool) -> list[opinion.Pair]:
    """Return the pairs of models with experts, or without, whose steps are mostly kernels."""
    return [each for each in found() if each.overhead <= 0.25 and bool(each.question.setup.shape.experts) == experts]


def test_they_nearly_agree_where_dense_kernels_are_most_of_a_step() -> None:
    part = where_kernels_are_most(experts=False)
    assert len(part) > 500
    within(part, "request latency", (0.06, 0.22, 0.988))


def test_weights_of_experts_take_the_planner_longer_to_read() -> None:
    """It reads them below the rate of dense ones; the package's tables of kernels do not."""
    part = where_kernels_are_most(experts=True)
    assert len(part) > 150
    within(part, "request latency", (0.42, 0.65, 0.93))
    apart = opinion.difference(part, opinion.FIGURES["request latency"])
    assert apart is not None and apart.bias > 0.2


def test_they_agree_on_the_bytes_of_weights() -> None:
    apart = opinion.difference(found(), opinion.PARTS["weights of a device"])
    assert apart is not None and abs(apart.worst) < 0.025


def test_they_nearly_always_agree_on_what_fits() -> None:
    counts = opinion.verdicts(grid(), kept())
    assert counts[True, False] + counts[False, True] <= 0.005 * sum(counts.values())
    assert counts[False, False] > 1_000


def test_the_planner_is_no_further_from_published_rows_than_the_package() -> None:
    rows = opinion.judged(opinion.read(), kept())
    ours = opinion.from_measured(rows, lambda each: each.ours)
    theirs = opinion.from_measured(rows, lambda each: each.theirs)
    assert ours is not None and theirs is not None and ours.count > 800
    assert ours.median <= min(0.1, theirs.median) and ours.p90 <= min(0.22, theirs.p90)


def test_every_question_has_a_kept_answer_or_a_reason() -> None:
    told = [kept().opinion(each) for each in opinion.asked(opinion.read())]
    assert {each.why for each in told if each.answer is None} <= {"does not fit", "no table", "refused"}
    assert all(each.release for each in told if each.answer is not None)


def test_nothing_is_kept_that_is_not_asked() -> None:
    asked = {each.setup.key for each in opinion.asked(opinion.read())}
    assert set(kept().told["answers"]) == asked


def test_the_kept_answers_are_of_the_pinned_package() -> None:
    package, version = kept().told["package"].split()
    assert f"{package}=={version}" in PINS.read_text("utf-8").splitlines()


def test_answers_are_kept_and_read_as_they_were(tmp_path: Path) -> None:
    other = replace(CASE, batch=256)
    answers: list[Mapping[str, Any]] = [
        {**TOLD, "release": "0.5.14", "weights_gib": 15.2559},
        {"why": "RuntimeError: OOM: it does not fit"},
    ]
    file = tmp_path / "kept.json"
    snapshot("aiconfigurator 0", [CASE, other], answers).write(file)
    answer = Answer(98.77 / 1e3, 7.412 / 1e3, 778.6 / 1e3, 6.775 / 1e3, 15.26 * GIB, 28.59 * GIB)
    assert Snapshot.read(file).opinion(CASE) == Opinion(answer, "0.5.14")
    assert Snapshot.read(file).opinion(other) == Opinion(None, why="does not fit")
    with pytest.raises(KeyError):
        Snapshot.read(file).opinion(replace(CASE, prompt_tokens=7))


def test_the_file_has_a_line_for_each_setup() -> None:
    lines = SNAPSHOT.read_text("utf-8").splitlines()
    assert len(lines) == len(kept().told["answers"]) + len(kept().told)  # and one for each fact about them all


def test_reasons_are_told_in_short() -> None:
    assert reason("RuntimeError: OOM: the model does not fit") == "does not fit"
    assert reason("PerfDataNotAvailableError: MoE data missing") == "no table"
    assert reason("ValueError: Invalid quantized MoE configuration") == "refused"
    assert rounded(0.00123456) == 0.001235


def test_experts_are_cut_by_tensor_parallelism_unless_whole_ones_are_spread() -> None:
    experts = Setup("Qwen/Qwen3-30B-A3B", "h200_sxm", "trtllm", fp8("Qwen/Qwen3-30B-A3B", "trtllm"), tensor=4)
    cut = Question(experts, 1, 1, 1).asked
    assert (cut["gemm_quant_mode"], cut["moe_quant_mode"]) == ("fp8_static", "fp8")
    assert (cut["moe_tp_size"], cut["moe_ep_size"]) == (4, 1)
    spread = Question(replace(experts, expert=4), 1, 1, 1).asked
    assert (spread["moe_tp_size"], spread["moe_ep_size"]) == (1, 4)
    assert not {"moe_tp_size", "moe_quant_mode"} & CASE.asked.keys()


def test_a_difference_has_the_sign_of_the_planner() -> None:
    ours = forecast(CASE, "0.5.14")
    half = replace(ours, memory_bytes=ours.memory_bytes / 2)
    apart = opinion.difference([opinion.Pair(CASE, half, ours, 0.5)], opinion.FIGURES["memory of a device"])
    assert apart is not None and apart.bias == pytest.approx(1.0)


def test_a_table_has_a_line_for_each_group() -> None:
    ours = forecast(CASE, "0.5.14")
    pairs = [opinion.Pair(replace(CASE, batch=each), ours, ours, 0.1) for each in (1, 8)]
    text = opinion.table("batch", opinion.grouped(pairs, opinion.GROUPS["batch"]), opinion.columns(opinion.PARTS))
    assert text.splitlines()[:2] == [
        "| batch | cases | a step alone | reading the prompts alone | time to first token | weights of a device |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    assert [line.split(" | ")[:3] for line in text.splitlines()[2:]] == [
        ["| 1", "1", "+0.0 / 0.0 / 0.0 %"],
        ["| 8", "1", "+0.0 / 0.0 / 0.0 %"],
    ]


def test_the_package_side_imports_nothing_of_ours() -> None:
    tree = ast.parse((opinion.HERE / "serving_opinion_side.py").read_text("utf-8"))
    named = {each.module for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)}
    named |= {name.name for each in ast.walk(tree) if isinstance(each, ast.Import) for name in each.names}
    assert not {each for each in named if each and each.split(".")[0] in ("flowgraph", "placements", "benchmarks")}
