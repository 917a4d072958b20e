"""Whatever options `plan` gets, its plan runs as it is written, or `plan` refuses with a hint.

For shipped flows on clusters of CPUs, with all options that overlap steps, read groups early or divide devices. A plan
is written to a file, read back, checked and lowered as `run` does it; nothing is trained.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowgraph.app import make_request
from flowgraph.app.planning.make_plan import make_plan, planned_for
from flowgraph.checks.placed import refuse_unsupported
from flowgraph.cluster.plan import Plan
from flowgraph.errors import FlowError
from flowgraph.lowering.lower import lower
from flowgraph.passes.verify import verified
from nodes.mismatch import watch_engines

ROWS: dict[str, Any] = {"model": "tiny", "batch": 8, "prompt_tokens": 16, "response_tokens": "mean=4,max=8"}
SERVED: dict[str, Any] = {"engine": ("sample=sglang",)}

asked = st.fixed_dictionaries(
    {
        "flow": st.sampled_from(("decoupled_ppo", "decoupled_ppo", "grpo", "ppo")),
        "cluster": st.sampled_from(("1xcpu-4GiB", "2xcpu-4GiB", "3xcpu-6GiB")),
        "placement": st.sampled_from(("", "split", "standalone")),
    },
    optional={
        "engine": st.just(SERVED["engine"]),
        "staleness": st.sampled_from(("0", "1", "4", "auto")),
        "ratio": st.sampled_from(("1:1", "2:1")),
        "streamed": st.booleans(),
        "depth": st.integers(0, 3),
        "sync_every": st.integers(1, 3),
        "chunks": st.integers(1, 4),
        "contract": st.sampled_from(("scheduled", "in_flight", "ready")),
    },
)


def written(options: dict[str, Any]) -> Plan:
    """Return the plan of a request, as it is read from its file."""
    return Plan.from_json(make_plan(make_request(**ROWS, **options), lambda _: None).plan.to_json())


def assert_runs(plan: Plan) -> None:
    """Check and lower a plan as a run of it does, and compare its forecast with what is forecast again."""
    refuse_unsupported(plan, "plan.json")
    again = planned_for(make_request(plan=plan), lambda _: None)
    with verified():
        lower(again.problem.graph, again.plan, where="plan.json", watch=watch_engines)
    assert plan.step is not None and again.plan.step is not None
    assert again.plan.step.period_s == pytest.approx(plan.step.period_s)


@given(asked)
def test_every_plan_runs_as_written_or_is_refused_with_a_hint(options: dict[str, Any]) -> None:
    refused: FlowError | None = None
    try:
        plan = written(options)
    except FlowError as error:
        refused = error
    if refused is not None:
        assert refused.hint, str(refused)
        return
    bound = 4 if options["flow"] == "decoupled_ppo" else 0
    if not bound and "depth" not in options and any(row.lag for row in plan.placed):
        with pytest.raises(FlowError, match="weights that are older than the flow allows"):
            assert_runs(plan)  # a forecast of what the flow could have: `plan` says so in a note
        return
    assert_runs(plan)
    assert max(row.lag for row in plan.placed) <= bound


SPLIT: dict[str, Any] = {"flow": "decoupled_ppo", "cluster": "2xcpu-4GiB", "placement": "split"}


@pytest.mark.parametrize(
    ("options", "sampling"),
    [
        ({"staleness": "2", "contract": "in_flight"}, (2, 1, 1, "in_flight")),
        ({"depth": 2, "contract": "in_flight"}, (2, 2, 1, "in_flight")),
        ({"depth": 1, "contract": "ready"}, (4, 1, 1, "ready")),
        ({"depth": 1, "chunks": 2, **SERVED}, (1, 1, 2, "scheduled")),
        ({"staleness": "1", "streamed": True, "ratio": "1:1", **SERVED}, (1, 1, 1, "scheduled")),
    ],
)
def test_options_that_go_together_are_all_in_the_plan(
    options: dict[str, Any], sampling: tuple[int, int, int, str]
) -> None:
    """So that the property above is of something."""
    plan = written({**SPLIT, **options})
    (row,) = (row for row in plan.placed if row.role == "policy.sample")
    assert (row.lag, row.ahead, row.chunks, row.running.contract) == sampling
    assert_runs(plan)


def test_a_contract_of_steps_that_do_not_overlap_has_no_effect_and_that_is_said() -> None:
    """One device samples and trains, so whatever staleness is allowed, no response is under way at a sync."""
    notes = list[str]()
    alone = {"flow": "decoupled_ppo", "cluster": "1xcpu-4GiB", "staleness": "2", "contract": "in_flight"}
    plan = make_plan(make_request(**ROWS, **alone), notes.append).plan
    assert all(row.running.contract == "scheduled" and not row.ahead for row in plan.placed)
    assert "--contract in_flight has no effect: in the best plan steps do not overlap" in notes


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"staleness": "1", "depth": 1}, "--depth: cannot be combined with --staleness"),
        ({"chunks": 2, "streamed": True}, "--chunks: cannot be combined with --streamed"),
        ({"depth": 1, "contract": "in_flight", "streamed": True}, "--contract in_flight: cannot be combined with"),
        ({"depth": 1, "contract": "in_flight", "chunks": 2, **SERVED}, "which rows in flight cannot be combined with"),
        ({"contract": "in_flight"}, "none of its roles works ahead of training"),
        ({"depth": 1, "contract": "ready", "streamed": True}, "--contract ready: cannot be combined with --streamed"),
        ({"staleness": "2", "contract": "ready"}, "--contract ready: cannot be combined with --staleness"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(FlowError, match=text):
        written({**SPLIT, **options})
