"""Checkpoints on disk: folders that are there whole or not at all, each known by the hashes of its files.

`CHECKPOINTS/step_000020/` is what a run needs to go on after 20 steps: `parts/` (weights, optimizers, carried values),
`state.json`, and `MANIFEST.json`, which is written last. One rename makes it; there is no pointer to the newest. Not
here: when one is due (`saver`), and what is in it (`execute`).
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from flowgraph.cluster.cluster import show_bytes
from flowgraph.errors import RunFolderError
from flowgraph.files.hashes import sha256
from flowgraph.files.untrusted import read_json
from flowgraph.runtime.record.run_facts import RunState, fault_in

PARTS, STATE, MANIFEST = "parts", "state.json", "MANIFEST.json"
SCHEMA = 2

_NAME = re.compile(r"step_(\d{6,})")
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG}
_TOLD = re.compile(r"\[Errno (\d+)\]|\(os error (\d+)\)")


@dataclass(frozen=True, order=True)
class Checkpoint:
    """One checkpoint: how many steps were done, and its folder."""

    steps: int
    path: Path

    @property
    def parts(self) -> Path:
        """Give the folder of what the executor wrote."""
        return self.path / PARTS

    def state(self) -> dict[str, Any]:
        """Read what is said of where the run stood. Raises ValueError or OSError for what is none."""
        found: dict[str, Any] = read_json(self.path / STATE)
        if fault := fault_in(RunState, found):
            raise ValueError(fault)
        return found


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of the run that is called `run`, in `folder`; of those that were made the newest `keep` stay.

    A manifest names the run and the steps, so that a copy of another run's, or of an older one under a newer name, is
    not taken for what its folder's name says.
    """

    folder: Path
    keep: int = 2
    run: str = ""

    def sweep(self) -> None:
        """Remove what an ended process was still writing, or removing."""
        for path in self.folder.glob("tmp_*"):
            shutil.rmtree(path, ignore_errors=True)

    def there(self) -> list[Checkpoint]:
        """Give the checkpoints by name, oldest first, whether they are whole or not."""
        folders = [path for path in self.folder.glob("step_*") if path.is_dir()]
        return sorted(Checkpoint(int(found[1]), path) for path in folders if (found := _NAME.fullmatch(path.name)))

    def newest(self, say: Callable[[str], None]) -> Checkpoint | None:
        """Return the newest whose every file is as its manifest says, None if there are no checkpoints.

        Each newer one is renamed, and told of. Raises RunFolderError, and renames nothing, where none is as it should
        be: to begin again would remove what the run recorded, and the fault may be a disk's or a version's.
        """
        faults = list[tuple[Checkpoint, str]]()
        for each in reversed(self.there()):
            why = self.fault_of(each) or _state_fault(each)
            if not why:
                for other, reason in faults:
                    aside = _set_aside(other.path, "bad")
                    say(f"{other.path} is damaged: {reason}; it is now {aside.name}, and one before it is used")
                return each
            faults.append((each, why))
        if faults:
            notes = [f"{each.path.name}: {why}" for each, why in faults]
            hint = f"remove {self.folder} to start again from the first step, which removes what was recorded"
            raise RunFolderError("none of its checkpoints can be used", where=str(self.folder), notes=notes, hint=hint)
        return None

    def fault_of(self, found: Checkpoint) -> str:
        """Return what of a checkpoint is not as its manifest says, or whose else it is; "" for one of this run's."""
        return fault_of(found.path, self._about(found.steps))

    def _about(self, steps: int) -> dict[str, Any]:
        return {"run": self.run, "steps": steps}

    def commit(
        self, steps: int, state: Mapping[str, Any], write: Callable[[Path], Mapping[str, Any] | None]
    ) -> Checkpoint:
        """Make a checkpoint: `write` fills a folder that is there and empty, which is then hashed and renamed.

        What `write` returns is added to the state.
        Whatever goes wrong leaves the checkpoints as they were. Old ones go once this one reads back as it was written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._refuse_full()
        draft = self.folder / f"tmp_{steps:06d}_{os.getpid()}"
        try:
            shutil.rmtree(draft, ignore_errors=True)
            (draft / PARTS).mkdir(parents=True)
            more = write(draft / PARTS)
            _write(draft / STATE, {**state, **(more or {})})
            _write(draft / MANIFEST, manifest_of(draft, self._about(steps)))
            settle(draft)
            made = self._rename(Checkpoint(steps, draft))
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        self._drop_old(made)
        return made

    def _refuse_full(self) -> None:
        """Raise OSError (ENOSPC) where there is less room than the newest checkpoint took."""
        taken = sum(size_bytes(each.path) for each in self.there()[-1:])
        free = shutil.disk_usage(self.folder).free
        if free < taken:
            why = f"{show_bytes(free)} are free, and the checkpoint before took {show_bytes(taken)}"
            raise OSError(errno.ENOSPC, f"No space left on device: {why}", str(self.folder))

    def _rename(self, draft: Checkpoint) -> Checkpoint:
        """Give a draft its name; one of that name, from a run that was taken up before it, makes room."""
        target = self.folder / f"step_{draft.steps:06d}"
        if target.exists():
            _set_aside(target, "tmp_old")
        draft.path.rename(target)
        sync(self.folder)
        return Checkpoint(draft.steps, target)

    def _drop_old(self, made: Checkpoint) -> None:
        """Remove what is no longer kept, if the newest is as it should be."""
        why = self.fault_of(made)
        if why:
            _set_aside(made.path, "bad")
            raise OSError(errno.EIO, f"Input/output error: read back, {why}", str(made.path))
        older = [each for each in self.there() if each.steps < made.steps]
        for each in older[: max(0, len(older) - self.keep + 1)]:
            _set_aside(each.path, "tmp_old")  # half of it must not look like one
        self.sweep()


def _set_aside(path: Path, word: str) -> Path:
    """Rename a checkpoint so that it is none: `bad_step_000020`, `bad_step_000020_2`."""
    names = (f"{word}_{path.name}{suffix}" for suffix in ("", *(f"_{i}" for i in range(2, 10_000))))
    target = next(path.parent / name for name in names if not (path.parent / name).exists())
    path.rename(target)
    sync(path.parent)
    return target


def manifest_of(folder: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a checkpoint is of, and the name, size and hash of every file in it but its manifest."""
    files = [
        {"name": path.relative_to(folder).as_posix(), "size_bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(_files(folder))
        if path != folder / MANIFEST
    ]
    return {"schema": SCHEMA, **about, "files": files}


def fault_of(folder: Path, about: Mapping[str, Any]) -> str:
    """Return what of a checkpoint is not as its manifest says, or that it is of something else; "" for a whole one."""
    path = folder / MANIFEST
    if not path.is_file():
        return f"{MANIFEST} is missing"
    try:
        told = read_json(path)
        if told["schema"] != SCHEMA:
            return f"{MANIFEST} has schema {told['schema']}; {SCHEMA} is read here"
        others = [f"{name} {told[name]}, not {wanted}" for name, wanted in about.items() if told[name] != wanted]
        listed = [(str(each["name"]), int(each["size_bytes"]), str(each["sha256"])) for each in told["files"]]
    except (ValueError, TypeError, LookupError, OSError) as error:
        return f"{MANIFEST} cannot be read: {error}"
    if others:
        return f"{MANIFEST} is that of {others[0]}"
    if STATE not in [name for name, _, _ in listed]:
        return f"{MANIFEST} does not list {STATE}"
    return next((why for each in listed if (why := _fault(folder, *each))), "")


def _state_fault(checkpoint: Checkpoint) -> str:
    """Say what of a checkpoint's state is not as we write it, whatever its hash; "" for one that is."""
    try:
        checkpoint.state()
    except (OSError, ValueError) as error:
        return f"{STATE} cannot be read: {error}"
    return ""


def _fault(folder: Path, name: str, size: int, digest: str) -> str:
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts:
        return f"{MANIFEST} names {name}, which is not in it"
    path = folder / parts
    try:
        if not path.is_file():
            return f"{name} is missing"
        there = path.stat().st_size
        if there != size:
            return f"{name} has {there} bytes, not {size}"
        return "" if sha256(path) == digest else f"{name} has other bytes than were written"
    except OSError as error:
        return f"{name} cannot be read: {error.strerror}"


def size_bytes(folder: Path) -> int:
    """Add up the sizes of a folder's files."""
    return sum(path.stat().st_size for path in _files(folder))


def settle(folder: Path) -> None:
    """Have every file of a folder, and every folder in it, on the disk itself."""
    for path in (*folder.rglob("*"), folder):
        sync(path)


def sync(path: Path) -> None:
    """Have one file or folder on the disk itself."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def _write(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=1) + "\n", "utf-8")


def disk_fault(error: BaseException) -> str:
    """Say what the disk refused, if that is what is behind an error: it is full, its quota is used up, or it fails.

    An error may have come from a library or another process, where only its words are left.

    >>> disk_fault(RuntimeError("saving failed: OSError: [Errno 28] No space left on device: 'a'"))
    'No space left on device'
    >>> disk_fault(RuntimeError("out of luck"))
    ''
    """
    for each in _chain(error):
        text = str(each)
        numbers = [int(one or other) for one, other in _TOLD.findall(text)]
        numbers += [each.errno] if isinstance(each, OSError) and each.errno is not None else []
        numbers += [number for number in sorted(_DISK) if os.strerror(number) in text]
        found = next((number for number in numbers if number in _DISK), None)
        if found is not None:
            return os.strerror(found)
    return ""


def _chain(error: BaseException) -> Iterable[BaseException]:
    seen = list[BaseException]()
    following: BaseException | None = error
    while following is not None and following not in seen:
        seen.append(following)
        following = following.__cause__ or following.__context__
    return seen
