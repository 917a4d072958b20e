"""GRPO with a real SGLang server that draws and FSDP2 on two ranks that trains, ten steps on Ray.

The server's weights are those that were trained, in every step: the version on each sample says so, and its log-probs
are the trainer's, at a temperature too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.grpo import grpo
from flowgraph import Graph
from flowgraph.analysis.flat_graph import structure_hash, to_json
from flowgraph.app import cache_folder
from flowgraph.cluster.cluster import Cluster, Device, Machine
from flowgraph.cluster.plan import Layout, PlacedRole, Plan, Pool, RoleSettings, WeightsBy
from flowgraph.engines.servers.environments import install
from flowgraph.engines.sglang import SGLANG_CPU
from flowgraph.errors import WorkerError
from flowgraph.flows.settings import resolve_settings
from flowgraph.language import Key
from flowgraph.lowering.lower import lower
from flowgraph.models import resolve
from flowgraph.passes import compile_graph
from flowgraph.runtime.hosting import ModelSetup
from flowgraph.runtime.interpreter import Executor
from flowgraph.runtime.ray.device import Flows
from flowgraph.runtime.ray.places import RayPlaces
from flowgraph.runtime.ray.session import Session
from flowgraph.runtime.ray.start import start
from flowgraph.runtime.record.run_folder import write_rollout
from nodes.data.source import PromptSource
from nodes.mismatch import watch_engines

pytestmark = [pytest.mark.processes, pytest.mark.slow(group="servers")]

CLOSE = 1e-4
SETTINGS: Mapping[str, object] = {
    "policy.generate.n": 4,
    "policy.generate.max_tokens": 6,
    "policy.generate.temperature": 0.7,
    "policy.update.lr": 3e-3,
    "policy.update.micro_batch_tokens": 64,
}
GRAPH = resolve_settings(compile_graph(grpo.graph()), [], dict(SETTINGS))[0]
READ = ["policy.generate", "policy.logprobs"]


def plan_of(graph: Graph, apart: bool, by: WeightsBy | None) -> Plan:
    """Train on two devices; draw on two others, or on the first of the same that others leave meanwhile."""
    cpu = Device(kind="cpu", memory_bytes=2**30)
    laptop = Machine(name="laptop", devices=(cpu,) * 4, host_memory_bytes=2**33, cores=2)
    train, draw = (("laptop", 0), ("laptop", 1)), (("laptop", 2), ("laptop", 3))
    pools = (Pool(name="all", devices=train), *((Pool(name="draw", devices=draw),) if apart else ()))
    aside = RoleSettings(sleeps=not apart)
    roles = (
        PlacedRole(
            role="policy.train", pool="all", engine="fsdp", layout=Layout(data=2, sharding="full"), running=aside
        ),
        PlacedRole(
            role="policy.sample",
            pool="draw" if apart else "all",
            engine="sglang",
            layout=Layout(data=2 if apart else 1),
            running=aside.model_copy(update={"weights_by": by}),
        ),
        PlacedRole(role="ref.infer", pool="all", engine="local", layout=Layout(data=2)),
    )
    cluster = Cluster(nodes=(laptop,))
    return Plan(flow=graph.name, structure_hash=structure_hash(graph), cluster=cluster, pools=pools, placed=roles)


@pytest.fixture(scope="module")
def models(model_cache: Path) -> ModelSetup:
    """Return the tiny model for both parameters; the engine's environment is installed if it is not there."""
    install(SGLANG_CPU, cache_folder(None), say=print)
    if not (model_cache / "engines").exists():
        (model_cache / "engines").symlink_to(cache_folder(None) / "engines")
    source = resolve("tiny", cache=model_cache)
    return ModelSetup({"policy": source, "ref": source}, 0, model_cache)


Steps = Callable[..., list[tuple[pa.Table, dict[str, float]]]]


ALL_ROWS = 10**6  # have their values of tokens recorded


