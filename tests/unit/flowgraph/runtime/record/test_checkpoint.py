"""Checkpoints on disk: whole or not there, told by their hashes, whatever kills the writer or fills the disk."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from flowgraph.errors import FlowError, RunFolderError, WorkerError
from flowgraph.files.hashes import BLOCK_BYTES
from flowgraph.runtime.record.checkpoint import (
    MANIFEST,
    MAX_FAILURES,
    PARTS,
    STATE,
    Checkpoint,
    Checkpoints,
    Saver,
    disk_fault,
)
from tests.looped import looped

FILES = {
    f"{PARTS}/policy/rank0.safetensors": bytes(range(256)) * 9000,  # more than a block
    f"{PARTS}/policy/rank0.json": b'{"version": 3}',
    f"{PARTS}/held.json": b"{}",
    f"{PARTS}/carried/beta.arrow": b"",
}


def fill(parts: Path) -> None:
    """Write what an executor might."""
    for name, data in FILES.items():
        path = parts.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def made(folder: Path, *steps: int, keep: int = 2) -> Checkpoints:
    """Make checkpoints after these steps."""
    checkpoints = Checkpoints(folder / "checkpoints", keep)
    for each in steps:
        checkpoints.commit(each, {"steps_done": each}, fill)
    return checkpoints


def names(checkpoints: Checkpoints) -> list[str]:
    """Name what lies there."""
    return sorted(path.name for path in checkpoints.folder.iterdir())


def silent(line: str) -> None:
    """Refuse to be told anything."""
    raise AssertionError(line)


def test_a_checkpoint_lists_every_file_with_its_size_and_hash(tmp_path: Path) -> None:
    (found,) = made(tmp_path, 20).oldest_first()
    assert (found.steps, found.path.name, found.state()) == (20, "step_000020", {"steps_done": 20})
    listed = json.loads((found.path / MANIFEST).read_text())["files"]
    assert sorted(each["name"] for each in listed) == sorted([STATE, *FILES])
    large = next(each for each in listed if each["name"].endswith(".safetensors"))
    assert large["size_bytes"] == 256 * 9000 > BLOCK_BYTES
    assert all(re.fullmatch("[0-9a-f]{64}", each["sha256"]) for each in listed)
    assert made(tmp_path).fault_of(found) == ""


def test_the_newest_checkpoints_stay_and_others_go(tmp_path: Path) -> None:
    checkpoints = made(tmp_path, 2, 4, 6, 8)
    assert names(checkpoints) == ["step_000006", "step_000008"]
    assert made(tmp_path / "one", 2, 4, keep=1).oldest_first()[0].steps == 4
    newest = checkpoints.newest(silent)
    assert newest is not None and newest.steps == 8


def test_steps_are_compared_as_numbers(tmp_path: Path) -> None:
    newest = made(tmp_path, 999_999, 1_000_000).newest(silent)
    assert newest is not None and newest.steps == 1_000_000


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip(path: Path, place: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


HARMED: dict[str, tuple[Callable[[Path], None], str]] = {
    f"{PARTS}/policy/rank0.safetensors cut": (cut, "has 2303999 bytes, not 2304000"),
    f"{PARTS}/policy/rank0.safetensors flipped": (flip, "has changed since it was written"),
    f"{PARTS}/policy/rank0.safetensors gone": (Path.unlink, "is missing"),
    f"{PARTS}/policy/rank0.json cut": (cut, "has 13 bytes, not 14"),
    f"{PARTS}/policy/rank0.json flipped": (flip, "has changed since it was written"),
    f"{PARTS}/carried/beta.arrow gone": (Path.unlink, "is missing"),
    f"{STATE} cut": (cut, "bytes, not"),
    f"{STATE} flipped": (flip, "has changed since it was written"),
    f"{STATE} gone": (Path.unlink, "is missing"),
    f"{MANIFEST} gone": (Path.unlink, "MANIFEST.json is missing"),
    f"{MANIFEST} cut in half": (lambda path: os.truncate(path, path.stat().st_size // 2), "cannot be read"),
    f"{MANIFEST} empty": (lambda path: os.truncate(path, 0), "cannot be read"),
}


@looped("harm", HARMED)
def test_a_damaged_checkpoint_is_set_aside_with_what_is_wrong_and_the_one_before_is_used(
    harm: str, tmp_path: Path
) -> None:
    checkpoints, told = made(tmp_path, 2, 4), list[str]()
    do, says = HARMED[harm]
    do(checkpoints.folder / "step_000004" / harm.partition(" ")[0])
    newest = checkpoints.newest(told.append)
    assert newest is not None and newest.steps == 2
    assert names(checkpoints) == ["bad_step_000004", "step_000002"]
    assert len(told) == 1 and says in told[0] and "it is renamed to bad_step_000004" in told[0]


def test_a_copy_of_an_older_checkpoint_or_of_another_run_is_not_taken_for_what_its_name_says(tmp_path: Path) -> None:
    checkpoints, told = made(tmp_path, 2, 4), list[str]()
    shutil.copytree(checkpoints.folder / "step_000002", checkpoints.folder / "step_000006")
    other = Checkpoints(tmp_path / "other", run="b")
    other.commit(8, {"steps_done": 8}, fill)
    (tmp_path / "other/step_000008").rename(checkpoints.folder / "step_000008")
    deep = checkpoints.folder / "step_000010"
    shutil.copytree(checkpoints.folder / "step_000004", deep)
    (deep / MANIFEST).write_text("[" * 100_000)
    newest = checkpoints.newest(told.append)
    assert newest is not None and newest.steps == 4
    assert "MANIFEST.json cannot be read" in told[0]
    assert [each.partition(": ")[2].partition(";")[0] for each in told[1:]] == [
        "MANIFEST.json is that of run b, not ",
        "MANIFEST.json is that of steps 2, not 6",
    ]


def test_no_flipped_bit_of_a_manifest_goes_unnoticed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.commit(2, {}, lambda parts: (parts / "held").mkdir())
    (found,) = checkpoints.oldest_first()
    path = found.path / MANIFEST
    data = path.read_bytes()
    missed = list[int]()
    for place in range(len(data)):
        for bit in range(8):
            path.write_bytes(data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :])
            if not checkpoints.fault_of(found):
                missed.append(place)
    assert missed == []


def test_a_manifest_cannot_name_what_is_outside(tmp_path: Path) -> None:
    (found,) = made(tmp_path, 2).oldest_first()
    (tmp_path / "secret").write_text("")
    for name in ("../../secret", "/etc/hostname"):
        listed = json.loads((found.path / MANIFEST).read_text())
        listed["files"].insert(0, {"name": name, "size_bytes": 0, "sha256": ""})
        (found.path / MANIFEST).write_text(json.dumps(listed))
        assert made(tmp_path).fault_of(found) == f"{MANIFEST} names {name}, which is not in it"


def test_where_no_checkpoint_can_be_used_none_is_renamed_and_the_run_does_not_begin_again(tmp_path: Path) -> None:
    checkpoints, told = made(tmp_path, 2, 4), list[str]()
    for each in checkpoints.oldest_first():
        flip(each.path / STATE)
    for _ in range(2):
        with pytest.raises(RunFolderError, match=r"none of its checkpoints(.|\n)*step_000004: (.|\n)*step_000002: "):
            checkpoints.newest(told.append)
    assert names(checkpoints) == ["step_000002", "step_000004"] and not told


def test_a_checkpoint_is_set_aside_also_twice_by_one_name(tmp_path: Path) -> None:
    checkpoints = made(tmp_path, 2)
    for _ in range(2):
        checkpoints.commit(4, {"steps_done": 4}, fill)
        flip(checkpoints.folder / "step_000004" / STATE)
        assert checkpoints.newest(list[str]().append) is not None
    assert "bad_step_000004_2" in names(checkpoints)


def test_what_is_no_checkpoint_by_name_is_left_alone(tmp_path: Path) -> None:
    checkpoints = made(tmp_path, 2)
    for name in ("notes", "step_x", "step_000009.txt"):
        (checkpoints.folder / name).mkdir()
    assert [each.steps for each in checkpoints.oldest_first()] == [2]


def test_a_checkpoint_of_the_same_step_takes_the_place_of_the_one_there(tmp_path: Path) -> None:
    checkpoints = made(tmp_path, 2, 4)
    checkpoints.commit(4, {"again": True}, fill)
    assert names(checkpoints) == ["step_000002", "step_000004"]
    assert checkpoints.oldest_first()[-1].state() == {"again": True}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_a_commit_that_is_broken_off_changes_nothing(error: BaseException, tmp_path: Path) -> None:
    checkpoints = made(tmp_path, 2, 4)

    def half(parts: Path) -> None:
        fill(parts)
        raise error

    with pytest.raises(type(error)):
        checkpoints.commit(6, {}, half)
    assert names(checkpoints) == ["step_000002", "step_000004"]
    assert checkpoints.newest(silent) == Checkpoint(4, checkpoints.folder / "step_000004")


def test_half_of_an_old_checkpoint_never_looks_like_one(tmp_path: Path) -> None:
    checkpoints = made(tmp_path, 2)
    (checkpoints.folder / "tmp_000004_1" / PARTS).mkdir(parents=True)
    (checkpoints.folder / "tmp_old_step_000001").mkdir()
    assert [each.steps for each in checkpoints.oldest_first()] == [2]
    checkpoints.sweep()
    assert names(checkpoints) == ["step_000002"]


# Commits once more, and is killed before the nth thing that it does to a file or folder; then what is left is read.
KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [{root!r}]
from flowgraph.errors import RunFolderError
from flowgraph.runtime.record.checkpoint import Checkpoints

def fill(parts):
    (parts / "policy").mkdir()
    (parts / "policy" / "weights").write_bytes(bytes(9))
    (parts / "held.json").write_text("2")

def names(checkpoints):
    return sorted(path.name for path in checkpoints.folder.iterdir())

CHANGES = {{"open", "os.rename", "os.mkdir", "os.rmdir", "os.remove"}}

def commit_until(folder, place):
    seen = 0
    def watch(event, arguments):
        nonlocal seen
        if event in CHANGES and (event != "open" or str(arguments[0]).startswith(str(folder))):
            seen += 1
            if seen == place:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(watch)
    Checkpoints(folder).commit(6, {{"steps_done": 6}}, fill)
    os._exit(0)

def refuse(line):
    raise AssertionError(line)

newest, place, killed = [], 0, True
while killed:
    place += 1
    folder = Path(sys.argv[1], str(place))
    for steps in (2, 4):
        Checkpoints(folder).commit(steps, {{"steps_done": steps}}, fill)
    child = os.fork()
    if not child:
        commit_until(folder, place)
    killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    there = Checkpoints(folder)
    there.sweep()
    found = there.newest(refuse)
    newest.append(found.steps)
    there.commit(6, {{"steps_done": 6}}, fill)
    there.commit(8, {{"steps_done": 8}}, fill)
    assert names(there) == ["step_000006", "step_000008"], names(there)
print(*newest)
"""


