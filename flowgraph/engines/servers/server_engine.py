"""An engine with separate server processes: start a server on a model's folder, or attach to a running one.

Both give the server's address. Not here: the differences between engines (`sglang`, `vllm`).
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from flowgraph.engines.servers.environments import EngineVersions, Environment, python_of
from flowgraph.engines.servers.process_groups import forget_shared_memory
from flowgraph.engines.servers.remote_model import RemoteModel
from flowgraph.engines.servers.server_process import (
    ServerAddress,
    ServerProcess,
    await_ready,
    end_group,
    reserve_port,
    start,
)
from flowgraph.engines.weight_sync.weight_updates import By, Hold, WeightUpdates
from flowgraph.errors import WorkerError
from flowgraph.models.folders import read_config

if TYPE_CHECKING:
    from flowgraph.lowering.program import Home
    from flowgraph.runtime.serving import ServerPlace

Device = Literal["cpu", "cuda"]
Say = Callable[[str], None]

STARTS = 3  # attempts: an engine draws its inner ports at random, and one that is taken ends the start
SCRIPTS = Path(__file__).parents[2] / "engines"
CPU_TOKENS = 16384  # tokens cached on a CPU by default
# Variables that a training process may have set for itself, and a server must not inherit.
NOT_INHERITED = {
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "SGLANG_RETURN_ORIGINAL_LOGPROB", "VLLM_API_KEY"),
}
_PRINT_VERSION = """
import sys
from importlib.metadata import PackageNotFoundError, version
for name in sys.argv[1:]:
    try:
        print(version(name))
        break
    except PackageNotFoundError:
        pass
