"""What roles hold in each phase of a plan that is found, for flows whose roles do more than one thing."""

from __future__ import annotations

import pytest

from flowgraph.cluster.plan import PhasePeak, Plan
from tests.examples.flows.moving_reference import with_average, with_refreshes
from tests.unit.placements.small_problems import Of, called, found_of


def plan_for(of: Of, **parts: str) -> Plan:
    """Return the best plan of a flow."""
    return found_of(of, **parts).best.plan()


def peaks(plan: Plan, role: str) -> dict[str, int]:
    """Return the bytes of the phases in which a role works."""
    own: list[PhasePeak] = [peak for each in plan.forecast for peak in each.peaks if peak.role == role]
    return {peak.phase: peak.memory_bytes for peak in own}


@pytest.mark.parametrize(("of", "role"), [("decoupled_ppo", "policy.train"), ("ppo", "critic.train")])
def test_reading_rows_with_a_model_that_is_trained_takes_less_than_its_update(of: str, role: str) -> None:
    """generate → logprobs of the trained model → update: no activation is kept for a gradient in between."""
    found = peaks(plan_for(of), role)
    assert found["logprob"] < 0.8 * found["update"]


@pytest.mark.parametrize("of", [with_average, with_refreshes], ids=called)
def test_a_reference_that_moves_holds_no_gradient_and_no_optimizer(of: Of) -> None:
    """generate → ref.logprobs → update; ref, the new policy → averaged → ref: weights, and what a pass takes."""
    plan = plan_for(of)
    (ref,) = [each for each in plan.placed if each.role == "ref.infer"]
    assert set(ref.memory) <= {"weights", "activations", "logits", "gathered", "reserved", "context"}
