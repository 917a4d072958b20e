"""What must lie in a model's folder before anything heavy reads it: config.json and whole safetensors files."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, cast

from flowgraph.errors import ModelError
from flowgraph.files import untrusted
from flowgraph.files.hashes import SUMS, sums_fault

_ONE, _MANY = "model.safetensors", "model.safetensors.index.json"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 100_000_000  # the bound of the safetensors format


@dataclass(frozen=True)
class Header:
    """The shapes of the tensors in one safetensors file, by name."""

    shapes: dict[str, tuple[int, ...]]

    @property
    def numbers(self) -> int:
        """Count the numbers in all tensors.

        >>> Header({"a": (2, 3), "b": ()}).numbers
        7
        """
        return sum(prod(shape) for shape in self.shapes.values())


def check_folder(folder: Path) -> None:
    """Refuse a folder that is not there, or lacks config.json, weights or a tokenizer, or whose weights are cut off.

    Where hashes lie beside the files, as `save` writes them, each file is compared with its own.
    Raises ModelError, which names the folder or the file.
    """
    read_config(folder)
    for file in weight_files(folder):
        read_header(file)
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise ModelError.lacks(folder, f"has no tokenizer ({', '.join(_TOKENIZERS)})", _names(folder))
    if why := sums_fault(folder):
        raise ModelError.broken(folder, why, f"delete {SUMS} there if you changed the file on purpose")


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json as a mapping; raise ModelError if it is absent or no JSON object."""
    if not folder.exists():
        raise ModelError.no_folder(folder)
    if not folder.is_dir():
        raise ModelError.not_a_folder(folder)
    if "config.json" not in _names(folder):
        saved = [path for path in sorted(folder.glob("**/config.json")) if len(path.relative_to(folder).parts) <= 3]
        hint = f"did you mean {saved[0].parent}?" if saved else ""
        raise ModelError.lacks(folder, "has no config.json", _names(folder), hint)
    return read_json(folder / "config.json")


def read_json(file: Path) -> dict[str, Any]:
    """Read one JSON object; raise ModelError if the file cannot be read or holds something else."""
    try:
        value = untrusted.read_json(file)
    except (OSError, ValueError) as error:
        raise ModelError.broken(file, f"cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelError.broken(file, "holds no JSON object")
    return cast("dict[str, Any]", value)


def weight_files(folder: Path) -> tuple[Path, ...]:
    """List the safetensors files of a model, whole or in shards.

    Raises ModelError if there are none, if a shard is missing, or if there are only pickles.
    """
    if (folder / _ONE).is_file():
        return (folder / _ONE,)
    if (folder / _MANY).is_file():
        return _shards(folder)
    names = _names(folder)
    pickles = [name for name in names if name.endswith(_PICKLES)]
    if pickles:
        what = f"has its weights as pickles only ({', '.join(pickles[:3])}), which are not loaded"
        raise ModelError.lacks(folder, what, names, "save it once more with save_pretrained, which writes safetensors")
    raise ModelError.lacks(folder, f"has config.json but no {_ONE} or {_MANY}", names)


def _shards(folder: Path) -> tuple[Path, ...]:
    index = read_json(folder / _MANY)
    places = index.get("weight_map")
    if not places or not isinstance(places, dict):
        raise ModelError.broken(folder / _MANY, "has no `weight_map` of tensors and files")
    files = sorted({folder / str(name) for name in cast("dict[str, Any]", places).values()})
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        what = f"lacks {len(missing)} of {len(files)} files of weights: {', '.join(missing[:3])}"
        raise ModelError.lacks(folder, what, _names(folder))
    return tuple(files)


def read_header(file: Path) -> Header:
    """Read the header of a safetensors file and check that all of its data is there.

    Raises ModelError if the file is cut off or is no safetensors file.
    """
    try:
        has_bytes = file.stat().st_size
        with file.open("rb") as stream:
            header_bytes = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            if has_bytes < _LENGTH_BYTES or header_bytes > min(has_bytes, _MOST_HEADER_BYTES):
                raise ModelError.broken(file, f"is no safetensors file, or is cut off ({has_bytes} bytes)")
            entries = untrusted.parse_json(stream.read(header_bytes))
        entries.pop("__metadata__", None)
        wants_bytes = _LENGTH_BYTES + header_bytes + max((e["data_offsets"][1] for e in entries.values()), default=0)
        header = Header({name: tuple(entry["shape"]) for name, entry in entries.items()})
    except ModelError:
        raise
    except OSError as error:
        raise ModelError.broken(file, f"cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise ModelError.broken(file, "is no safetensors file: its header cannot be read") from None
    if has_bytes != wants_bytes:
        raise ModelError.broken(file, f"is cut off or overlong: {has_bytes} bytes, its header says {wants_bytes}")
    return header


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise ModelError.broken(folder, f"cannot be read: {error.strerror}") from None
