"""A model's state as files: each rank writes its rows of each tensor, and loads the rows that it needs.

`00003.safetensors` contains the rows of rank 3. `00003.json` is its index: the range of its rows in each tensor, and
the number of ranks that wrote. No rank ever holds a whole state, and any number of ranks can load what any other number
wrote. Files are not trusted: their indexes must agree, and together contain each row of each tensor once.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from flowgraph.errors import DataError, LawError
from flowgraph.files.untrusted import json_as, read_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from flowgraph.language.handle import Ranks

SCHEMA = 1
_OS_ERROR = re.compile(r"os error (\d+)")
_MAX_NAMES = 3  # in one error
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool", "U8": "uint8"} | {
    f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)
}
"""The names of dtypes in safetensors files."""


@dataclass(frozen=True)
class TensorPiece:
    """The rows of one tensor that this rank holds, from row `start`; `shape` is the shape of the whole tensor.

    A `shared` tensor is whole on each rank, and only the first rank writes it. A tensor without dimensions is one row.
    """

    tensor: Tensor
    shape: tuple[int, ...]
    start: int = 0
    shared: bool = False

    @classmethod
    def whole(cls, tensor: Tensor) -> TensorPiece:
        """Return the piece that contains all rows of `tensor`, which every rank has in full."""
        return cls(tensor, tuple(tensor.shape), 0, True)

    @property
    def rows(self) -> tuple[int, int]:
        """Return the range of rows in this piece: the index of the first row, and the index after the last row."""
        return self.start, self.start + (len(self.tensor) if self.shape else 1)

    def like(self, tensor: Tensor) -> TensorPiece:
        """Return a piece with the same range of rows that holds `tensor`, such as the optimizer state of this piece."""
        return TensorPiece(tensor, self.shape, self.start, self.shared)


class StoredTensor(BaseModel):
    """One tensor in an index: shape and dtype of the whole tensor, and the range of rows in this rank's file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    shape: list[NonNegativeInt]
    dtype: str
    rows: tuple[NonNegativeInt, NonNegativeInt]

    @property
    def row_count(self) -> int:
        """Return the number of rows in the whole tensor; 1 for a tensor without dimensions."""
        return self.shape[0] if self.shape else 1


class RankIndex(BaseModel):
    """The index of the file that one rank wrote; `numbers` are the single numbers of the state, by name."""

    model_config = ConfigDict(extra="forbid", strict=True)

    schema_: Annotated[int, Field(alias="schema")]
    rank: NonNegativeInt
    ranks: NonNegativeInt
    version: NonNegativeInt
    numbers: dict[str, float]
    tensors: dict[str, StoredTensor]


# ------------------------------------------------------------------------------------------- writing


def write(
    folder: Path, writer: tuple[int, int], version: int, pieces: Mapping[str, TensorPiece], numbers: Mapping[str, float]
) -> None:
    """Write one rank's part of a model's state into `folder`: a file with its rows of each tensor, and an index.

    `writer` is (index of this rank, number of ranks) among the ranks that write. Shared tensors are written only by
    index 0. `version` is the version of the weights, and `numbers` are the single numbers of the state, by name. The
    folder is created if it does not exist, and existing files of this rank are replaced. Raises OSError or
    SafetensorError if a file cannot be written.
    """
    rank, ranks = writer
    pieces = {name: piece for name, piece in pieces.items() if not piece.shared or rank == 0}
    rows = {name: _as_rows(piece.tensor).detach().cpu().contiguous() for name, piece in pieces.items()}
    tensors = {
        name: {"shape": list(piece.shape), "dtype": _dtype(piece.tensor), "rows": list(piece.rows)}
        for name, piece in pieces.items()
    }
    index = {"schema": SCHEMA, "rank": rank, "ranks": ranks, "version": version, "numbers": dict(numbers)}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(rows, folder / f"{rank:05d}.safetensors")
    (folder / f"{rank:05d}.json").write_text(json.dumps(index | {"tensors": tensors}, indent=1), "utf-8")


@contextmanager
def all_or_none(ranks: Ranks, folder: Path) -> Generator[None]:
    """Run the `with` block on each rank, and wait at its end for all ranks; if the block fails on one, all ranks raise.

    A rank whose block failed raises its own error. Each other rank raises OSError with the name of `folder` and of the
    first rank that failed. Every rank must enter the block.
    """
    failure, code = None, 0
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the other ranks wait for this one, so it reports to them first
        failure, code = error, errno.EIO
        if isinstance(error, OSError) and error.errno:
            code = error.errno
        elif match := _OS_ERROR.search(str(error)):  # safetensors writes the system's number into its text
            code = int(match[1])
    codes = ranks.union(torch.tensor([code])).tolist()
    if failure is not None:
        raise failure
    for rank, number in enumerate(codes):
        if number:
            raise OSError(number, f"{os.strerror(number)} (rank {rank})", str(folder))


def _as_rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.dim() else tensor[None]


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


