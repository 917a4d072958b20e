"""Bring new weights to running vLLM servers, in the order and with the checks of `weight_updates`."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from flowgraph.errors import WorkerError
from flowgraph.executors.servers import Door
from flowgraph.executors.sglang_http import Control
from flowgraph.executors.vllm_http import VllmControl
from flowgraph.executors.weight_paths import ByMemory, everywhere
from flowgraph.executors.weight_updates import BUCKET_BYTES, LIMIT_S, By, Hold, Updates


class VllmUpdates(Updates):
    """Updates of the same vLLM servers, one after another; see `Updates` for what the settings mean."""

    def __init__(
        self,
        doors: Sequence[Door],
        *,
        by: By = "disk",
        scratch: Path | None = None,
        hold: Hold = "idle",
        limit_s: float = LIMIT_S,
        bucket_bytes: int = BUCKET_BYTES,
        address: str = "",
    ) -> None:
        super().__init__(
            doors, by=by, scratch=scratch, hold=hold, limit_s=limit_s, bucket_bytes=bucket_bytes, address=address
        )
        if by == "memory":
            self._way = ByCall()

    @contextlib.contextmanager
    def _controls(self) -> Generator[list[Control]]:
        with contextlib.ExitStack() as stack:
            yield [stack.enter_context(VllmControl(door, self._limit_s)) for door in self.doors]


class ByCall(ByMemory):
    """Inside the call, as the bytes of a safetensors file: for servers on a CPU of this machine, and small models."""

    def deliver(self, controls: Sequence[Control]) -> None:
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
