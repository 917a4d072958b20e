"""Steps that take finished groups, from the command line: what is printed, and what a killed or replayed run does."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Said
from tests.cli.test_depth import SPLIT
from tests.cli.test_lag import FLOW
from tests.cli.test_resume import cut_off

Run = Callable[..., Said]
READY = (*SPLIT, "--depth", 1, "--contract", "ready")
SMALL = ("--model", "tiny", "--runtime", "local", "--batch", 2, "--sample-rows", 2)


def journal(folder: Path | str) -> list[list[list[int]]]:
    """Return (step, prompt, first version) of each group of each step. Checks that lines are of all steps, in order."""
    lines = [json.loads(line) for line in Path(folder, "groups.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [*range(len(lines))]
    return [line["groups"] for line in lines]


def each_once(folder: Path | str, steps: int, size: int = 2) -> None:
    """Assert that a run trained on each group of its steps once, within the bound, on the rows that it recorded."""
    taken = journal(folder)
    names = [(step, prompt) for groups in taken for step, prompt, _ in groups]
    assert len(taken) == steps and len({*names}) == len(names) == steps * size
    assert Counter(step for step, _ in names) == dict.fromkeys(range(steps), size)
    for step, groups in enumerate(taken):
        table = pq.read_table(Path(folder, f"rollouts/policy.generate/{step:06d}.parquet"))
        recorded = list(dict.fromkeys(table.column("group").to_pylist()))
        assert [group % 2**40 for group in recorded] == [prompt for _, prompt, _ in groups]
        assert all(0 <= step - first <= 2 and step - of <= 1 for of, _, first in groups)


def lines_of(folder: str) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in Path(f"{folder}/metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "policy.update.loss" in line]


def test_a_run_is_checked_extended_and_replayed_in_the_order_of_its_journal(flowgraph: Run) -> None:
    Path("late.py").write_text(FLOW)
    said = flowgraph(
        "run",
        "late.py",
        *READY,
        *SMALL,
        "--steps",
        3,
        "--eval-every",
        2,
        "--eval-rows",
        4,
        "--checkpoint-every",
        1,
        "-o",
        "run",
    )
    assert said.code == 0, said.err
    plan = json.loads(Path("run/plan.json").read_text())
    (row,) = (each for each in plan["placed"] if each["lag"])
    assert (row["running"]["contract"], row["lag"], row["ahead"], row["behind"]) == ("ready", 2, 1, 1)
    each_once("run", 3)
    again = flowgraph("resume", "run", "--steps", 5)
    assert again.code == 0, again.err
    each_once("run", 5)
    steps = lines_of("run")
    assert [line["step"] for line in steps] == [*range(5)], "each step once"
    assert all(0 <= line["policy.generate.staleness_worst"] <= 2 for line in steps)
    assert all(line["policy.generate.late"] <= 1 for line in steps)
    for name, ways in (("as_scheduled", (*SPLIT, "--depth", 1)), ("as_ready", READY)):
        replay = flowgraph("run", "late.py", *ways, *SMALL, "--eval-every", 0, "--replay", "run", "-o", name)
        assert replay.code == 0, replay.err
        assert journal(name) == journal("run")
        losses = [[line["policy.update.loss"] for line in lines_of(folder)] for folder in ("run", name)]
        assert losses[1] == pytest.approx(losses[0], abs=1e-4)
    other = flowgraph("resume", "run", "--steps", 6, "--contract", "in_flight")
    assert other.code == 1
    assert "ready, 1 late" in " ".join(other.err.split())


def test_a_journal_that_is_damaged_is_named_with_its_line(flowgraph: Run) -> None:
    Path("late.py").write_text(FLOW)
    said = flowgraph(
        "run", "late.py", *READY, *SMALL, "--steps", 3, "--eval-every", 0, "--checkpoint-every", 2, "-o", "run"
    )
    assert said.code == 0, said.err
    file = Path("run/groups.jsonl")
    lines = file.read_text().splitlines(keepends=True)
    absent = json.dumps({"step": 2, "groups": [[2, 10**9, 0]] * 1 + json.loads(lines[2])["groups"][1:]}) + "\n"
    for name, text, why in (
        ("cut", lines[0] + lines[1] + lines[2][:20], "step 2 is not in it"),
        ("not JSON", lines[0] + "{]\n", "line 2: is not a step of a journal of groups"),
        ("a text for a number", lines[0].replace("[[", '[["0", ', 1), "line 1: is not a step of a journal of groups"),
        ("out of order", lines[1], "line 1: is of step 1, not 0"),
        ("twice", lines[0] + lines[0].replace('"step": 0', '"step": 1'), "line 2: has the group of"),
        ("of another run", lines[0] + lines[1] + absent, "step 2 names prompt 1000000000 of step 2, which has no such"),
    ):
        file.write_text(text)
        told = flowgraph(
            "run", "late.py", *SPLIT, *SMALL, "--eval-every", 0, "--replay", "run", "-o", name.replace(" ", "_")
        )
        assert told.code == 1, name
        assert why in " ".join(told.err.split()), (name, told.err)
    told = flowgraph("resume", "run", "--steps", 4)
    assert told.code == 1
    assert "groups.jsonl: step 2 names prompt 1000000000 of step 2, which was not under way" in " ".join(
        told.err.split()
    )


def test_a_flow_that_leaves_no_step_to_spare_and_a_plan_without_overlap_are_refused(flowgraph: Run) -> None:
    Path("late.py").write_text(FLOW)
    for ways, why in (
        (("--depth", 2), "its weights are up to 2 updates old without a step to spare, and the flow allows 2"),
        (("--depth", 1, "--sync-every", 2), "at_most=3 in the flow"),
        ((), "contract=ready, but none of its roles works ahead of training"),
        (("--depth", 1, "--chunks", 2), "contract=ready, but policy.sample hands out chunks of a step"),
    ):
        said = flowgraph("plan", "late.py", *SPLIT, *ways, "--contract", "ready")
        assert said.code == 1
        assert why in " ".join(said.err.split()), said.err


def test_the_program_and_the_pictures_name_what_is_taken(flowgraph: Run) -> None:
    Path("late.py").write_text(FLOW)
    shown = flowgraph("show", "late.py", "--stage", "lowered", *READY)
    assert shown.code == 0, shown.err
    assert "take" in shown.out and "finished groups, the oldest first, at most 1 step late" in shown.out
    assert "1 ahead  a sync every step  at most 2 updates old  ready, retract  at most 1 step late" in shown.out
    for picture in ("sequence", "timeline", "plan"):
        drawn = flowgraph("draw", "late.py", "--picture", picture, *READY, "-o", f"{picture}.mmd")
        assert drawn.code == 0, drawn.err
    assert "take finished groups of policy.generate" in Path("sequence.mmd").read_text()


@pytest.mark.processes
@pytest.mark.parametrize(("seed", "count"), [(0, 2), pytest.param(1, 8, marks=pytest.mark.slow(group="overlap"))])
def test_a_run_killed_at_any_moment_and_resumed_trains_on_each_group_once(
    tmp_path: Path, seed: int, count: int
) -> None:
    (tmp_path / "late.py").write_text(FLOW)
    small = ("late.py", *map(str, SMALL), *map(str, READY), "--eval-every", "0", "--checkpoint-every", "2")
    codes = cut_off(tmp_path, "SIGKILL", seed, count, (*small, "--steps", "6"))
    assert sum(code == -9 for ended in codes for code in ended) >= count
    for name in ("whole", *(f"cut{i}" for i in range(count))):
        each_once(tmp_path / name, 6)
        assert [line["step"] for line in lines_of(str(tmp_path / name))] == [*range(6)]
