"""The benchmark of recording: its ways take the same steps, and only those that record write."""

from __future__ import annotations

from pathlib import Path

from benchmarks.material import make_model
from benchmarks.overhead_side import Job
from benchmarks.recording import NOTHING, WAYS, RecordedStep, measured, report


def test_each_way_records_what_it_says(tmp_path: Path) -> None:
    model = make_model("tiny:hidden=16,layers=1", tmp_path / "model", tmp_path / "cache")
    job = Job(str(model), str(tmp_path / "cache"), prompts=3, samples=2, tokens=4)
    taken = measured(job, 2, tmp_path)
    assert [len(steps) for steps in taken.values()] == [2, 2, 2]
    nothing, responses, values = (steps[-1] for steps in taken.values())
    assert nothing.recording_s == nothing.written_bytes == 0
    assert 0 < responses.written_bytes < values.written_bytes
    for step in (responses, values):
        assert 0 < step.recording_s < step.step_s


def test_the_ratio_is_to_the_step_of_the_same_round_that_records_nothing() -> None:
    recorded = [RecordedStep(step_s=1.1, recording_s=0.1, written_bytes=2048), RecordedStep(2.2, 0.2, 4096)]
    taken = {way: [RecordedStep(1.0), RecordedStep(2.0)] if way == NOTHING else recorded for way in WAYS}
    line = report(taken).splitlines()[-1]
    assert "1.100 (1.100 … 1.100)" in line and "10.0 (10.0 … 10.0) %" in line and line.endswith(" 3")
