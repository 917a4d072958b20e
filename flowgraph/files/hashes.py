"""SHA-256 hashes of files, and lists of them in the format of `sha256sum`.

A list is written next to files that other tools read: exported weights, recorded rollouts. A checkpoint has a separate
manifest.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

SUMS = "SHA256SUMS"
BLOCK_BYTES = 2**20
PARQUET_END = b"PAR1"

_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")


def sha256(path: Path, size_bytes: int | None = None) -> str:
    """Return the SHA-256 of a file, or of its first `size_bytes` bytes, in hexadecimal.

    A shorter file is hashed whole. Raises OSError if the file cannot be read.
    """
    if size_bytes is None:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    digest, block, rest = hashlib.sha256(), memoryview(bytearray(BLOCK_BYTES)), size_bytes
    with path.open("rb", buffering=0) as file:
        while rest and (read := file.readinto(block[:rest])):
            digest.update(block[:read])
            rest -= read
    return digest.hexdigest()


def text_hash(text: str) -> str:
    """Return the SHA-256 of a text in UTF-8, in hexadecimal; `sha256` of a file with this text is the same."""
    return hashlib.sha256(text.encode()).hexdigest()


def hash_line(name: str, digest: str) -> str:
    """Return the line for one file in a list of hashes, with its line break; `digest` is the hash in hexadecimal.

    >>> hash_line("model.safetensors", "0" * 4).split()
    ['0000', 'model.safetensors']
    """
    return f"{digest}  {name}\n"


def write_sums(folder: Path) -> None:
    """Write `SHA256SUMS` in a folder, with the hash of every file in the folder and its subfolders, except itself.

    An existing list is replaced. Raises OSError if a file cannot be read, or the list cannot be written.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / SUMS)
    lines = [hash_line(path.relative_to(folder).as_posix(), sha256(path)) for path in files]
    (folder / SUMS).write_text("".join(lines), "utf-8")


def read_sums(text: str) -> dict[str, str]:
    """Return the hash of each file in a list of hashes, by the file's path relative to the folder of the list.

    `text` is the content of the list. Raises ValueError for a line that is not a hash and a path inside the folder.
    """
    hashes = dict[str, str]()
    for number, line in enumerate(text.splitlines(), start=1):
        entry = _LINE.fullmatch(line)
        if entry is None or PurePosixPath(entry[2]).is_absolute() or ".." in PurePosixPath(entry[2]).parts:
            raise ValueError(f"line {number} is not a hash and the name of a file in its folder")
        hashes[entry[2]] = entry[1]
    return hashes


def first_checksum_mismatch(folder: Path) -> str:
    """Return the first mismatch between a folder's files and its `SHA256SUMS` as a sentence; "" if there is none.

    Files are checked in the order of the list; files that are not listed are not checked. A folder without a list has
    no mismatch. A list that cannot be read or parsed counts as a mismatch.
    """
    path = folder / SUMS
    if not path.is_file():
        return ""
    try:
        listed = read_sums(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        return f"{SUMS} cannot be read: {error}"
    return next(iter(file_mismatches(folder, listed)), "")


def file_mismatches(folder: Path, listed: Mapping[str, str]) -> Iterable[str]:
    """Yield a sentence for each listed file that is not a plain file, cannot be read, or has another hash.

    `listed` maps the path of each file, relative to `folder`, to its expected SHA-256 in hexadecimal. A Parquet file
    whose last four bytes are not `PAR1` is reported without being hashed.
    """
    for name, expected in listed.items():
        path = folder / name
        if path.exists() and not path.is_file():
            yield f"{name} is not a plain file"  # a pipe has no end
            continue
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - len(PARQUET_END)))
                end = file.read()
            if path.suffix == ".parquet" and end != PARQUET_END:
                yield f"{name} has changed since it was written: it does not end as Parquet does"
                continue  # without reading all of a file that may be large because it is damaged
            actual = sha256(path)
        except (OSError, ValueError) as error:
            yield f"{name} cannot be read: {getattr(error, 'strerror', error)}"
            continue
        if actual != expected:
            yield f"{name} has changed since it was written: sha256 was {expected[:16]}, is {actual[:16]}"