@pytest.fixture(scope="module")
def steps(ray_session: Callable[[], Session], models: ModelSetup, digit_rows: Any, tmp_path_factory: Any) -> Steps:
    """Return `steps(plan, count)`: run so many steps on Ray, and give each step's rollout, and its metrics.

    `last(places, step)` is called before it all ends, with what runs one more step.
    """

    def ran(
        plan: Plan,
        count: int,
        last: Callable[[RayPlaces, Callable[[], object]], None] = lambda places, step: None,
        graph: Graph = GRAPH,
        enough: Callable[[list[dict[str, float]]], bool] = lambda metrics: False,
    ) -> list[tuple[pa.Table, dict[str, float]]]:
        program, folder = lower(graph, plan, watch=watch_engines), tmp_path_factory.mktemp("steps")
        flows = Flows((to_json(program.graph),), "")
        places = start(program, [program.graph], flows, models, ray_session())
        metrics, executor = list[dict[str, float]](), Executor(places)
        try:
            for step in range(count):
                done = executor.run(program, {"prompts": PromptSource(digit_rows, 8)}, Key(7, step))
                done.apply(write_rollout, READ, READ[1:], folder / f"{step}.parquet", {}, ALL_ROWS)
                metrics.append(done.observed.means())
                if enough(metrics):
                    break
            places.finish()
            last(places, lambda: executor.run(program, {"prompts": PromptSource(digit_rows, 8)}, Key(7, count)))
        finally:
            places.close()
        return [(pq.read_table(folder / f"{step}.parquet"), each) for step, each in enumerate(metrics)]

    return ran


def holds(found: list[tuple[pa.Table, dict[str, float]]]) -> None:
    """Hold that each step was drawn with the weights that the step before trained."""
    for step, (rollout, metrics) in enumerate(found):
        assert rollout.num_rows == 32
        versions = np.concatenate(rollout.column("versions").to_pylist())
        assert {*versions.tolist()} == {step}
        drawn, read = (np.concatenate(rollout.column(name).to_pylist()) for name in ("logprobs", "policy.logprobs"))
        assert float(np.abs(drawn - read).max()) < CLOSE
        assert metrics["policy.update.grad_norm"] > 0
    first, last = (table.column("logprobs").combine_chunks().flatten().to_numpy() for table, _ in (found[0], found[-1]))
    assert float(first.mean()) != pytest.approx(float(last.mean()), abs=100 * CLOSE), "ten steps change what is likely"


def test_ten_steps_are_drawn_with_the_weights_that_were_trained(steps: Steps) -> None:
    holds(steps(plan_of(GRAPH, apart=True, by="group"), 10))


def test_on_shared_devices_weights_go_through_memory_and_a_server_that_died_is_named(steps: Steps) -> None:
    served = list[psutil.Process]()

    def kill(places: RayPlaces, step: Callable[[], object]) -> None:
        served.extend(each for member in places.members for each in psutil.Process(member.pid).children(recursive=True))
        (leader,) = [each for each in served if os.getsid(each.pid) == each.pid]
        leader.kill()
        with pytest.raises(WorkerError) as error:
            step()
        told = str(error.value)
        assert "policy-all-0 ended: killed by SIGKILL" in told
        assert "rank 0 of pool `all`" in told

    holds(steps(plan_of(GRAPH, apart=False, by=None), 3, kill))
    psutil.wait_procs(served, timeout=30)
    assert [each for each in served if each.is_running() and each.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.parametrize(("apart", "by"), [(True, "disk"), (True, "memory"), (False, "disk")])
def test_weights_arrive_in_every_way_and_where_devices_are_shared(steps: Steps, apart: bool, by: WeightsBy) -> None:
    holds(steps(plan_of(GRAPH, apart, by), 4))


def test_a_policy_learns_to_copy_digits_from_what_an_engine_draws(steps: Steps) -> None:
    learning = {"policy.update.lr": 2e-3, "policy.generate.n": 16, "policy.generate.max_tokens": 4}
    graph = resolve_settings(compile_graph(grpo.graph()), [], learning)[0]

    def reward(metrics: list[dict[str, float]]) -> float:
        print(len(metrics), metrics[-1]["score.reward"])
        return float(np.mean([each["score.reward"] for each in metrics[-10:]]))

    # The engine draws its own random numbers, so some runs end with three digits of four right and some with all.
    plan = plan_of(graph, apart=False, by="memory")
    found = steps(plan, 600, graph=graph, enough=lambda metrics: reward(metrics) >= 0.6)
    assert found[0][1]["score.reward"] < 0.2
    assert reward([metrics for _, metrics in found]) >= 0.6
