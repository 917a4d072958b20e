"""Check after an update that servers have the weights that were sent.

On a CPU, every tensor is compared by checksum. SGLang joins some tensors of a model, and pads the rows of its
vocabulary; this module does the same. On a GPU, SGLang's checksums differ and tensors may be split: there, rows of a
few tensors are compared number by number, if the server returns them by name, and replicas are compared with each
other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from flowgraph.engines.servers.server_control import ServerControl
from flowgraph.engines.servers.server_process import ServerAddress
from flowgraph.engines.vllm.vllm_worker import checksum, join_parts
from flowgraph.errors import WorkerError, nearest
from flowgraph.models.folders import read_shapes, weight_files

if TYPE_CHECKING:
    from torch import Tensor

# Source: `stacked_params_mapping` of SGLang's models of the families of Llama and Qwen.
JOINED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
PADDED_ROWS = 64  # SGLang pads the vocabulary to a multiple of it
ROWS = 3  # that are compared, one from each of as many tensors
TIED = frozenset({"lm_head.weight"})  # may be the embeddings, and then may be missing in a file
NUMBERS = 64  # of a row that is compared


class WeightChecks:
    """The expected checksums and sample rows of one weight update, by the tensor names of the servers at `doors`.

    Raises ModelError if the servers' model folder can be read but has invalid weight files.
    """

    def __init__(self, doors: Sequence[ServerAddress]) -> None:
        # The model's shapes as the servers' folder has them; {} if this process cannot read it.
        folder = Path(doors[0].folder) if doors and doors[0].folder else None
        files = weight_files(folder) if folder is not None and folder.is_dir() else ()
        self._shapes = {name: shape for file in files for name, shape in read_shapes(file).items()}
        self._precision = {door.precision for door in doors}.pop() if doors else ""
        # Servers give checksums of whole tensors, which can be computed here.
        self._whole = all(
            door.device == "cpu" and door.tensor == 1 and door.tried and door.precision not in ("", "auto")
            for door in doors
        )
        self._sums = dict[str, set[str]]()
        self._parts = dict[str, "dict[str, Tensor]"]()
        self._rows = dict[str, list[float]]()

    def watch(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yield `weights` unchanged, and record the checksums and rows that `compare` needs.

        Raises WorkerError for a name or shape that the servers' model does not have, since loading it may end a server,
        and after the last tensor if some were not sent; `lm_head.weight` may be unknown or missing. Names and shapes
        are not checked if this process cannot read the servers' model folder.
        """
        missing = self._shapes.keys() - TIED
        for name, tensor in weights:
            missing.discard(name)
            shape, expected = tuple(tensor.shape), self._shapes.get(name)
            if self._shapes and expected is None and name not in TIED:
                raise WorkerError(f"the servers' model has no weights `{name}`", hint=nearest(name, self._shapes))
            if expected is not None and expected != shape:
                raise WorkerError(f"the weights `{name}` have shape {shape}; the servers' model has {expected}")
            if self._whole:
                served = tensor.detach().cpu().to(getattr(torch, self._precision))
                there, complete = join_parts(self._parts, JOINED, name, served)
                if complete is not None:
                    self._sums[there] = {checksum(complete)}
                    if padding := -len(complete) % PADDED_ROWS if complete.ndim == 2 else 0:
                        zeros = complete.new_zeros(padding, complete.shape[1])
                        self._sums[there].add(checksum(torch.cat([complete, zeros])))
            if len(self._rows) < ROWS and tensor.ndim == 2:
                self._rows[name] = tensor.detach()[0, :NUMBERS].float().cpu().tolist()
            yield name, tensor
        if missing:
            raise WorkerError(f"{len(missing)} tensors of the model were not sent", notes=sorted(missing)[:3])

    def compare(self, controls: Sequence[ServerControl]) -> None:
        """Raise WorkerError if a server has other weights than `watch` recorded, or if two replicas differ.

        Whole tensors are compared by checksum if all servers run on a CPU, with whole weights in a known precision, and
        in tried versions of the engine. Otherwise only the starts of up to three rows are compared, if the server
        returns them by name, so that a difference can go unnoticed. Replicas with the tensor-parallel degree of the
        first are compared with the first. The error names the servers and up to three wrong tensors. Also raises
        WorkerError if a server cannot be asked, or, where whole tensors are compared, if a server knows none of the
        recorded names.
        """
        checksums = [_checksums(control) for control in controls]
        for control, sums in zip(controls, checksums, strict=True):
            name, shared = control.door.name, sums.keys() & self._sums.keys()
            wrong = sorted(tensor for tensor in shared if sums[tensor] not in self._sums[tensor])
            if wrong:
                what = f"{name} has different weights than were sent: {len(wrong)} of {len(shared)} tensors differ"
                raise WorkerError(what, notes=wrong[:3])
            if self._whole and not shared:
                what = f"{name} uses other names for its weights, so they cannot be compared"
                raise WorkerError(what, notes=sorted(sums)[:3])
            if not self._whole:
                self._compare_rows(control)
            if sums != checksums[0] and control.door.tensor == controls[0].door.tensor:
                names = f"{control.door.name} and {controls[0].door.name}"
                raise WorkerError(f"{names} hold different weights after one update")

    def _compare_rows(self, control: ServerControl) -> None:
        for name, row in self._rows.items():
            value = control.post("/get_weights_by_name", name=name, truncate_size=1).get("value")
            if isinstance(value, list) and value and isinstance(value[0], list):
                close = [abs(a - b) <= 0.01 * abs(a) + 1e-6 for a, b in zip(row, value[0], strict=False)]
                if not all(close):  # to bfloat16, the coarsest that weights are served in
                    raise WorkerError(f"{control.door.name} has different weights than were sent", notes=[name])


def _checksums(control: ServerControl) -> dict[str, str]:
    answer = control.post("/weights_checker", action="checksum")
    try:
        return {
            f"{rank or ''}{name}": text
            for rank, report in enumerate(answer["ranks"])
            for name, text in report["checksums"].items()
        }
    except (KeyError, TypeError, AttributeError):
        raise WorkerError(f"{control.door.name} returned no checksums of its weights") from None
