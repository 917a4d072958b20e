"""Start SGLang's server on a model's folder, or attach to one that runs: what comes of it is the door to it."""

from __future__ import annotations

import importlib.util
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from flowgraph.engines.environments import SGLANG_CPU, python_of
from flowgraph.engines.versions import known
from flowgraph.errors import WorkerError
from flowgraph.executors.servers import Door, Server, await_ready, end_group, held_port, start
from flowgraph.executors.sglang_http import Control
from flowgraph.models.folders import read_config

Device = Literal["cpu", "cuda"]
Say = Callable[[str], None]

STARTS = 3  # ports inside SGLang are drawn at random: one that is taken meanwhile ends the start, and another is made
LAUNCHER = Path(__file__).parents[1] / "engines" / "sglang_launch.py"
CPU_TOKENS = 16384  # tokens cached on a CPU where nothing is said
CPU_SHARE = 0.1
SPARE_POSITIONS = 16  # SGLang keeps a few positions to itself: 2 of a whole sequence, 6 of a prompt


@dataclass(frozen=True)
class Serving:
    """How one server runs.

    `cache_share` is the share of a device's memory for weights and cache together, `max_tokens_cached` bounds the
    tokens in the cache, `seed` names the engine's own random numbers. `repeatable` asks for kernels whose results do
    not depend on the batch, and for draws by each request's own seed; SGLang has these for GPUs only. `sleeps` lets
    the server give memory back.
    """

    precision: str = "float32"
    tensor: int = 1
    cache_share: float | None = None
    max_tokens_cached: int | None = None
    seed: int = 0
    threads: int = 1
    repeatable: bool = False
    sleeps: bool = False


def serve(
    folder: Path,
    serving: Serving = Serving(),
    *,
    device: Device = "cpu",
    gpus: Sequence[str] = (),
    name: str = "SGLang",
    limit_s: float = 300.0,
    log: Path,
    cache: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    version: int = 0,
    say: Say = lambda line: None,
) -> Server:
    """Start one server on a model's folder and wait until it answers; `version` is that of the folder's weights.

    On a CPU it runs in the environment `sglang-cpu` of `cache`, on GPUs by this Python. It listens on `host` only, on
    a free port unless one is given, and asks for keys drawn anew. Raises WorkerError, with its last lines, if it ends
    or is not ready within `limit_s` seconds, and ModelError if the folder is no model.
    """
    positions = read_config(folder).get("max_position_embeddings")
    python = interpreter(device, cache)
    engine = version_of(python)
    warning = known(engine, device)[1]
    if warning:
        say(warning)
    door = Door(
        url="",
        name=name,
        version=engine,
        device=device,
        precision=serving.precision,
        tensor=serving.tensor,
        folder=str(folder),
        sleeps=serving.sleeps,
        key=secrets.token_urlsafe(32),
        admin_key=secrets.token_urlsafe(32),
    )
    options = arguments(folder, serving, device, positions, version)
    around = environment(os.environ, serving, device, gpus, host)
    for left in reversed(range(STARTS)):
        try:
            return _start(door, [str(python), "-P", str(LAUNCHER)], options, around, host, port, log, limit_s)
        except WorkerError as error:
            if port or not left or not any("in use" in note for note in error.notes):
                raise
    raise AssertionError("the last start gives a server or raises")


def _start(
    door: Door,
    command: Sequence[str],
    options: Sequence[str],
    around: Mapping[str, str],
    host: str,
    port: int,
    log: Path,
    limit_s: float,
) -> Server:
    held = held_port(host, port, door.name)
    with held:
        port = held.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        door = replace(door, url=f"http://{shown}:{port}")
        keys = {"key": door.key, "admin_key": door.admin_key}
        told = {"arguments": [*options, "--host", host, "--port", str(port)], **keys}
        process = start(command, told, around, log)
        try:
            with Control(door, limit_s) as control:
                await_ready(process, control.healthy, door.name, log, tuple(keys.values()), limit_s)
        except BaseException:
            end_group(process)
            raise
    return Server(door, process, log)


