"""Open the runtime of a program: in this process, or on a Ray cluster; attach running servers of engines."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeGuard

from pydantic import BaseModel, ConfigDict, Field, SecretStr, TypeAdapter, ValidationError

from flowgraph.analysis.flat_graph import to_json
from flowgraph.app.request import Execution, Say
from flowgraph.cluster.cluster import dotted, show_bytes
from flowgraph.cluster.plan import Plan
from flowgraph.cluster.this_machine import available_cores, free_bytes
from flowgraph.engines.table import ENGINES, is_server
from flowgraph.errors import ResourceError, UsageError, nearest
from flowgraph.files.untrusted import parse_json, read_text
from flowgraph.flows.flow_files import FlowFile
from flowgraph.language.graph import Graph, Node, rewrite
from flowgraph.lowering.program import Home, Program, Run
from flowgraph.models.sizes import ModelShape
from flowgraph.runtime import scratch
from flowgraph.runtime.hosting import REFERENCE, LoadedModels, ModelSetup, heads_of
from flowgraph.runtime.measure.profiling import NO_PROFILES, Profiles
from flowgraph.runtime.ray.deadlines import Deadlines

if TYPE_CHECKING:
    from flowgraph.runtime.places import Places
    from flowgraph.runtime.ray.device import Flows

RUNTIMES = ("local", "ray")
# Source: measured at 0.1M parameters: a second thread gains 1.4 times when idle, and costs 100 times when busy.
ONE_THREAD_PARAMETERS = 5_000_000
START_LIMIT_S = 1800.0  # for an engine's server to start and load: a large model may come from a slow disk


@dataclass(frozen=True, kw_only=True)
class RuntimeChoice:
    """Where to run: `runtime` is "local" or "ray", `address` that of a Ray cluster, `threads` are per process."""

    runtime: str
    address: str | None
    threads: int


@dataclass(frozen=True)
class OpenedRuntime:
    """The opened places where tasks run, facts about the loaded models, and the seconds of each part of loading."""

    places: Places
    models: LoadedModels
    timings: dict[str, float]


def choose_runtime(plan: Plan, where: Execution, shapes: Mapping[str, ModelShape]) -> RuntimeChoice:
    """Return where a plan runs: the runtime, the address of a Ray cluster, and the threads of each process.

    A plan of one device runs in this process, other plans on Ray, unless `where` says otherwise. By default, processes
    share the cores of this machine, or have one thread each if all models have fewer than 5 million parameters;
    `shapes` are the models' sizes, at least one. Raises UsageError for an unknown runtime, for an invalid address, and
    for an address with the local runtime; ResourceError if the plan runs on this machine, which lacks what the plan
    needs.
    """
    if where.runtime is not None and where.runtime not in RUNTIMES:
        raise UsageError(f"no runtime `{where.runtime}`", where="--runtime", hint=f"known: {', '.join(RUNTIMES)}")
    if where.address is not None and where.runtime == "local":
        raise UsageError("an address needs the runtime `ray`", where="--address", hint="leave out --runtime local")
    if where.address in ("", "local"):
        what = f"`{where.address}` is not the address of a cluster"
        raise UsageError(what, where="--address", hint="leave it out to start Ray on this machine")
    devices = len(plan.used())
    runtime = where.runtime or ("ray" if devices > 1 or where.address is not None else "local")
    if where.address is None:
        refuse_other_machine(plan)
    largest = max(shape.parameters for shape in shapes.values())
    processes = 1 if runtime == "local" else devices
    threads = 1 if largest < ONE_THREAD_PARAMETERS else max(1, available_cores() // processes)
    return RuntimeChoice(runtime=runtime, address=where.address, threads=where.threads or threads)


def refuse_other_machine(plan: Plan) -> None:
    """Raise ResourceError for a plan that needs several machines, or more memory or GPUs than this machine has.

    The plan's CPU devices must not have more memory than this machine, nor higher forecast peaks than its free memory.
    """
    machines = sorted({name for pool in plan.pools for name, _ in pool.devices})
    if len(machines) > 1:
        needs = f"{len(machines)} machines ({', '.join(machines)})"
        raise ResourceError.not_here("this machine", needs, "this is one", "--address says where a Ray cluster is")
    node = f"node {machines[0]}"
    counted = sum(device.memory_bytes for device in plan.used() if device.kind == "cpu")
    for needs_bytes, has_bytes, has in (
        (counted, total_bytes(), "this machine has"),
        (needed_bytes(plan), free_bytes(), "the free memory is"),
    ):
        if needs_bytes > has_bytes:
            needs = f"{show_bytes(needs_bytes)} of memory"
            raise ResourceError.not_here(node, needs, f"{has} {show_bytes(has_bytes)}")
    if gpus := sum(device.kind == "gpu" for device in plan.used()):
        import torch

        if gpus > (seen := torch.cuda.device_count()):
            needs = "a GPU" if gpus == 1 else f"{gpus} GPUs"
            raise ResourceError.not_here(node, needs, f"torch sees {seen or 'none'} here")


def needed_bytes(plan: Plan) -> int:
    """Return the sum of the forecast peaks, in bytes, of a plan's CPU devices; 0 for a device without a forecast."""
    worst = {pool.pool: pool.worst.memory_bytes for pool in plan.forecast if pool.worst is not None}
    devices = [
        (worst.get(pool.name, 0), plan.cluster.device(*device)) for pool in plan.pools for device in pool.devices
    ]
    return sum(peak for peak, device in devices if device is not None and device.kind == "cpu")


