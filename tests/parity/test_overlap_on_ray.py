"""Steps that overlap on Ray: both pools are busy at once, and what comes out is what one process gives, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from flowgraph import Graph
from flowgraph.analysis.flat_graph import structure_hash, to_json
from flowgraph.analysis.roles import roles
from flowgraph.cluster.cluster import Cluster, Device, Machine
from flowgraph.cluster.plan import PlacedRole, Plan, Pool
from flowgraph.flows.flow_files import find_flow
from flowgraph.language import Key
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import Program
from flowgraph.models import resolve
from flowgraph.passes import compile_graph
from flowgraph.runtime.hosting import ModelSetup, host
from flowgraph.runtime.interpreter import Executor
from flowgraph.runtime.local import InProcess
from flowgraph.runtime.measure.measured_task import MeasuredTask
from flowgraph.runtime.ray.device import Flows
from flowgraph.runtime.ray.session import Session
from flowgraph.runtime.ray.start import start
from flowgraph.runtime.record.run_folder import write_rollout
from nodes.data.source import PromptSource

pytestmark = [pytest.mark.processes, pytest.mark.slow(group="ray")]

OWN = Path(__file__).parent / "overlap_flows.py"
GRAPH: Graph = compile_graph(find_flow(f"{OWN}:two_pools").flow.graph())
STEPS, SAMPLED = 8, "policy.slowly"
NAP_S = 0.6  # of sampling, and of scoring: the setting of the flow


def program_of(depth: int, every: int = 1) -> Program:
    """Sample on a pool of its own, `depth` steps ahead; judge and train on another."""
    cpu = Device(kind="cpu", memory_bytes=2**30)
    laptop = Machine(name="laptop", devices=(cpu, cpu), host_memory_bytes=2**33, cores=2)
    placed = [
        PlacedRole(
            role=role.name,
            pool="apart" if role.use == "sample" else "all",
            engine="local",
            lag=depth + every - 1 if role.use == "sample" else 0,
            ahead=depth if role.use == "sample" else 0,
        )
        for role in roles(GRAPH)
    ]
    pools = (Pool(name="all", devices=(("laptop", 0),)), Pool(name="apart", devices=(("laptop", 1),)))
    return lower(
        GRAPH,
        Plan(
            flow=GRAPH.name,
            structure_hash=structure_hash(GRAPH),
            cluster=Cluster(nodes=(laptop,)),
            pools=pools,
            placed=tuple(placed),
        ),
    )


Run = tuple[list[pa.Table], list[dict[str, float]], list[MeasuredTask], dict[str, torch.Tensor]]


def run(executor: Executor, program: Program, rows: pa.Table, folder: Path, steps: Sequence[int] = range(STEPS)) -> Run:
    """Run steps, and return their rollouts, metrics and measured tasks, and the weights at the end."""
    from safetensors.torch import load_file

    folder.mkdir(parents=True, exist_ok=True)
    sources = {"prompts": PromptSource(rows, 2, seed=3)}
    metrics, measured = list[dict[str, float]](), list[MeasuredTask]()
    for step in steps:
        ran = executor.run(program, sources, Key(7, step), STEPS)
        ran.apply(write_rollout, [SAMPLED], [], folder / f"{step}.parquet")
        metrics.append(ran.observed.means())
        measured += ran.observed.measured
    executor.places.finish()
    executor.save(program, "policy", folder / "weights")
    weights = load_file(folder / "weights" / "model.safetensors")
    return [pq.read_table(folder / f"{step}.parquet") for step in steps], metrics, measured, weights


def both_busy_s(measured: Sequence[MeasuredTask]) -> float:
    """Return the seconds in which runs of both pools were under way."""
    of = {name: [task for task in measured if task.pool == name and task.kind != "sync"] for name in ("all", "apart")}
    return sum(
        max(0.0, min(one.end_s, other.end_s) - max(one.begin_s, other.begin_s))
        for one in of["all"]
        for other in of["apart"]
    )


def steady(measured: Sequence[MeasuredTask]) -> list[MeasuredTask]:
    """Return the tasks since the fourth scoring began: before, processes of host nodes are still starting."""
    begin = sorted(task.begin_s for task in measured if task.task == "ref.judged")[3]
    return [task for task in measured if task.begin_s >= begin]


def idle_share(measured: Sequence[MeasuredTask], pool: str) -> float:
    """Return the share of the time, from the first task of any pool to the last, in which a pool ran nothing."""
    begin, end = min(task.begin_s for task in measured), max(task.end_s for task in measured)
    return 1 - sum(task.seconds for task in measured if task.pool == pool) / (end - begin)


@pytest.fixture(scope="module")
def models(model_cache: Path) -> ModelSetup:
    source = resolve("tiny", cache=model_cache)
    return ModelSetup({"policy": source, "ref": source}, 0, model_cache)


@pytest.fixture(scope="module")
def on_ray(ray_session: Callable[[], Session], models: ModelSetup) -> Callable[..., Any]:
    """Return `on_ray(program)`: open places on Ray, while the context is open."""

    @contextmanager
    def opened(program: Program) -> Iterator[Executor]:
        places = start(program, [GRAPH], Flows((to_json(GRAPH),), str(OWN)), models, ray_session())
        try:
            yield Executor(places)
        finally:
            places.close()

    return opened


def test_a_run_on_ray_gives_what_one_process_gives_also_when_it_is_resumed(
    on_ray: Callable[..., Any], models: ModelSetup, digit_rows: pa.Table, tmp_path: Path
) -> None:
    ahead = program_of(1)
    handles, _ = host(ahead.homes, ahead.trained, models)
    wanted = run(Executor(InProcess(handles)), ahead, digit_rows, tmp_path / "here")
    with on_ray(ahead) as executor:
        first = run(executor, ahead, digit_rows, tmp_path / "first")
    with on_ray(ahead) as executor:  # stops after two steps, and continues from what it saved
        begun = run(executor, ahead, digit_rows, tmp_path / "begun", range(2))
        (tmp_path / "state").mkdir()
        executor.save_state(ahead, tmp_path / "state")
    with on_ray(ahead) as executor:
        executor.load_state(ahead, tmp_path / "state")
        rest = run(executor, ahead, digit_rows, tmp_path / "rest", range(2, STEPS))
    for step in range(STEPS):
        again = begun[0][step] if step < 2 else rest[0][step - 2]
        exact = [name for name in wanted[0][step].column_names if name != "logprobs"]
        assert first[0][step].equals(again), f"two runs on Ray, step {step}"
        assert first[0][step].select(exact).equals(wanted[0][step].select(exact)), f"step {step}"
        versions = set(first[0][step].column("versions").combine_chunks().flatten().to_pylist())
        assert versions == {max(0, step - 1)}
    assert all(torch.equal(first[3][name], rest[3][name]) for name in first[3]), "resumed bit for bit"
    assert max(float((first[3][name] - wanted[3][name]).abs().max()) for name in first[3]) < 1e-6
    assert [each["policy.slowly.staleness"] for each in first[1]] == [0, *(STEPS - 1) * [1]]


@pytest.mark.slow(group="ray")  # it measures seconds
def test_two_pools_are_busy_at_once(on_ray: Callable[..., Any], digit_rows: pa.Table, tmp_path: Path) -> None:
    measured = list[list[MeasuredTask]]()
    for depth in (0, 1):
        program = program_of(depth)
        with on_ray(program) as executor:
            measured.append(steady(run(executor, program, digit_rows, tmp_path / str(depth))[2]))
    turns, overlaps = measured
    print({pool: (idle_share(turns, pool), idle_share(overlaps, pool)) for pool in ("all", "apart")})
    assert both_busy_s(turns) < 0.1 * NAP_S
    assert both_busy_s(overlaps) > 0.5 * (STEPS - 4) * NAP_S, "during each update, the next step was being sampled"
    for pool in ("all", "apart"):
        assert idle_share(overlaps, pool) < idle_share(turns, pool) - 0.1, pool
