"""Start vLLM's server on a model's folder, or attach to one that runs: what comes of it is the door to it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flowgraph.engines.environments import VLLM_CPU, python_of
from flowgraph.engines.vllm_versions import vllm_warning
from flowgraph.errors import WorkerError
from flowgraph.executors.servers import Door, Server, await_ready, end_group, held_port, start
from flowgraph.executors.sglang_serving import CPU_TOKENS, STARTS, Device, Say, Serving
from flowgraph.executors.vllm_http import VllmControl
from flowgraph.models.folders import read_config

LAUNCHER = Path(__file__).parents[1] / "engines" / "vllm_launch.py"
BLOCK_TOKENS = 32  # of the cache; the kernels of a CPU want a multiple of it
PLAIN = Serving()
SHARED = "/dev/shm/"
BATCH_TOKENS = 4096  # read in one pass on a CPU
# With a seed, vLLM 0.32 ends on a CPU where a context is read in parts: it turns a generator back that cannot be.
ON_CPU = ("--enforce-eager", "--no-enable-chunked-prefill")
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def serve(
    folder: Path,
    serving: Serving = PLAIN,
    *,
    device: Device = "cpu",
    gpus: Sequence[str] = (),
    name: str = "vLLM",
    limit_s: float = 300.0,
    log: Path,
    cache: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    version: int = 0,
    say: Say = lambda line: None,
) -> Server:
    """Start one server on a model's folder and wait until it answers; `version` is that of the folder's weights.

    On a CPU it runs in the environment `vllm-cpu` of `cache`, on GPUs by this Python. It listens on `host` only, on a
    free port unless one is given, and asks for keys drawn anew. Raises WorkerError, with its last lines, if it ends
    or is not ready within `limit_s` seconds, and ModelError if the folder is no model.
    """
    config = read_config(folder)
    python = interpreter(device, cache)
    engine = version_of(python)
    warning = vllm_warning(engine, device)
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
        sleeps=serving.sleeps and device == "cuda",
        key=secrets.token_urlsafe(32),
        admin_key=secrets.token_urlsafe(32),
    )
    options = arguments(folder, serving, device, config)
    around = environment(os.environ, serving, device, gpus, host)
    for left in reversed(range(STARTS)):
        try:
            return _start(door, [str(python), "-P", str(LAUNCHER)], options, around, host, port, log, limit_s, version)
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
    version: int,
) -> Server:
    with held_port(host, port, door.name) as held:
        port = held.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        door = replace(door, url=f"http://{shown}:{port}")
        keys = {"key": door.key, "admin_key": door.admin_key}
        told = {"arguments": [*options, "--host", host, "--port", str(port)], **keys}
        process = start(command, told, around, log)
        try:
            with VllmControl(door, limit_s) as control:
                await_ready(process, control.healthy, door.name, log, tuple(keys.values()), limit_s)
                control.stamp(str(version))
            forget_shared_memory(process.pid)
        except BaseException:
            end_group(process)
            raise
    return Server(door, process, log)


def forget_shared_memory(leader: int) -> None:
    """Take the names off the memory that a server's processes share, now that all of them have it.

    It is freed with the last of them, however they end; by itself it stays when they are killed.
    """
    import psutil

    processes = [psutil.Process(leader), *psutil.Process(leader).children(recursive=True)]
    for process in processes if sys.platform == "linux" else ():
        with contextlib.suppress(psutil.Error):
            for each in process.memory_maps():
                if each.path.startswith(SHARED):
                    Path(each.path).unlink(missing_ok=True)


def attach(
    url: str, *, key: str = "", admin_key: str = "", name: str = "", limit_s: float = 30.0, say: Say = lambda line: None
) -> Door:
    """Give the door of a server that flowgraph's launcher started elsewhere.

    Raises WorkerError if it is not there, was started otherwise (plain vLLM can be told no weights), or is too old.
    """
    door = Door(url=url.rstrip("/"), name=name or url, version="", key=key, admin_key=admin_key)
    with VllmControl(door, limit_s) as control:
        version = str(control.get("/version").get("version", "")).partition("+")[0]
        told = control.post("/about")
    device: Device = "cpu" if told.get("device") == "cpu" else "cuda"
    warning = vllm_warning(version, device)
    if warning:
        say(warning)
    return replace(
        door,
        version=version,
        device=device,
        precision=str(told.get("precision", "")),
        tensor=int(told.get("tensor") or 1),
        folder=str(told.get("folder", "")),
        sleeps=bool(told.get("sleeps")) and device == "cuda",
    )


def interpreter(device: Device, cache: Path | None) -> Path:
    """Give the Python that runs the server; raise WorkerError where vLLM is not installed for this device."""
    if device == "cpu":
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flowgraph"
        return python_of(VLLM_CPU, cache if cache is not None else home)
    if importlib.util.find_spec("vllm") is None:
        raise WorkerError("vLLM is not installed", where=sys.executable, hint="pip install vllm")
    return Path(sys.executable)


_ASK = """
from importlib.metadata import PackageNotFoundError, version
try:
    print(version("vllm"))
