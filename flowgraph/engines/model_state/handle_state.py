"""The state of a handle, as `shards` writes it: its weights and what its optimizers keep, under one name each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from flowgraph.engines.model_state.optimizers import KEEPS, Optimizers, States
from flowgraph.engines.model_state.sharded_checkpoint import SavedState, TensorPiece, reading_state, together, write
from flowgraph.errors import DataError, LawError

if TYPE_CHECKING:
    from torch import Tensor

    from flowgraph.language.handle import Ranks

_WEIGHTS = "weights"


@dataclass(frozen=True)
class HandleState:
    """What one rank holds of a handle: its `weights` by name, and `optimizers` of those named in `trained`, in order.

    `place` is which of how many ranks it writes as, None for one that holds what another writes. `ranks` are all that
    save and load together.
    """

    weights: Mapping[str, TensorPiece]
    trained: Sequence[str]
    optimizers: Optimizers
    place: tuple[int, int] | None
    ranks: Ranks

    def save(self, folder: Path, version: int) -> None:
        """Write this rank's part, and wait for the others'; raise OSError or SafetensorError where a disk refuses."""
        pieces, numbers = self._state()
        with together(self.ranks, folder):
            if self.place is not None:
                write(folder, self.place, version, pieces, numbers)

    def load(self, folder: Path) -> int:
        """Read this rank's part of what any ranks wrote, and give the version of the weights.

        Raises DataError for files that cannot be read or hold NaN or infinities, and LawError for those of another
        model; the handle is then as it was, if no file breaks off, or holds such numbers, in the middle of being read.
        """
        with reading_state(folder) as state:
            states = self._empty(state)
            pieces = self._weights() | self._kept(states)[0]
            state.refuse_misfit(pieces)
            for name, piece in pieces.items():
                state.fill(name, piece)
                if not piece.tensor.isfinite().all():
                    raise DataError.unusable(folder, f"holds NaN or infinities: {name}")
            self.optimizers.restore(states)
            return state.version

    def _weights(self) -> dict[str, TensorPiece]:
        return {f"{_WEIGHTS}/{name}": piece for name, piece in self.weights.items()}

    def _state(self) -> tuple[dict[str, TensorPiece], dict[str, float]]:
        pieces, numbers = self._kept(self.optimizers.states())
        return self._weights() | pieces, numbers

    def _kept(self, states: Mapping[str, States]) -> tuple[dict[str, TensorPiece], dict[str, float]]:
        """Name what optimizers keep: pieces of a weight's own rows, and numbers."""
        pieces, numbers = dict[str, TensorPiece](), dict[str, float]()
        for optimizer, of_tensors in states.items():
            for weight, kept in zip(self.trained, of_tensors, strict=True):
                for key, tensor in kept.items():
                    name, own = f"{optimizer}/{key}/{weight}", self.weights[weight]
                    if tensor.shape == own.tensor.shape and tensor.dim():
                        pieces[name] = own.like(tensor)
                    else:
                        numbers[name] = float(tensor)
        return pieces, numbers

    def _empty(self, state: SavedState) -> dict[str, States]:
        """Make room for what optimizers keep, by the names in a state; numbers are filled in."""
        place = {weight: i for i, weight in enumerate(self.trained)}
        states = dict[str, States]()

        def room(name: str) -> tuple[dict[str, Tensor], str, str]:
            optimizer, _, rest = name.partition("/")
            key, _, weight = rest.partition("/")
            if weight not in place or key not in KEEPS.get(optimizer, ()):
                raise LawError(
                    f"this state is not of this model: no optimizer here keeps {name}", where=str(state.folder)
                )
            of_tensors = states.setdefault(optimizer, [{} for _ in self.trained])
            return of_tensors[place[weight]], key, weight

        for name in sorted(state.numbers):
            kept, key, _ = room(name)
            kept[key] = torch.tensor(state.numbers[name], dtype=torch.float32)
        for name in sorted(name for name in state.names if not name.startswith(f"{_WEIGHTS}/")):
            kept, key, weight = room(name)
            kept[key] = torch.empty_like(self.weights[weight].tensor, requires_grad=False)
        for optimizer, of_tensors in states.items():
            for weight, kept in zip(self.trained, of_tensors, strict=True):
                if missing := KEEPS[optimizer] - kept.keys() if kept else ():
                    what = f"{optimizer} keeps {', '.join(sorted(missing))} of {weight} too"
                    raise LawError(f"this state is not whole: {what}", where=str(state.folder))
        return states
