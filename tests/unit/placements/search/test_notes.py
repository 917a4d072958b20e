"""Notes on what a problem asks of models, devices and flows beyond what they promise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from examples.grpo import grpo
from flowgraph.cluster.plan import Precision
from flowgraph.errors import SettingError
from flowgraph.flows.settings import resolve_settings
from flowgraph.passes import named, simplified
from placements.search.notes import cautions
from placements.search.what_if import changed
from placements.workload.lengths import LengthDistribution
from tests.looped import looped
from tests.unit.placements.small_problems import lagging, problem_of, prompt


def test_rows_longer_than_a_model_has_positions_are_noted_once_for_each_model() -> None:
    problem = problem_of("grpo", "1x8xh100", model="Qwen/Qwen3-8B")
    longer = replace(problem, response=LengthDistribution.fixed(200_000))
    assert cautions(problem) == ()
    (note,) = cautions(longer)
    assert note.startswith("rows have up to 200,512 tokens, and Qwen/Qwen3-8B (policy, ref) has 40,960 positions")


@looped(
    "device, precision, noted",
    [
        ("a100", "fp8", "fp8 are converted to bfloat16"),
        ("h100", "fp4", "fp4 are converted to fp8"),
        ("h100", "fp8", ""),
        ("b200", "fp4", ""),
        ("a100", None, ""),
    ],
)
def test_weights_of_a_precision_without_arithmetic_are_noted(
    device: str, precision: Precision | None, noted: str
) -> None:
    problem = replace(problem_of("grpo", f"1x8x{device}"), sampling=precision)
    notes = cautions(problem)
    assert len(notes) == bool(noted)
    assert all(noted in note for note in notes)


def test_a_staleness_that_the_flow_says_nothing_of_is_noted() -> None:
    assert cautions(replace(problem_of(lagging, "1x8xh100"), staleness=1)) == ()
    (note,) = cautions(replace(problem_of(prompt, "1x8xh100"), staleness=2))
    assert "stale(policy, at_most=2)" in note


def test_a_change_to_more_staleness_than_the_flow_corrects_for_is_refused() -> None:
    problem = problem_of(lagging, "1x8xh100")
    assert changed(problem, "staleness=1").staleness == 1
    with pytest.raises(SettingError, match="corrects for 1 at most"):
        changed(problem, "staleness=2")


@looped(
    "settings, engine",
    [
        ({}, "sglang"),
        ({"top_k": 20, "top_p": 0.9}, "vllm"),
        ({"min_p": 0.1, "top_p": 0.9}, "sglang"),
        ({"top_k": 20, "top_p": 0.9, "min_p": 0.1}, "sglang"),  # no server does: the check of the plan says so
    ],
)
def test_a_default_engine_that_would_sample_otherwise_is_replaced_and_noted(
    settings: dict[str, float], engine: str
) -> None:
    chosen = {f"policy.generate.{name}": value for name, value in settings.items()}
    graph, _ = resolve_settings(named(grpo.graph()), (), chosen)
    problem = replace(problem_of("grpo"), graph=simplified(graph, ()))
    assert problem.engines_of("sample") == (engine,)
    notes = cautions(problem)
    assert len(notes) == (engine == "vllm")
    assert all(note.startswith("`sglang` is not considered") and "top_k=20 with top_p=0.9" in note for note in notes)
    asked_for = replace(problem, engines={"sample": "sglang"})
    assert asked_for.engines_of("sample") == ("sglang",)
    assert cautions(asked_for) == ()
