"""Profiles of chosen steps: torch's profiler around a task, as a Chrome trace of bounded size; what Ray saw of a run.

They lie in the run's folder: `profile/step_000003/POOL-RANK-TASK.json`, and `profile/ray.json`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowgraph.errors import UsageError

MOST_BYTES = 64 * 2**20  # of one trace, which Perfetto opens at once
MOST_READ_BYTES = 2**30  # of a trace that is cut to MOST_BYTES; a larger one would take too much memory to cut
MOST_EVENTS = 100_000  # of a trace that was cut: about MOST_BYTES
FOLDER = "profile"


def profiled_steps(text: str) -> frozenset[int]:
    """Read what `--profile` was given: steps, counted from 0 as in `metrics.jsonl`, with commas between.

    Raises UsageError for anything else.

    >>> sorted(profiled_steps("3, 7"))
    [3, 7]
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,9}", part) for part in parts):
        raise UsageError("should be steps with commas between", where=f"--profile {text}", hint="--profile 3,7")
    return frozenset(map(int, parts))


@dataclass(frozen=True)
class Profiles:
    """Which steps of a run are profiled, and where that goes: the run's folder, which every machine can write to."""

    run: Path
    steps: frozenset[int] = frozenset()

    def of(self, step: int, name: str) -> AbstractContextManager[None]:
        """Profile what runs within, if the step is one of these; `name` says which rank does what."""
        return profiling(profile_folder(self.run, step), name, step in self.steps)


NO_PROFILES = Profiles(Path())


def profile_folder(run: Path, step: int) -> Path:
    """Name the folder of one step's profiles."""
    return run / FOLDER / f"step_{step:06d}"


@contextmanager
def profiling(folder: Path, name: str, wanted: bool) -> Generator[None]:
    """Profile what runs in this thread as a range of this name, and write `NAME.json` to the folder as a Chrome trace.

    Where it is not `wanted`, do nothing. A trace that is too large keeps its longest events. What cannot be written is
    said on stderr, and the work goes on; work that fails has no profile.
    """
    if not wanted:
        yield
        return
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    gpu = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    with profile(activities=[ProfilerActivity.CPU, *gpu]) as taken, record_function(name):
        yield
    path = folder / f"{file_name(name)}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".part")
        taken.export_chrome_trace(str(draft))
        _bound(draft)
        draft.replace(path)
    except (OSError, RuntimeError, ValueError) as error:
        print(f"{path}: no profile: {error}", file=sys.stderr)


def file_name(name: str) -> str:
    """Give a name as a file can have it.

    >>> file_name("train-0-critic.values, policy/logprobs")
    'train-0-critic.values-policy-logprobs'
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:120]


def write_ray_timeline(run: Path) -> Path | None:
    """Write what Ray saw of a run's tasks, as `ray timeline` does, while it is still connected; None if it cannot.

    Ray keeps the newest tasks only, 100,000 unless it was told otherwise.
    """
    import ray

    path = run / FOLDER / "ray.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        ray.timeline(str(path))
    except Exception as error:  # noqa: BLE001  Ray raises what its services raise; a run's end is not worth it
        print(f"{path}: no timeline of Ray: {error}", file=sys.stderr)
        return None
    return path


def longest(events: Iterable[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Give the longest of a trace's spans in their order, and all that is no span: names of lanes.

    >>> spans = [{"ph": "X", "dur": 2}, {"ph": "M"}, {"ph": "X", "dur": 9}, {"ph": "i"}]
    >>> longest(spans, 1)
    [{'ph': 'M'}, {'ph': 'X', 'dur': 9}]
    """
    told = list(events)
    spans = [place for place, each in enumerate(told) if each.get("ph") == "X"]
    kept = set(sorted(spans, key=lambda place: -float(told[place].get("dur", 0)))[:most])
    return [each for place, each in enumerate(told) if place in kept or each.get("ph") == "M"]


def _bound(path: Path) -> None:
    """Cut a trace that is too large to its longest events. Raises ValueError for one that is too large to be read."""
    size = path.stat().st_size
    if size <= MOST_BYTES:
        return
    if size > MOST_READ_BYTES:
        path.unlink()
        raise ValueError(f"its trace has {size / 2**30:.1f} GiB; profile a smaller step")
    trace = json.loads(path.read_text("utf-8"))
    kept = longest(trace["traceEvents"], MOST_EVENTS)
    trace |= {"traceEvents": kept, "cut": f"{len(trace['traceEvents']) - len(kept)} of the shortest events left out"}
    path.write_text(json.dumps(trace), "utf-8")
