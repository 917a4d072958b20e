"""Ray, started on this machine with a token of its own, or a cluster that runs already; and what each machine has."""

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
from flowgraph.runtime.scratch import note_ray

LOOPBACK = "127.0.0.1"
HOST_CPUS = 1  # host nodes run one after another on each machine: they are short, and each process holds torch
PROBE_S = 5.0
SHUT_S = 20.0  # how long Ray may take to end
TASK_EVENTS = "RAY_task_events_report_interval_ms"


@dataclass(frozen=True)
class Session:
    """A connection to Ray; `started` says that it runs for this process only, and ends with it.

    `name` is Ray's name of what was started here, which its processes have in their command lines.
    """

    started: bool
    name: str = ""

    def note(self, scratch: Path) -> None:
        """Note a Ray that was started here, so that what stays of it when this process is killed is ended later."""
        if self.name:
            note_ray(scratch, self.name)

    def close(self) -> None:
        """Leave Ray, and end it if it was started here: by force where it does not answer in `SHUT_S` seconds."""
        import ray

        self.end_stopped()
        leaving = threading.Thread(target=ray.shutdown, daemon=True)
        leaving.start()
        leaving.join(SHUT_S)
        if leaving.is_alive() and self.started:
            for process in _rays():
                process.kill()
            leaving.join(SHUT_S)

    def end_stopped(self) -> None:
        """Kill what a signal has stopped of a Ray that was started here: Ray waits for it for ever."""
        import psutil

        for process in _rays() if self.started else ():
            with contextlib.suppress(psutil.Error):
                if process.status() == psutil.STATUS_STOPPED:
                    process.kill()

    def give_back(self, groups: Sequence[Any]) -> None:
        """Free what was reserved; a Ray that ends with this process frees it so, and may have ended already."""
        from ray.util import remove_placement_group

        for group in groups if not self.started else ():
            remove_placement_group(group)


def _rays() -> list[Any]:
    """Return the processes of Ray that this one started, as `psutil` has them."""
    import psutil

    found = list[Any]()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.name().startswith(NAMES):
                found.append(process)
    return found


