"""Profile chosen steps with torch's profiler, as Chrome traces of bounded size, and write Ray's timeline.

The files are in the run's folder: `profile/step_000003/POOL-RANK-TASK.json`, and `profile/ray.json`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flowgraph.errors import UsageError

MAX_BYTES = 64 * 2**20  # of one trace, which Perfetto opens at once
MAX_READ_BYTES = 2**30  # of a trace that is cut to MAX_BYTES; a larger one would take too much memory to cut
MAX_EVENTS = 100_000  # of a trace that was cut: about MAX_BYTES
FOLDER = "profile"


def profiled_steps(text: str) -> frozenset[int]:
    """Return the steps to profile, counted from 0, in the value of `--profile`, a comma-separated list.

    Raises UsageError for anything but whole numbers of at most 9 digits.

    >>> sorted(profiled_steps("3, 7"))
    [3, 7]
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,9}", part) for part in parts):
        raise UsageError("should be steps with commas between", where=f"--profile {text}", hint="--profile 3,7")
    return frozenset(map(int, parts))


@dataclass(frozen=True)
class Profiles:
    """The steps of a run to profile, and the run's folder, which must be writable from every machine."""

    run: Path
    steps: frozenset[int] = frozenset()

    @contextmanager
    def of(self, step: int, name: str) -> Generator[None]:
        """Profile this block as a range called `name`, if `step` is to be profiled, and write a Chrome trace.

        A trace over 64 MiB is reduced to its 100,000 longest events, and one over 1 GiB is not kept. A trace that is
        not written is reported on stderr without raising. If the block raises, no profile is written.
        """
        if step not in self.steps:
            yield
            return
        import torch
        from torch.profiler import ProfilerActivity, profile, record_function

        gpu = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
        with profile(activities=[ProfilerActivity.CPU, *gpu]) as profiler, record_function(name):
            yield
        file_name = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:120]
        path = profile_folder(self.run, step) / f"{file_name}.json"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_suffix(".part")
            profiler.export_chrome_trace(str(draft))
            _cut_to_limit(draft)
            draft.replace(path)
        except (OSError, RuntimeError, ValueError) as error:
            print(f"{path}: no profile: {error}", file=sys.stderr)


NO_PROFILES = Profiles(Path())


def profile_folder(run: Path, step: int) -> Path:
    """Return the path of the folder with one step's profiles: `profile/step_000003` in the folder `run`."""
    return run / FOLDER / f"step_{step:06d}"


def write_ray_timeline(run: Path) -> Path | None:
    """Write Ray's timeline of a run's tasks to `profile/ray.json` in the folder `run`, and return its path.

    Call it while Ray is connected. Ray keeps only the newest tasks: 100,000 by default. Errors are reported on stderr,
    and None is returned.
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


def _cut_to_limit(path: Path) -> None:
    """Reduce a large trace to its longest spans and metadata. Removes one that is too large, and raises ValueError."""
    size = path.stat().st_size
    if size <= MAX_BYTES:
        return
    if size > MAX_READ_BYTES:
        path.unlink()
        raise ValueError(f"its trace has {size / 2**30:.1f} GiB; profile a smaller step")
    trace = json.loads(path.read_text("utf-8"))
    events = trace["traceEvents"]
    spans = [index for index, event in enumerate(events) if event.get("ph") == "X"]
    longest = set(sorted(spans, key=lambda index: -float(events[index].get("dur", 0)))[:MAX_EVENTS])
    left = [event for index, event in enumerate(events) if index in longest or event.get("ph") == "M"]
    trace |= {"traceEvents": left, "cut": f"{len(events) - len(left)} of the shortest events left out"}
    path.write_text(json.dumps(trace), "utf-8")
