"""What `plan` says of steps that overlap: how late weights are, what is held at once, and when it does not pay."""

from __future__ import annotations

from dataclasses import replace

from placements.report.answer_report import staleness_text
from placements.report.overlap_report import overlap_lines
from placements.search.answer import best_staleness, stalenesses
from placements.search.search import find
from placements.search.what_if import changed
from placements.workload.planning_problem import PlanningProblem
from tests.unit.placements.small_problems import problem_of


def on_a_network(gbits: int) -> PlanningProblem:
    """Return a problem of one machine, whose pools exchange weights over one adapter of so many Gbit/s."""
    eight = problem_of("gpg", "1x8xh100", model="Qwen/Qwen3-8B", prompts=32)
    return changed(eight, f"network={gbits}Gbps", None)


def test_where_a_sync_becomes_three_times_as_long_nothing_overlaps_and_the_sync_is_named() -> None:
    """A case that was measured: a sync grew from 49 to 147 s, and runs whose steps overlapped became slower.

    Draw: two pools of 4 take some 50 s and a sync of 12 s, less than the 67 s of one pool of 8; then a sync of 37 s.
    Source: marin-community/marin, issue 8936.
    """
    quick, slow = (stalenesses(on_a_network(gbits), 1) for gbits in (100, 33))
    assert best_staleness(quick).problem.staleness == 1
    assert best_staleness(slow).problem.staleness == 0
    (sync,) = (task for task in quick[1].best.step.tasks if task.kind == "sync")
    (line,) = overlap_lines(slow[1].problem, slow[1].best.plan(), slow[1].ranked)
    assert line.startswith("steps do not overlap: it does not pay, since the fastest such step takes ")
    assert ": both pools wait " in line and line.endswith(" s for sync policy to pool1/sglang")
    assert sync.seconds is not None and 10 < sync.seconds < 15
    text = " ".join(staleness_text(slow, 0).split())
    assert "with 1, steps do not overlap: it does not pay" in text


def test_a_plan_says_how_late_its_weights_are_and_what_it_holds() -> None:
    best = find(replace(problem_of("decoupled_ppo", "2x8xh100"), staleness=2)).best
    lines = [*overlap_lines(best.problem, best.plan())]
    (lag,) = {home.lag for home in best.homes if home.lag}
    assert lines[0] == f"steps overlap: policy.sample 1 step ahead with weights at most {lag} updates old"
    assert lines[1].startswith("  held in host memory at once: rows of 2 steps, up to ")
    assert "and 1 copy of weights, 1.1 GiB" in lines[1]


def test_staleness_that_makes_nothing_shorter_is_not_used_and_that_is_said() -> None:
    """Draw: a step is as long as its longest pool, which no sync stops: the host takes longest, for its rules."""
    slow = replace(problem_of("decoupled_ppo", "2x8xh100"), calibrated={"host": {"score_row_s": 1.0}}, staleness=4)
    best = find(slow).best
    used = max(home.lag for home in best.homes)
    lines = [*overlap_lines(best.problem, best.plan())]
    assert used < 4, best.step
    assert lines[-1] == f"  4 updates may be used: more than {used} makes no step shorter"


def test_steps_that_may_not_overlap_are_not_spoken_of() -> None:
    best = find(problem_of("decoupled_ppo", "2x8xh100")).best
    assert [*overlap_lines(best.problem, best.plan())] == []
