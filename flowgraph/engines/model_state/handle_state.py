"""The state of a handle for `sharded_checkpoint`: its weights and its optimizer states, each with a unique name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from flowgraph.engines.model_state.optimizers import KEEPS, Optimizers, States
from flowgraph.engines.model_state.sharded_checkpoint import SavedState, TensorPiece, all_or_none, reading_state, write
from flowgraph.errors import DataError, LawError

if TYPE_CHECKING:
    from torch import Tensor

    from flowgraph.language.handle import Ranks

_WEIGHTS = "weights"


@dataclass(frozen=True)
class HandleState:
    """The part of a handle's state that one rank holds: `weights` by name, and the states of `optimizers`.

    `trained` names the weights that the optimizers update, in the order of the optimizers' tensors. `writer` is (index
    of this rank, number of ranks) among the ranks that write, or None if another rank writes this rank's part. `ranks`
    are all ranks that save and load together.
    """

    weights: Mapping[str, TensorPiece]
    trained: Sequence[str]
    optimizers: Optimizers
    writer: tuple[int, int] | None
    ranks: Ranks

    def save(self, folder: Path, version: int) -> None:
        """Write this rank's part of the weights and optimizer states, and `version`, into `folder`; wait for all ranks.

        Every rank must call this. `version` is the version of the weights. Existing files of this rank are replaced.
        Raises OSError or SafetensorError if this rank's files cannot be written, and OSError if another rank failed.
        """
        pieces, numbers = self._pieces(self.optimizers.states())
        with all_or_none(self.ranks, folder):
            if self.writer is not None:
                write(folder, self.writer, version, pieces, numbers)

    def load(self, folder: Path) -> int:
        """Load this rank's part of the saved weights and optimizer states, and return the version of the weights.

        The state in `folder` may have been written by another number of ranks. Raises DataError if a file is missing,
        cannot be read, or contains NaN or infinite numbers, and LawError if the state belongs to another model or lacks
        a part of an optimizer's state. Tensors are loaded in place, one by one: if the error concerns a tensor's rows
        or numbers, this tensor and those before it may be loaded already. Other errors leave the handle unchanged.
        """
        with reading_state(folder) as state:
            states = self._empty_states(state)
            pieces, _ = self._pieces(states)
            state.refuse_misfit(pieces)
            for name, piece in pieces.items():
                state.fill(name, piece)
                if not piece.tensor.isfinite().all():
                    raise DataError.unusable(folder, f"contains NaN or infinite values: {name}")
            self.optimizers.restore(states)
            return state.version

    def _pieces(self, states: Mapping[str, States]) -> tuple[dict[str, TensorPiece], dict[str, float]]:
        """Return weights and optimizer states by name: pieces if they have the shape of a weight, else numbers."""
        pieces = {f"{_WEIGHTS}/{name}": piece for name, piece in self.weights.items()}
        numbers = dict[str, float]()
        for optimizer, tensor_states in states.items():
            for weight, state in zip(self.trained, tensor_states, strict=True):
                piece = self.weights[weight]
                for key, tensor in state.items():
                    name = f"{optimizer}/{key}/{weight}"
                    if tensor.shape == piece.tensor.shape and tensor.dim():
                        pieces[name] = piece.like(tensor)
                    else:
                        numbers[name] = float(tensor)
        return pieces, numbers

    def _empty_states(self, saved: SavedState) -> dict[str, States]:
        index = {weight: i for i, weight in enumerate(self.trained)}
        states = dict[str, States]()

        def slot(name: str) -> tuple[dict[str, Tensor], str, str]:
            optimizer, _, rest = name.partition("/")
            key, _, weight = rest.partition("/")
            if weight not in index or key not in KEEPS.get(optimizer, ()):
                what = f"this state belongs to another model: no optimizer here keeps {name}"
                raise LawError(what, where=str(saved.folder))
            tensor_states = states.setdefault(optimizer, [{} for _ in self.trained])
            return tensor_states[index[weight]], key, weight

        for name in sorted(saved.numbers):
            state, key, _ = slot(name)
            state[key] = torch.tensor(saved.numbers[name], dtype=torch.float32)
        for name in sorted(name for name in saved.names if not name.startswith(f"{_WEIGHTS}/")):
            state, key, weight = slot(name)
            state[key] = torch.empty_like(self.weights[weight].tensor, requires_grad=False)
        for optimizer, tensor_states in states.items():
            for weight, state in zip(self.trained, tensor_states, strict=True):
                if missing := KEEPS[optimizer] - state.keys() if state else ():
                    what = f"{optimizer} keeps {', '.join(sorted(missing))} of {weight} too"
                    raise LawError(f"this state is incomplete: {what}", where=str(saved.folder))
        return states
