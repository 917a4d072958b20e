"""A model's state as files: each rank writes the rows of each tensor that it holds, and reads those that it needs.

`00003.safetensors` holds the rows, `00003.json` says which rows of which whole tensors they are, and of how many ranks
this is one. So no rank ever holds a whole state, and any number of ranks reads what any other number wrote. What is
read is not trusted: all files must say the same, and together hold each tensor once.
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
_NAMED_AT_MOST = 3


@dataclass(frozen=True)
class TensorPiece:
    """The rows of one tensor from `start` on that this rank holds; `shape` is the whole tensor's.

    What is `shared` is held whole by each rank, and written by the first. A number is one row of itself.
    """

    tensor: Tensor
    shape: tuple[int, ...]
    start: int = 0
    shared: bool = False

    @classmethod
    def whole(cls, tensor: Tensor) -> TensorPiece:
        """Give a piece that is the whole of a tensor."""
        return cls(tensor, tuple(tensor.shape), 0, True)

    @property
    def rows(self) -> tuple[int, int]:
        """Give the first row and the one after the last."""
        return self.start, self.start + (len(self.tensor) if self.shape else 1)

    def like(self, tensor: Tensor) -> TensorPiece:
        """Give the same rows of another tensor of this shape."""
        return TensorPiece(tensor, self.shape, self.start, self.shared)


class StoredTensor(BaseModel):
    """What a file says of one tensor: the whole one's shape and dtype, and which rows lie in it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    shape: list[NonNegativeInt]
    dtype: str
    rows: tuple[NonNegativeInt, NonNegativeInt]

    @property
    def lines(self) -> int:
        """Give how many rows the whole tensor has."""
        return self.shape[0] if self.shape else 1


class RankIndex(BaseModel):
    """What a rank says of the rows that it wrote; `numbers` are what states are beside tensors, by name."""

    model_config = ConfigDict(extra="forbid", strict=True)

    schema_: Annotated[int, Field(alias="schema")]
    rank: NonNegativeInt
    ranks: NonNegativeInt
    version: NonNegativeInt
    numbers: dict[str, float]
    tensors: dict[str, StoredTensor]


# ------------------------------------------------------------------------------------------- writing


def write(
    folder: Path, place: tuple[int, int], version: int, pieces: Mapping[str, TensorPiece], numbers: Mapping[str, float]
) -> None:
    """Write one rank's rows; `place` is its number from 0, and how many ranks write.

    Raises OSError or SafetensorError where the disk refuses.
    """
    rank, count = place
    mine = {name: piece for name, piece in pieces.items() if not piece.shared or rank == 0}
    rows = {name: _as_rows(piece.tensor).detach().cpu().contiguous() for name, piece in mine.items()}
    held = {
        name: {"shape": list(piece.shape), "dtype": _dtype(piece.tensor), "rows": list(piece.rows)}
        for name, piece in mine.items()
    }
    said = {"schema": SCHEMA, "rank": rank, "ranks": count, "version": version, "numbers": dict(numbers)}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(rows, folder / f"{rank:05d}.safetensors")
    (folder / f"{rank:05d}.json").write_text(json.dumps(said | {"tensors": held}, indent=1), "utf-8")


@contextmanager
def together(ranks: Ranks, folder: Path) -> Generator[None]:
    """Wait until all ranks have done what is inside; a rank where it failed raises its error, the others OSError."""
    failed, code = None, 0
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the others wait for this rank, so it tells them first
        failed, code = error, _code(error)
    codes = ranks.union(torch.tensor([code])).tolist()
    if failed is not None:
        raise failed
    for rank, each in enumerate(codes):
        if each:
            raise OSError(each, f"{os.strerror(each)} (rank {rank})", str(folder))


def _code(error: Exception) -> int:
    """Give the number of an error of the system; safetensors tells it in words."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    found = _OS_ERROR.search(str(error))
    return int(found[1]) if found else errno.EIO


def _as_rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.dim() else tensor[None]


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


# ------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class SavedState:
    """A state that was read: what each rank said, in order of rank, and its open file of rows."""

    folder: Path
    said: Sequence[RankIndex]
    files: Sequence[Any]

    @property
    def version(self) -> int:
        """Give the version of the weights."""
        return self.said[0].version

    @property
    def numbers(self) -> Mapping[str, float]:
        """Give what is kept beside tensors, by name."""
        return self.said[0].numbers

    @property
    def names(self) -> frozenset[str]:
        """Name all tensors."""
        return frozenset(name for each in self.said for name in each.tensors)

    def refuse_misfit(self, pieces: Mapping[str, TensorPiece]) -> None:
        """Raise LawError where these are not the names, shapes and dtypes that were written."""
        missing, unknown = sorted(pieces.keys() - self.names), sorted(self.names - pieces.keys())
        notes = [f"{what}: {_some(names)}" for what, names in (("missing", missing), ("unknown", unknown)) if names]
        notes += [
            f"{name}: {held.dtype} {held.shape}, here {_dtype(piece.tensor)} {list(piece.shape)}"
            for name, piece in sorted(pieces.items())
            for held in self._holders(name)[:1]
            if (held.shape, held.dtype) != ([*piece.shape], _dtype(piece.tensor))
        ]
        if notes:
            raise LawError("this state is not of this model", where=str(self.folder), notes=notes[:_NAMED_AT_MOST])

    def _holders(self, name: str) -> list[StoredTensor]:
        return [each.tensors[name] for each in self.said if name in each.tensors]

    def fill(self, name: str, piece: TensorPiece) -> None:
        """Copy a piece's rows into it, from whichever files hold them. Raises DataError where one does not."""
        start, stop = piece.rows
        with torch.no_grad():
            for said, file in zip(self.said, self.files, strict=True):
                held = said.tensors.get(name)
                first, last = (max(start, held.rows[0]), min(stop, held.rows[1])) if held else (0, 0)
                if held and first < last:
                    rows = _slice(file, name, held, self._file(said))[first - held.rows[0] : last - held.rows[0]]
                    _as_rows(piece.tensor)[first - start : last - start].copy_(rows)

    def _file(self, said: RankIndex) -> Path:
        return self.folder / f"{said.rank:05d}.safetensors"


