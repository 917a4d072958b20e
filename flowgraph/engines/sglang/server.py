"""SGLang as an engine: how its servers are started and called, and what they are asked for a sample."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flowgraph.engines.servers.remote_model import RemoteModel, Tag
from flowgraph.engines.servers.sample_answer import UNCHANGED, read_answer, seed
from flowgraph.engines.servers.server_control import ServerControl
from flowgraph.engines.servers.server_engine import CPU_TOKENS, Device, ServerEngine, ServerSettings
from flowgraph.engines.sglang import SGLANG, SGLANG_CPU
from flowgraph.engines.weight_sync.weight_updates import By
from flowgraph.language.handle import SampleRequest

CPU_SHARE = 0.1  # of the machine's memory
SPARE_POSITIONS = 16  # SGLang reserves a few positions: 2 of a whole sequence, 6 of a prompt
BIND = "SGLANG_CPU_OMP_THREADS_BIND"


def shared_cores(cores: Sequence[int], ranks: int) -> str:
    """Split cores over ranks in SGLang's notation, which by default wants a NUMA node for each rank.

    >>> shared_cores([0, 1, 2, 5, 6], 2), shared_cores([3], 2)
    ('0,1|2,5', '3|3')
    """
    size = max(1, len(cores) // ranks)
    shares = ([cores[(rank * size + i) % len(cores)] for i in range(size)] for rank in range(ranks))
    return "|".join(",".join(map(str, share)) for share in shares)


def question(request: SampleRequest, ends: Sequence[int]) -> dict[str, Any]:
    """Return the body of `/generate` for one sample: token ids in and out.

    The server samples by `sampling_seed` only if its kernels do not depend on the batch.
    """
    return {
        "input_ids": list(request.context),
        "return_logprob": True,
        "logprob_start_len": -1,
        "sampling_params": {
            "temperature": request.temperature,
            "max_new_tokens": request.max_tokens,
            "stop_token_ids": list(ends),
            "sampling_seed": seed(request),
            **UNCHANGED,
        },
    }


class SglangModel(RemoteModel):
    """A handle on the SGLang replicas of one model."""

    engine = "sglang"
    path = "/generate"
    question = staticmethod(question)
    read = staticmethod(read_answer)

    def _release(self, tags: Sequence[Tag]) -> None:
        self._each(lambda control: control.flush())
        self._each(lambda control: control.post("/release_memory_occupation", tags=list(tags)))

    def _restore(self, tags: Sequence[Tag]) -> None:
        self._each(lambda control: control.post("/resume_memory_occupation", tags=list(tags)))


class Sglang(ServerEngine):
    """Servers of SGLang; this Python starts those on GPUs."""

    name = "SGLang"
    packages = ("sglang",)
    versions = SGLANG
    on_cpu = SGLANG_CPU
    launcher = "sglang/sglang_launch.py"
    model = SglangModel

    def arguments(
        self, folder: Path, serving: ServerSettings, device: Device, config: Mapping[str, Any], version: int
    ) -> list[str]:
        """Return the command line of a server without its address and keys."""
        options: dict[str, object] = {
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
        share, max_tokens = serving.cache_share, serving.max_tokens_cached
        positions = config.get("max_position_embeddings")
        if device == "cpu":
            options |= {"--attention-backend": "torch_native", "--sampling-backend": "pytorch"}
            share, max_tokens = share or CPU_SHARE, max_tokens or CPU_TOKENS
        if positions is not None:
            options["--context-length"] = positions + SPARE_POSITIONS
        options |= {"--mem-fraction-static": share} if share is not None else {}
        options |= {"--max-total-tokens": max_tokens} if max_tokens is not None else {}
        switches = {
            "--enable-deterministic-inference": serving.repeatable,
            "--enable-memory-saver": serving.sleeps,
            "--enable-weights-cpu-backup": serving.sleeps and serving.keeps,
        }
        # On a CPU, without its switch the scheduler takes a core while others compute.
        on = ["--sleep-on-idle"] if device == "cpu" else [switch for switch, is_on in switches.items() if is_on]
        return ["--skip-tokenizer-init", *on, *(str(part) for pair in options.items() for part in pair)]

    def variables(self, serving: ServerSettings, device: Device, host: str) -> dict[str, str]:
        """Return the environment variables that only SGLang's processes need."""
        variables = {
            "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",  # else each health check takes a second
            "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",  # for SPARE_POSITIONS, which no request reaches
        }
        if device == "cpu":
            variables["SGLANG_USE_CPU_ENGINE"] = "1"
            if serving.tensor > 1 and BIND not in os.environ:
                variables[BIND] = shared_cores(sorted(os.sched_getaffinity(0)), serving.tensor)
        return variables

    def about(self, control: ServerControl) -> dict[str, Any]:
        """Ask a running server for the fields of its address."""
        info = control.get("/server_info")
        return {
            "version": str(info.get("version", "")),
            "device": "cpu" if str(info.get("device", "cuda")).startswith("cpu") else "cuda",
            "precision": str(info.get("dtype", "")),
            "tensor": int(info.get("tp_size") or 1),
            "folder": str(info.get("model_path", "")),
            "sleeps": bool(info.get("enable_memory_saver")),
        }

    def way(self, tensor: int, *, shared: bool) -> By:
        """Choose how new weights reach replicas: a process group for devices that are not shared.

        On shared devices it is their memory if one process holds a replica's weights; a process group cannot have one
        device twice, so else it is files.
        """
        if not shared:
            return "group"
        return "memory" if tensor == 1 else "disk"

    def ready(self, control: ServerControl, version: int) -> None:
        """Do nothing: the version is in the command line."""
