"""Checkpoints on disk: folders that are complete or do not exist, each verified by the hashes of its files.

`CHECKPOINTS/step_000020/` contains what the run needs to continue after 20 steps: `parts/` (weights, optimizers,
carried values), `state.json`, and `MANIFEST.json`, which is written last. One rename completes a checkpoint; no file
points to the newest, and `best.json` names the best by a metric. A `Saver` writes a checkpoint when it is due.
`interpreter` defines the contents of `parts/`.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from flowgraph.cluster.cluster import show_bytes
from flowgraph.errors import RunFolderError
from flowgraph.files.hashes import sha256
from flowgraph.files.untrusted import json_as, read_bytes, read_json
from flowgraph.runtime.record.run_facts import BestFacts, RunState, schema_fault

PARTS, STATE, MANIFEST, BEST = "parts", "state.json", "MANIFEST.json", "best.json"
SCHEMA = 2
MAX_FAILURES = 3  # to write, in a row; then the run ends, because what it does would be lost

_NAME = re.compile(r"step_(\d{6,})")
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG}
_ERROR_NUMBER = re.compile(r"\[Errno (\d+)\]|\(os error (\d+)\)")


@dataclass(frozen=True, order=True)
class Checkpoint:
    """A checkpoint: the number of completed steps, and its folder."""

    steps: int
    path: Path

    @property
    def parts(self) -> Path:
        """Return the folder with the files that the executor wrote."""
        return self.path / PARTS

    def state(self) -> dict[str, Any]:
        """Return the content of `state.json`: the run's state after these steps.

        Raises ValueError if the file is not such a state, and OSError if it cannot be read.
        """
        state: dict[str, Any] = read_json(self.path / STATE)
        if fault := schema_fault(RunState, state):
            raise ValueError(fault)
        return state


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints in `folder` of the run whose id is `run`; the newest `keep` of them are kept, and the best one.

    The one after `extendable` steps is kept, too, if it is not 0. A manifest contains the run's id and the steps, so
    `fault_of` detects a checkpoint that was copied from another run or renamed.
    """

    folder: Path
    keep: int = 2
    run: str = ""
    extendable: int = 0

    def sweep(self) -> None:
        """Remove all temporary folders; call it only while no process writes or removes a checkpoint."""
        for path in self.folder.glob("tmp_*"):
            shutil.rmtree(path, ignore_errors=True)

    def oldest_first(self) -> list[Checkpoint]:
        """Return the checkpoints in the folder, by number of steps, without verifying them."""
        folders = [path for path in self.folder.glob("step_*") if path.is_dir()]
        return sorted(Checkpoint(int(name[1]), path) for path in folders if (name := _NAME.fullmatch(path.name)))

    def newest(
        self, say: Callable[[str], None], fits: Callable[[Mapping[str, Any]], bool] = lambda _: True
    ) -> Checkpoint | None:
        """Return the newest checkpoint whose files match its manifest and whose state `fits`; None if there is none.

        Newer, damaged checkpoints are renamed and reported with `say`; those whose state does not fit are skipped.
        Raises RunFolderError if at least one checkpoint is damaged and no other can be used; none is renamed then,
        because the disk may be the cause.
        """
        damaged = list[tuple[Checkpoint, str]]()
        for checkpoint in reversed(self.oldest_first()):
            why = self.fault_of(checkpoint)
            if not why:
                try:
                    if not fits(checkpoint.state()):
                        continue
                except (OSError, ValueError) as error:
                    why = f"{STATE} cannot be read: {error}"
            if not why:
                for newer, reason in damaged:
                    aside = _set_aside(newer.path, "bad")
                    say(f"{newer.path} is damaged: {reason}; it is renamed to {aside.name}; an earlier one is used")
                return checkpoint
            damaged.append((checkpoint, why))
        if damaged:
            notes = [f"{checkpoint.path.name}: {why}" for checkpoint, why in damaged]
            hint = f"remove {self.folder} to start again from the first step, which removes what was recorded"
            raise RunFolderError("none of its checkpoints can be used", where=str(self.folder), notes=notes, hint=hint)
        return None

    def fault_of(self, checkpoint: Checkpoint) -> str:
        """Return why a checkpoint is not intact, or is not this run's, as text; "" if it matches its manifest.

        Every file that the manifest lists is read and hashed. Only the first fault is returned.
        """
        path = checkpoint.path / MANIFEST
        if not path.is_file():
            return f"{MANIFEST} is missing"
        try:
            manifest = read_json(path)
            if manifest["schema"] != SCHEMA:
                return f"{MANIFEST} has schema {manifest['schema']}; {SCHEMA} is read here"
            for name, value in (("run", self.run), ("steps", checkpoint.steps)):
                if manifest[name] != value:
                    return f"{MANIFEST} is that of {name} {manifest[name]}, not {value}"
            files = [(str(file["name"]), int(file["size_bytes"]), str(file["sha256"])) for file in manifest["files"]]
        except (ValueError, TypeError, LookupError, OSError) as error:
            return f"{MANIFEST} cannot be read: {error}"
        if STATE not in [name for name, _, _ in files]:
            return f"{MANIFEST} does not list {STATE}"
        return next((why for file in files if (why := _file_fault(checkpoint.path, *file))), "")

    def commit(
        self, steps: int, state: Mapping[str, Any], write: Callable[[Path], Mapping[str, Any] | None]
    ) -> Checkpoint:
        """Write the checkpoint after `steps` steps, in place of an existing one, and return it.

        `write` fills an empty folder; the entries that it returns are added to `state`. The folder is then hashed and
        renamed. If anything fails before that, existing checkpoints stay. Old checkpoints are removed after the new one
        has been verified by reading it. Raises OSError (ENOSPC) before writing if less space is free than the newest
        checkpoint takes, OSError (EIO) if the new checkpoint, which is then renamed to `bad_…`, does not match what was
        written, and errors of `write`.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        newest = self.oldest_first()[-1:]
        needed = sum(path.stat().st_size for checkpoint in newest for path in _files(checkpoint.path))
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            why = f"{show_bytes(free)} are free, and the checkpoint before took {show_bytes(needed)}"
            raise OSError(errno.ENOSPC, f"No space left on device: {why}", str(self.folder))
        draft, target = self.folder / f"tmp_{steps:06d}_{os.getpid()}", self.folder / f"step_{steps:06d}"
        try:
            shutil.rmtree(draft, ignore_errors=True)
            (draft / PARTS).mkdir(parents=True)
            written = write(draft / PARTS)
            (draft / STATE).write_text(json.dumps({**state, **(written or {})}, indent=1) + "\n", "utf-8")
            manifest = manifest_of(draft, {"run": self.run, "steps": steps})
            (draft / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")
            for path in (*draft.rglob("*"), draft):
                sync(path)
            if target.exists():  # from this run, before it was resumed at an older checkpoint
                _set_aside(target, "tmp_old")
            draft.rename(target)
            sync(self.folder)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        checkpoint = Checkpoint(steps, target)
        if why := self.fault_of(checkpoint):
            _set_aside(target, "bad")
            raise OSError(errno.EIO, f"Input/output error: read back, {why}", str(target))
        self._remove_old(steps)
        return checkpoint

    def forget_after(self, steps: int) -> None:
        """Remove the checkpoints after more than `steps` steps: a run that repeats these steps writes them again.

        All temporary folders are removed, too.
        """
        for checkpoint in reversed(self.oldest_first()):
            if checkpoint.steps > steps:
                _set_aside(checkpoint.path, "tmp_old")
        self.sweep()

    def _remove_old(self, steps: int) -> None:
        best = self.best()
        staying = {self.extendable} - {0} | ({best.steps} if best is not None else set())
        until = [old for old in self.oldest_first() if old.steps <= steps and old.steps not in staying]
        extra = len(until) - self.keep + (steps in staying)
        for old in until[: max(0, extra)]:
            _set_aside(old.path, "tmp_old")  # half of it must not look like a checkpoint
        self.sweep()

    def best(self) -> BestFacts | None:
        """Return which checkpoint is the best and by which metric, according to `best.json`.

        None if that file is missing, unreadable or invalid, or if the checkpoint that it names does not exist.
        """
        try:
            best = json_as(BestFacts, read_bytes(self.folder / BEST))
        except (OSError, ValueError):
            return None
        return best if any(checkpoint.steps == best.steps for checkpoint in self.oldest_first()) else None

    def mark_best(self, best: BestFacts) -> None:
        """Make an existing checkpoint the best one, in one rename, and remove those that need not be kept any longer.

        The previous best can be one of those. Raises OSError if the disk refuses to write `best.json`.
        """
        draft = self.folder / f"tmp_{BEST}"
        draft.write_text(best.model_dump_json() + "\n", "utf-8")
        sync(draft)
        draft.replace(self.folder / BEST)
        sync(self.folder)
        self._remove_old(max(checkpoint.steps for checkpoint in self.oldest_first()))


def _set_aside(path: Path, word: str) -> Path:
    names = (f"{word}_{path.name}{suffix}" for suffix in ("", *(f"_{i}" for i in range(2, 10_000))))
    target = next(path.parent / name for name in names if not (path.parent / name).exists())
    path.rename(target)
    sync(path.parent)
    return target


def manifest_of(folder: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a checkpoint's manifest: its schema, the entries of `about`, and its `files`.

    Each file in `folder`, except the manifest, has an entry with its relative name, size in bytes, and sha256.
    """
    files = [
        {"name": path.relative_to(folder).as_posix(), "size_bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(_files(folder))
        if path != folder / MANIFEST
    ]
    return {"schema": SCHEMA, **about, "files": files}


def _file_fault(folder: Path, name: str, size: int, digest: str) -> str:
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts:
        return f"{MANIFEST} names {name}, which is not in it"
    path = folder / parts
    try:
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes, not {size}"
        return "" if sha256(path) == digest else f"{name} has changed since it was written"
    except OSError as error:
        return f"{name} cannot be read: {error.strerror}"


def sync(path: Path) -> None:
    """Flush a file or folder to the disk, and return when it is there (fsync). Raises OSError if the disk fails."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def disk_fault(error: BaseException) -> str:
    """Return the system's message if a disk caused an error, or "" if it did not.

    A disk causes an error if it is full, its quota is used up, a file is too large for it, or it fails. The causes of
    `error` are searched too, and the texts of errors that come from a library or another process.

    >>> disk_fault(RuntimeError("saving failed: OSError: [Errno 28] No space left on device: 'a'"))
    'No space left on device'
    >>> disk_fault(RuntimeError("out of luck"))
    ''
    """
    seen = list[BaseException]()
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        text = str(current)
        numbers = [int(python or rust) for python, rust in _ERROR_NUMBER.findall(text)]
        numbers += [current.errno] if isinstance(current, OSError) and current.errno is not None else []
        numbers += [number for number in sorted(_DISK) if os.strerror(number) in text]
        for number in numbers:
            if number in _DISK:
                return os.strerror(number)
        current = current.__cause__ or current.__context__
    return ""


@dataclass(eq=False)
class Saver:
    """Writes checkpoints every `every` steps (0: never), at the end, and where the run can be extended from.

    `write` fills a folder with what the run carries, and `state` returns the state of the run after some number of
    steps; the entries that `write` returns are added to it. `saved` is the number of steps of the newest checkpoint.
    If `metric` is not empty, the checkpoint of the weights with the highest `metric` in a check of held-out data stays,
    and `export` saves these weights too.
    """

    checkpoints: Checkpoints
    every: int
    write: Callable[[Path], Mapping[str, Any] | None]
    state: Callable[[int], Mapping[str, Any]]
    say: Callable[[str], None]
    saved: int = 0
    failures: int = 0
    metric: str = ""
    export: Callable[[], None] = lambda: None

    def checked(self, steps: int, metrics: Mapping[str, float]) -> None:
        """Make the checkpoint after `steps` steps the best one if its `metric` is higher than that of the best so far.

        `metrics` are those of the check; without `metric` or if it is NaN, nothing is done. Of equal values the first
        is best; a best by another metric does not count. The checkpoint is written if it does not exist, and `export`
        is called. A fault of the disk is reported with `say`; other errors are raised.
        """
        best, value = self.checkpoints.best(), metrics.get(self.metric, math.nan)
        if not value > (best.value if best is not None and best.metric == self.metric else -math.inf):
            return
        exists = any(checkpoint.steps == steps for checkpoint in self.checkpoints.oldest_first())
        why = "" if exists else self._refused(steps)
        try:
            if not why:
                self.export()
                self.checkpoints.mark_best(BestFacts(steps=steps, metric=self.metric, value=value))
        except Exception as error:
            why = disk_fault(error)
            if not why:
                raise
        if why:
            self.say(f"{self.metric} {value:.4g} after step {steps} is the best, but was not saved: {why}")

    def stepped(self, steps: int) -> None:
        """Write a checkpoint if one is due after `steps` steps.

        A fault of the disk is reported with `say`; the third in a row raises RunFolderError. Other errors are raised.
        """
        due = self.every and (steps % self.every == 0 or steps == self.checkpoints.extendable)
        if due and (why := self._refused(steps)):
            self.failures += 1
            if self.failures == MAX_FAILURES:
                raise self._error(steps, f"{self.failures} times in a row", why)
            again = f"the run goes on, and tries again after step {(steps // self.every + 1) * self.every}"
            self.say(f"no checkpoint after step {steps}: {why} ({self.checkpoints.folder}); {again}")

    def ended(self, steps: int) -> None:
        """Write the last checkpoint, after `steps` steps, unless it exists or `every` is 0.

        A fault of the disk raises RunFolderError; other errors are raised unchanged.
        """
        if self.every and steps != self.saved and (why := self._refused(steps)):
            raise self._error(steps, "which was the last", why)

    def _refused(self, steps: int) -> str:
        try:
            self.checkpoints.commit(steps, self.state(steps), self.write)
        except Exception as error:
            if why := disk_fault(error):
                return why
            raise
        self.saved, self.failures = steps, 0
        return ""

    def _error(self, steps: int, times: str, why: str) -> RunFolderError:
        what = f"the checkpoint after step {steps}, {times}, could not be written: {why}"
        hint = "free disk space, then resume; --checkpoint-every 0 runs without checkpoints"
        return RunFolderError(what, where=str(self.checkpoints.folder), hint=hint)
