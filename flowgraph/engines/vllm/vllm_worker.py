"""Methods for vLLM's workers: load weights from a folder, a call, or a process group, and report the loaded weights.

vLLM mixes `Weights` into its worker class, and `/collective_rpc` calls its methods. This runs in the engine's
environment, which need not have flowgraph; it answers the same calls about weights as an SGLang server.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

GROUP_S = 30.0  # for a group's members to meet, and for one broadcast
NUMBERS = 64  # of a row that is recorded for a check


def errors_as_results(call: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Return a wrapper of a method that returns {"failed": text} instead of raising, and {} instead of None.

    vLLM would treat a raised exception as a broken worker.
    """

    @wraps(call)
    def answer(*arguments: Any, **options: Any) -> dict[str, Any]:
        try:
            return call(*arguments, **options) or {}
        except Exception as error:  # noqa: BLE001 - the caller raises it
            return {"failed": f"{type(error).__name__}: {error}"}

    return answer


class Weights:
    """Mixin for vLLM's worker that loads weights in buckets, by the names in the model's files.

    Each method returns a dictionary, which is {"failed": text} after an error. Buckets come between `begin` and `end`.
    A worker records a checksum of each tensor that it gets: on a CPU of the whole tensor, on a GPU of a matrix's first
    row only. The engine packs its own weights for its kernels, so these cannot be compared.
    """

    rank: int
    device: Any
    model_runner: Any
    model_config: Any
    vllm_config: Any

    @errors_as_results
    def flowgraph_begin_weight_update(self) -> None:
        """Begin an update: prepare the model for weights in the format of its files, and drop old records.

        Returns {}, or {"failed": text} after an error.
        """
        self._begin()

    def _begin(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        _state(self)["sums"], _state(self)["parts"], _state(self)["rows"] = {}, {}, {}
        with self._configured():
            initialize_layerwise_reload(self.model_runner.get_model())

    @errors_as_results
    def flowgraph_end_weight_update(self) -> None:
        """End an update: convert the loaded weights to the format of the kernels.

        Returns {}, or {"failed": text} after an error.
        """
        self._end()

    def _end(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        with self._configured():
            finalize_layerwise_reload(self.model_runner.get_model(), self.model_config)

    @errors_as_results
    def flowgraph_update_weights_from_disk(self, model_path: str, flush_cache: bool = False) -> None:
        """Run a complete update, from begin to end, with all weights in the safetensors files of a folder.

        Returns {}, or {"failed": text} after an error, for example if the folder `model_path` has no such files.
        `flush_cache` is ignored.
        """
        self._begin()
        try:
            self._load(_in_folder(Path(model_path)))
        finally:
            self._end()

    @errors_as_results
    def flowgraph_update_weights_from_tensor(self, tensors: str, flush_cache: bool = False) -> None:
        """Load weights from `tensors`, the bytes of a safetensors file in base 64; `flush_cache` is ignored.

        Returns {}, or {"failed": text} after an error.
        """
        from safetensors.torch import load

        self._load(load(base64.b64decode(tensors)).items())

    @errors_as_results
    def flowgraph_init_weights_update_group(
        self, master_address: str, master_port: int, rank_offset: int, world_size: int, group_name: str, backend: str
    ) -> None:
        """Join the sender's process group `group_name`, in addition to the groups of vLLM.

        The group has `world_size` members, and its store is at `master_address` and `master_port`. The rank of this
        worker there is `rank_offset` plus its rank in the server. Returns {}, or {"failed": text} after an error, for
        example if the members do not meet within 30 seconds.
        """
        import torch.distributed
        import torch.distributed.distributed_c10d as c10d

        inner: Any = c10d
        torch_store: Any = vars(torch.distributed)["TCPStore"]
        limit = timedelta(seconds=GROUP_S)
        store = inner.PrefixStore(group_name, torch_store(master_address, master_port, world_size, False, limit))
        rank, kind = rank_offset + self.rank, inner.Backend(backend)
        group, _ = inner._new_process_group_helper(
            world_size, rank, [], kind, store, group_name=group_name, timeout=limit
        )
        inner._world.pg_group_ranks[group] = {member: member for member in range(world_size)}
        _state(self)[group_name] = group

    @errors_as_results
    def flowgraph_update_weights_from_distributed(
        self, names: Sequence[str], dtypes: Sequence[str], shapes: Sequence[Sequence[int]], group_name: str, **_: Any
    ) -> None:
        """Receive tensors with these names, dtypes and shapes, in order, from rank 0 of the group, and load them.

        Returns {}, or {"failed": text} after an error. Other arguments are ignored.
        """
        import torch
        import torch.distributed

        options = torch.distributed.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        tensors = [
            torch.empty(list(shape), dtype=getattr(torch, dtype), device=self.device)
            for dtype, shape in zip(dtypes, shapes, strict=True)
        ]
        for work in [_state(self)[group_name].broadcast([tensor], options) for tensor in tensors]:
            work.wait()
        self._load(zip(names, tensors, strict=True))

    @errors_as_results
    def flowgraph_destroy_weights_update_group(self, group_name: str) -> None:
        """Leave and destroy a process group that this worker has joined.

        Returns {}, or {"failed": text} after an error, for example if this worker has not joined the group.
        """
        import torch.distributed

        torch.distributed.destroy_process_group(_state(self).pop(group_name))

    @errors_as_results
    def flowgraph_about(self) -> dict[str, Any]:
        """Return the server's `device`, `precision`, `tensor` degree, model `folder`, and `sleeps` (sleep mode)."""
        config = self.vllm_config
        return {
            "device": str(config.device_config.device_type),
            "precision": str(self.model_config.dtype).removeprefix("torch."),
            "tensor": int(config.parallel_config.tensor_parallel_size),
            "folder": str(self.model_config.model),
            "sleeps": bool(self.model_config.enable_sleep_mode),
        }

    @errors_as_results
    def flowgraph_weights_checker(self, action: str) -> dict[str, Any]:
        """Return {"checksums": …}, the checksum of each tensor of the last update by the engine's name.

        On a GPU, the checksum of a matrix covers only its first row. The dictionary is empty before the first update.
        `action` is ignored.
        """
        return {"checksums": _state(self).get("sums", {})}

    @errors_as_results
    def flowgraph_get_weights_by_name(self, name: str, truncate_size: int) -> dict[str, Any]:
        """Return {"value": [row]} with the first 64 numbers of the first row of the matrix `name` of the last update.

        `name` is the name in the model's files; for an unknown name the list is empty. `truncate_size` is ignored.
        """
        row = _state(self).get("rows", {}).get(name)
        return {"value": [row] if row is not None else []}

    def _load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        with self._configured():
            self.model_runner.get_model().load_weights(self._watched(weights))

    def _watched(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        state = _state(self)
        table = getattr(self.model_runner.get_model(), "packed_modules_mapping", {})
        for name, tensor in weights:
            if tensor.ndim == 2:
                state["rows"][name] = tensor[0, :NUMBERS].float().cpu().tolist()
            rows = tensor if self.device.type == "cpu" or tensor.ndim < 2 else tensor[:1]
            engine_name, part = join_parts(state["parts"], table, name, rows.cpu())
            if part is not None:
                state["sums"][engine_name] = checksum(part)
            yield name, tensor

    @contextmanager
    def _configured(self) -> Generator[None]:
        import torch
        from vllm.config import set_current_vllm_config

        with set_current_vllm_config(self.vllm_config), torch.inference_mode():
            yield


def _state(worker: Any) -> dict[str, Any]:
    """Return the data that a worker keeps between calls; vLLM creates the worker, so this class has no `__init__`."""
    state: dict[str, Any] = worker.__dict__.setdefault("_flowgraph", {})
    return state


def join_parts(
    waiting: dict[str, dict[str, Tensor]], table: Mapping[str, Sequence[str]], name: str, tensor: Tensor
) -> tuple[str, Tensor | None]:
    """Return the engine's name for a tensor, and the tensor joined with the others that the engine stores with it.

    Tensors are concatenated in the first dimension, in the order of `table`, which lists the parts of each joined
    tensor. `waiting` is changed: it stores the parts that have arrived. The second result is None until the last part
    arrives. A tensor that is not joined is returned with its own name.
    """
    import torch

    for joined_name, parts in table.items():
        part = next((part for part in parts if f".{part}." in name), None)
        if part is not None and len(parts) > 1:
            name = name.replace(part, joined_name)
            tensors = waiting.setdefault(name, {})
            tensors[part] = tensor.clone()
            if len(tensors) < len(parts):
                return name, None
            tensor = torch.cat([tensors[part] for part in parts])
            del waiting[name]
    return name, tensor


def checksum(tensor: Tensor) -> str:
    """Return 16 hexadecimal digits: the first 8 bytes of the SHA-256 of a CPU tensor's bytes."""
    import torch

    data: Any = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.sha256(memoryview(data)).digest()[:8].hex()


def _in_folder(folder: Path) -> Iterator[tuple[str, Tensor]]:
    from safetensors import safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"no weights in {folder}")
    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is not a mapping
                yield name, opened.get_tensor(name)
