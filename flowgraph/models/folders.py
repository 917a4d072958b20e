"""Checks of a model's folder before torch reads it: config.json, and complete safetensors files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from flowgraph.errors import ModelError
from flowgraph.files import untrusted
from flowgraph.files.hashes import SUMS, first_checksum_mismatch

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the bound of the safetensors format


def check_folder(folder: Path) -> None:
    """Raise ModelError if a model's folder is missing, lacks config.json, weights or a tokenizer, or is damaged.

    Of the weights, only the headers and sizes of the safetensors files are checked, unless the folder has `SHA256SUMS`,
    which `save` writes: then the hash of each listed file is compared. The error names the folder or the file.
    """
    read_config(folder)
    for file in weight_files(folder):
        read_shapes(file)
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise ModelError.lacks(folder, f"has no tokenizer ({', '.join(_TOKENIZERS)})", _names(folder))
    if why := first_checksum_mismatch(folder):
        raise ModelError.broken(folder, why, f"delete {SUMS} there if you changed the file on purpose")


def read_config(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's config.json.

    Raises ModelError if the folder does not exist or cannot be read, or if the file is missing or is not a JSON object.
    If the file is missing but a folder up to two levels below has one, the hint names that folder.
    """
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
    """Return the JSON object in a file. Raises ModelError if the file cannot be read or is not a JSON object."""
    try:
        value = untrusted.read_json(file)
    except (OSError, ValueError) as error:
        raise ModelError.broken(file, f"cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelError.broken(file, "is not a JSON object")
    return cast("dict[str, Any]", value)


def weight_files(folder: Path) -> tuple[Path, ...]:
    """Return the paths of a model's safetensors files: the single file, or else all shards in its index, sorted.

    Raises ModelError if there are none, if the index is invalid or lists a missing shard, if all weights are pickles,
    which are never loaded, or if the folder cannot be read.
    """
    if (folder / _SINGLE).is_file():
        return (folder / _SINGLE,)
    if (folder / _INDEX).is_file():
        weight_map = read_json(folder / _INDEX).get("weight_map")
        if not weight_map or not isinstance(weight_map, dict):
            raise ModelError.broken(folder / _INDEX, "has no `weight_map` of tensors and files")
        files = sorted({folder / str(name) for name in cast("dict[str, Any]", weight_map).values()})
        missing = [file.name for file in files if not file.is_file()]
        if missing:
            what = f"lacks {len(missing)} of {len(files)} files of weights: {', '.join(missing[:3])}"
            raise ModelError.lacks(folder, what, _names(folder))
        return tuple(files)
    names = _names(folder)
    pickles = [name for name in names if name.endswith(_PICKLES)]
    if pickles:
        what = f"has its weights as pickles only ({', '.join(pickles[:3])}), which are not loaded"
        raise ModelError.lacks(folder, what, names, "save it once more with save_pretrained, which writes safetensors")
    raise ModelError.lacks(folder, f"has config.json but no {_SINGLE} or {_INDEX}", names)


def read_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor in a safetensors file, by name; only the header is read.

    Raises ModelError if the file cannot be read, has another format, or has another size than its header says.
    """
    try:
        file_bytes = file.stat().st_size
        with file.open("rb") as stream:
            header_bytes = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            if file_bytes < _LENGTH_BYTES or header_bytes > min(file_bytes, _MAX_HEADER_BYTES):
                raise ModelError.broken(file, f"is not a safetensors file, or is cut off ({file_bytes} bytes)")
            entries = untrusted.parse_json(stream.read(header_bytes))
        entries.pop("__metadata__", None)
        expected_bytes = _LENGTH_BYTES + header_bytes + max((e["data_offsets"][1] for e in entries.values()), default=0)
        shapes = {name: tuple(entry["shape"]) for name, entry in entries.items()}
    except ModelError:
        raise
    except OSError as error:
        raise ModelError.broken(file, f"cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise ModelError.broken(file, "is not a safetensors file: its header cannot be read") from None
    if file_bytes != expected_bytes:
        raise ModelError.broken(file, f"is cut off or too long: {file_bytes} bytes, its header says {expected_bytes}")
    return shapes


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise ModelError.broken(folder, f"cannot be read: {error.strerror}") from None
