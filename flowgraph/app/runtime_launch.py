"""Where a run's programs run: in this process, or on Ray, started here or at an address."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from flowgraph.analysis.flat_graph import to_json
from flowgraph.app.request import Execution, Say
from flowgraph.cluster.cluster import show_bytes
from flowgraph.cluster.plan import Plan
from flowgraph.cluster.this_machine import available_cores, free_bytes
from flowgraph.engines.table import is_server
from flowgraph.errors import ResourceError, UsageError
from flowgraph.flows.flow_files import FlowFile
from flowgraph.language.graph import Graph, Node, rewrite
from flowgraph.lowering.program import Home, Program, Run
from flowgraph.models.sizes import ModelShape
from flowgraph.runtime import scratch
from flowgraph.runtime.hosting import REFERENCE, LoadedModels, ModelSetup, heads_of
from flowgraph.runtime.measure.profiling import NO_PROFILES, Profiles
from flowgraph.runtime.ray.deadlines import Deadlines

if TYPE_CHECKING:
    from flowgraph.runtime.interpreter import Places
    from flowgraph.runtime.ray.device import Flows

RUNTIMES = ("local", "ray")
# Source: measured at 0.1M parameters: a second thread gains 1.4 times when idle, and costs 100 times when busy.
ONE_THREAD_PARAMETERS = 5_000_000
START_LIMIT_S = 1800.0  # for an engine's server to start and load: a large model may come from a slow disk


@dataclass(frozen=True, kw_only=True)
class RuntimeChoice:
    """Where to run: `runtime` is one of RUNTIMES, `address` that of a Ray cluster, `threads` those of each process."""

    runtime: str
    address: str | None
    threads: int


@dataclass(frozen=True)
class OpenedRuntime:
    """Places that are ready, what was loaded, and the seconds that it took, by what."""

    places: Places
    told: LoadedModels
    timings: dict[str, float]


def choose(plan: Plan, where: Execution, shapes: Mapping[str, ModelShape]) -> RuntimeChoice:
    """Choose where a plan runs: in this process if it has one device, else on Ray; refuse what this machine lacks."""
    if where.runtime is not None and where.runtime not in RUNTIMES:
        raise UsageError(f"no runtime `{where.runtime}`", where="--runtime", hint=f"known: {', '.join(RUNTIMES)}")
    if where.address is not None and where.runtime == "local":
        raise UsageError("an address is for Ray", where="--address", hint="leave out --runtime local")
    if where.address in ("", "local"):
        what = f"`{where.address}` is no address of a cluster"
        raise UsageError(what, where="--address", hint="leave it out: then Ray is started here")
    devices = len(plan.used())
    picked = where.runtime or ("ray" if devices > 1 or where.address is not None else "local")
    if where.address is None:
        refuse_other_machine(plan)
    largest = max(shape.parameters for shape in shapes.values())
    each = 1 if picked == "local" else devices
    own = 1 if largest < ONE_THREAD_PARAMETERS else max(1, available_cores() // each)
    return RuntimeChoice(runtime=picked, address=where.address, threads=where.threads or own)


def refuse_other_machine(plan: Plan) -> None:
    """Refuse a plan that counts on several machines, on more memory or on other devices than this one has.

    A plan counts on a fixed share of this machine's memory; what must be free now is what the forecast says is used.
    """
    used = sorted({name for pool in plan.pools for name, _ in pool.devices})
    if len(used) > 1:
        wanted = f"{len(used)} machines ({', '.join(used)})"
        raise ResourceError.not_here("this machine", wanted, "this is one", "--address says where a Ray cluster is")
    counted = sum(device.memory_bytes for device in plan.used() if device.kind == "cpu")
    _refuse_memory(used[0], counted, total_bytes(), "this machine has")
    _refuse_memory(used[0], needed_bytes(plan), free_bytes(), "free here are")
    gpus = sum(device.kind == "gpu" for device in plan.used())
    if gpus:
        _refuse_missing_gpus(used[0], gpus)


def needed_bytes(plan: Plan) -> int:
    """Return what the CPU devices of a plan hold at their peaks, by its forecast."""
    worst = {told.pool: told.worst.memory_bytes for told in plan.forecast if told.worst is not None}
    devices = [
        (worst.get(pool.name, 0), plan.cluster.device(*device)) for pool in plan.pools for device in pool.devices
    ]
    return sum(peak for peak, device in devices if device is not None and device.kind == "cpu")


def total_bytes() -> int:
    """Return the memory of this machine."""
    import psutil

    return int(psutil.virtual_memory().total)


def _refuse_memory(node: str, wanted: int, there: int, said: str) -> None:
    if wanted > there:
        wants = f"{show_bytes(wanted)} of memory"
        raise ResourceError.not_here(f"node {node}", wants, f"{said} {show_bytes(there)}")


def _refuse_missing_gpus(node: str, wanted: int) -> None:
    import torch

    there = torch.cuda.device_count()
    if wanted > there:
        said = "a GPU" if wanted == 1 else f"{wanted} GPUs"
        raise ResourceError.not_here(f"node {node}", said, f"torch sees {there or 'none'} here")


@contextmanager
def opened(
    program: Program,
    graphs: Sequence[Graph],
    file: FlowFile,
    models: ModelSetup,
    chosen: RuntimeChoice,
    say: Say,
    profiles: Profiles = NO_PROFILES,
) -> Generator[OpenedRuntime]:
    """Yield the places of a program, ready to run any of `graphs`; close them at the end, however it comes."""
    models = replace(
        _found_anywhere(models),
        heads=heads_of(program.graph),
        frozen=frozenset(program.frozen),
        limits_s=_limits_s(program),
    )
    scratch.sweep()
    if chosen.runtime == "local":
        with scratch.scratch() as folder:
            ready = _in_process(program, models, chosen, folder, profiles, say)
            try:
                yield ready
            finally:
                ready.places.close()
        return
    with scratch.scratch() as folder:
        (files := folder / "files").mkdir()
        ready = _on_ray(program, graphs, file, models, chosen, files, profiles, say)
        try:
            yield ready
        finally:
            ready.places.close()


def _limits_s(program: Program) -> dict[str, float]:
    """Return how long the samples of a step may take on an engine's servers, by the parameter that draws them."""
    deadlines, found = Deadlines.of(program.plan), dict[str, float]()
    for task in program.tasks:
        if isinstance(task, Run) and (home := task.home) is not None and is_server(home.engine):
            found[home.param] = max(found.get(home.param, 0.0), deadlines.limit_s(", ".join(task.nodes)))
    return found


