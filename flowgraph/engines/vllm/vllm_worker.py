"""What vLLM's workers are taught: to take weights from a folder, a call, or a process group, and to tell what arrived.

vLLM mixes `Weights` into its worker class, and its methods are called by `/collective_rpc`. It runs in the engine's
environment, which need not have flowgraph; it answers the same weight calls as an SGLang server does.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

GROUP_S = 30.0  # for a group's members to meet, and for one broadcast
NUMBERS = 64  # how many numbers of a row are kept for a look


def told(call: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Have a call answer an object: what it gives, or how it failed, which vLLM would tell as a broken worker."""

    @wraps(call)
    def answering(*arguments: Any, **named: Any) -> dict[str, Any]:
        try:
            return call(*arguments, **named) or {}
        except Exception as error:  # noqa: BLE001 - whoever asked gets what went wrong
            return {"failed": f"{type(error).__name__}: {error}"}

    return answering


class Weights:
    """Mixed into vLLM's worker; weights stand between `begin` and `end`, in buckets, by the names of the model's files.

    What a worker keeps of them is what arrived: on a CPU the checksum of every tensor, elsewhere of its first row. The
    engine packs what it holds for its kernels, so it cannot be compared by itself.
    """

    rank: int
    device: Any
    model_runner: Any
    model_config: Any
    vllm_config: Any

    @told
    def flowgraph_begin_weight_update(self) -> None:
        """Make ready for weights as they lie in files."""
        self._begin()

    def _begin(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        _state(self)["sums"], _state(self)["parts"], _state(self)["rows"] = {}, {}, {}
        with self._configured():
            initialize_layerwise_reload(self.model_runner.get_model())

    @told
    def flowgraph_end_weight_update(self) -> None:
        """Bring what was loaded into the form that the kernels read."""
        self._end()

    def _end(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        with self._configured():
            finalize_layerwise_reload(self.model_runner.get_model(), self.model_config)

    @told
    def flowgraph_update_weights_from_disk(self, model_path: str, flush_cache: bool = False) -> None:
        """Load all weights of a folder of safetensors that this worker can read."""
        self._begin()
        try:
            self._load(_in_folder(Path(model_path)))
        finally:
            self._end()

    @told
    def flowgraph_update_weights_from_tensor(self, tensors: str, flush_cache: bool = False) -> None:
        """Load weights that are part of the call: the bytes of a safetensors file, in base 64."""
        from safetensors.torch import load

        self._load(load(base64.b64decode(tensors)).items())

    @told
    def flowgraph_init_weights_update_group(
        self, master_address: str, master_port: int, rank_offset: int, world_size: int, group_name: str, backend: str
    ) -> None:
        """Join the group of who sends weights, beside whatever groups this process has."""
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
        inner._world.pg_group_ranks[group] = {each: each for each in range(world_size)}
        _state(self)[group_name] = group

    @told
    def flowgraph_update_weights_from_distributed(
        self, names: Sequence[str], dtypes: Sequence[str], shapes: Sequence[Sequence[int]], group_name: str, **_: Any
    ) -> None:
        """Receive weights of these names and shapes from the group's first rank, and load them."""
        import torch
        import torch.distributed

        first = torch.distributed.BroadcastOptions()
        first.rootRank, first.rootTensor = 0, 0
        told = zip(dtypes, shapes, strict=True)
        taken = [torch.empty(list(shape), dtype=getattr(torch, dtype), device=self.device) for dtype, shape in told]
        for work in [_state(self)[group_name].broadcast([each], first) for each in taken]:
            work.wait()
        self._load(zip(names, taken, strict=True))

    @told
    def flowgraph_destroy_weights_update_group(self, group_name: str) -> None:
        """Leave a group."""
        import torch.distributed

        torch.distributed.destroy_process_group(_state(self).pop(group_name))

    @told
    def flowgraph_about(self) -> dict[str, Any]:
        """Tell what the server was started with."""
        config = self.vllm_config
        return {
            "device": str(config.device_config.device_type),
            "precision": str(self.model_config.dtype).removeprefix("torch."),
            "tensor": int(config.parallel_config.tensor_parallel_size),
            "folder": str(self.model_config.model),
            "sleeps": bool(self.model_config.enable_sleep_mode),
        }

    @told
    def flowgraph_weights_checker(self, action: str) -> dict[str, Any]:
        """Tell the checksums of what arrived, by the engine's names."""
        return {"checksums": _state(self).get("sums", {})}

    @told
    def flowgraph_get_weights_by_name(self, name: str, truncate_size: int) -> dict[str, Any]:
        """Tell the first numbers of a matrix that arrived."""
        row = _state(self).get("rows", {}).get(name)
        return {"value": [row] if row is not None else []}

    def _load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        with self._configured():
            self.model_runner.get_model().load_weights(self._watched(weights))

    def _watched(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Hand weights on, and keep what tells them."""
        state = _state(self)
        joined = getattr(self.model_runner.get_model(), "packed_modules_mapping", {})
        for name, tensor in weights:
            if tensor.ndim == 2:
                state["rows"][name] = tensor[0, :NUMBERS].float().cpu().tolist()
            short = tensor if self.device.type == "cpu" or tensor.ndim < 2 else tensor[:1]
            _sum(state, joined, name, short.cpu())
            yield name, tensor

    @contextmanager
    def _configured(self) -> Generator[None]:
        import torch
        from vllm.config import set_current_vllm_config

        with set_current_vllm_config(self.vllm_config), torch.inference_mode():
            yield


def _state(worker: Any) -> dict[str, Any]:
    """Give what a worker keeps from call to call; vLLM makes the worker, so there is no `__init__` of ours."""
    found: dict[str, Any] = worker.__dict__.setdefault("_flowgraph", {})
    return found


def _sum(state: dict[str, Any], joined: dict[str, list[str]], name: str, tensor: Tensor) -> None:
    """Keep the checksum of a tensor, of several that the engine joins to one when the last of them is there."""
    import torch

    for whole, parts in joined.items():
        part = next((part for part in parts if f".{part}." in name), None)
        if part is not None and len(parts) > 1:
            name = name.replace(part, whole)
            held = state["parts"].setdefault(name, {})
            held[part] = tensor.clone()
            if len(held) < len(parts):
                return
            tensor = torch.cat([held[each] for each in parts])
            del state["parts"][name]
    data: Any = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    state["sums"][name] = hashlib.sha256(memoryview(data)).digest()[:8].hex()


def _in_folder(folder: Path) -> Iterator[tuple[str, Tensor]]:
    from safetensors import safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"no weights in {folder}")
    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no mapping
                yield name, opened.get_tensor(name)
