"""A user's own files for workers on other machines: the flow's file, rules in files, and what these import from beside.

Files are copied into one folder, whose digest says what is in it. Not here: sending the folder, and its use there.
"""

from __future__ import annotations

import ast
import hashlib
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from flowgraph.cluster.cluster import show_bytes
from flowgraph.errors import DataError
from flowgraph.files.shipped import flows_folder
from flowgraph.flows.flow_files import OURS

BYTES_AT_MOST = 64 * 2**20
FILES_AT_MOST = 10_000

# Never a part of what a user wrote, and often large. Hidden folders are left out too.
_LEFT_OUT = {"__pycache__", "node_modules", "site-packages"}
_ENVIRONMENT = ("pyvenv.cfg", "conda-meta")  # one of these lies in a virtual environment


@dataclass(frozen=True)
class StagedFiles:
    """Copied files: the folder, and in it the flow, the others that were named, and all files, as relative paths.

    `digest` is the SHA-256 of their names and contents, in hexadecimal.
    """

    folder: Path
    flow: Path
    others: tuple[Path, ...]
    files: tuple[Path, ...]
    digest: str


def stage(flow: Path, others: Iterable[Path], into: Path) -> StagedFiles:
    """Copy a flow's file, other files (rules), and what each may import from beside it, into the folder `into`.

    A file keeps its path relative to the working directory if it lies inside it, so that a worker which starts in
    `into` finds it by the same path; a folder elsewhere becomes `outside/0`, the next `outside/1`. From beside a file
    come `.py` files, packages, and folders without `__init__.py` whose name one of these files imports. Our own
    packages stay: workers have them. What a symlink brings from outside that folder stays too.

    Raises DataError for a folder whose files are more than 10,000 or 64 MiB, a file that cannot be read, and an `into`
    that is not empty.
    """
    named = [flow.resolve(), *(Path(os.path.normpath(each.absolute())) for each in others)]
    places = _places(named)
    sources = _sources(named, places)
    _make_empty(into)
    digest = hashlib.sha256()
    for target in sorted(sources):
        data = _read(sources[target])
        for part in (os.fsencode(target.as_posix()), data):
            digest.update(len(part).to_bytes(8, "big") + part)
        (into / target).parent.mkdir(parents=True, exist_ok=True)
        (into / target).write_bytes(data)
    flow_there, *others_there = (places[each.parent] / each.name for each in named)
    return StagedFiles(into, flow_there, tuple(others_there), tuple(sorted(sources)), digest.hexdigest())


def _places(named: Sequence[Path]) -> dict[Path, Path]:
    """Say where in the staged folder each file's folder comes to lie."""
    here, places, outside = Path.cwd(), dict[Path, Path](), 0
    for folder in (each.parent for each in named):
        above = next((known for known in (here, *places) if folder.is_relative_to(known)), None)
        if above is None:
            places[folder] = Path("outside", str(outside))
            outside += 1
        elif folder not in places:
            places[folder] = places.get(above, Path()) / folder.relative_to(above)
    return places


def _sources(named: Sequence[Path], places: dict[Path, Path]) -> dict[Path, Path]:
    """Give what is copied to where, as target → source; refuse too much before anything is copied."""
    sources, held_bytes = dict[Path, Path](), 0
    for file in named:
        for source in (file, *_beside(file)):
            target = places[file.parent] / source.relative_to(file.parent)
            held_bytes += _size_bytes(source) if target not in sources else 0
            sources[target] = source
            if len(sources) > FILES_AT_MOST or held_bytes > BYTES_AT_MOST:
                raise _too_much(file, len(sources) > FILES_AT_MOST)
    return sources


def _too_much(file: Path, by_count: bool) -> DataError:
    most = f"{FILES_AT_MOST:,} files" if by_count else show_bytes(BYTES_AT_MOST)
    what = f"more than {most} of Python lie here beside {file.name}, too many to send to workers"
    return DataError.unusable(file.parent, what, f"move {file.name} and what it imports to a folder of their own")


def _beside(file: Path) -> Iterator[Path]:
    """Give the Python files that a file may import from its own folder, one by one as they are met."""
    folder = file.parent
    if _is_ours(folder):
        return
    known = [each for each in _entries(folder) if _is_inside(each, folder)]
    folders = [each for each in known if each.is_dir() and not _is_left_out(each)]
    packages = [each for each in folders if (each / "__init__.py").is_file()]
    plain = {each.name: each for each in folders if each not in packages}
    found: list[Path] = [file]
    for each in chain(filter(_is_python, known), *(_tree(package, folder) for package in packages)):
        found.append(each)
        yield each
    while plain and found:
        for name in sorted(_imported(found.pop()) & plain.keys()):
            for each in _tree(plain.pop(name), folder):
                found.append(each)
                yield each


def _tree(folder: Path, top: Path) -> Iterator[Path]:
    """Give every Python file below a folder; a symlink is followed inside `top`, unless it leads in a circle."""
    waiting = [(folder, frozenset({folder.resolve()}))]
    while waiting:
        current, above = waiting.pop()
        for each in (each for each in _entries(current) if _is_inside(each, top)):
            if _is_python(each):
                yield each
            elif each.is_dir() and each.resolve() not in above and not _is_left_out(each):
                waiting.append((each, above | {each.resolve()}))


def _is_python(path: Path) -> bool:
    """Say whether this is a file that can be imported here: one that may not be read cannot."""
    return path.suffix == ".py" and path.is_file() and os.access(path, os.R_OK)


def _entries(folder: Path) -> list[Path]:
    """List what is in a folder but hidden names, in order; a folder that may not be read has nothing to import."""
    try:
        return sorted(each for each in folder.iterdir() if not each.name.startswith("."))
    except OSError:
        return []


def _is_inside(path: Path, folder: Path) -> bool:
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a symlink that leads to itself
        return False


def _is_left_out(folder: Path) -> bool:
    environment = any((folder / name).exists() for name in _ENVIRONMENT)
    return folder.name in _LEFT_OUT or environment or _is_ours(folder)


def _is_ours(folder: Path) -> bool:
    """Say whether a folder is one of our packages, or in one: workers have them."""
    home, real = Path(__file__).resolve().parents[3], folder.resolve()
    return any(real.is_relative_to(ours) for ours in (flows_folder(), *(home / name for name in OURS)))


def _imported(file: Path) -> set[str]:
    """Give the top-level names that a file imports, those inside functions too; none if it does not parse."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of its syntax: they were shown when it was imported here
            tree = ast.parse(_read(file))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    nodes = list(ast.walk(tree))
    whole = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    parts = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.partition(".")[0] for name in whole | parts}


def _size_bytes(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError as error:
        raise DataError.failed(file, "cannot be sent to workers", error) from error


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError.failed(file, "cannot be sent to workers", error) from error


def _make_empty(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = next(folder.iterdir(), None)
    except OSError as error:
        raise DataError.failed(folder, "cannot be made for the workers' files", error) from error
    if held is not None:
        raise DataError.unusable(folder, "is not empty, so it cannot take the workers' files")
