"""An engine with servers of its own: start one on a model's folder, or attach to one that runs, and speak to it.

What comes of a start is the door to a server. Not here: what differs from engine to engine (`sglang`, `vllm`).
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

from flowgraph.engines.servers.environments import Environment, python_of
from flowgraph.engines.servers.process_groups import forget_shared_memory
from flowgraph.engines.servers.remote_model import RemoteModel
from flowgraph.engines.servers.server_process import (
    ServerAddress,
    ServerProcess,
    await_ready,
    end_group,
    held_port,
    start,
)
from flowgraph.engines.servers.versions import EngineVersions
from flowgraph.engines.weight_sync.weight_updates import By, WeightUpdates
from flowgraph.errors import WorkerError
from flowgraph.models.folders import read_config

if TYPE_CHECKING:
    from flowgraph.lowering.program import Home
    from flowgraph.runtime.serving import ServerPlace

Device = Literal["cpu", "cuda"]
Say = Callable[[str], None]

STARTS = 3  # ports inside an engine are drawn at random: one that is taken meanwhile ends the start: another is made
SCRIPTS = Path(__file__).parents[2] / "engines"
CPU_TOKENS = 16384  # tokens cached on a CPU where nothing is said
# What a training process may have set for itself, and a server must not take over.
NOT_FOR_IT = {
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "SGLANG_RETURN_ORIGINAL_LOGPROB", "VLLM_API_KEY"),
}
_ASK = """
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
    """How one server runs.

    `cache_share` is the share of a device's memory for weights and cache together, `max_tokens_cached` bounds the
    tokens in the cache, `seed` names the engine's own random numbers. `repeatable` asks for kernels whose results do
    not depend on the batch, and for draws by each request's own seed; SGLang has these for GPUs only. `sleeps` lets
    the server give memory back; one that `keeps` its weights has a copy of them in the machine's memory meanwhile.
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


PLAIN = ServerSettings()


def _silent(line: str) -> None:
    """Say nothing."""


def _unnoted(leader: int) -> None:
    """Note nothing."""


class ServerEngine(ABC):
    """One engine: the methods that differ are those without a body; the others start servers and speak for them.

    `packages` are the names it is installed by, of which the first is what is imported; `launcher` is the script that
    runs its server.
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
        """Give the command line of a server, without its address and keys; `config` is that of the model."""

    @abstractmethod
    def variables(self, serving: ServerSettings, device: Device, host: str) -> dict[str, str]:
        """Give what stands in the environment of its processes for this engine alone."""

    @abstractmethod
    def about(self, control: Any) -> dict[str, Any]:
        """Ask a running server what it is: fields of its door. Raises WorkerError where it is none of ours."""

    @abstractmethod
    def way(self, tensor: int, *, shared: bool) -> By:
        """Say how new weights come to replicas of `tensor` devices, where the plan does not."""

    @abstractmethod
    def ready(self, control: Any, version: int) -> None:
        """Do what is left to do when a server answers."""

    def serve(
        self,
        folder: Path,
        serving: ServerSettings = PLAIN,
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
        say: Say = _silent,
        begun: Callable[[int], None] = _unnoted,
    ) -> ServerProcess:
        """Start one server on a model's folder and wait until it answers; `version` is that of the folder's weights.

        On a CPU it runs in the engine's environment in `cache`, on GPUs by this Python. It listens on `host` only, on
        a free port unless one is given, and asks for keys drawn anew. `begun` takes the id of the process that leads
        its group as soon as that is there. Raises WorkerError, with its last lines, if it
        ends or is not ready within `limit_s` seconds, and ModelError if the folder is no model.
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
        door = self._known(door, say)
        command = [str(python), "-P", str(SCRIPTS / self.launcher)]
        options = self.arguments(folder, serving, device, config, version)
        around = self.environment(os.environ, serving, device, gpus, host)
        for left in reversed(range(STARTS)):
            try:
                return self._start(door, command, options, around, (host, port), version, log, limit_s, begun)
            except WorkerError as error:
                if port or not left or not any("in use" in note for note in error.notes):
                    raise
        raise AssertionError("the last start gives a server or raises")

    def _start(
        self,
        door: ServerAddress,
        command: Sequence[str],
        options: Sequence[str],
        around: Mapping[str, str],
        at: tuple[str, int],
        version: int,
        log: Path,
        limit_s: float,
        begun: Callable[[int], None],
    ) -> ServerProcess:
        with held_port(*at, door.name) as held:
            host, port = at[0], held.getsockname()[1]
            shown = f"[{host}]" if ":" in host else host
            door = replace(door, url=f"http://{shown}:{port}")
            keys = {"key": door.key, "admin_key": door.admin_key}
            told = {"arguments": [*options, "--host", host, "--port", str(port)], **keys}
            process = start(command, told, around, log)
            try:
                begun(process.pid)
                with self.model.control(door, limit_s) as control:
                    await_ready(process, control.healthy, door.name, log, tuple(keys.values()), limit_s)
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
        say: Say = _silent,
    ) -> ServerAddress:
        """Give the door of a server that runs already; with `stamp` its weights are version 0 from now on.

        Raises WorkerError if it is not there, is too old, or is none that can be told what updates need.
        """
        door = ServerAddress(url=url.rstrip("/"), name=name or url, version="", key=key, admin_key=admin_key)
        with self.model.control(door, limit_s) as control:
            door = self._known(replace(door, **self.about(control)), say)
            if stamp:
                control.stamp("0")
        return door

    def _known(self, door: ServerAddress, say: Say) -> ServerAddress:
        known, warning = self.versions.known(door.version, door.device)
        if warning:
            say(warning)
        sleeps = door.sleeps and door.device == "cuda"
        return replace(door, sleeps=sleeps, session=known.session, tried=door.device in known.tried)

    def interpreter(self, device: Device, cache: Path | None) -> Path:
        """Give the Python that runs the server; raise WorkerError where the engine is not installed for this device."""
        if device == "cpu":
            home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flowgraph"
            return python_of(self.on_cpu, cache if cache is not None else home)
        if importlib.util.find_spec(self.packages[0]) is None:
            raise WorkerError(f"{self.name} is not installed", where=sys.executable, hint=self.versions.hint)
        return Path(sys.executable)

    def version_of(self, python: Path) -> str:
        """Ask a Python which version of the engine it has."""
        command = [str(python), "-c", _ASK, *self.packages]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode or not done.stdout.strip():
            notes = done.stderr.splitlines()[-1:]
            raise WorkerError(f"{self.name} is not installed", where=str(python), notes=notes, hint=self.versions.hint)
        return done.stdout.strip().partition("+")[0]

    def environment(
        self, ours: Mapping[str, str], serving: ServerSettings, device: Device, gpus: Sequence[str], host: str
    ) -> dict[str, str]:
        """Give the environment of a server's processes; it holds no key."""
        threads = str(serving.threads)
        given = {name: value for name, value in ours.items() if name not in NOT_FOR_IT}
        given |= {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false"}
        given |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        if host.startswith("127.") and sys.platform == "linux":
            given |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
        if device == "cpu":
            given.pop("PYTHONPATH", None)  # its packages are its own
            given["CUDA_VISIBLE_DEVICES"] = ""
        elif gpus:
            given["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        return given | self.variables(serving, device, host)

    def start(
        self, folder: Path, post: ServerPlace, *, seed: int, threads: int, keeps: bool = False, **about: Any
    ) -> ServerProcess:
        """Start one replica on a model's folder, as the plan says; `about` and what is raised are those of `serve`."""
        running, device = post.home.running, post.device
        told = ServerSettings(
            precision=running.precision,
            tensor=post.home.layout.tensor,
            cache_share=running.cache_share,
            seed=seed,
            threads=threads,
            sleeps=running.sleeps,
            keeps=keeps,
        )
        kind: Device = "cpu" if device == "cpu" else "cuda"
        return self.serve(folder, told, device=kind, gpus=post.gpus, name=post.name, host=post.host, **about)

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
        """Give the handle on a home's replicas; `servers` are those of them that are children of this process.

        `shared` is as in `updates`; a sample has `limit_s` seconds.
        """
        by = self.weights_by(home, shared=shared)
        return self.model(doors, tokenizer, update_by=by, scratch=scratch, servers=servers, limit_s=limit_s)

    def updates(self, home: Home, doors: Sequence[ServerAddress], scratch: Path, *, shared: bool) -> WeightUpdates:
        """Give what brings new weights to replicas; `shared` says that they are on the devices of who has them."""
        return self.model.updates(doors, by=self.weights_by(home, shared=shared), scratch=scratch)

    def weights_by(self, home: Home, *, shared: bool) -> By:
        """Say how new weights come to a home's replicas: as the plan says, or else what fits where they are."""
        return home.running.weights_by or self.way(home.layout.tensor, shared=shared)