def _found_anywhere(models: ModelSetup) -> ModelSetup:
    """Make paths absolute: a worker has another working directory."""
    sources = {
        name: replace(source, path=source.path.absolute()) if source.path is not None else source
        for name, source in models.sources.items()
    }
    return replace(models, sources=sources, cache=models.cache.absolute())


def _in_process(
    program: Program, models: ModelSetup, chosen: RuntimeChoice, scratch: Path, profiles: Profiles, say: Say
) -> OpenedRuntime:
    import torch

    from flowgraph.runtime.hosting import host
    from flowgraph.runtime.local import InProcess
    from flowgraph.runtime.serving import Servers

    start = time.perf_counter()
    torch.set_num_threads(chosen.threads)
    device = "cuda" if {each.kind for each in program.plan.used()} == {"gpu"} else "cpu"
    apart = [home for home in program.homes if is_server(home.engine)]
    here = [home for home in program.homes if home not in apart]
    for line in _without_effect(here):
        say(line)
    handles, told = host(here, program.trained, models, device=device, say=say)
    places = InProcess(handles, Servers(models, scratch, START_LIMIT_S, chosen.threads), profiles)
    try:
        for home in apart:
            say(f"starting {home.engine} for {home.param}")
            handles[home], told[home.param] = places.servers.open(home, device), places.servers.facts(home)
    except BaseException:
        places.close()
        raise
    return OpenedRuntime(places, told, {"load_s": time.perf_counter() - start})


def _without_effect(homes: Sequence[Home]) -> Iterator[str]:
    """Yield what of a plan has no effect in one process, where the reference engine runs every model."""
    for home in homes:
        settings = str(home.running.model_copy(update={"sleeps": False, "cache_share": None, "weights_by": None}))
        if home.engine != REFERENCE and settings:
            yield f"in one process {home.param} runs on `{REFERENCE}`, so the plan's {settings} has no effect"


def _on_ray(
    program: Program,
    graphs: Sequence[Graph],
    file: FlowFile,
    models: ModelSetup,
    chosen: RuntimeChoice,
    folder: Path,
    profiles: Profiles,
    say: Say,
) -> OpenedRuntime:
    from flowgraph.models.loading import prepare
    from flowgraph.runtime.ray.session import connect
    from flowgraph.runtime.ray.start import start

    for source in dict.fromkeys(models.sources.values()):
        prepare(source, models.cache, say)
    flows = staged(file, graphs, folder)
    devices = len(program.plan.used())
    workers = "1 worker" if devices == 1 else f"{devices} workers"
    say(f"starting Ray and {workers}" if chosen.address is None else f"starting {workers} on Ray")
    began = time.perf_counter()
    own = folder if any(folder.iterdir()) else None
    session = connect(program.plan, chosen.address, own, chosen.threads, timeline=bool(profiles.steps))
    connected = time.perf_counter()
    try:
        places = start(program, graphs, flows, models, session, profiles)
    except BaseException:
        session.close()
        raise
    timings = {"ray_init_s": connected - began, "actors_s": time.perf_counter() - connected}
    return OpenedRuntime(places, places.loaded, timings)


def staged(file: FlowFile, graphs: Sequence[Graph], folder: Path) -> Flows:
    """Copy a user's own files into `folder`, and give the flows as workers that start there read them.

    Settings that name a rule's file then name its copy. Nothing is copied for a flow of an
    installed package, or a shipped one, without such settings.
    """
    from flowgraph.runtime.ray.code_shipping import stage
    from flowgraph.runtime.ray.device import Flows

    own = [] if file.package else [file.path]
    rules = rule_files(graphs)
    if not own and not rules:
        return Flows(tuple(to_json(graph) for graph in graphs), "")
    first, *others = [*own, *rules.values()]
    copied = stage(first, others, folder)
    there = dict(zip(rules, copied[len(own) :], strict=True))
    texts = tuple(to_json(rewrite(graph, lambda node: _renamed(node, there))) for graph in graphs)
    return Flows(texts, str(copied[0]) if own else "")


def rule_files(graphs: Sequence[Graph]) -> dict[str, Path]:
    """Return the files that settings name as `path.py:name`, by what they are called there."""
    texts = [value for graph in graphs for node in graph.all_nodes for _, value in node.settings]
    named = [value.rpartition(":")[0] for value in texts if isinstance(value, str) and ".py:" in value]
    paths = {name: Path(name).expanduser() for name in named}
    return {name: path for name, path in paths.items() if path.is_file()}


def _renamed(node: Node, there: Mapping[str, Path]) -> Node:
    """Let settings that name a file name its copy."""
    found = {name: value for name, value in node.settings if isinstance(value, str) and ".py:" in value}
    parts = {name: value.rpartition(":") for name, value in found.items()}
    moved = {name: f"{there[file]}:{rule}" for name, (file, _, rule) in parts.items() if file in there}
    return replace(node, settings=node.settings.model_copy(update=moved)) if moved else node
