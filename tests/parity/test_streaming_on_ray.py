"""Groups that are handed out on Ray: they are read while others are sampled, and the result is that of the batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
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
from flowgraph.errors import FlowError
from flowgraph.flows.flow_files import find_flow
from flowgraph.flows.settings import resolve_settings
from flowgraph.language import Key
from flowgraph.lowering.chunk import Chunk
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import Program, Run
from flowgraph.models import resolve
from flowgraph.passes import compile_graph
from flowgraph.runtime.hosting import ModelSetup
from flowgraph.runtime.interpreter import Executor
from flowgraph.runtime.measure.measured_task import MeasuredTask
from flowgraph.runtime.ray.device import Flows
from flowgraph.runtime.ray.session import Session
from flowgraph.runtime.ray.start import start
from flowgraph.runtime.record.run_folder import write_rollout
from nodes.data.source import PromptSource
from placements.step.period import makespan
from placements.step.tasks import ProgramPlacement, outline
from tests.parity.streaming_flows import TAIL

pytestmark = [pytest.mark.processes, pytest.mark.slow(group="ray")]

OWN = Path(__file__).parent / "streaming_flows.py"
STEPS, ROWS, GROUPS, ROW_S = 4, 2, len(TAIL), 0.1


def graph_of(settings: Mapping[str, object] | None = None) -> Graph:
    return resolve_settings(compile_graph(find_flow(f"{OWN}:long_tail").flow.graph()), [], settings or {})[0]


def program_of(graph: Graph, chunks: int) -> Program:
    """Sample on a pool of its own, in so many chunks; read and train on another."""
    cpu = Device(kind="cpu", memory_bytes=2**30)
    laptop = Machine(name="laptop", devices=(cpu, cpu), host_memory_bytes=2**33, cores=2)
    placed = [
        PlacedRole(
            role=role.name,
            pool="apart" if role.use == "sample" else "all",
            engine="local",
            chunks=chunks if role.use == "sample" else 1,
        )
        for role in roles(graph)
    ]
    plan = Plan(
        flow=graph.name,
        structure_hash=structure_hash(graph),
        cluster=Cluster(nodes=(laptop,)),
        pools=(Pool(name="all", devices=(("laptop", 0),)), Pool(name="apart", devices=(("laptop", 1),))),
        placed=tuple(placed),
    )
    return lower(graph, plan)


@pytest.fixture(scope="module")
def models(model_cache: Path) -> ModelSetup:
    source = resolve("tiny", cache=model_cache)
    return ModelSetup({"policy": source, "ref": source}, 0, model_cache)


@pytest.fixture(scope="module")
def on_ray(ray_session: Callable[[], Session], models: ModelSetup) -> Callable[..., Any]:
    @contextmanager
    def opened(graph: Graph, program: Program) -> Iterator[Executor]:
        places = start(program, [graph], Flows((to_json(graph),), str(OWN)), models, ray_session())
        try:
            yield Executor(places)
        finally:
            places.close()

    return opened


Ran = tuple[list[pa.Table], list[Mapping[str, float]], list[float], list[MeasuredTask], dict[str, torch.Tensor]]


def run(executor: Executor, program: Program, rows: pa.Table, folder: Path, steps: int = STEPS) -> Ran:
    """Run steps, and return their rollouts, metrics and seconds, the measured tasks, and the weights at the end."""
    from safetensors.torch import load_file

    folder.mkdir(parents=True, exist_ok=True)
    sources = {"prompts": PromptSource(rows, GROUPS, seed=3)}
    metrics, seconds, measured = list[Mapping[str, float]](), list[float](), list[MeasuredTask]()
    for step in range(steps):
        began = time.perf_counter()
        ran = executor.run(program, sources, Key(7, step), steps)
        seconds.append(time.perf_counter() - began)
        ran.apply(write_rollout, ["policy.tailed", "graded"], ["graded"], folder / f"{step}.parquet")
        metrics.append(ran.observed.means())
        measured += ran.observed.measured
    executor.places.finish()
    executor.save(program, "policy", folder / "weights")
    weights = load_file(folder / "weights" / "model.safetensors")
    return [pq.read_table(folder / f"{step}.parquet") for step in range(steps)], metrics, seconds, measured, weights


def forecast_s(graph: Graph, chunks: int) -> float:
    """Return the seconds of a step from its tasks alone, as the planner adds them up; only what sleeps takes time."""
    placements = [
        ProgramPlacement(
            role=role.name,
            pool="apart" if role.use == "sample" else "all",
            engine="local",
            chunks=chunks if role.use == "sample" else 1,
        )
        for role in roles(graph)
    ]
    step, ends_s = outline(graph, tuple(placements)), [0.0, *sorted(TAIL)]
    seconds = list[float]()
    for task in step.tasks:
        chunk = task.chunk if isinstance(task, Run) and task.chunk is not None else Chunk(0, 1)
        begin, end = (n * GROUPS // chunk.of for n in (chunk.index, chunk.index + 1))
        nodes = task.nodes if isinstance(task, Run) else ()
        reads = {"graded", "ref.read_slowly"} & {*nodes}
        seconds.append(ROW_S * ROWS * (end - begin) if reads else 0.0)
        seconds[-1] += ends_s[end] - ends_s[begin] if "policy.tailed" in nodes else 0.0
    return makespan(step.names, step.before, seconds).seconds or 0.0


@pytest.mark.parametrize("chunks", [4])
def test_readers_run_while_others_are_sampled_and_the_result_is_that_of_the_batch(
    on_ray: Callable[..., Any], digit_rows: pa.Table, tmp_path: Path, chunks: int
) -> None:
    graph, sides = graph_of(), list[Ran]()
    for count in (1, chunks):
        program = program_of(graph, count)
        with on_ray(graph, program) as executor:
            sides.append(run(executor, program, digit_rows, tmp_path / str(count)))
    whole, streamed = sides
    for count, side in zip((1, chunks), sides, strict=True):
        print(f"{count} chunks: forecast {forecast_s(graph, count):.2f} s, measured {min(side[2]):.2f} s a step")
    assert [table.to_pydict() for table in streamed[0]] == [table.to_pydict() for table in whole[0]]
    assert streamed[1] == whole[1], "metrics"
    assert max(float((streamed[4][name] - whole[4][name]).abs().max()) for name in whole[4]) < 1e-6
    saved_s = forecast_s(graph, 1) - forecast_s(graph, chunks)
    assert min(whole[2]) - min(streamed[2]) > 0.7 * saved_s, "most responses are read while the longest is sampled"


def test_a_rule_that_fails_in_one_chunk_fails_the_run_with_its_name(
    on_ray: Callable[..., Any], digit_rows: pa.Table, tmp_path: Path
) -> None:
    prompt = int(PromptSource(digit_rows, GROUPS, seed=3).batch(0).group.data[3])
    graph = graph_of({"graded.fails_on": prompt, "graded.row_s": 0.0})
    program = program_of(graph, 4)
    with on_ray(graph, program) as executor, pytest.raises(FlowError, match=f"no rule for prompt {prompt}") as error:
        run(executor, program, digit_rows, tmp_path, 1)
    assert "graded" in str(error.value)