"""


@dataclass(frozen=True)
class ServerSettings:
    """Settings of one server.

    `cache_share` is the share of a device's memory for weights and cache together, `max_tokens_cached` the largest
    number of tokens in the cache, `seed` the seed of the engine. `repeatable` selects kernels whose results do not
    depend on the batch, and samples by each request's seed; SGLang has these for GPUs only. `sleeps` allows the server
    to release memory; with `keeps`, it copies its weights to host memory before that. `masks` is as in `VersionTraits`.
    """

    precision: str = "float32"
    tensor: int = 1
    cache_share: float | None = None
    max_tokens_cached: int | None = None
    seed: int = 0
    threads: int = 1
    repeatable: bool = False
    sleeps: bool = False
    keeps: bool = False
    masks: bool = False


DEFAULTS = ServerSettings()


def _ignore(_: object) -> None:
    pass


class ServerEngine(ABC):
    """One engine: abstract methods are specific to the engine, the others start its servers and connect to them.

    `packages` are the names under which the engine may be installed; the first is the module to import. `launcher` is
    the path of the script that runs a server, relative to `flowgraph/engines`.
    """

    name: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]
    versions: ClassVar[EngineVersions]
    on_cpu: ClassVar[Environment]
    launcher: ClassVar[str]
    model: ClassVar[type[RemoteModel]]

    @abstractmethod
    def arguments(
        self, folder: Path, serving: ServerSettings, device: Device, config: Mapping[str, Any], version: int
    ) -> list[str]:
        """Return the command-line arguments of a server for the model in `folder`, without address and keys.

        `config` is the model's config.json, and `version` is the version of the weights in `folder`.
        """

    @abstractmethod
    def variables(self, serving: ServerSettings, device: Device, host: str) -> dict[str, str]:
        """Return the environment variables, by name, that only this engine needs; `host` is the server's address."""

    @abstractmethod
    def about(self, control: Any) -> dict[str, Any]:
        """Return the properties of a running server, as fields of `ServerAddress` by name.

        `control` is the control client of the server. Raises WorkerError if the server cannot be asked, or belongs to
        another engine.
        """

    @abstractmethod
    def way(self, tensor: int, *, shared: bool) -> By:
        """Return the default transport of weights to replicas of `tensor` devices: "disk", "group" or "memory".

        `shared` means that sender and replicas share their devices.
        """

    @abstractmethod
    def ready(self, control: Any, version: int) -> None:
        """Complete the start of a server that answers health checks; `version` is the version of its weights."""

    def serve(
        self,
        folder: Path,
        serving: ServerSettings = DEFAULTS,
        *,
        device: Device = "cpu",
        gpus: Sequence[str] = (),
        name: str = "",
        limit_s: float = 300.0,
        log: Path,
        cache: Path | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        version: int = 0,
        say: Say = _ignore,
        begun: Callable[[int], None] = _ignore,
    ) -> ServerProcess:
        """Start one server on a model's folder, wait until it is ready, and return it.

        `version` is the version of the folder's weights. On a CPU, the server runs in the engine's environment in
        `cache` (see `interpreter`); on GPUs, in this Python, on the devices `gpus` (by default on those that this
        process sees). It listens on `host` only, by default on a free port, and requires new random keys. If a start
        with a free port fails because a port is in use, the server is started again, up to three times in all. `begun`
        is called with the process id of each server as soon as it is started, and `say` with a warning if the engine's
        version was not tried. The name of the engine is the default of `name`, which errors show.

        Raises WorkerError if the engine is not installed or too old, if `port` is taken, and, with the end of the log,
        if the server ends or is not ready within `limit_s` seconds; ModelError if the folder has no valid config.json;
        OSError if the log cannot be written.
        """
        config = read_config(folder)
        python = self.interpreter(device, cache)
        door = ServerAddress(
            url="",
            name=name or self.name,
            version=self.version_of(python),
            device=device,
            precision=serving.precision,
            tensor=serving.tensor,
            folder=str(folder),
            sleeps=serving.sleeps,
            keeps=serving.keeps,
            key=secrets.token_urlsafe(32),
            admin_key=secrets.token_urlsafe(32),
        )
        door = self._checked_version(door, say)
        command = [str(python), "-P", str(SCRIPTS / self.launcher)]
        serving = replace(serving, masks=self.versions.known(door.version, device)[0].masks)
        options = self.arguments(folder, serving, device, config, version)
        variables = self.environment(os.environ, serving, device, gpus, host)

        def launch(address: Sequence[str]) -> subprocess.Popen[bytes]:
            job = {"arguments": [*options, *address], "key": door.key, "admin_key": door.admin_key}
            return start(command, job, variables, log)

        for left in reversed(range(STARTS)):
            try:
                return self._start(door, launch, begun, (host, port), version, log, limit_s)
            except WorkerError as error:
                if port or not left or not any("in use" in note for note in error.notes):
                    raise
        raise AssertionError("the last start returns or raises")

    def _start(
        self,
        door: ServerAddress,
        launch: Callable[[Sequence[str]], subprocess.Popen[bytes]],
        begun: Callable[[int], None],
        address: tuple[str, int],
        version: int,
        log: Path,
        limit_s: float,
    ) -> ServerProcess:
        host = address[0]
        with reserve_port(*address, door.name) as bound:
            port = bound.getsockname()[1]
            door = replace(door, url=f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
            process = launch(["--host", host, "--port", str(port)])
            try:
                begun(process.pid)
                with self.model.control(door, limit_s) as control:
                    await_ready(process, control.healthy, door.name, log, (door.key, door.admin_key), limit_s)
                    self.ready(control, version)
                forget_shared_memory(process.pid)
            except BaseException:
                end_group(process)
                raise
        return ServerProcess(door, process, log)

    def attach(
        self,
        url: str,
        *,
        key: str = "",
        admin_key: str = "",
        name: str = "",
        limit_s: float = 30.0,
        stamp: bool = False,
        say: Say = _ignore,
    ) -> ServerAddress:
        """Return the address and properties of a running server at `url`; with `stamp`, set its weights' version to 0.

        `key` and `admin_key` are the server's keys, `name` is its name in errors (by default `url`), and `say` gets a
        warning if its version was not tried. Raises WorkerError if the server is not reached within `limit_s` seconds,
        refuses the keys, is too old, or lacks the calls that are made here.
        """
        door = ServerAddress(url=url.rstrip("/"), name=name or url, version="", key=key, admin_key=admin_key)
        with self.model.control(door, limit_s) as control:
            door = self._checked_version(replace(door, **self.about(control)), say)
            if stamp:
                control.stamp("0")
        return door

    def _checked_version(self, door: ServerAddress, say: Say) -> ServerAddress:
        traits, warning = self.versions.known(door.version, door.device)
        if warning:
            say(warning)
        sleeps = door.sleeps and door.device == "cuda"
        return replace(door, sleeps=sleeps, session=traits.session, tried=door.device in traits.tried)

    def interpreter(self, device: Device, cache: Path | None) -> Path:
        """Return the path of the Python that runs a server: on a CPU that of the engine's environment, else this one.

        The environment is in `cache`, or, if `cache` is None, in the user's cache folder. Raises WorkerError if the
        engine is not installed in that environment, or in this Python.
        """
        if device == "cpu":
            home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flowgraph"
            return python_of(self.on_cpu, cache if cache is not None else home)
        if importlib.util.find_spec(self.packages[0]) is None:
            raise WorkerError(f"{self.name} is not installed", where=sys.executable, hint=self.versions.hint)
        return Path(sys.executable)

    def version_of(self, python: Path) -> str:
        """Return the version of the engine in the Python at `python`, without a local part such as "+cpu".

        Raises WorkerError if the engine is not installed there, and subprocess.TimeoutExpired after 60 seconds.
        """
        command = [str(python), "-c", _PRINT_VERSION, *self.packages]
        output = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        if output.returncode or not output.stdout.strip():
            notes = output.stderr.splitlines()[-1:]
            raise WorkerError(f"{self.name} is not installed", where=str(python), notes=notes, hint=self.versions.hint)
        return output.stdout.strip().partition("+")[0]

    def environment(
        self, ours: Mapping[str, str], serving: ServerSettings, device: Device, gpus: Sequence[str], host: str
    ) -> dict[str, str]:
        """Return the environment variables of a server's processes, by name; the server's keys are not among them.

        `ours` are the variables of this process; those that belong to a training process are left out, and on a CPU
        also `PYTHONPATH`. Variables for threads, devices (`gpus`), the network (`host`) and the engine are added.
        """
        threads = str(serving.threads)
        variables = {name: value for name, value in ours.items() if name not in NOT_INHERITED}
        variables |= {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false"}
        variables |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        if host.startswith("127.") and sys.platform == "linux":
            variables |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
        if device == "cpu":
            variables.pop("PYTHONPATH", None)  # its environment has packages of its own
            variables["CUDA_VISIBLE_DEVICES"] = ""
        elif gpus:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        return variables | self.variables(serving, device, host)

    def start(
        self, folder: Path, post: ServerPlace, *, seed: int, threads: int, keeps: bool = False, **options: Any
    ) -> ServerProcess:
        """Start one replica on a model's folder with the plan's settings, wait until it is ready, and return it.

        `post` has the replica's devices, name, host and `home` (the plan's engine, layout and settings for this copy of
        a model's weights). `seed`, `threads` and `keeps` are as in `ServerSettings`. `options` are further arguments of
        `serve`, whose errors are raised.
        """
        running = post.home.running
        serving = ServerSettings(
            precision=running.precision,
            tensor=post.home.layout.tensor,
            cache_share=running.cache_share,
            seed=seed,
            threads=threads,
            sleeps=running.sleeps,
            keeps=keeps,
        )
        device: Device = "cpu" if post.device == "cpu" else "cuda"
        return self.serve(folder, serving, device=device, gpus=post.gpus, name=post.name, host=post.host, **options)

    def handle(
        self,
        home: Home,
        doors: Sequence[ServerAddress],
        tokenizer: Any,
        servers: Sequence[ServerProcess],
        scratch: Path,
        *,
        shared: bool,
        limit_s: float,
    ) -> RemoteModel:
        """Return a handle that samples from a model's replicas at `doors`, and can send new weights to the replicas.

        `home` has the plan's layout and settings for these replicas, `servers` are the replicas that this process
        started, and `scratch` is the folder for weights by disk. `shared` means that sender and replicas share their
        devices. A sample may take `limit_s` seconds.
        """
        by = self.weights_by(home, shared=shared)
        hold = hold_of(home)
        return self.model(doors, tokenizer, update_by=by, hold=hold, scratch=scratch, servers=servers, limit_s=limit_s)

    def updates(self, home: Home, doors: Sequence[ServerAddress], scratch: Path, *, shared: bool) -> WeightUpdates:
        """Return a sender of new weights to the replicas at `doors`.

        `home` has the plan's layout and settings for these replicas. `shared` means that sender and replicas share
        their devices. Weights by disk are written to `scratch`.
        """
        by, hold = self.weights_by(home, shared=shared), hold_of(home)
        return self.model.updates(doors, by=by, hold=hold, scratch=scratch)

    def weights_by(self, home: Home, *, shared: bool) -> By:
        """Return the transport of weights to the replicas of `home`: that of the plan, or else the default, `way`."""
        return home.running.weights_by or self.way(home.layout.tensor, shared=shared)


def hold_of(home: Home) -> Hold:
    """Return how servers pause for new weights: as the plan says if weights may arrive during sampling, else "idle"."""
    return home.running.hold if home.in_flight else "idle"
