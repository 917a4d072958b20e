"""Named placements on the command line: planned, shown, drawn and run on devices whose speed is not known."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from placements.search.named_placements import NAMES
from tests.cli.said import text_of

Run = Callable[..., Any]
ON_FOUR = ("--cluster", "4xcpu", "--memory", "8GiB")


@pytest.mark.parametrize("name", NAMES)
def test_the_plan_of_a_named_placement_on_a_laptop(
    name: str, flowgraph: Run, golden: Callable[[str, str], None]
) -> None:
    golden(text_of(flowgraph("plan", "ppo", "--placement", name, *ON_FOUR)), f"cli/placement_{name}.txt")


def test_a_variant_is_planned_and_written_as_a_plan_to_edit(flowgraph: Run) -> None:
    text_of(flowgraph("plan", "ppo", "--placement", "split:nemo-aligner", *ON_FOUR, "-o", "plan.json"))
    written = json.loads(Path("plan.json").read_text())
    assert [len(pool["devices"]) for pool in written["pools"]] == [2, 2]
    again = text_of(flowgraph("plan", "ppo", "--plan", "plan.json"))
    assert "policy.train   fsdp   data=2 tensor=1 sharding=full" in again


def test_every_verb_that_plans_takes_a_placement(flowgraph: Run) -> None:
    split = ("--placement", "split", "--cluster", "3xcpu")
    shown = text_of(flowgraph("show", "ppo", "--stage", "lowered", *split))
    assert re.search(r"run +policy.generate +on pool1/local, role policy.sample\n", shown)
    drawn = text_of(flowgraph("draw", "ppo", "--to", "mmd", *split))
    assert sorted(re.findall(r"pool(\d)#58; laptop#47;\d", drawn)) == ["0", "1", "2"]
    assert flowgraph("check", "ppo", *split).code == 0
    data = json.loads(text_of(flowgraph("plan", "ppo", *split, "--json")))
    assert [len(pool["devices"]) for pool in data["plan"]["pools"]] == [1, 1, 1]


def test_on_devices_of_a_known_kind_check_looks_at_the_placement_that_is_named(flowgraph: Run) -> None:
    known = ("--cluster", "2xh100", "--model", "Qwen/Qwen3-0.6B")
    assert flowgraph("check", "ppo", *known, "--placement", "colocated").code == 0
    said = flowgraph("check", "ppo", *known, "--placement", "standalone")
    assert said.code == 1 and "puts ppo on 4 pools, which take a device each; the cluster has 2 gpu devices" in said.out


TOO_FEW = """\
plan of ppo: split:openrlhf puts ppo on 3 pools, which take a device each; the cluster has 2 cpu devices
    pool0: policy.train, ref.infer
    pool1: policy.sample
    pool2: critic.train
  hint: --cluster 3xcpu
"""
REFUSED: dict[tuple[str, ...], str] = {
    ("run", "ppo", "--placement", "split"): TOO_FEW,
    ("plan", "ppo", "--placement", "split"): TOO_FEW,
    ("plan", "ppo", "--placement", "splitt"): "no placement `splitt`\n  hint: did you mean `split`?\n",
    ("show", "ppo", "--stage", "placed", "--placement", "split:verl"): (
        "no placement `split:verl`\n  hint: did you mean `split:openrlhf`?\n"
    ),
    ("run", "ppo", "--plan", "plan.json", "--placement", "split"): (
        "--plan plan.json: --placement has no effect: the plan defines its pools\n"
    ),
}


@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
def test_what_cannot_be_placed_so_is_refused(arguments: tuple[str, ...], flowgraph: Run) -> None:
    said = flowgraph(*arguments)
    assert (said.out, said.err, said.code > 0) == ("", REFUSED[arguments], True)


@pytest.mark.xdist_group("ray")
def test_a_split_placement_is_what_runs(tmp_path: Path) -> None:
    """Three pools on four devices: as a person starts it."""
    split = ("--placement", "split", "--cluster", "4xcpu", "--steps", "2", "--batch", "2", "--eval-every", "0")
    done = subprocess.run(
        [sys.executable, "-m", "flowgraph", "run", "ppo", *split, "--set", "policy.generate.n=4"],
        cwd=tmp_path,
        env=os.environ | {"RAY_TMPDIR": "/tmp"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "runs/ppo-1\n"), done.stderr
    folder = tmp_path / "runs/ppo-1"
    program = (folder / "program.txt").read_text()
    pools = re.findall(r"^  pool  (\w+)  (.*)$", program, re.MULTILINE)
    assert [name for name, _ in pools] == ["pool0", "pool1", "pool2"]
    assert len({device for _, devices in pools for device in devices.split(", ")}) == 4
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(metrics) == 2
    for told in metrics:
        assert told["policy.update.grad_norm"] > 0 and told["critic.update.grad_norm"] > 0
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"