def test_a_writer_killed_between_any_two_changes_leaves_the_old_or_the_new_whole(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[5])
    done = subprocess.run(
        [sys.executable, "-c", KILLED.format(root=root), str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    newest = [int(each) for each in done.stdout.split()]
    assert newest == sorted(newest), "once the new one is there it stays"
    assert newest.count(4) > 10 and newest.count(6) > 5, newest


@dataclass
class Told:
    """A saver's lines, and what its disk does: a write raises the next of `errors`, if any is left."""

    folder: Path
    errors: list[Exception | None] = field(default_factory=list[Exception | None])
    lines: list[str] = field(default_factory=list[str])

    def saver(self, every: int = 2) -> Saver:
        checkpoints = Checkpoints(self.folder / "checkpoints")
        return Saver(checkpoints, every, self.write, lambda done: {"steps_done": done}, self.lines.append)

    def write(self, parts: Path) -> None:
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        fill(parts)

    def steps(self) -> list[int]:
        return [each.steps for each in Checkpoints(self.folder / "checkpoints").oldest_first()]


def full() -> OSError:
    """Return the error of a full disk, as the system raises it."""
    with pytest.raises(OSError) as caught, Path("/dev/full").open("wb", buffering=0) as disk:
        disk.write(b"x")
    return caught.value


def test_checkpoints_are_made_every_so_many_steps_and_at_the_end_but_not_twice(tmp_path: Path) -> None:
    told = Told(tmp_path)
    saver = told.saver()
    for done in (1, 2, 3):
        saver.stepped(done)
    assert told.steps() == [2]
    saver.ended(3)
    assert told.steps() == [2, 3]
    told.errors = [AssertionError("nothing is new")]
    saver.ended(3)


def test_never_is_never(tmp_path: Path) -> None:
    saver = Told(tmp_path).saver(every=0)
    for done in range(1, 5):
        saver.stepped(done)
    saver.ended(4)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_of_and_tried_again(tmp_path: Path) -> None:
    told = Told(tmp_path, [None, full(), None])
    saver = told.saver()
    for done in range(1, 7):
        saver.stepped(done)
    assert told.steps() == [2, 6]
    (line,) = told.lines
    assert line.startswith("no checkpoint after step 4: No space left on device")
    assert line.endswith("the run goes on, and tries again after step 6")


def test_the_third_failure_in_a_row_ends_the_run_and_leaves_the_last_good_one(tmp_path: Path) -> None:
    told = Told(tmp_path, [None, full(), full(), None, *[full()] * MAX_FAILURES])
    saver = told.saver()
    with pytest.raises(RunFolderError) as caught:
        for done in range(1, 99):
            saver.stepped(done)
    assert caught.value.what == (
        "the checkpoint after step 14, 3 times in a row, could not be written: No space left on device"
    )
    assert told.steps() == [2, 8] and len(told.lines) == 4
    assert names(Checkpoints(tmp_path / "checkpoints")) == ["step_000002", "step_000008"]


def test_a_last_checkpoint_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="which was the last"):
        Told(tmp_path, [full()]).saver().ended(3)


def test_what_is_not_the_disks_fault_is_raised_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        Told(tmp_path, [ZeroDivisionError()]).saver().stepped(2)


def errors() -> dict[str, tuple[Exception, str]]:
    """Return errors as libraries and other processes raise them, each with what is said of it."""
    from safetensors import SafetensorError

    ray = "ray::RankActor.save_state() (pid=7)\nOSError: [Errno 122] Disk quota exceeded: 'a/b'"
    model = FlowError("the model could not be saved: No space left on device (a/b)")
    behind = RuntimeError("saving failed")
    behind.__cause__ = OSError(errno.EIO, "Input/output error")
    return {
        "system": (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        "safetensors": (SafetensorError("I/O error: No space left (os error 28)"), "No space left on device"),
        "worker": (WorkerError.failed("saving policy", ray), "Disk quota exceeded"),
        "ours": (model, "No space left on device"),
        "behind": (behind, "Input/output error"),
        "missing": (FileNotFoundError(errno.ENOENT, "No such file or directory"), ""),
        "none": (RuntimeError("a shape"), ""),
    }


@looped("name", errors())
def test_a_disk_that_refuses_is_known_by_its_number_or_its_words(name: str) -> None:
    error, says = errors()[name]
    assert disk_fault(error) == says


LIMITED = """
import resource, sys
from pathlib import Path
sys.path[:0] = [{root!r}]
import torch
from safetensors.torch import save_file
from flowgraph.errors import RunFolderError
from flowgraph.runtime.record.checkpoint import Checkpoints, disk_fault

checkpoints = Checkpoints(Path(sys.argv[1]))
write = lambda size: lambda parts: save_file({{"w": torch.zeros(size)}}, parts / "weights.safetensors")
checkpoints.commit(2, {{}}, write(100))
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    checkpoints.commit(4, {{}}, write(100_000))
except Exception as error:
    print(type(error).__name__, disk_fault(error), sorted(path.name for path in checkpoints.folder.iterdir()))
"""


def test_a_limit_that_safetensors_meets_leaves_the_last_good_one(tmp_path: Path) -> None:
    said = script(LIMITED, tmp_path)
    assert said == "SafetensorError File too large ['step_000002']\n"


SMALL_DISK = """
import sys
from pathlib import Path
sys.path[:0] = [{root!r}]
from flowgraph.errors import RunFolderError
from flowgraph.runtime.record.checkpoint import Checkpoints, disk_fault

checkpoints = Checkpoints(Path(sys.argv[1]) / "checkpoints")
write = lambda size: lambda parts: (parts / "weights").write_bytes(bytes(size)) and None
checkpoints.commit(2, {{}}, write(300_000))
for size in (900_000, 300_000):
    try:
        checkpoints.commit(4, {{}}, write(size))
    except OSError as error:
        print(disk_fault(error))
    print(checkpoints.newest(print).steps, sorted(path.name for path in checkpoints.folder.iterdir()))
Path(sys.argv[1], "other").write_bytes(bytes(200_000))
try:
    checkpoints.commit(6, {{}}, write(1))
except OSError as error:
    print(disk_fault(error), "known before" if "the checkpoint before took 293" in error.strerror else "")
"""


def test_a_disk_that_runs_full_keeps_the_last_good_one_and_too_little_room_is_seen_before(tmp_path: Path) -> None:
    mounted = ["unshare", "-Urm", "sh", "-c", 'mount -t tmpfs -o size=1m tmpfs "$1" && exec "$2" -c "$3" "$1"', "sh"]
    probe = ["unshare", "-Urm", "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)]
    try:
        subprocess.run(probe, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no file system can be mounted here")
    said = script(SMALL_DISK, tmp_path, mounted)
    no = "No space left on device"
    assert said.splitlines() == [
        no,
        "2 ['step_000002']",
        "4 ['step_000002', 'step_000004']",
        f"{no} known before",
    ]


def script(text: str, folder: Path, before: list[str] | None = None) -> str:
    """Run a script on a folder in a process of its own, and give what it prints."""
    text = text.format(root=str(Path(__file__).parents[5]))
    command: list[Any] = [*before, folder, sys.executable, text] if before else [sys.executable, "-c", text, folder]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


# ------------------------------------------------------------------------------------------- the best one


def best_saver(checkpoints: Checkpoints, said: list[str], exports: list[int]) -> Saver:
    def export() -> None:
        exports.append(1)

    return Saver(
        checkpoints=checkpoints,
        every=1,
        write=fill,
        state=lambda steps: {"steps_done": steps},
        say=said.append,
        metric="eval/math",
        export=export,
    )


def test_the_best_checkpoint_stays_whatever_is_newer_and_a_saver_of_a_resumed_run_knows_it(tmp_path: Path) -> None:
    checkpoints, exports = Checkpoints(tmp_path / "checkpoints", keep=1), list[int]()
    saver = best_saver(checkpoints, [], exports)
    for steps, value in enumerate((0.1, 0.4, float("nan"), 0.4, 0.2)):
        if steps:
            saver.stepped(steps)
        saver.checked(steps, {"eval/math": value})
    assert names(checkpoints) == ["best.json", "step_000001", "step_000004"] and len(exports) == 2
    resumed = best_saver(checkpoints, [], exports)
    resumed.stepped(5)
    resumed.checked(5, {"eval/math": 0.3})
    resumed.checked(5, {"eval/other": 1.0})
    assert names(checkpoints) == ["best.json", "step_000001", "step_000005"]
    resumed.stepped(6)
    resumed.checked(6, {"eval/math": 0.5})
    assert names(checkpoints) == ["best.json", "step_000006"]
    assert (best := checkpoints.best()) is not None and (best.steps, best.value) == (6, 0.5)


def test_a_best_that_is_gone_or_cannot_be_read_is_none_and_a_full_disk_is_reported(tmp_path: Path) -> None:
    checkpoints = made(tmp_path, 1, 2)
    for text in ("{", '{"steps": 9, "metric": "eval/math", "value": 1.0}', '{"steps": "1"}'):
        (checkpoints.folder / "best.json").write_text(text)
        assert checkpoints.best() is None
    said = list[str]()

    def export() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    saver = best_saver(checkpoints, said, [])
    saver.export = export
    saver.checked(2, {"eval/math": 0.25})
    assert said == ["eval/math 0.25 after step 2 is the best, but was not saved: No space left on device"]
    assert checkpoints.best() is None
