"""SHA-256 of files, and lists of them as `sha256sum` writes and checks them.

A list is for what others read too: exported weights, recorded rollouts. A checkpoint has a manifest of its own.
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
    """Return the hash of a file, or of its first bytes, as 64 hexadecimal digits. Raises OSError."""
    total, block, left = hashlib.sha256(), memoryview(bytearray(BLOCK_BYTES)), size_bytes
    with path.open("rb", buffering=0) as file:
        while left is None or left:
            read = file.readinto(block if left is None else block[:left])
            if not read:
                break
            total.update(block[:read])
            left = None if left is None else left - read
    return total.hexdigest()


def text_hash(text: str) -> str:
    """Return the hash of a text, as that of its file in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def line_of(name: str, digest: str) -> str:
    """Return a line of a list, with its end.

    >>> line_of("model.safetensors", "0" * 4).split()
    ['0000', 'model.safetensors']
    """
    return f"{digest}  {name}\n"


def write_sums(folder: Path) -> None:
    """Write the list of every file in a folder, which is then part of it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / SUMS)
    lines = [line_of(path.relative_to(folder).as_posix(), sha256(path)) for path in files]
    (folder / SUMS).write_text("".join(lines), "utf-8")


def read_sums(text: str) -> dict[str, str]:
    """Read a list: hashes by the names of files in its folder. Raises ValueError for a line that is none."""
    found = dict[str, str]()
    for number, line in enumerate(text.splitlines(), start=1):
        told = _LINE.fullmatch(line)
        if told is None or PurePosixPath(told[2]).is_absolute() or ".." in PurePosixPath(told[2]).parts:
            raise ValueError(f"line {number} is not a hash and the name of a file here")
        found[told[2]] = told[1]
    return found


def sums_fault(folder: Path) -> str:
    """Return which file of a folder is not what its list says; "" if all are, or there is no list."""
    path = folder / SUMS
    if not path.is_file():
        return ""
    try:
        listed = read_sums(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        return f"{SUMS} cannot be read: {error}"
    return next(iter(faults(folder, listed)), "")


def faults(folder: Path, listed: Mapping[str, str]) -> Iterable[str]:
    """Yield what is wrong with each file that is not there, or does not have the hash that is listed."""
    for name, then in listed.items():
        path = folder / name
        if path.exists() and not path.is_file():
            yield f"{name} is not a plain file"  # a pipe has no end
            continue
        try:
            if path.suffix == ".parquet" and not _ends_as_parquet(path):
                yield f"{name} has other bytes than were written: it does not end as Parquet does"
                continue  # without reading all of a file that may be large because it is damaged
            now = sha256(path)
        except (OSError, ValueError) as error:
            yield f"{name} cannot be read: {getattr(error, 'strerror', error)}"
            continue
        if now != then:
            yield f"{name} has other bytes than were written: sha256 was {then[:16]}, is {now[:16]}"


def _ends_as_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - len(PARQUET_END)))
        return file.read() == PARQUET_END