def attach(
    url: str, *, key: str = "", admin_key: str = "", name: str = "", limit_s: float = 30.0, say: Say = lambda line: None
) -> Door:
    """Give the door of a server that someone else started; raise WorkerError if it is not there or too old."""
    door = Door(url=url.rstrip("/"), name=name or url, version="", key=key, admin_key=admin_key)
    with Control(door, limit_s) as control:
        told = control.get("/server_info")
    device: Device = "cpu" if str(told.get("device", "cuda")).startswith("cpu") else "cuda"
    found = replace(
        door,
        version=str(told.get("version", "")),
        device=device,
        precision=str(told.get("dtype", "")),
        tensor=int(told.get("tp_size") or 1),
        folder=str(told.get("model_path", "")),
        sleeps=bool(told.get("enable_memory_saver")),
    )
    warning = known(found.version, device)[1]
    if warning:
        say(warning)
    return found


def interpreter(device: Device, cache: Path | None) -> Path:
    """Give the Python that runs the server; raise WorkerError where SGLang is not installed for this device."""
    if device == "cpu":
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flowgraph"
        return python_of(SGLANG_CPU, cache if cache is not None else home)
    if importlib.util.find_spec("sglang") is None:
        raise WorkerError("SGLang is not installed", where=sys.executable, hint="pip install 'flowgraph[sglang]'")
    return Path(sys.executable)


def version_of(python: Path) -> str:
    """Ask a Python which SGLang it has."""
    command = [str(python), "-c", "from importlib.metadata import version; print(version('sglang'))"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise WorkerError("SGLang is not installed", where=str(python), notes=done.stderr.splitlines()[-1:])
    return done.stdout.strip()


def arguments(folder: Path, serving: Serving, device: Device, positions: int | None, version: int) -> list[str]:
    """Give the command line of a server, without its address and keys."""
    given: dict[str, object] = {
        "--model-path": folder,
        "--device": device,
        "--dtype": serving.precision,
        "--tp-size": serving.tensor,
        "--random-seed": serving.seed,
        "--weight-version": version,
        "--grammar-backend": "none",
        "--log-level": "info",
        "--log-level-http": "warning",
    }
    share, most = serving.cache_share, serving.max_tokens_cached
    if device == "cpu":
        given |= {"--attention-backend": "torch_native", "--sampling-backend": "pytorch"}
        share, most = share or CPU_SHARE, most or CPU_TOKENS
    if positions is not None:
        given["--context-length"] = positions + SPARE_POSITIONS
    given |= {"--mem-fraction-static": share} if share is not None else {}
    given |= {"--max-total-tokens": most} if most is not None else {}
    switches = {"--enable-deterministic-inference": serving.repeatable, "--enable-memory-saver": serving.sleeps}
    on = [switch for switch, wanted in switches.items() if wanted and device == "cuda"]
    return ["--skip-tokenizer-init", *on, *(str(part) for pair in given.items() for part in pair)]


# What a training process may have set for itself, and a server must not take over.
_NOT_FOR_IT = {
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "SGLANG_RETURN_ORIGINAL_LOGPROB"),
}


def environment(
    ours: Mapping[str, str], serving: Serving, device: Device, gpus: Sequence[str], host: str
) -> dict[str, str]:
    """Give the environment of a server's processes; it holds no key."""
    threads = str(serving.threads)
    given = {name: value for name, value in ours.items() if name not in _NOT_FOR_IT}
    given |= {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",  # else each look costs a second
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",  # for SPARE_POSITIONS, which no request reaches
    }
    if host.startswith("127.") and sys.platform == "linux":
        given |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    if device == "cpu":
        given.pop("PYTHONPATH", None)  # its packages are its own
        given |= {"SGLANG_USE_CPU_ENGINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    elif gpus:
        given["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    return given
