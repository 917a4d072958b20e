"""Train on rows of stale weights, with a correction and without, and keep the accuracy that the documentation shows.

python benchmarks/staleness.py [--staleness 0 1 2 4 8] [--seeds 0 1 2 3 4] [--steps 300]

Each run is scheduled: sampling works `--staleness` steps ahead of training, so each row is that many updates old. The
corrected flow is the shipped decoupled_ppo; the other leaves its importance weights out. Both have a small entropy
bonus, since the shipped one moves a solved task away from its solution. Kept runs are not run again.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a script's own folder is on the path

from benchmarks.curves import EVERY, HELD_OUT, ROOT
from flowgraph import app

KEPT = ROOT / "docs" / "algorithms" / "staleness.json"
STALENESS_MAX = 8  # updates
SHIPPED_BONUS, BONUS = "0.1 * entropy_bonus", "0.03 * entropy_bonus"

Accuracy = Sequence[tuple[int, float]]  # (step, share of held-out prompts that were answered right)


def kept_runs() -> Mapping[str, Accuracy]:
    """Return the kept accuracy of each run, by "flow, staleness, seed"; none where nothing was measured."""
    if not KEPT.is_file():
        return {}
    runs: Mapping[str, Accuracy] = json.loads(KEPT.read_text(encoding="utf-8"))
    return runs


def flow_files(folder: Path) -> Mapping[str, Path]:
    """Return the file of each flow by name: copies in `folder` with a larger bound of staleness and a smaller bonus."""
    files = {"corrected": ROOT / "examples" / "decoupled_ppo.py"}
    files["uncorrected"] = ROOT / "benchmarks" / "flows" / "uncorrected.py"
    copies = dict[str, Path]()
    for name, file in files.items():
        text = file.read_text(encoding="utf-8").replace("at_most=4", f"at_most={STALENESS_MAX}")
        assert f"at_most={STALENESS_MAX}" in text and SHIPPED_BONUS in text, f"{file} is another flow by now"
        copies[name] = folder / file.name
        copies[name].write_text(text.replace(SHIPPED_BONUS, BONUS), encoding="utf-8")
    return copies


def measure(flow: Path, staleness: int, seed: int, steps: int, folder: Path) -> Accuracy:
    """Return the held-out accuracy of a run in this process whose rows are `staleness` updates old, by step."""
    result = app.run(
        str(flow),
        steps=steps,
        seed=seed,
        cluster="2xcpu-4GiB",
        placement="split",
        depth=staleness,
        runtime="local",
        eval_every=EVERY,
        eval_rows=HELD_OUT,
        cache=folder / "cache",
        out=folder / "run",
    )
    assert result.status == "finished", f"{flow.stem} at staleness {staleness} from seed {seed} is {result.status}"
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text("utf-8").splitlines()]
    oldest = max(line.get("policy.generate.staleness_worst", 0) for line in lines)
    assert oldest == staleness, f"rows were at most {oldest} updates old, not {staleness}"
    return [(line["step"], round(line["eval/accuracy"], 4)) for line in lines if "eval/accuracy" in line]


def keep(name: str, accuracy: Accuracy) -> None:
    """Write a run's accuracy beside the others, which other processes may be writing too."""
    with KEPT.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        runs = {**json.loads(file.read() or "{}"), name: accuracy}
        file.truncate(0)
        rows = (f'  "{each}": {json.dumps(runs[each], separators=(",", ":"))}' for each in sorted(runs))
        file.write("{\n" + ",\n".join(rows) + "\n}\n")


def main() -> None:
    """Run what is not kept yet, a seed after the other, and write each run as soon as it has ended."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 2, 4, STALENESS_MAX])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=300)
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
    for seed in asked.seeds:
        for staleness in asked.staleness:
            for flow in ("corrected", "uncorrected"):
                name = f"{flow}, {staleness}, {seed}"
                if name in kept_runs():
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    file = flow_files(Path(folder))[flow]
                    accuracy = measure(file, staleness, seed, asked.steps, Path(folder))
                keep(name, accuracy)
                print(f"{name:20}", *(f"{share:.2f}" for _, share in accuracy), flush=True)


if __name__ == "__main__":
    main()
