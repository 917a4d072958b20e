"""The engine vLLM: how its servers are started and called."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flowgraph.engines.servers.remote_model import RemoteModel, Tag
from flowgraph.engines.servers.server_control import ServerControl
from flowgraph.engines.servers.server_engine import CPU_TOKENS, Device, ServerEngine, ServerSettings
from flowgraph.engines.vllm import VLLM, VLLM_CPU
from flowgraph.engines.vllm.http import GENERATE, VllmControl, question, read_sample
from flowgraph.engines.weight_sync.weight_transports import ByMemory, cpu_copies
from flowgraph.engines.weight_sync.weight_updates import By, WeightUpdates
from flowgraph.errors import WorkerError

BLOCK_TOKENS = 32  # of the cache; the kernels of a CPU need a multiple of it
BATCH_TOKENS = 4096  # read in one pass on a CPU
# With a seed, vLLM 0.32 on a CPU fails on a context that is read in parts: it rewinds a generator that cannot be.
ON_CPU = ("--enforce-eager", "--no-enable-chunked-prefill")
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class ByCall(ByMemory):
    """Sends weights inside HTTP calls, as safetensors: for servers on a CPU of this machine, and for small models."""

    def deliver(self, controls: Sequence[ServerControl]) -> None:
        """Send each bucket of weights to every server, which loads it before it answers.

        Raises WorkerError if a server is not on a CPU, or does not load a bucket.
        """
        from safetensors.torch import save

        device = next((control.door.device for control in controls if control.door.device != "cpu"), None)
        if device is not None:
            hint = "update by group, or by disk where both are on one device"
            raise WorkerError(f"vLLM on {device} cannot receive weights through memory", hint=hint)
        for bucket in self._buckets:
            self.call(controls, tensors=base64.b64encode(save(cpu_copies(bucket))).decode())


class VllmUpdates(WeightUpdates):
    """Weight updates of vLLM servers, one after another; "memory" sends weights inside HTTP calls (`ByCall`)."""

    control = VllmControl
    memory = ByCall


class VllmModel(RemoteModel):
    """A handle on the vLLM replicas of one model."""

    engine = "vllm"
    path = GENERATE
    control = VllmControl
    updates = VllmUpdates
    question = staticmethod(question)
    read = staticmethod(read_sample)

    def _release(self, tags: Sequence[Tag]) -> None:
        """Let the servers sleep: vLLM always drops its cache, and drops its weights or moves them to host memory."""
        keeps = "weights" not in tags or all(door.keeps for door in self.doors)
        self._call_sleeping(f"/sleep?level={1 if keeps else 2}&mode=wait")

    def _restore(self, tags: Sequence[Tag]) -> None:
        self._call_sleeping("/wake_up?" + "&".join(f"tags={tag}" for tag in tags))

    def _call_sleeping(self, path: str) -> None:
        def call(control: VllmControl) -> None:
            if control.door.sleeps:
                control.call(path)

        self._each(call)


class Vllm(ServerEngine):
    """Servers of vLLM; on GPUs they run in this Python."""

    name = "vLLM"
    packages = ("vllm", "vllm-cpu")
    versions = VLLM
    on_cpu = VLLM_CPU
    launcher = "vllm/vllm_launch.py"
    model = VllmModel

    def arguments(
        self, folder: Path, serving: ServerSettings, device: Device, config: Mapping[str, Any], version: int
    ) -> list[str]:
        """Return the command-line arguments of a server, without address and keys.

        `config` is the model's config.json; `version` is not used, because `ready` sends it. On a CPU without
        `cache_share`, the cache has 16,384 tokens by default, and KeyError is raised as by `token_bytes`.
        """
        options: dict[str, object] = {
            "--dtype": serving.precision,
            "--tensor-parallel-size": serving.tensor,
            "--seed": serving.seed,
            "--logprobs-mode": "processed_logprobs",  # after the temperature
            "--generation-config": "vllm",  # no setting from the model's folder
            "--worker-extension-cls": "vllm_worker.Weights",
            "--uvicorn-log-level": "warning",
        }
        positions, tokens = config.get("max_position_embeddings"), serving.max_tokens_cached
        options |= {"--max-model-len": positions} if positions is not None else {}
        if device == "cpu":
            options["--max-num-batched-tokens"] = max(BATCH_TOKENS, int(positions or 0))
        options["--block-size"] = BLOCK_TOKENS
        if serving.cache_share is not None:
            options["--gpu-memory-utilization"] = serving.cache_share
        if device == "cpu" and serving.cache_share is None:  # vLLM would take nine tenths of the memory by default
            blocks = -(-(tokens or CPU_TOKENS) // BLOCK_TOKENS)
            options["--kv-cache-memory-bytes"] = (blocks + 1) * BLOCK_TOKENS * token_bytes(config, serving.precision)
        elif tokens is not None:
            options["--num-gpu-blocks-override"] = -(-tokens // BLOCK_TOKENS)
        switches = ["--tokens-only", "--skip-tokenizer-init", "--disable-log-stats", "--disable-uvicorn-access-log"]
        switches += list(ON_CPU) if device == "cpu" else ["--enable-sleep-mode"] if serving.sleeps else []
        return [str(folder), *switches, *(str(part) for pair in options.items() for part in pair)]

    def variables(self, serving: ServerSettings, device: Device, host: str) -> dict[str, str]:
        """Return the environment variables, by name, that only vLLM needs; `host` is the address of the server."""
        variables = {
            "VLLM_SERVER_DEV_MODE": "1",  # for the calls that pause, sleep and take weights; our guard asks for a key
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_HOST_IP": host,  # where its processes meet
        }
        if device == "cpu":
            return variables | {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        return variables | ({"VLLM_BATCH_INVARIANT": "1"} if serving.repeatable else {})

    def about(self, control: VllmControl) -> dict[str, Any]:
        """Return the properties of a running server, as fields of `ServerAddress` by name.

        Raises WorkerError if the server cannot be asked, if its version is too old, or if flowgraph's launcher did not
        start it.
        """
        version = str(control.get("/version").get("version", "")).partition("+")[0]
        self.versions.known(version, "")
        about = control.post("/about")
        return {
            "version": version,
            "device": "cpu" if about.get("device") == "cpu" else "cuda",
            "precision": str(about.get("precision", "")),
            "tensor": int(about.get("tensor") or 1),
            "folder": str(about.get("folder", "")),
            "sleeps": bool(about.get("sleeps")),
        }

    def way(self, tensor: int, *, shared: bool) -> By:
        """Return the default transport of weights: "disk" if sender and replicas share devices, else "group".

        A process group cannot contain a device twice. `tensor` is not used.
        """
        return "disk" if shared else "group"

    def ready(self, control: VllmControl, version: int) -> None:
        """Set the version of the weights that the server reports with samples to `version`.

        Raises WorkerError if the server is not reached, refuses, or takes too long.
        """
        control.stamp(str(version))


def token_bytes(config: Mapping[str, Any], precision: str) -> int:
    """Return the bytes of one token in the cache: a key and a value for each KV head of each layer.

    `config` is the model's config.json. `precision` is "float32", "bfloat16" or "float16". Raises KeyError for another
    precision, or if a size is missing.

    >>> token_bytes({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}, "float32")
    1024
    """
    heads = int(config["num_attention_heads"])
    width = int(config.get("head_dim") or int(config["hidden_size"]) // heads)
    kv_heads = int(config.get("num_key_value_heads") or heads)
    return 2 * int(config["num_hidden_layers"]) * kv_heads * width * BYTES[precision]
