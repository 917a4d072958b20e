"""References that follow the policy: what they hold after each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from flowgraph import Key
from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import LawError
from flowgraph.passes import compile_graph
from nodes import MovingReference, Policy, averaged, refreshed
from nodes.data.source import PromptSource
from tests.examples.flows.moving_reference import with_average, with_refreshes

Tiny = Callable[..., LocalModel]


def moved(handle: LocalModel, by: float) -> LocalModel:
    with torch.no_grad():
        for parameter in handle.model.parameters():
            parameter.add_(by)
    return handle


def test_an_average_is_the_decay_of_the_reference_and_the_rest_of_the_policy(tiny: Tiny) -> None:
    start = tiny().weights()
    ref, policy = tiny(), moved(tiny(), 1.0)
    after = averaged(MovingReference(ref), policy=Policy(policy), decay=0.75)
    for name, weight in after.handle.weights().items():
        torch.testing.assert_close(weight, 0.75 * start[name] + 0.25 * (start[name] + 1.0))
    torch.testing.assert_close(policy.weights(), {name: weight + 1.0 for name, weight in start.items()})
    assert (ref.version, after.version) == (1, 1)


@pytest.mark.parametrize(("step", "every", "due"), [(0, 1, True), (0, 2, False), (1, 2, True), (2, 2, False)])
def test_a_reference_is_refreshed_after_every_so_many_steps(tiny: Tiny, step: int, every: int, due: bool) -> None:
    ref, policy = tiny(), moved(tiny(), 1.0)
    before = ref.weights()
    after = refreshed(MovingReference(ref), policy=Policy(policy), every=every, key=Key(0, step))
    torch.testing.assert_close(after.handle.weights(), policy.weights() if due else before, rtol=0, atol=0)
    assert after.version == 1 and after.measures[0].total == due


def test_a_version_of_a_reference_that_has_moved_on_is_refused(tiny: Tiny) -> None:
    ref = MovingReference(tiny())
    averaged(ref, policy=Policy(tiny()))
    with pytest.raises(LawError, match="was consumed by an update"):
        averaged(ref, policy=Policy(tiny()))


def test_references_follow_from_step_to_step_of_a_program(tiny: Tiny, alone: Any, digit_rows: Any) -> None:
    for flow, decay in ((with_average, 0.9), (with_refreshes, None)):
        policy, ref = tiny(trainable=True), tiny()
        program, executor = alone(compile_graph(flow.graph()), {"policy": policy, "ref": ref})
        wanted = ref.weights()
        for step in range(3):
            executor.run(program, {"prompts": PromptSource(digit_rows, 2, seed=0)}, Key(0, step))
            new = policy.weights()
            if decay is not None:
                wanted = {name: decay * old + (1 - decay) * new[name] for name, old in wanted.items()}
            elif step == 1:
                wanted = new
            torch.testing.assert_close(ref.weights(), wanted)
        assert ref.version == policy.version == 3
