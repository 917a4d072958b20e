"""Steps that take finished groups on Ray: each group once, within the bound, saved and loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from flowgraph.analysis.flat_graph import to_json
from flowgraph.app.planning.overlap import with_contract
from flowgraph.flows.flow_files import find_flow
from flowgraph.language import Key
from flowgraph.lowering.lower import lower
from flowgraph.models import resolve
from flowgraph.passes import compile_graph
from flowgraph.runtime.group_order import GroupName
from flowgraph.runtime.hosting import ModelSetup
from flowgraph.runtime.interpreter import Executor
from flowgraph.runtime.ray.device import Flows
from flowgraph.runtime.ray.session import Session
from flowgraph.runtime.ray.start import start
from nodes.data.source import PromptSource
from tests.parity.in_flight_runs import DRAWN, OWN
from tests.unit.flowgraph.lowering.test_pipeline_steps import plan_of

pytestmark = [pytest.mark.processes, pytest.mark.slow(group="ray")]

STEPS, SIZE = 5, 3
GRAPH = compile_graph(find_flow(f"{OWN}:short_responses").flow.graph())


def test_each_group_is_trained_on_once_within_the_bound_also_after_it_was_saved(
    ray_session: Callable[[], Session], digit_rows: pa.Table, model_cache: Path, tmp_path: Path
) -> None:
    program = lower(GRAPH, with_contract(plan_of(GRAPH, 1), GRAPH, "ready"))
    assert program.pipeline is not None
    (schedule,) = program.pipeline.copies
    # Row after row, so that the groups of a step finish one after another.
    models = ModelSetup({"policy": resolve("tiny", cache=model_cache)}, 0, model_cache, sample_rows=1)
    prompts = PromptSource(digit_rows.slice(0, 8), SIZE, seed=3)
    places = start(program, [GRAPH], Flows((to_json(GRAPH),), str(OWN)), models, ray_session())
    try:
        executor, taken = Executor(places), list[GroupName]()
        for step in range(STEPS):
            if step == 3:  # what was saved goes on
                executor.save_state(program, tmp_path)
                executor = Executor(places)
                executor.load_state(program, tmp_path)
                assert len(executor.groups.finished) == SIZE
            ran = executor.run(program, {"prompts": prompts}, Key(7, step), STEPS)
            versions, groups = ran.apply(read, [DRAWN]), [group.name for group in ran.groups]
            places.finish()
            ages = [step - version for row in versions()[0] for version in row]
            metrics = ran.observed.means()
            print(step, groups, {name: metrics[f"{DRAWN}.{name}"] for name in ("moved", "waited", "late", "spans")})
            assert 0 <= min(ages) <= metrics[f"{DRAWN}.staleness_worst"] == max(ages) <= schedule.bound
            assert len(versions()[1]) == SIZE
            taken += groups
        places.finish()
    finally:
        places.close()
    expected = [GroupName(step, prompt) for step in range(STEPS) for prompt in prompts.rows(step).tolist()]
    assert sorted(taken) == sorted(expected)


def read(tables: list[pa.Table]) -> tuple[list[list[int]], list[int]]:
    """Return the versions of tokens, and the different groups."""
    return tables[0].column("versions").to_pylist(), list(dict.fromkeys(tables[0].column("group").to_pylist()))
