"""Copy a user's files for workers on other machines: the flow's file, files of rules, and the files that these import.

All are copied into one folder. Other modules send the folder and use it.
"""

from __future__ import annotations

import ast
import os
import shutil
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from flowgraph.cluster.cluster import show_bytes
from flowgraph.errors import DataError
from flowgraph.errors.distribution import OURS
from flowgraph.files.shipped import flows_folder

MAX_BYTES = 64 * 2**20
MAX_FILES = 10_000

# Folders that no user writes, often large. Hidden folders are skipped too.
_SKIPPED = {"__pycache__", "node_modules", "site-packages"}
_ENVIRONMENT = ("pyvenv.cfg", "conda-meta")  # a virtual environment has one of these


def stage(flow: Path, rules: Iterable[Path], into: Path) -> list[Path]:
    """Copy a flow's file, the files of scoring rules, and the files that they may import into the folder `into`.

    Returns the flow's file, then the files of the rules, as paths relative to `into`. A file inside the working
    directory keeps its path relative to that directory, so a worker that starts in `into` finds it at the same path;
    other folders become `outside/0`, `outside/1` and so on. Next to each file, `.py` files, packages, and folders
    without `__init__.py` that one of these files imports are copied. Our packages, which workers have, and targets of
    symlinks outside the folder are not. Raises DataError for more than 10,000 files or 64 MiB, a file that cannot be
    read or written, and an `into` that is not empty.
    """
    named = [flow.resolve(), *(Path(os.path.normpath(path.absolute())) for path in rules)]
    places = _places(named)
    try:
        sources = _sources(named, places)
        _make_empty(into)
        for target, source in sources.items():
            (into / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, into / target)
    except OSError as error:
        raise DataError.failed(Path(error.filename or flow), "cannot be sent to workers", error) from error
    return [places[path.parent] / path.name for path in named]


def _places(named: Sequence[Path]) -> dict[Path, Path]:
    places, outside = dict[Path, Path](), 0
    for folder in (path.parent for path in named):
        above = next((parent for parent in (Path.cwd(), *places) if folder.is_relative_to(parent)), None)
        if above is None:
            places[folder] = Path("outside", str(outside))
            outside += 1
        elif folder not in places:
            places[folder] = places.get(above, Path()) / folder.relative_to(above)
    return places


def _sources(named: Sequence[Path], places: dict[Path, Path]) -> dict[Path, Path]:
    sources, total_bytes = dict[Path, Path](), 0
    for file in named:
        for source in (file, *_importable(file)):
            target = places[file.parent] / source.relative_to(file.parent)
            total_bytes += source.stat().st_size if target not in sources else 0
            sources[target] = source
            if len(sources) > MAX_FILES or total_bytes > MAX_BYTES:
                limit = f"{MAX_FILES:,} files" if len(sources) > MAX_FILES else show_bytes(MAX_BYTES)
                what = f"this folder has more than {limit} of Python next to {file.name}, too many to send to workers"
                hint = f"move {file.name} and what it imports to a folder of their own"
                raise DataError.unusable(file.parent, what, hint)
    return sources


def _importable(file: Path) -> Iterator[Path]:
    folder = file.parent
    if _is_ours(folder):
        return
    entries = [path for path in _entries(folder) if _is_inside(path, folder)]
    folders = [path for path in entries if path.is_dir() and not _is_skipped(path)]
    packages = [path for path in folders if (path / "__init__.py").is_file()]
    plain = {path.name: path for path in folders if path not in packages}
    waiting: list[Path] = [file]
    for path in chain(filter(_is_python, entries), *(_tree(package, folder) for package in packages)):
        waiting.append(path)
        yield path
    while plain and waiting:
        for name in sorted(_imported(waiting.pop()) & plain.keys()):
            for path in _tree(plain.pop(name), folder):
                waiting.append(path)
                yield path


def _tree(folder: Path, top: Path) -> Iterator[Path]:
    waiting = [(folder, frozenset({folder.resolve()}))]
    while waiting:
        current, above = waiting.pop()
        for path in filter(lambda path: _is_inside(path, top), _entries(current)):
            if _is_python(path):
                yield path
            elif path.is_dir() and path.resolve() not in above and not _is_skipped(path):
                waiting.append((path, above | {path.resolve()}))


def _is_python(path: Path) -> bool:
    return path.suffix == ".py" and path.is_file() and os.access(path, os.R_OK)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError:
        return []


def _is_inside(path: Path, folder: Path) -> bool:
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a symlink that leads to itself
        return False


def _is_skipped(folder: Path) -> bool:
    environment = any((folder / name).exists() for name in _ENVIRONMENT)
    return folder.name in _SKIPPED or environment or _is_ours(folder)


def _is_ours(folder: Path) -> bool:
    home, real = Path(__file__).resolve().parents[3], folder.resolve()
    return any(real.is_relative_to(ours) for ours in (flows_folder(), *(home / name for name in OURS)))


def _imported(file: Path) -> set[str]:
    try:
        with warnings.catch_warnings(action="ignore"):  # about its syntax: they were shown when it was imported here
            tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    nodes = list(ast.walk(tree))
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.partition(".")[0] for name in modules}


def _make_empty(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        empty = not any(folder.iterdir())
    except OSError as error:
        raise DataError.failed(folder, "cannot be made for the workers' files", error) from error
    if not empty:
        raise DataError.unusable(folder, "is not empty, so the workers' files cannot be written to it")