def connect(plan: Plan, address: str | None, folder: Path | None, threads: int, *, timeline: bool = False) -> Session:
    """Start Ray on this machine, or connect to the cluster at `address`; `folder` has a user's files for every worker.

    With a `timeline` a Ray that is started here keeps what it saw of each task, which takes memory with every step.

    A Ray that is started here asks for a token that only this run knows, has no dashboard, and listens on loopback
    only. Raises WorkerError when Ray is not installed, does not start, or is not reached.
    """
    runtime: dict[str, Any] = {"env_vars": _worker_environment(plan, threads)}
    if folder is not None:
        runtime["working_dir"] = str(folder)
    _set_environment(address, timeline=timeline)
    try:
        import ray
    except ImportError:
        raise WorkerError.not_started("Ray", "it is not installed", "pip install 'ray>=2.59'") from None
    if address is not None:
        _probe(address)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    came, name = list[int](), ""
    try:
        if address is None:
            # Ray may crash at its end when it is interrupted in its start, which takes seconds: heard after it.
            signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
            name = _start(plan, runtime)
        else:
            ray.init(address=address, runtime_env=runtime, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        hint = "" if address is None else f"is there a cluster at {address}?"
        raise WorkerError.not_started("Ray", lines[0], hint) from error
    except SystemExit:  # from the handler of SIGTERM that Ray has while it starts
        raise KeyboardInterrupt from None
    finally:
        for number, handler in handlers.items():  # Ray puts a handler of its own in place of the caller's
            signal.signal(number, handler)
    if came:
        ray.shutdown()
        raise KeyboardInterrupt
    return Session(address is None, name)


def _set_environment(address: str | None, *, timeline: bool) -> None:
    """Set the variables of the environment that Ray reads when it starts, those left that the user has set."""
    if address is None:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # all systems: Ray listens on loopback only
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        if os.environ["RAY_AUTH_MODE"] == "token":
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        if timeline:
            os.environ.pop(TASK_EVENTS, None)
        else:
            os.environ[TASK_EVENTS] = "0"  # else Ray's GCS keeps 0.17 MB of each step
        os.environ.setdefault("RAY_worker_niceness", "0")  # with Ray's 15 workers wait for all others of the machine
    else:
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")  # how often Ray tries to connect; 20 take ten minutes
        os.environ.setdefault("RAY_py_gcs_connect_timeout_s", "15")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reports its use over the network unless told not to
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")


def _worker_environment(plan: Plan, threads: int) -> dict[str, str]:
    """Return the environment variables of workers, which their libraries read when they start."""
    found = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    if any(device.kind == "cpu" for device in plan.used()):
        # The C library gives each thread an arena, which keeps what it has freed: with one for all a process of an
        # update held 1,284 MiB and not 1,461 (22M parameters on two CPU ranks).
        found["MALLOC_ARENA_MAX"] = "1"
    return found | {"TOKENIZERS_PARALLELISM": "false"}


def _probe(address: str) -> None:
    """Raise WorkerError if nothing listens at a host and port: Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), timeout=PROBE_S).close()
        except (OSError, OverflowError) as error:
            why = f"nothing answers at {address} ({error})"
            raise WorkerError.not_started("the connection to Ray", why, "ray status says where a cluster is") from None


def _start(plan: Plan, runtime: Mapping[str, Any]) -> str:
    """Start Ray on this machine, and return the name of its session."""
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
                process.kill()  # else those that wait for others live on for some seconds
        raise
    return Path(started.address_info["session_dir"]).name


def machines(plan: Plan) -> dict[str, dict[str, Any]]:
    """Give for each machine of the plan that has a pool one of Ray's that can hold its devices, as `ray.nodes` tells.

    Raises ResourceError that says what is missing where, before anything is started.
    """
    import ray

    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return admitted(plan, nodes)


def admitted(plan: Plan, nodes: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Choose machines as `matched` does, where a CPU is left for host nodes on one of Ray's; raises as `machines`."""
    found = matched(plan, nodes)
    of_plan = {node.name: node for node in plan.cluster.nodes}
    taken = {each["NodeID"]: wanted(plan, of_plan[name])["CPU"] for name, each in found.items()}
    there = [node for node in nodes if node["Alive"]]
    if not any(each["Resources"].get("CPU", 0) - taken.get(each["NodeID"], 0) >= HOST_CPUS for each in there):
        wants = f"{HOST_CPUS} CPU beyond the {sum(taken.values()):g} of its devices"
        hint = f"ray start --num-cpus=… on one machine with {HOST_CPUS} more than its devices"
        raise ResourceError.not_here("host nodes", wants, _rest(there), hint)
    return found


def matched(plan: Plan, nodes: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Choose for each machine of the plan with a pool one of Ray's; raises as `machines` does.

    Who takes most, GPUs before CPUs, chooses first, and takes the smallest machine that holds it.
    """
    there = [node for node in nodes if node["Alive"]]
    used = {name for pool in plan.pools for name, _ in pool.devices}
    wants = {node.name: wanted(plan, node) for node in plan.cluster.nodes if node.name in used}
    found = dict[str, dict[str, Any]]()
    for name, taken in sorted(wants.items(), key=lambda each: _size(each[1]), reverse=True):
        fits = [each for each in there if _holds(each["Resources"], taken)]
        if not fits:
            raise ResourceError.not_here(f"node {name}", _told(taken), _rest(there))
        found[name] = min(fits, key=lambda each: _size(each["Resources"]))
        there.remove(found[name])
    return found


def wanted(plan: Plan, node: Machine) -> Mapping[str, float]:
    """Give what the pools of a plan take of one machine, in Ray's words: a CPU for each device, and the GPUs."""
    indices = [index for pool in plan.pools for name, index in pool.devices if name == node.name]
    gpus = sum(node.devices[index].kind == "gpu" for index in indices)
    return {"CPU": len(indices)} | ({"GPU": gpus} if gpus else {})


def _size(resources: Mapping[str, float]) -> tuple[float, float]:
    return resources.get("GPU", 0), resources.get("CPU", 0)


def _holds(resources: Mapping[str, float], wants: Mapping[str, float]) -> bool:
    return all(resources.get(name, 0) >= count for name, count in wants.items())


def _told(wants: Mapping[str, float]) -> str:
    return " and ".join(f"{count:g} {name}" for name, count in wants.items())


def _rest(there: list[dict[str, Any]]) -> str:
    if not there:
        return "Ray has no further machine"
    has = [_told({name: each["Resources"].get(name, 0) for name in ("CPU", "GPU")}) for each in there]
    return f"Ray's machines have {'; '.join(has)}"
