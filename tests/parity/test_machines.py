"""A plan over several machines of a Ray cluster: each pool where it says, in its order, with the same results."""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Timer
from typing import Any

import pyarrow as pa
import pytest

from examples.grpo import grpo
from flowgraph.analysis.flat_graph import structure_hash, to_json
from flowgraph.analysis.roles import roles
from flowgraph.cluster.cluster import Cluster, Device, Machine
from flowgraph.cluster.plan import Layout, PlacedRole, Plan, Pool
from flowgraph.errors import ResourceError, WorkerError
from flowgraph.flows.settings import resolve_settings
from flowgraph.language import Key
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import Program
from flowgraph.models import resolve
from flowgraph.passes import compile_graph
from flowgraph.runtime.hosting import ModelSetup, host
from flowgraph.runtime.interpreter import Executor
from flowgraph.runtime.local import InProcess
from flowgraph.runtime.ray.device import Flows
from flowgraph.runtime.ray.session import Session, connect, match_cluster
from flowgraph.runtime.ray.start import start
from nodes.data.source import PromptSource
from tests.conftest import ray_is_here

pytestmark = [pytest.mark.processes, pytest.mark.slow(group="ray")]

SETTINGS = {"policy.generate.n": 2, "policy.generate.max_tokens": 4, "policy.update.lr": 0.01}
GRAPH = resolve_settings(compile_graph(grpo.graph()), [], dict(SETTINGS))[0]
LAYOUTS = {
    "policy.train": ("train", "fsdp", Layout(data=2, sharding="full")),
    "policy.sample": ("draw", "local", Layout(data=2)),
    "ref.infer": ("train", "local", Layout(data=2)),
}


def plan_over(pools: dict[str, tuple[tuple[str, int], ...]], devices: int = 2) -> Plan:
    """Train across two machines of so many devices each, and draw on one of them."""
    cpu = Device(kind="cpu", memory_bytes=2**30)
    nodes = (Machine(name=name, devices=(cpu,) * devices, host_memory_bytes=2**33, cores=2) for name in "ab")
    placed = (PlacedRole(role=each.name, **named(each.name)) for each in roles(GRAPH))
    return Plan(
        flow=GRAPH.name,
        structure_hash=structure_hash(GRAPH),
        cluster=Cluster(nodes=tuple(nodes)),
        pools=tuple(Pool(name=name, devices=places) for name, places in pools.items()),
        placed=tuple(placed),
    )


def named(role: str) -> dict[str, Any]:
    pool, engine, layout = LAYOUTS[role]
    return {"pool": pool, "engine": engine, "layout": layout}


ACROSS = plan_over({"train": (("b", 0), ("a", 0)), "draw": (("a", 1), ("b", 1))})


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Start a cluster of a head without devices and two machines with two each."""
    if ray_is_here():
        sys.modules["ray"].shutdown()
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # a process reads its token once
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        from ray.cluster_utils import Cluster as RayCluster

        cluster: Any = RayCluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        try:
            for _ in range(2):
                cluster.add_node(num_cpus=2)
            cluster.wait_for_nodes()
            yield cluster
        finally:
            cluster.shutdown()


@pytest.fixture(scope="module")
def connected(cluster: Any) -> Iterator[Any]:
    """Yield a connection to the cluster, which places do not close."""

    class Shared(Session):
        def close(self) -> None:
            """Stay connected."""

    session = connect(ACROSS, cluster.address, None, threads=1)
    yield Shared(session.started)
    session.close()


def test_a_plan_over_two_machines_runs_as_in_one_process(
    connected: Any, model_cache: Path, uneven_rows: pa.Table
) -> None:
    source = resolve("tiny", cache=model_cache)
    models = ModelSetup({"policy": source, "ref": source}, 0, model_cache)
    program = lower(GRAPH, ACROSS)
    places = start(program, [GRAPH], Flows((to_json(GRAPH),), ""), models, connected)
    try:
        import ray

        seen = list[dict[str, str]]()
        for pool in ACROSS.pools:
            told = ray.get([member.actor.about.remote() for member in places.pools[pool.name]], timeout=60)
            assert len({each["machine"] for each in told}) == 2
            assert [member.seat.rank for member in places.pools[pool.name]] == [0, 1]
            on = {name: each["machine"] for (name, _), each in zip(pool.devices, told, strict=True)}
            seen.append(on)
        assert seen[0] == seen[1], "each machine of the plan is one of the cluster, for every pool"
        there = metrics(program, places, uneven_rows)
    finally:
        places.close()
    handles, _ = host(program.homes, program.trained, models)
    here = metrics(program, InProcess(handles), uneven_rows)
    for ours, theirs in zip(there, here, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)


def metrics(program: Program, places: Any, rows: pa.Table) -> list[dict[str, float]]:
    """Run two steps and give the metrics of each."""
    executor, sources = Executor(places), {"prompts": PromptSource(rows, 4)}
    return [executor.run(program, sources, Key(7, step)).observed.means() for step in range(2)]


def test_a_machine_that_has_too_little_is_named_before_anything_starts(connected: Any) -> None:
    import ray

    devices = tuple((node, place) for node in "ab" for place in range(3))
    with pytest.raises(ResourceError) as caught:
        match_cluster(plan_over({"train": devices[:2], "draw": devices[2:]}, devices=3), ray.nodes())  # type: ignore[no-untyped-call]
    assert "node a: the plan needs 3 CPU" in str(caught.value)
    assert connected.started is False


def test_a_machine_that_leaves_ends_the_run_and_one_that_comes_goes_on_alike(
    cluster: Any, connected: Any, model_cache: Path, uneven_rows: pa.Table
) -> None:
    source = resolve("tiny", cache=model_cache)
    models, program = ModelSetup({"policy": source, "ref": source}, 0, model_cache), lower(GRAPH, ACROSS)
    leaving = cluster.add_node(num_cpus=2)
    other = next(each for each in cluster.worker_nodes if each is not leaving)
    cluster.remove_node(other)  # so that the plan needs the one that leaves
    places = start(program, [GRAPH], Flows((to_json(GRAPH),), ""), models, connected)
    timer = Timer(1.0, cluster.remove_node, [leaving], {"allow_graceful": False})
    timer.start()
    try:
        with pytest.raises(WorkerError) as caught:
            executor, sources = Executor(places), {"prompts": PromptSource(uneven_rows, 4)}
            for step in range(1_000):
                executor.run(program, sources, Key(7, step))
    finally:
        timer.join()
        places.close()
    said = r"rank \d of pool `(train|draw)` \(process \d+\) ended during the run\n +its task was "
    assert re.match(rf"{said}(policy|ref)\.\w+", str(caught.value)), caught.value
    cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    places = start(program, [GRAPH], Flows((to_json(GRAPH),), ""), models, connected)
    try:
        again = metrics(program, places, uneven_rows)
    finally:
        places.close()
    handles, _ = host(program.homes, program.trained, models)
    for ours, theirs in zip(again, metrics(program, InProcess(handles), uneven_rows), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)
