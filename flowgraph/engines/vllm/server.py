"""vLLM as an engine: how its server is started, told and asked."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flowgraph.engines.servers.remote_model import RemoteModel, Tag
from flowgraph.engines.servers.server_engine import CPU_TOKENS, Device, ServerEngine, ServerSettings
from flowgraph.engines.sglang.http import ServerControl
from flowgraph.engines.vllm.environment import VLLM_CPU
from flowgraph.engines.vllm.http import GENERATE, VllmControl, question, read_sample
from flowgraph.engines.vllm.versions import VLLM
from flowgraph.engines.weight_sync.weight_transports import ByMemory, everywhere
from flowgraph.engines.weight_sync.weight_updates import By, WeightUpdates
from flowgraph.errors import WorkerError

BLOCK_TOKENS = 32  # of the cache; the kernels of a CPU want a multiple of it
BATCH_TOKENS = 4096  # read in one pass on a CPU
# With a seed, vLLM 0.32 ends on a CPU where a context is read in parts: it turns a generator back that cannot be.
ON_CPU = ("--enforce-eager", "--no-enable-chunked-prefill")
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class ByCall(ByMemory):
    """Inside the call, as the bytes of a safetensors file: for servers on a CPU of this machine, and small models."""

    def deliver(self, controls: Sequence[ServerControl]) -> None:
        """Send each bucket to every server, which has loaded it before it answers."""
        from safetensors.torch import save

        elsewhere = next((each.door for each in controls if each.door.device != "cpu"), None)
        if elsewhere is not None:
            hint = "update by group, or by disk where both are on one device"
            raise WorkerError(f"weights do not go through memory to vLLM on {elsewhere.device}", hint=hint)
        for bucket in self._buckets:
            whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in bucket}
            told: dict[str, Any] = {"tensors": base64.b64encode(save(whole)).decode()}
            everywhere(controls, lambda c, told=told: c.post("/update_weights_from_tensor", **told))  # type: ignore[misc]


class VllmUpdates(WeightUpdates):
    """Updates of the same vLLM servers, one after another."""

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
        """Have the servers sleep: vLLM drops its cache in any case, and weights too, or moves them to host memory."""
        keeps = "weights" not in tags or all(door.keeps for door in self.doors)
        self._sleepers(f"/sleep?level={1 if keeps else 2}&mode=wait")

    def _resume(self, tags: Sequence[Tag]) -> None:
        self._sleepers("/wake_up?" + "&".join(f"tags={tag}" for tag in tags))

    def _sleepers(self, path: str) -> None:
        def ask(control: VllmControl) -> None:
            if control.door.sleeps:
                control.each(path)

        self._each(ask)


class Vllm(ServerEngine):
    """Servers of vLLM; those on GPUs are started by this Python."""

    name = "vLLM"
    packages = ("vllm", "vllm-cpu")
    versions = VLLM
    on_cpu = VLLM_CPU
    launcher = "vllm/vllm_launch.py"
    model = VllmModel

    def arguments(
        self, folder: Path, serving: ServerSettings, device: Device, config: Mapping[str, Any], version: int
    ) -> list[str]:
        """Give the command line of a server, without its address and keys; the version is stamped once it answers."""
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

    def variables(self, serving: ServerSettings, device: Device, host: str) -> dict[str, str]:
        """Give what stands in the environment of its processes for vLLM alone."""
        given = {
            "VLLM_SERVER_DEV_MODE": "1",  # for the calls that pause, sleep and take weights; our guard asks for a key
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_HOST_IP": host,  # where its processes meet
        }
        if device == "cpu":
            return given | {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        return given | ({"VLLM_BATCH_INVARIANT": "1"} if serving.repeatable else {})

    def about(self, control: VllmControl) -> dict[str, Any]:
        """Ask a running server what it is; one that our launcher did not start can be told no weights, and says so."""
        version = str(control.get("/version").get("version", "")).partition("+")[0]
        self.versions.known(version, "")
        told = control.post("/about")
        return {
            "version": version,
            "device": "cpu" if told.get("device") == "cpu" else "cuda",
            "precision": str(told.get("precision", "")),
            "tensor": int(told.get("tensor") or 1),
            "folder": str(told.get("folder", "")),
            "sleeps": bool(told.get("sleeps")),
        }

    def way(self, tensor: int, *, shared: bool) -> By:
        """Say how new weights come to replicas, where the plan does not.

        Over a process group to devices that nobody shares; it cannot have one device twice, so else through files.
        """
        return "disk" if shared else "group"

    def ready(self, control: VllmControl, version: int) -> None:
        """Stamp the version of the folder's weights."""
        control.stamp(str(version))


def _cache(serving: ServerSettings, device: Device, config: Mapping[str, Any]) -> dict[str, object]:
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
