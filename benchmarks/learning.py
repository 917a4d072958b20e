"""Train every shipped flow on the tiny task, from several seeds, and keep the curves that the documentation shows.

python benchmarks/learning.py [FLOW ...] [--seeds 0 1 2] [--steps 500] [--stale]

Steps, not seconds, are what is measured; see README.md here. `--stale` trains on responses of weights four updates old,
with the correction and without it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a script's own folder is on the path

from benchmarks.curves import EVERY, HELD_OUT, KEPT, ROOT, SETTINGS, steps_to
from flowgraph.cli.flow_request import FlowRequest
from flowgraph.cli.plan import plan_flow
from flowgraph.cli.plan_result import PlanTarget
from flowgraph.cli.run import RunOptions, run_flow

LAG = 4  # updates
STALE = ("decoupled_ppo", str(ROOT / "benchmarks" / "flows" / "uncorrected.py"))


def train(flow: str, seed: int, steps: int, folder: Path, sets: Sequence[str] = (), plan: Path | None = None) -> Any:
    """Run a flow and give its curve: the accuracy on held-out prompts by step, and the mean reward of each step."""
    asked = FlowRequest(flow, steps=steps, seed=seed, sets=tuple(sets), cache=folder / "cache")
    where = PlanTarget("1xcpu") if plan is None else PlanTarget(plan=plan, runtime="local")
    out = folder / f"{Path(flow).stem}-{seed}"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = run_flow(RunOptions(asked, EVERY, HELD_OUT, out, None, where))
    assert code == 0, f"{flow} from seed {seed} ended with {code}"
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text("utf-8").splitlines()]
    rewards = [next((v for k, v in line.items() if k.endswith(".reward")), None) for line in lines]
    return {
        "accuracy": [[line["step"], round(line["eval/accuracy"], 4)] for line in lines if "eval/accuracy" in line],
        "reward": [round(each, 4) for each in rewards if each is not None],
    }


def late_plan(flow: str, lag: int, folder: Path) -> Path:
    """Write a plan that samples from a copy of its own, `lag` updates late."""
    path = folder / f"{Path(flow).stem}.plan.json"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        plan_flow(FlowRequest(flow, cache=folder / "cache"), PlanTarget("2xcpu-4GiB"), path, as_json=False)
    plan = json.loads(path.read_text("utf-8"))
    devices = plan["pools"][0]["devices"]
    plan["pools"] = [{"name": "train", "devices": devices[:1]}, {"name": "sample", "devices": devices[1:]}]
    for placed in plan["placed"]:
        apart = placed["role"] == "policy.sample"
        placed |= {"pool": "sample" if apart else "train", "engine": "local", "layout": {}, "lag": lag if apart else 0}
    path.write_text(json.dumps(plan), encoding="utf-8")
    return path


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
    parser.add_argument("--stale", action="store_true", help="sample from weights that lag, corrected and not")
    parser.add_argument("--no-keep", action="store_true", help="print only")
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
    for flow in asked.flows or (STALE if asked.stale else shipped()):
        for seed in asked.seeds:
            with tempfile.TemporaryDirectory() as folder:
                plan = late_plan(flow, LAG, Path(folder)) if asked.stale else None
                found = train(flow, seed, asked.steps, Path(folder), [*SETTINGS.get(flow, ()), *asked.sets], plan)
            print(f"{flow:24} seed {seed}  0.9 from step {steps_to(found['accuracy'])}", found["accuracy"], flush=True)
            if not asked.no_keep:
                keep(f"{Path(flow).stem}, {LAG} late" if asked.stale else flow, seed, found)


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
