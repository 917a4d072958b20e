"""A copy of weights that lags: how late it is follows the plan, and not how often a run is checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

from tests.cli.conftest import Said

FLOW = """\
from __future__ import annotations

from flowgraph import Loss, flow, stale
from nodes import *


@flow
def late(prompts: Prompts, policy: Policy) -> Policy:
    rollout = generate(stale(policy, at_most=2), prompts, n=2)
    advantages = group_normalize(score(rollout), rollout.group)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)

    return update(policy, loss)
"""


def test_a_run_samples_as_late_as_its_plan_says_however_often_it_is_checked(flowgraph: Callable[..., Said]) -> None:
    Path("late.py").write_text(FLOW)
    flowgraph("plan", "late.py", "--cluster", "2xcpu-4GiB", "-o", "plan.json")
    plan = json.loads(Path("plan.json").read_text())
    devices = plan["pools"][0]["devices"]
    plan["pools"] = [{"name": "train", "devices": devices[:1]}, {"name": "sample", "devices": devices[1:]}]
    for placed in plan["placed"]:
        apart = placed["role"] == "policy.sample"
        placed |= {"pool": "sample" if apart else "train", "engine": "local", "layout": {}, "lag": 2 if apart else 0}
    Path("plan.json").write_text(json.dumps(plan))
    drawn = list[list[int]]()
    for every in (0, 2):
        options = ("--plan", "plan.json", "--runtime", "local", "--steps", "5", "--batch", "2", "--eval-rows", "4")
        said = flowgraph("run", "late.py", *options, "--eval-every", every, "-o", f"run{every}")
        assert said.code == 0, said.err
        files = sorted(Path(f"run{every}/rollouts/policy.generate").glob("*.parquet"))
        drawn.append([max(pq.read_table(file).column("versions")[0].as_py()) for file in files])
    assert drawn[0] == drawn[1] == [0, 0, 0, 3, 3]