except PackageNotFoundError:
    print(version("vllm-cpu"))
"""


def version_of(python: Path) -> str:
    """Ask a Python which vLLM it has."""
    done = subprocess.run([str(python), "-c", _ASK], capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise WorkerError("vLLM is not installed", where=str(python), notes=done.stderr.splitlines()[-1:])
    return done.stdout.strip().partition("+")[0]


def arguments(folder: Path, serving: Serving, device: Device, config: Mapping[str, Any]) -> list[str]:
    """Give the command line of a server, without its address and keys."""
    given: dict[str, object] = {
        "--dtype": serving.precision,
        "--tensor-parallel-size": serving.tensor,
        "--seed": serving.seed,
        "--logprobs-mode": "processed_logprobs",  # after the temperature
        "--generation-config": "vllm",  # no setting from the model's folder
        "--worker-extension-cls": "vllm_worker.Weights",
        "--uvicorn-log-level": "warning",
    }
    positions = config.get("max_position_embeddings")
    given |= {"--max-model-len": positions} if positions is not None else {}
    if device == "cpu":
        given["--max-num-batched-tokens"] = max(BATCH_TOKENS, int(positions or 0))
    given |= _cache(serving, device, config)
    switches = ["--tokens-only", "--skip-tokenizer-init", "--disable-log-stats", "--disable-uvicorn-access-log"]
    switches += list(ON_CPU) if device == "cpu" else ["--enable-sleep-mode"] if serving.sleeps else []
    return [str(folder), *switches, *(str(part) for pair in given.items() for part in pair)]


def _cache(serving: Serving, device: Device, config: Mapping[str, Any]) -> dict[str, object]:
    """Say how large the cache is; on a CPU always, since vLLM takes nine tenths of the memory by itself."""
    given: dict[str, object] = {"--block-size": BLOCK_TOKENS}
    if serving.cache_share is not None:
        given["--gpu-memory-utilization"] = serving.cache_share
    tokens = serving.max_tokens_cached
    if device == "cpu" and serving.cache_share is None:
        blocks = -(-(tokens or CPU_TOKENS) // BLOCK_TOKENS)
        given["--kv-cache-memory-bytes"] = (blocks + 1) * BLOCK_TOKENS * token_bytes(config, serving.precision)
    elif tokens is not None:
        given["--num-gpu-blocks-override"] = -(-tokens // BLOCK_TOKENS)
    return given


def token_bytes(config: Mapping[str, Any], precision: str) -> int:
    """Give the bytes that one token takes in the cache: a key and a value of every head of every layer.

    >>> token_bytes({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}, "float32")
    1024
    """
    heads = int(config["num_attention_heads"])
    width = int(config.get("head_dim") or int(config["hidden_size"]) // heads)
    kept = int(config.get("num_key_value_heads") or heads)
    return 2 * int(config["num_hidden_layers"]) * kept * width * BYTES[precision]


# What a training process may have set for itself, and a server must not take over.
_NOT_FOR_IT = {
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "VLLM_API_KEY"),
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
        "VLLM_SERVER_DEV_MODE": "1",  # for the calls that pause, sleep and take weights; our guard asks for a key
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": host,  # where its processes meet
    }
    if host.startswith("127.") and sys.platform == "linux":
        given |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    if device == "cpu":
        given.pop("PYTHONPATH", None)  # its packages are its own
        given |= {"VLLM_TARGET_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": "", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        return given
    given |= {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
    given |= {"VLLM_BATCH_INVARIANT": "1"} if serving.repeatable else {}
    return given
