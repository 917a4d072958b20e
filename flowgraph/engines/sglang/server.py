"""The engine SGLang: how its servers are started and called, and the format of a request for a sample."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flowgraph.engines.servers.remote_model import RemoteModel, Tag
from flowgraph.engines.servers.sample_answer import UNCHANGED, read_answer, refuse_other_distribution, sample_seed
from flowgraph.engines.servers.server_control import ServerControl
from flowgraph.engines.servers.server_engine import CPU_TOKENS, Device, ServerEngine, ServerSettings
from flowgraph.engines.sglang import ENGINE, SGLANG, SGLANG_CPU
from flowgraph.engines.weight_sync.weight_updates import By
from flowgraph.language.handle import SampleRequest

CPU_SHARE = 0.1  # of the machine's memory
SPARE_POSITIONS = 16  # SGLang reserves a few positions: 2 of a whole sequence, 6 of a prompt
MASK_TOKENS = 4096  # that SGLang keeps in a sampling mask by default
BIND = "SGLANG_CPU_OMP_THREADS_BIND"


def shared_cores(cores: Sequence[int], ranks: int) -> str:
    """Return CPU cores divided among ranks, as text for SGLang's variable `SGLANG_CPU_OMP_THREADS_BIND`.

    Each rank gets the same number of cores; remaining cores are unused. If there are fewer cores than ranks, several
    ranks get the same core.

    >>> shared_cores([0, 1, 2, 5, 6], 2), shared_cores([3], 2)
    ('0,1|2,5', '3|3')
    """
    size = max(1, len(cores) // ranks)
    shares = ([cores[(rank * size + i) % len(cores)] for i in range(size)] for rank in range(ranks))
    return "|".join(",".join(map(str, share)) for share in shares)


def question(request: SampleRequest, ends: Sequence[int], vocabulary: int | None = None) -> dict[str, Any]:
    """Return the JSON body of a `/generate` request for one sample, with token ids as input and output.

    `ends` are the token ids that end the response; SGLang ignores these if the request has `ignore_eos`. `vocabulary`
    is the number of the model's token ids (None: 4096). It is used only if the request has a truncation: `top_k` is
    then `vocabulary` by default and at most, because SGLang returns log-probs of the truncated distribution only for a
    finite `top_k`. The server uses `sampling_seed` only if it was started with `repeatable`. Raises WorkerError for
    settings that SGLang applies differently from the engine `local`.
    """
    refuse_other_distribution(request, ENGINE)
    changes: dict[str, Any] = request.reshaped()
    truncated = bool(changes)
    if truncated:
        largest = vocabulary or MASK_TOKENS
        changes["top_k"] = min(request.truncation.top_k or largest, largest)
    changes |= {"ignore_eos": True} if request.stopping.ignore_eos else {}
    return {
        "input_ids": list(request.context),
        "return_logprob": True,
        "logprob_start_len": -1,
        "sampling_params": {
            "temperature": request.temperature,
            "max_new_tokens": request.max_tokens,
            "stop_token_ids": list(ends),
            "sampling_seed": sample_seed(request),
            **UNCHANGED,
            **changes,
        },
        **({"return_sampling_mask": True} if truncated else {}),
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
    """Servers of SGLang; on GPUs they run in this Python."""

    name = "SGLang"
    packages = ("sglang",)
    versions = SGLANG
    on_cpu = SGLANG_CPU
    launcher = "sglang/sglang_launch.py"
    model = SglangModel

    def arguments(
        self, folder: Path, serving: ServerSettings, device: Device, config: Mapping[str, Any], version: int
    ) -> list[str]:
        """Return the command-line arguments of a server, without address and keys.

        `config` is the model's config.json, and `version` the version of the weights in `folder`. On a CPU, the default
        limits are 10% of the machine's memory and 16,384 cached tokens.
        """
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
        positions, vocabulary = config.get("max_position_embeddings"), config.get("vocab_size")
        options |= {"--sampling-mask-max-tokens": vocabulary} if serving.masks and vocabulary else {}
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
        """Return the environment variables, by name, that only SGLang needs; `host` is not used.

        On a CPU, several ranks divide this process's cores, unless `SGLANG_CPU_OMP_THREADS_BIND` is set here.
        """
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
        """Return the properties of a running server, as fields of `ServerAddress` by name.

        Raises WorkerError if the server is not reached, refuses, or takes too long.
        """
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
        """Return the default transport of weights to replicas of `tensor` devices.

        This is "group" unless the sender and the replicas share devices, because a process group cannot contain a
        device twice. With shared devices, it is "memory" if a replica has one device, and "disk" otherwise.
        """
        if not shared:
            return "group"
        return "memory" if tensor == 1 else "disk"

    def ready(self, control: ServerControl, version: int) -> None:
        """Do nothing: the command line has already set the version of the weights."""
