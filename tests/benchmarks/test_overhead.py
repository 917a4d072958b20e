"""The overhead benchmark: that its ways do the same work, and its arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import overhead, overhead_side
from benchmarks.material import make_model
from benchmarks.overhead_side import BY_HAND, IN_PROCESS, RAY, Job


def turn(hand: float, other: float) -> dict[str, dict[str, float]]:
    return {
        way: {"seconds": each, "cpu_s": 2 * each} for way, each in ((BY_HAND, hand), (IN_PROCESS, hand), (RAY, other))
    }


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("overhead")
    model = make_model("tiny:hidden=16,layers=1", folder / "model", folder / "cache")
    return Job(str(model), str(folder / "cache"), prompts=3, samples=2, tokens=4)


def test_the_loop_by_hand_and_the_program_do_the_same_work(job: Job) -> None:
    answers = dict[str, list[dict[str, Any]]]()
    for way in (BY_HAND, IN_PROCESS):
        with overhead_side.opened(way, job) as (step, _):
            answers[way] = [overhead_side.measured(step, number) for number in range(3)]
    overhead.same_work(IN_PROCESS, answers[BY_HAND], answers[IN_PROCESS])
    (first, second, _) = answers[BY_HAND]
    assert first["metrics"]["policy.generate.response_length"] == job.tokens
    assert first["metrics"]["policy.generate.entropy"] != second["metrics"]["policy.generate.entropy"]


def test_other_work_is_found() -> None:
    hand = [{"metrics": {"score.reward": 0.5}}]
    overhead.same_work(RAY, hand, [{"metrics": {"score.reward": 0.5, "more": 1.0}}])
    with pytest.raises(overhead.OtherWorkError, match=r"^Ray, step 0 of this turn: score.reward is 0.6, by hand 0.5$"):
        overhead.same_work(RAY, hand, [{"metrics": {"score.reward": 0.6}}])
    with pytest.raises(overhead.OtherWorkError):
        overhead.same_work(RAY, hand, [{"metrics": {}}])


def test_a_program_of_one_pool_calls_four_times_a_step(job: Job) -> None:
    assert overhead.tasks_of(job) == ["policy.generate", "ref.logprobs", "score, group_normalize", "policy.update"]


def test_what_is_added_is_of_one_round_each() -> None:
    part, ms = overhead.added([turn(1.0, 1.05), turn(2.0, 2.2)], RAY, "seconds")
    assert part == pytest.approx([0.05, 0.1])
    assert ms == pytest.approx([50.0, 200.0])


def test_a_call_is_told_from_flows_of_many() -> None:
    calls = {"on_models": 0.013, "in_turns": 0.013 + 0.012}
    assert overhead.call_ms(calls) == pytest.approx({"beside a model": 1.0, "on the host": 1.0})


def test_nodes_that_do_nothing_are_called_as_often_as_is_said(job: Job) -> None:
    with overhead_side.opened(IN_PROCESS, job) as (_, calls):
        told = calls()
    assert set(told) == {"on_models", "in_turns"} and min(told.values()) > 0
    counts = {}
    for name in told:
        graph = overhead_side.call_graph(name)
        counts[name] = len(graph.nodes)
    assert counts == {"on_models": 1 + overhead_side.CALLS, "in_turns": 1 + 2 * overhead_side.CALLS}


def test_the_report_has_a_line_for_each_way() -> None:
    report = {
        "rounds": [turn(1.0, 1.04)],
        "tasks": ["a", "b"],
        "machine": {"load": 1.0},
        "load_after": 2.0,
        "calls": {RAY: {"on_models": 0.052, "in_turns": 0.172}},
    }
    lines = overhead.tables(report).splitlines()
    assert lines[0] == "1 rounds, median (least … most); 2 node calls a step: a | b"
    assert " ".join(lines[4].split()) == (
        "Ray 1.040 (1.040 … 1.040) 2.080 (2.080 … 2.080) 4.0 (4.0 … 4.0) % 20.0 4.0 (4.0 … 4.0) % 40.0"
    )
    assert lines[-1].split() == ["Ray", "4.0", "10.0"]


def test_a_tiny_model_of_any_size_never_ends(tmp_path: Path) -> None:
    from flowgraph.models.loading import load
    from flowgraph.models.sources import resolve

    folder = make_model("tiny:hidden=32,layers=1", tmp_path / "model", tmp_path)
    loaded = load(resolve(str(folder), cache=tmp_path), seed=0, cache=tmp_path, say=lambda line: None)
    end = loaded.tokenizer.eos_token_id
    model: Any = loaded.model
    assert float(model.get_output_embeddings().weight[end, 0].detach()) == -100.0
