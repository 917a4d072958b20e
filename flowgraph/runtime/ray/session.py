"""Connect to Ray: start it on this machine with a token, or use a running cluster; and match a plan to its machines."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowgraph.cluster.cluster import Machine
from flowgraph.cluster.plan import Plan
from flowgraph.errors import ResourceError, WorkerError
from flowgraph.runtime.ray.open_ports import NAMES

LOOPBACK = "127.0.0.1"
HOST_CPUS = 1  # host nodes run one after another on each machine: they are short, and each process holds torch
PROBE_S = 5.0
SHUT_S = 20.0  # how long Ray may take to end
TASK_EVENTS = "RAY_task_events_report_interval_ms"
ORPHANS_S = 15  # how long Ray's own processes may outlive its GCS, which ends with a killed driver; 60 by default


@dataclass(frozen=True)
class Session:
    """A connection to Ray; `started` is True if this process started Ray, which then ends with it.

    `name` is the name of a Ray session that was started here; its processes have it in their command lines.
    """

    started: bool
    name: str = ""

    def close(self) -> None:
        """Disconnect from Ray, and end a Ray that was started here: by force if that takes over 20 seconds."""
        import ray

        self.end_stopped()
        leaving = threading.Thread(target=ray.shutdown, daemon=True)
        leaving.start()
        leaving.join(SHUT_S)
        if leaving.is_alive() and self.started:
            for process in _ray_processes():
                process.kill()
            leaving.join(SHUT_S)

    def end_stopped(self) -> None:
        """Kill the processes that a signal has stopped, if Ray was started here; Ray would wait for them forever."""
        import psutil

        for process in _ray_processes() if self.started else ():
            with contextlib.suppress(psutil.Error):
                if process.status() == psutil.STATUS_STOPPED:
                    process.kill()

    def give_back(self, groups: Sequence[Any]) -> None:
        """Remove the placement groups `groups`; a Ray that was started here is skipped, since its end removes them."""
        from ray.util import remove_placement_group

        for group in groups if not self.started else ():
            remove_placement_group(group)


def _ray_processes() -> list[Any]:
    import psutil

    processes = list[Any]()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.name().startswith(NAMES):
                processes.append(process)
    return processes


def connect(plan: Plan, address: str | None, folder: Path | None, threads: int, *, timeline: bool = False) -> Session:
    """Connect to Ray and return the session: start Ray on this machine, or connect to the cluster at `address`.

    A Ray that is started here has one CPU per device of `plan` and one more for host nodes, a token that only this run
    knows, and no dashboard; it listens on loopback only. `folder` contains a user's files for workers, if any;
    `threads` is the number of CPU threads per process. With `timeline`, Ray records each task, and its memory grows
    with every step. Environment variables of this process that Ray reads are set. Raises WorkerError if Ray is not
    installed, does not start, or cannot be reached, and KeyboardInterrupt if it was interrupted while it started.
    """
    variables = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    if any(device.kind == "cpu" for device in plan.used()):
        # The C library gives each thread an arena, which keeps what it has freed: with one for all threads the process
        # of an update took 1,284 MiB instead of 1,461 (22M parameters on two CPU ranks).
        variables["MALLOC_ARENA_MAX"] = "1"
    runtime: dict[str, Any] = {"env_vars": variables | {"TOKENIZERS_PARALLELISM": "false"}}
    if folder is not None:
        runtime["working_dir"] = str(folder)
    _set_environment(address, timeline=timeline)
    try:
        import ray
    except ImportError:
        raise WorkerError.not_started("Ray", "it is not installed", "pip install 'ray>=2.59'") from None
    if address is not None:
        _refuse_unreachable(address)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    interrupts, name = list[int](), ""
    try:
        if address is None:
            # Ray may crash at its end if its start, which takes seconds, is interrupted: so Ctrl+C counts after it.
            signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
            name = _start(plan, runtime)
        else:
            ray.init(address=address, runtime_env=runtime, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        hint = "" if address is None else f"check that a Ray cluster runs at {address}"
        raise WorkerError.not_started("Ray", lines[0], hint) from error
    except SystemExit:  # from the SIGTERM handler that Ray has while it starts
        raise KeyboardInterrupt from None
    finally:
        for number, handler in handlers.items():  # Ray replaces the caller's handlers
            signal.signal(number, handler)
    if interrupts:
        ray.shutdown()
        raise KeyboardInterrupt
    return Session(address is None, name)


def _set_environment(address: str | None, *, timeline: bool) -> None:
    if address is None:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # on all systems: Ray listens on loopback only
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        if os.environ["RAY_AUTH_MODE"] == "token":
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        if timeline:
            os.environ.pop(TASK_EVENTS, None)
        else:
            os.environ[TASK_EVENTS] = "0"  # else Ray's GCS keeps 0.17 MB for each step
        os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(ORPHANS_S))
        os.environ.setdefault("RAY_worker_niceness", "0")  # with Ray's default, 15, workers wait for all others
    else:
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")  # how often Ray tries to connect; 20 take ten minutes
        os.environ.setdefault("RAY_py_gcs_connect_timeout_s", "15")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reports its use over the network unless told not to
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")


def _refuse_unreachable(address: str) -> None:
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), timeout=PROBE_S).close()
        except (OSError, OverflowError) as error:
            why = f"nothing answers at {address} ({error})"
            raise WorkerError.not_started("the connection to Ray", why, "`ray status` shows its address") from None


def _start(plan: Plan, runtime: Mapping[str, Any]) -> str:
    import psutil
    import ray

    devices = sum(len(pool.devices) for pool in plan.pools)
    before = set(psutil.Process().children(recursive=True))
    try:
        started: Any = ray.init(
            address="local",
            num_cpus=devices + HOST_CPUS,
            include_dashboard=False,
            logging_level=logging.ERROR,
            runtime_env=dict(runtime),
            _node_ip_address=LOOPBACK,
        )
    except BaseException:
        for process in set(psutil.Process().children(recursive=True)) - before:
            with contextlib.suppress(psutil.Error):
                process.kill()  # else those that wait for others live on for seconds
        raise
    return Path(started.address_info["session_dir"]).name


def match_cluster(plan: Plan, nodes: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the Ray node for each machine of a plan, by the machine's name, on a cluster with room for host nodes.

    `nodes` are the result of `ray.nodes`. Raises ResourceError as `match_machines`, or without a CPU for host nodes.
    """
    chosen = match_machines(plan, nodes)
    machines = {machine.name: machine for machine in plan.cluster.nodes}
    used = {node["NodeID"]: resources_needed(plan, machines[name])["CPU"] for name, node in chosen.items()}
    alive = [node for node in nodes if node["Alive"]]
    if not any(node["Resources"].get("CPU", 0) - used.get(node["NodeID"], 0) >= HOST_CPUS for node in alive):
        wants = f"{HOST_CPUS} CPU beyond the {sum(used.values()):g} of its devices"
        hint = f"ray start --num-cpus=… on one machine with {HOST_CPUS} more than its devices"
        raise ResourceError.not_here("host nodes", wants, _available(alive), hint)
    return chosen


