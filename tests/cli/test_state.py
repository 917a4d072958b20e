"""State that is no model: a run starts it from the flow's default, and carries it from step to step."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Said

FLOW = Path(__file__).parents[1] / "examples" / "flows" / "adaptive_kl.py"


@pytest.mark.usefixtures("ray_of_its_own")
@pytest.mark.parametrize("runtime", ["local", pytest.param("ray", marks=pytest.mark.slow(group="ray"))])
def test_a_weight_that_adapts_starts_from_the_default_and_is_carried(
    flowgraph: Callable[..., Said], runtime: str
) -> None:
    shutil.copy(FLOW, "mine.py")
    options = ("--steps", "3", "--batch", "2", "--eval-every", "0", "--cluster", "1xcpu", "--runtime", runtime)
    said = flowgraph("run", "mine.py", *options, "-o", "out")
    assert said.code == 0, said.err
    lines = [json.loads(line) for line in Path("out/metrics.jsonl").read_text().splitlines()]
    used = [line["kl_penalized.kl_weight"] for line in lines]
    # The reference is the policy before its first update, so the KL is 0 and the weight falls by 0.2 of 8 / 100 rows.
    assert used[:2] == pytest.approx([0.05, 0.05 * (1 - 0.2 * 8 / 100)])
    assert used[2] != used[1]


def test_state_without_a_start_is_refused_with_the_default_to_write(flowgraph: Callable[..., Said]) -> None:
    Path("mine.py").write_text(FLOW.read_text().replace(" = KLWeight(0.05)", ""))
    said = flowgraph("run", "mine.py", "--steps", "1")
    assert said.code != 0
    assert "`beta` has no initial value" in said.err and "`beta: KLWeight = KLWeight(…)`" in said.err
    assert not Path("runs").exists()


def test_state_that_is_not_returned_is_refused(flowgraph: Callable[..., Said]) -> None:
    text = FLOW.read_text().replace("tuple[Policy, KLWeight]", "Policy")
    Path("mine.py").write_text(text.partition("    return update")[0] + "    return update(policy, loss)\n")
    said = flowgraph("run", "mine.py", "--steps", "1")
    assert said.code != 0 and "`beta` is state, but is not returned" in said.err


def test_a_critic_that_is_returned_as_it_came_is_refused(flowgraph: Callable[..., Said]) -> None:
    text = (Path(__file__).parents[2] / "examples" / "ppo.py").read_text()
    Path("mine.py").write_text(text.partition(", update(critic")[0] + ", critic\n")
    said = flowgraph("run", "mine.py", "--steps", "1")
    assert said.code != 0 and "`critic` is trainable, but is returned without an update" in said.err
    assert not Path("runs").exists()