# ------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class SavedState:
    """A state on disk: the index of each rank, in order, and its open file of rows."""

    folder: Path
    indexes: Sequence[RankIndex]
    files: Sequence[Any]

    @property
    def version(self) -> int:
        """Return the version of the weights in this state."""
        return self.indexes[0].version

    @property
    def numbers(self) -> Mapping[str, float]:
        """Return the single numbers of the state, such as an optimizer's step counts, by name."""
        return self.indexes[0].numbers

    @property
    def names(self) -> frozenset[str]:
        """Return the names of all tensors in the state."""
        return frozenset(name for index in self.indexes for name in index.tensors)

    def refuse_misfit(self, pieces: Mapping[str, TensorPiece]) -> None:
        """Raise LawError, with up to three notes, unless `pieces` have exactly the saved names, shapes and dtypes."""
        missing, unknown = sorted(pieces.keys() - self.names), sorted(self.names - pieces.keys())
        notes = [f"{what}: {_some(names)}" for what, names in (("missing", missing), ("unknown", unknown)) if names]
        for name, piece in sorted(pieces.items()):
            stored = next((index.tensors[name] for index in self.indexes if name in index.tensors), None)
            shape, dtype = [*piece.shape], _dtype(piece.tensor)
            if stored is not None and (stored.shape, stored.dtype) != (shape, dtype):
                notes.append(f"{name}: {stored.dtype} {stored.shape}, here {dtype} {shape}")
        if notes:
            raise LawError("this state belongs to another model", where=str(self.folder), notes=notes[:_MAX_NAMES])

    def fill(self, name: str, piece: TensorPiece) -> None:
        """Copy the rows of the saved tensor `name` that `piece` covers from the files into the tensor of `piece`.

        Raises DataError if a file lacks the tensor, or has another shape or dtype than its index says.
        """
        start, stop = piece.rows
        with torch.no_grad():
            for index, file in zip(self.indexes, self.files, strict=True):
                stored = index.tensors.get(name)
                first, last = (max(start, stored.rows[0]), min(stop, stored.rows[1])) if stored else (0, 0)
                if stored and first < last:
                    rows = _rows(file, name, stored, self.folder / f"{index.rank:05d}.safetensors")
                    rows = rows[first - stored.rows[0] : last - stored.rows[0]]
                    _as_rows(piece.tensor)[first - start : last - start].copy_(rows)


def _rows(file: Any, name: str, stored: StoredTensor, path: Path) -> Any:
    try:
        rows = file.get_slice(name)
    except SafetensorError as error:
        raise _broken(path, str(error)) from None
    shape = [stored.rows[1] - stored.rows[0], *stored.shape[1:]]
    if rows.get_shape() != shape or _DTYPES.get(rows.get_dtype()) != stored.dtype:
        raise _broken(path, f"{name} is {rows.get_dtype()} {rows.get_shape()}, not {stored.dtype} {shape}")
    return rows


@contextmanager
def reading_state(folder: Path) -> Generator[SavedState]:
    """Open the files of a saved state for a `with` block, and yield the state; tensors are not read yet.

    Raises DataError if a file is missing, cannot be read or is not part of this state, if indexes contradict each
    other, or if the ranks together do not hold each row of each tensor exactly once.
    """
    first = _read_index(folder / "00000.json")
    present = {path.name for path in folder.glob("*.json")} | {path.name for path in folder.glob("*.safetensors")}
    expected = {f"{rank:05d}.{kind}" for rank in range(first.ranks) for kind in ("json", "safetensors")}
    for names, fault in ((expected - present, "missing"), (present - expected, "of another state")):
        if names:
            raise _broken(folder, f"{first.ranks} ranks wrote this state, but {_some(sorted(names))} is {fault}")
    indexes = [first, *(_read_index(folder / f"{rank:05d}.json") for rank in range(1, first.ranks))]
    for rank, index in enumerate(indexes):
        if (index.rank, index.ranks, index.version, index.numbers) != (rank, first.ranks, first.version, first.numbers):
            raise _broken(folder / f"{rank:05d}.json", "it belongs to another state than 00000.json")
    _refuse_gaps(folder, indexes)
    with ExitStack() as stack:
        files = list[Any]()
        for rank in range(len(indexes)):
            path = folder / f"{rank:05d}.safetensors"
            try:
                files.append(stack.enter_context(safe_open(path, framework="pt")))
            except (OSError, SafetensorError) as error:
                raise _broken(path, str(error)) from None
        yield SavedState(folder, indexes, files)


def _refuse_gaps(folder: Path, indexes: Sequence[RankIndex]) -> None:
    reached, tensors = dict[str, int](), dict[str, StoredTensor]()
    for index in indexes:
        for name, stored in index.tensors.items():
            first = tensors.setdefault(name, stored)
            start, stop = stored.rows
            if (stored.shape, stored.dtype) != (first.shape, first.dtype):
                what = f"ranks disagree: {first.dtype} {first.shape} and {stored.dtype} {stored.shape}"
                raise _broken(folder, f"{name}: {what}")
            if start != reached.get(name, 0) or not start <= stop <= stored.row_count:
                raise _broken(folder, f"{name}: rank {index.rank} holds rows {start} to {stop} of {stored.row_count}")
            reached[name] = stop
    for name, stored in tensors.items():
        if reached[name] != stored.row_count:
            raise _broken(folder, f"{name}: rows {reached[name]} to {stored.row_count} are missing")


def _read_index(path: Path) -> RankIndex:
    try:
        index = json_as(RankIndex, read_bytes(path))
    except FileNotFoundError:
        raise _broken(path.parent, f"{path.name} is missing") from None
    except OSError as error:
        raise _broken(path, str(error.strerror)) from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise _broken(path, f"{field}: {first['msg']}" if field else first["msg"]) from None
    except ValueError as error:
        raise _broken(path, str(error)) from None
    if index.schema_ != SCHEMA or not index.ranks:
        raise _broken(path, f"schema {index.schema_} of {index.ranks} ranks; this version reads {SCHEMA}")
    return index


def _broken(where: Path, why: str) -> DataError:
    return DataError(f"the state cannot be read: {why}", where=str(where))


def _some(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"{', '.join(names[:_MAX_NAMES])}{rest}"