def total_bytes() -> int:
    """Return the total memory of this machine in bytes."""
    import psutil

    return int(psutil.virtual_memory().total)


@contextmanager
def open_runtime(
    program: Program,
    graphs: Sequence[Graph],
    file: FlowFile,
    models: ModelSetup,
    chosen: RuntimeChoice,
    say: Say,
    profiles: Profiles = NO_PROFILES,
) -> Generator[OpenedRuntime]:
    """Open a context with the runtime of a program, ready to run any of `graphs`: started places and loaded models.

    `chosen` is the result of `choose_runtime`, and `models` describes what to load. A user's files, such as the flow's
    `file`, are copied for workers of Ray. `profiles` are the steps to profile; `say` receives progress messages. All
    that was started is ended on exit, also after an error. Remains of killed runs are removed first. Raises WorkerError
    for a server or worker that does not start, and ModelError for a model that cannot be loaded.
    """
    deadlines, limits_s = Deadlines.of(program.plan), dict[str, float]()  # of the samples of a step, on servers
    for task in program.tasks:
        if isinstance(task, Run) and (home := task.home) is not None and is_server(home.engine):
            limit_s = deadlines.limit_s(", ".join(task.nodes))
            limits_s[home.param] = max(limits_s.get(home.param, 0.0), limit_s)
    models = replace(  # a worker has another working directory, so that paths are absolute
        models,
        sources={
            name: source if source.path is None else replace(source, path=source.path.absolute())
            for name, source in models.sources.items()
        },
        cache=models.cache.absolute(),
        heads=heads_of(program.graph),
        frozen=frozenset(program.frozen),
        limits_s=limits_s,
    )
    scratch.sweep()
    with scratch.scratch() as folder:
        if chosen.runtime == "local":
            runtime = _in_process(program, models, chosen, folder, profiles, say)
        else:
            (files := folder / "files").mkdir()
            runtime = _on_ray(program, graphs, file, models, chosen, files, profiles, say)
        try:
            yield runtime
        finally:
            runtime.places.close()


def _in_process(
    program: Program, models: ModelSetup, chosen: RuntimeChoice, scratch: Path, profiles: Profiles, say: Say
) -> OpenedRuntime:
    import torch

    from flowgraph.runtime.hosting import host
    from flowgraph.runtime.in_flight import places_in_process
    from flowgraph.runtime.serving import Servers

    start = time.perf_counter()
    torch.set_num_threads(chosen.threads)
    device = "cuda" if {used.kind for used in program.plan.used()} == {"gpu"} else "cpu"
    remote = [home for home in program.homes if is_server(home.engine)]
    local = [home for home in program.homes if home not in remote]
    for home in local:
        unused = {"sleeps": False, "cache_share": None, "weights_by": None, "contract": "scheduled", "hold": "retract"}
        settings = str(home.running.model_copy(update=unused))
        if home.engine != REFERENCE and settings:
            say(f"in one process {home.param} runs on `{REFERENCE}`, so the plan's {settings} has no effect")
    handles, loaded = host(local, program.trained, models, device=device, say=say)
    servers = Servers(models, scratch, START_LIMIT_S, chosen.threads)
    places = places_in_process(program.homes, handles, servers, profiles)
    try:
        for home in remote:
            say(f"starting {home.engine} for {home.param}")
            handles[home], loaded[home.param] = places.servers.open(home, device), places.servers.facts(home)
    except BaseException:
        places.close()
        raise
    return OpenedRuntime(places, loaded, {"load_s": time.perf_counter() - start})


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
    flows = stage_user_files(file, graphs, folder)
    devices = len(program.plan.used())
    workers = "1 worker" if devices == 1 else f"{devices} workers"
    say(f"starting Ray and {workers}" if chosen.address is None else f"starting {workers} on Ray")
    began = time.perf_counter()
    files = folder if any(folder.iterdir()) else None
    session = connect(program.plan, chosen.address, files, chosen.threads, timeline=bool(profiles.steps))
    connected = time.perf_counter()
    try:
        places = start(program, graphs, flows, models, session, profiles)
    except BaseException:
        session.close()
        raise
    timings = {"ray_init_s": connected - began, "actors_s": time.perf_counter() - connected}
    return OpenedRuntime(places, places.loaded, timings)


