"""Check after an update that servers hold the weights that were sent.

On a CPU every tensor is compared by checksum. SGLang joins some tensors of a model to one, and pads the rows of its
vocabulary; both are done here too. On a GPU its checksum is another, and a tensor may be split: there, rows of a few
tensors are compared by number, where the server's model gives them by name, and replicas with each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from flowgraph.engines.servers.server_process import ServerAddress
from flowgraph.engines.sglang.http import ServerControl
from flowgraph.errors import WorkerError, nearest
from flowgraph.models.folders import read_header, weight_files

if TYPE_CHECKING:
    from torch import Tensor

# Source: `stacked_params_mapping` of SGLang's models of the families of Llama and Qwen.
JOINED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
PADDED_ROWS = 64  # to a multiple of which SGLang pads the vocabulary
NAMED = 3  # how many tensors are compared by number
TIED = frozenset({"lm_head.weight"})  # may be the embeddings, and stand in a file or not
NUMBERS = 64  # how many numbers of a row


class WeightChecks:
    """What is kept of weights while they are sent to these servers: checksums by the servers' names, and a few rows."""

    def __init__(self, doors: Sequence[ServerAddress]) -> None:
        self._shapes = _shapes(doors)
        self._sent = set[str]()
        self._precision = {door.precision for door in doors}.pop() if doors else ""
        self._whole = all(_told_whole(door) for door in doors)
        self._sums = dict[str, set[str]]()
        self._parts = dict[str, "dict[str, Tensor]"]()
        self._rows = dict[str, list[float]]()

    def watch(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Hand weights on, and keep what is needed to compare them.

        Raises WorkerError for weights that are not those of the model: a server that is given such may end.
        """
        for name, tensor in weights:
            self._fits(name, tuple(tensor.shape))
            if self._whole:
                self._sum(name, tensor.detach().cpu().to(self._dtype()))
            if len(self._rows) < NAMED and tensor.ndim == 2:
                self._rows[name] = tensor.detach()[0, :NUMBERS].float().cpu().tolist()
            yield name, tensor
        missing = sorted(self._shapes.keys() - self._sent - TIED)
        if missing:
            raise WorkerError(f"{len(missing)} tensors of the model were not sent", notes=missing[:3])

    def _fits(self, name: str, shape: tuple[int, ...]) -> None:
        self._sent.add(name)
        wanted = self._shapes.get(name)
        if self._shapes and wanted is None and name not in TIED:
            raise WorkerError(f"the servers' model has no weights `{name}`", hint=nearest(name, self._shapes))
        if wanted is not None and wanted != shape:
            raise WorkerError(f"the weights `{name}` have shape {shape}; the servers' model has {wanted}")

    def compare(self, controls: Sequence[ServerControl]) -> None:
        """Raise WorkerError for a server that holds other weights than were sent, and say which tensor."""
        told = [_checksums(control) for control in controls]
        for control, sums in zip(controls, told, strict=True):
            if self._whole:
                self._compare_sums(control.door.name, sums)
            else:
                self._compare_rows(control)
            if sums != told[0] and control.door.tensor == controls[0].door.tensor:
                other = controls[0].door.name
                raise WorkerError(f"{control.door.name} and {other} hold different weights after one update")

    def _dtype(self) -> Any:

        return getattr(torch, self._precision)

    def _sum(self, name: str, tensor: Tensor) -> None:

        for joined, parts in JOINED.items():
            part = next((part for part in parts if f".{part}." in name), None)
            if part is not None:
                name = name.replace(part, joined)
                held = self._parts.setdefault(name, {})
                held[part] = tensor
                if len(held) < len(parts):
                    return
                tensor = torch.cat([held[each] for each in parts])
                del self._parts[name]
        self._sums[name] = {_checksum(tensor), _checksum(_padded(tensor))}

    def _compare_sums(self, name: str, sums: Mapping[str, str]) -> None:
        both = sums.keys() & self._sums.keys()
        wrong = sorted(each for each in both if sums[each] not in self._sums[each])
        if wrong:
            what = f"{name} holds other weights than were sent: {len(wrong)} of {len(both)} tensors differ"
            raise WorkerError(what, notes=wrong[:3])
        if not both:
            raise WorkerError(f"{name} names its weights otherwise, so they cannot be compared", notes=sorted(sums)[:3])

    def _compare_rows(self, control: ServerControl) -> None:
        for name, row in self._rows.items():
            told = control.post("/get_weights_by_name", name=name, truncate_size=1).get("value")
            if isinstance(told, list) and told and isinstance(told[0], list):
                close = [abs(a - b) <= 0.01 * abs(a) + 1e-6 for a, b in zip(row, told[0], strict=False)]
                if not all(close):  # to bfloat16, the coarsest that weights are served in
                    raise WorkerError(f"{control.door.name} holds other weights than were sent", notes=[name])


def _shapes(doors: Sequence[ServerAddress]) -> dict[str, tuple[int, ...]]:
    """Read the shapes of the model that servers were started from, where its folder can be read from here."""
    folder = Path(doors[0].folder) if doors and doors[0].folder else None
    if folder is None or not folder.is_dir():
        return {}
    return {name: shape for file in weight_files(folder) for name, shape in read_header(file).shapes.items()}


def _told_whole(door: ServerAddress) -> bool:
    """Say whether a server tells checksums that can be computed here: of whole tensors, in a version that was tried."""
    return door.device == "cpu" and door.tensor == 1 and door.tried and door.precision not in ("", "auto")


def _checksums(control: ServerControl) -> dict[str, str]:
    told = control.post("/weights_checker", action="checksum")
    try:
        return {
            f"{rank or ''}{name}": text
            for rank, each in enumerate(told["ranks"])
            for name, text in each["checksums"].items()
        }
    except (KeyError, TypeError, AttributeError):
        raise WorkerError(f"{control.door.name} tells no checksums of its weights") from None


def _checksum(tensor: Tensor) -> str:

    data: Any = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.sha256(memoryview(data)).digest()[:8].hex()


def _padded(tensor: Tensor) -> Tensor:

    missing = -len(tensor) % PADDED_ROWS if tensor.ndim == 2 else 0
    return torch.cat([tensor, tensor.new_zeros(missing, tensor.shape[1])]) if missing else tensor