def match_machines(plan: Plan, nodes: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the Ray node for each machine of the plan that has a pool, by the machine's name.

    `nodes` are the result of `ray.nodes`. The machine with the largest needs, GPUs before CPUs, is matched first, and
    each gets the smallest node that suffices. Raises ResourceError if no node has the resources of a machine.
    """
    free = [node for node in nodes if node["Alive"]]
    used = {name for pool in plan.pools for name, _ in pool.devices}
    wants = {machine.name: resources_needed(plan, machine) for machine in plan.cluster.nodes if machine.name in used}
    chosen = dict[str, dict[str, Any]]()
    for name, needs in sorted(wants.items(), key=lambda item: _size(item[1]), reverse=True):
        fitting = [node for node in free if all(node["Resources"].get(kind, 0) >= n for kind, n in needs.items())]
        if not fitting:
            raise ResourceError.not_here(f"node {name}", _listed(needs), _available(free))
        chosen[name] = min(fitting, key=lambda node: _size(node["Resources"]))
        free.remove(chosen[name])
    return chosen


def resources_needed(plan: Plan, node: Machine) -> Mapping[str, float]:
    """Return the Ray resources that a plan needs on machine `node`: a "CPU" for each device, a "GPU" for each GPU."""
    indices = [index for pool in plan.pools for name, index in pool.devices if name == node.name]
    gpus = sum(node.devices[index].kind == "gpu" for index in indices)
    return {"CPU": len(indices)} | ({"GPU": gpus} if gpus else {})


def _size(resources: Mapping[str, float]) -> tuple[float, float]:
    return resources.get("GPU", 0), resources.get("CPU", 0)


def _listed(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{count:g} {name}" for name, count in resources.items())


def _available(nodes: Sequence[dict[str, Any]]) -> str:
    if not nodes:
        return "Ray has no further machine"
    has = [_listed({name: node["Resources"].get(name, 0) for name in ("CPU", "GPU")}) for node in nodes]
    return f"Ray's machines have {'; '.join(has)}"