def stage_user_files(file: FlowFile, graphs: Sequence[Graph], folder: Path) -> Flows:
    """Copy a user's files into `folder`, and return the flows as texts whose paths workers can read there.

    The copied files are the flow's file and the files of functions that settings of nodes name as `path.py:name`; such
    settings are changed to name the copy. A shipped flow, or one of an installed package, is not copied.
    """
    from flowgraph.runtime.ray.code_shipping import stage
    from flowgraph.runtime.ray.device import Flows

    settings = [value for graph in graphs for node in graph.all_nodes for _, value in node.settings]
    names = [value.rpartition(":")[0] for value in settings if _names_file(value)]
    rules = {name: path for name in names if (path := Path(name).expanduser()).is_file()}
    flow = [] if file.package else [file.path]
    if not flow and not rules:
        return Flows(tuple(to_json(graph) for graph in graphs), "")
    first, *rest = [*flow, *rules.values()]
    copied = stage(first, rest, folder)
    copies = dict(zip(rules, copied[len(flow) :], strict=True))

    def renamed(node: Node) -> Node:
        parts = {name: value.rpartition(":") for name, value in node.settings if _names_file(value)}
        moved = {name: f"{copies[path]}:{rule}" for name, (path, _, rule) in parts.items() if path in copies}
        return replace(node, settings=node.settings.model_copy(update=moved)) if moved else node

    texts = tuple(to_json(rewrite(graph, renamed)) for graph in graphs)
    return Flows(texts, str(copied[0]) if flow else "")


def _names_file(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and ".py:" in value


# ------------------------------------------------------------------------------------- servers that are there already


class AttachedServer(BaseModel):
    """A running server of an engine: its URL, and the keys for sampling from it and for administering it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: Annotated[str, Field(pattern=r"^https?://[^\s/@]+/?$")]
    key: SecretStr = SecretStr("")
    admin_key: SecretStr = SecretStr("")


_SERVERS = TypeAdapter(dict[str, Annotated[tuple[AttachedServer, ...], Field(min_length=1)]])


def read_attached(path: Path, homes: Iterable[Home]) -> Mapping[str, tuple[AttachedServer, ...]]:
    """Return the running servers of each model, one for each data rank, read from a JSON file.

    The file has the form `{"policy": [{"url": "http://127.0.0.1:30000", "key": "…", "admin_key": "…"}]}`. `homes` are
    the copies of weights that the plan has. Raises UsageError for a file that cannot be read or has another form, for a
    model that no engine with servers hosts, and for a number of servers that differs from the model's data ranks.
    """
    where = f"--attach {path}"
    try:
        text = read_text(path)
        parse_json(text)
        attached = _SERVERS.validate_json(text)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        hint = json.dumps({"policy": [{"url": "http://127.0.0.1:30000"}]})
        raise UsageError(f"{dotted(fault['loc'])}: {fault['msg']}", where=where, hint=hint) from None
    except UnicodeDecodeError:
        raise UsageError("cannot be read: it is not text", where=where) from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"cannot be read: {why}", where=where) from None
    served = {home.param: home for home in homes if is_server(home.engine)}
    for name, servers in attached.items():
        if name not in served:
            engines = ", ".join(sorted(filter(is_server, ENGINES)))
            hint = nearest(name, served) if served else f"a plan's file says which engine hosts a role: {engines}"
            raise UsageError(f"the plan has no servers for `{name}`", where=where, hint=hint)
        home = served[name]
        if len(servers) != home.layout.data:
            what = f"{len(servers)} for `{name}`, but {home.engine} in pool `{home.pool}` has {home.layout.data}"
            raise UsageError(what, where=where, hint="one server for each data rank")
    return attached
