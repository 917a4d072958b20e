"""SGLang as an engine: how its server is started, told and asked."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flowgraph.engines.servers.remote_model import RemoteModel, Tag
from flowgraph.engines.servers.server_engine import CPU_TOKENS, Device, ServerEngine, ServerSettings
from flowgraph.engines.sglang.environment import SGLANG_CPU
from flowgraph.engines.sglang.http import ServerControl, question, read_answer
from flowgraph.engines.sglang.versions import SGLANG
from flowgraph.engines.weight_sync.weight_updates import By, WeightUpdates

CPU_SHARE = 0.1  # of the machine's memory
SPARE_POSITIONS = 16  # SGLang keeps a few positions to itself: 2 of a whole sequence, 6 of a prompt
BIND = "SGLANG_CPU_OMP_THREADS_BIND"


def shared_cores(cores: Sequence[int], ranks: int) -> str:
    """Share cores out over ranks as SGLang reads it; by itself it wants a NUMA node for each. Few cores take turns.

    >>> shared_cores([0, 1, 2, 5, 6], 2), shared_cores([3], 2)
    ('0,1|2,5', '3|3')
    """
    each = max(1, len(cores) // ranks)
    shares = ([cores[(rank * each + i) % len(cores)] for i in range(each)] for rank in range(ranks))
    return "|".join(",".join(map(str, share)) for share in shares)


class SglangModel(RemoteModel):
    """A handle on the SGLang replicas of one model."""

    engine = "sglang"
    path = "/generate"
    control = ServerControl
    updates = WeightUpdates
    question = staticmethod(question)
    read = staticmethod(read_answer)

    def _release(self, tags: Sequence[Tag]) -> None:
        self._each(lambda control: control.flush())
        self._each(lambda control: control.post("/release_memory_occupation", tags=list(tags)))

    def _resume(self, tags: Sequence[Tag]) -> None:
        self._each(lambda control: control.post("/resume_memory_occupation", tags=list(tags)))


class Sglang(ServerEngine):
    """Servers of SGLang; those on GPUs are started by this Python."""

    name = "SGLang"
    packages = ("sglang",)
    versions = SGLANG
    on_cpu = SGLANG_CPU
    launcher = "sglang/sglang_launch.py"
    model = SglangModel

    def arguments(
        self, folder: Path, serving: ServerSettings, device: Device, config: Mapping[str, Any], version: int
    ) -> list[str]:
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
        positions = config.get("max_position_embeddings")
        if device == "cpu":
            given |= {"--attention-backend": "torch_native", "--sampling-backend": "pytorch"}
            share, most = share or CPU_SHARE, most or CPU_TOKENS
        if positions is not None:
            given["--context-length"] = positions + SPARE_POSITIONS
        given |= {"--mem-fraction-static": share} if share is not None else {}
        given |= {"--max-total-tokens": most} if most is not None else {}
        switches = {
            "--enable-deterministic-inference": serving.repeatable,
            "--enable-memory-saver": serving.sleeps,
            "--enable-weights-cpu-backup": serving.sleeps and serving.keeps,
        }
        on = [switch for switch, wanted in switches.items() if wanted and device == "cuda"]
        on += ["--sleep-on-idle"] if device == "cpu" else []  # else its scheduler takes a core while others compute
        return ["--skip-tokenizer-init", *on, *(str(part) for pair in given.items() for part in pair)]

    def variables(self, serving: ServerSettings, device: Device, host: str) -> dict[str, str]:
        """Give what stands in the environment of its processes for SGLang alone."""
        given = {
            "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",  # else each look costs a second
            "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",  # for SPARE_POSITIONS, which no request reaches
        }
        if device == "cpu":
            given["SGLANG_USE_CPU_ENGINE"] = "1"
            if serving.tensor > 1 and BIND not in os.environ:
                given[BIND] = shared_cores(sorted(os.sched_getaffinity(0)), serving.tensor)
        return given

    def about(self, control: ServerControl) -> dict[str, Any]:
        """Ask a running server what it is: fields of its door."""
        told = control.get("/server_info")
        return {
            "version": str(told.get("version", "")),
            "device": "cpu" if str(told.get("device", "cuda")).startswith("cpu") else "cuda",
            "precision": str(told.get("dtype", "")),
            "tensor": int(told.get("tp_size") or 1),
            "folder": str(told.get("model_path", "")),
            "sleeps": bool(told.get("enable_memory_saver")),
        }

    def way(self, tensor: int, *, shared: bool) -> By:
        """Say how new weights come to replicas, where the plan does not.

        In the memory of a device that both share, if one process holds a replica's weights; a process group cannot
        have one device twice, so else through files; and over a process group to devices that nobody shares.
        """
        if not shared:
            return "group"
        return "memory" if tensor == 1 else "disk"

    def ready(self, control: ServerControl, version: int) -> None:
        """Do nothing more: the version stands in the command line."""
