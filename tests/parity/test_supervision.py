"""A task that takes longer than it may ends the run: named with its place and step, and what its process is at."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flowgraph.analysis.flat_graph import structure_hash, to_json
from flowgraph.analysis.roles import roles
from flowgraph.cluster.cluster import Cluster, Device, Machine
from flowgraph.cluster.plan import PlacedRole, Plan, Pool
from flowgraph.errors import WorkerError
from flowgraph.flows.flow_files import find_flow
from flowgraph.flows.settings import resolve_settings
from flowgraph.language import Key
from flowgraph.lowering.lower import lower
from flowgraph.models import resolve
from flowgraph.passes import compile_graph
from flowgraph.runtime.hosting import ModelSetup
from flowgraph.runtime.interpreter import Executor
from flowgraph.runtime.ray.deadlines import Deadlines
from flowgraph.runtime.ray.device import Flows
from flowgraph.runtime.ray.places import RayPlaces
from flowgraph.runtime.ray.session import Session
from flowgraph.runtime.ray.start import start
from nodes.data.source import PromptSource

pytestmark = pytest.mark.processes

OWN = Path(__file__).parent / "hanging_flows.py"
POOLS = {"sample": "draw"}
SETTINGS = {"policy.generate.n": 2, "policy.generate.max_tokens": 3}


@pytest.fixture
def opened(ray_session: Callable[[], Session], model_cache: Path) -> Iterator[Callable[[str], Any]]:
    """Yield `opened(flow)`: a flow's program, and places on Ray where a task may take 12 s, in two pools."""
    with contextlib.ExitStack() as stack:

        def opened(name: str) -> tuple[Any, RayPlaces]:
            graph = resolve_settings(compile_graph(find_flow(f"{OWN}:{name}").flow.graph()), [], dict(SETTINGS))[0]
            cpu = Device(kind="cpu", memory_bytes=2**30)
            laptop = Machine(name="laptop", devices=(cpu,) * 3, host_memory_bytes=2**33, cores=2)
            plan = Plan(
                flow=graph.name,
                structure_hash=structure_hash(graph),
                cluster=Cluster(nodes=(laptop,)),
                pools=(Pool(name="train", devices=(("laptop", 0),)), Pool(name="draw", devices=(("laptop", 1),))),
                placed=tuple(
                    PlacedRole(role=each.name, pool=POOLS.get(each.use, "train"), engine="local")
                    for each in roles(graph)
                ),
            )
            program = lower(graph, plan)
            models = ModelSetup({"policy": resolve("tiny", cache=model_cache)}, 0, model_cache)
            places = start(program, [graph], Flows((to_json(graph),), str(OWN)), models, ray_session())
            stack.callback(places.close)
            return program, places

        yield opened


@pytest.mark.slow(group="faults")
@pytest.mark.parametrize(
    ("name", "who", "doing", "at"),
    [
        ("beside_a_model", "rank 0 of pool `train`", "waits_beside_a_model (policy.train), step 1", "train"),
        ("on_the_host", "a host process", "waits_on_the_host (host), step 1", "host process"),
    ],
)
def test_a_task_that_never_ends_is_named_with_what_its_process_is_at(
    name: str, who: str, doing: str, at: str, opened: Callable[[str], Any], uneven_rows: pa.Table
) -> None:
    program, places = opened(name)
    executor, sources = Executor(places), {"prompts": PromptSource(uneven_rows, 2)}
    executor.run(program, sources, Key(7, 0))
    places.deadlines = Deadlines(floor_s=12.0, unknown_s=12.0)
    with pytest.raises(WorkerError) as caught:
        executor.run(program, sources, Key(7, 1))
    told = str(caught.value)
    assert who in told.splitlines()[0]
    assert doing in told.splitlines()[0]
    assert "waiting for it: policy.update (policy.train), step 1" in told
    assert f"{at}" in told
    assert "waits_for_ever" in told
    assert "its limit was" in told
