"""Rows in flight on Ray: weights come while rows are drawn; a replay says whether each token names the right ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from flowgraph.app.planning.overlap import with_contract
from flowgraph.lowering.lower import lower
from flowgraph.models import resolve
from flowgraph.runtime.hosting import ModelSetup
from flowgraph.runtime.ray.session import Session
from nodes.data.source import PromptSource
from tests.parity.in_flight_runs import GRAPH, attribution_error, flown
from tests.unit.flowgraph.lowering.test_pipeline_steps import plan_of

pytestmark = [pytest.mark.processes, pytest.mark.slow(group="ray")]

STEPS = 8


@pytest.mark.parametrize("depth", [1, 2])
def test_rows_cross_syncs_within_the_bound_and_a_replay_finds_the_weights_of_each_token(
    depth: int, ray_session: Callable[[], Session], digit_rows: pa.Table, model_cache: Path, tmp_path: Path
) -> None:
    program = lower(GRAPH, with_contract(plan_of(GRAPH, depth), GRAPH, "in_flight"))
    # Row after row, so that sampling takes several times as long as training, on a busy machine too.
    models = ModelSetup({"policy": resolve("tiny", cache=model_cache)}, 0, model_cache, sample_rows=1)
    prompts = PromptSource(digit_rows, 6, seed=3)
    ran = flown(program, models, ray_session(), prompts, tmp_path, STEPS)
    ran.keeps_the_bound()
    mixed = ran.metric("mixed")
    assert any(mixed), "some row was being drawn when weights came"
    errors = attribution_error(ran, models, prompts, tmp_path)
    print({"depth": depth, "mixed": mixed, "spans": ran.metric("spans"), "error": max(errors)})
    assert max(errors) < 1e-4
