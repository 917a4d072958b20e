"""Train every shipped flow on the tiny task, from several seeds, and keep the curves that the documentation shows.

python benchmarks/learning.py [FLOW ...] [--seeds 0 1 2] [--steps 500]

Steps, not seconds, are what is measured; see README.md here.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a script's own folder is on the path

from benchmarks.curves import EVERY, HELD_OUT, KEPT, ROOT, SETTINGS, steps_to
from flowgraph import app


def train(flow: str, seed: int, steps: int, folder: Path, sets: Sequence[str] = ()) -> Any:
    """Run a flow and give its curve: the accuracy on held-out prompts by step, and the mean reward of each step."""
    out = folder / f"{Path(flow).stem}-{seed}"
    result = app.run(
        flow,
        steps=steps,
        seed=seed,
        settings=sets,
        cache=folder / "cache",
        eval_every=EVERY,
        eval_rows=HELD_OUT,
        out=out,
        cluster="1xcpu",
    )
    assert result.status == "finished", f"{flow} from seed {seed} is {result.status}"
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text("utf-8").splitlines()]
    rewards = [next((v for k, v in line.items() if k.endswith(".reward")), None) for line in lines]
    return {
        "accuracy": [[line["step"], round(line["eval/accuracy"], 4)] for line in lines if "eval/accuracy" in line],
        "reward": [round(each, 4) for each in rewards if each is not None],
    }


def shipped() -> list[str]:
    """Name the shipped flows."""
    return sorted(path.stem for path in (ROOT / "examples").glob("*.py") if path.stem != "__init__")


def main() -> None:
    """Run what is asked, and write each curve as soon as it is there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("flows", nargs="*", help="shipped flows, all by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--set", action="append", default=[], dest="sets", help="node.setting=value")
    parser.add_argument("--no-keep", action="store_true", help="print only")
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
    for flow in asked.flows or shipped():
        for seed in asked.seeds:
            with tempfile.TemporaryDirectory() as folder:
                found = train(flow, seed, asked.steps, Path(folder), [*SETTINGS.get(flow, ()), *asked.sets])
            print(f"{flow:24} seed {seed}  0.9 from step {steps_to(found['accuracy'])}", found["accuracy"], flush=True)
            if not asked.no_keep:
                keep(flow, seed, found)


def keep(flow: str, seed: int, found: Any) -> None:
    """Write a curve beside the others, which other processes may be writing too."""
    import fcntl

    KEPT.parent.mkdir(exist_ok=True)
    with KEPT.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read()
        curves: dict[str, Any] = json.loads(text) if text else {}
        curves.setdefault(flow, {})[str(seed)] = found
        file.truncate(0)
        rows = (f'  "{name}": {{\n' + ",\n".join(_lines(curves[name])) + "\n  }" for name in sorted(curves))
        file.write("{\n" + ",\n".join(rows) + "\n}\n")


def _lines(seeds: Mapping[str, Any]) -> list[str]:
    return [f'    "{seed}": {json.dumps(seeds[seed], separators=(",", ":"))}' for seed in sorted(seeds)]


if __name__ == "__main__":
    main()