def _slice(file: Any, name: str, held: StoredTensor, path: Path) -> Any:
    """Give the rows of a tensor in a file, of which nothing is read yet, if they are as was said."""
    try:
        found = file.get_slice(name)
    except SafetensorError as error:
        raise _broken(path, str(error)) from None
    wanted = [held.rows[1] - held.rows[0], *held.shape[1:]]
    if found.get_shape() != wanted or _NAMES.get(found.get_dtype()) != held.dtype:
        raise _broken(path, f"{name} is {found.get_dtype()} {found.get_shape()}, not {held.dtype} {wanted}")
    return found


_NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool", "U8": "uint8"} | {
    f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)
}


@contextmanager
def reading_state(folder: Path) -> Generator[SavedState]:
    """Open a state's files, which are checked against each other; nothing is read of the rows yet.

    Raises DataError for files that are missing, broken, or do not go together.
    """
    said = _all_said(folder)
    with ExitStack() as stack:
        files = list[Any]()
        for rank in range(len(said)):
            path = folder / f"{rank:05d}.safetensors"
            try:
                files.append(stack.enter_context(safe_open(path, framework="pt")))
            except (OSError, SafetensorError) as error:
                raise _broken(path, str(error)) from None
        yield SavedState(folder, said, files)


def _all_said(folder: Path) -> list[RankIndex]:
    """Read what each rank said, and refuse what does not go together."""
    first = _read_said(folder / "00000.json")
    there = {path.name for path in folder.glob("*.json")} | {path.name for path in folder.glob("*.safetensors")}
    wanted = {f"{rank:05d}.{kind}" for rank in range(first.ranks) for kind in ("json", "safetensors")}
    if missing := sorted(wanted - there):
        raise _broken(folder, f"{first.ranks} ranks wrote this state, and {_some(missing)} is missing")
    if unknown := sorted(there - wanted):
        raise _broken(folder, f"{first.ranks} ranks wrote this state, and {_some(unknown)} is of another")
    said = [first, *(_read_said(folder / f"{rank:05d}.json") for rank in range(1, first.ranks))]
    for rank, each in enumerate(said):
        if (each.rank, each.ranks, each.version, each.numbers) != (rank, first.ranks, first.version, first.numbers):
            raise _broken(folder / f"{rank:05d}.json", "it is not of the same state as 00000.json")
    _refuse_gaps(folder, said)
    return said


def _refuse_gaps(folder: Path, said: Sequence[RankIndex]) -> None:
    """Raise DataError unless the ranks' rows of each tensor are its own, one after another, each once."""
    reached, whole = dict[str, int](), dict[str, StoredTensor]()
    for each in said:
        for name, held in each.tensors.items():
            first = whole.setdefault(name, held)
            start, stop = held.rows
            if (held.shape, held.dtype) != (first.shape, first.dtype):
                raise _broken(folder, f"{name}: ranks say {first.dtype} {first.shape} and {held.dtype} {held.shape}")
            if start != reached.get(name, 0) or not start <= stop <= held.lines:
                raise _broken(folder, f"{name}: rank {each.rank} holds rows {start} to {stop} of {held.lines}")
            reached[name] = stop
    for name, held in whole.items():
        if reached[name] != held.lines:
            raise _broken(folder, f"{name}: rows {reached[name]} to {held.lines} are missing")


def _read_said(path: Path) -> RankIndex:
    try:
        said = json_as(RankIndex, read_bytes(path))
    except FileNotFoundError:
        raise _broken(path.parent, f"{path.name} is missing") from None
    except OSError as error:
        raise _broken(path, str(error.strerror)) from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise _broken(path, f"{place}: {first['msg']}" if place else first["msg"]) from None
    except ValueError as error:
        raise _broken(path, str(error)) from None
    if said.schema_ != SCHEMA or not said.ranks:
        raise _broken(path, f"schema {said.schema_} of {said.ranks} ranks, {SCHEMA} is read here")
    return said


def _broken(where: Path, why: str) -> DataError:
    return DataError(f"no state can be read: {why}", where=str(where))


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED_AT_MOST} more" if len(names) > _NAMED_AT_MOST else ""
    return f"{', '.join(names[:_NAMED_AT_MOST])}{more}"
