"""Responses that reach for other responses' scores, for the run, and for what lies in the scratch folder after them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flowgraph.runtime.scratch import PREFIX
from nodes.scoring.confinement import lacks
from nodes.scoring.grader_guard import remove, scratch_overfull
from nodes.scoring.graders import Graders
from nodes.scoring.rules import resolve

pytestmark = pytest.mark.skipif(bool(lacks()), reason="this machine cannot confine a process")

ANSWERS_BY_PROC = """
import fcntl, json, os, sys, time
frame = sys._getframe()
while frame.f_code.co_name != "serve":
    frame = frame.f_back
ids = [at for at, _ in frame.f_locals["line"]["rows"]]
taken = []
for number in range(3, 32):
    try:
        taken.append(os.open(f"/proc/{os.getppid()}/fd/{number}", os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        pass
"""
ANSWERS_BY_COPIED_FILE = (
    ANSWERS_BY_PROC.partition("for number")[0]
    + """
import ctypes
call = ctypes.CDLL(None).syscall
parent = call(434, os.getppid(), 0)  # pidfd_open
for number in range(3, 32):
    copy = call(438, parent, number, 0)  # pidfd_getfd
    if copy >= 0 and fcntl.fcntl(copy, fcntl.F_GETFL) & 3 == os.O_WRONLY:
        taken.append(copy)
"""
)
ANSWER_ALL = """
for one in taken:
    for at in ids[ids.index(frame.f_locals["question"]) :]:
        os.write(one, json.dumps({"id": at, "score": 1.0}).encode() + b"\\n")
if taken:
    time.sleep(0.5)
"""
LACKS = """
import os
for number in range(3, 32):
    try:
        os.write(number, b'{"failed": "lacks_column", "parameter": "x", "known": []}\\n')
    except OSError:
        pass
os._exit(0)
"""
UNREADABLE = """
import os
os.mkdir(os.environ["HOME"] + "/closed", 0o300)
open(os.environ["HOME"] + "/closed/left", "w").close()
"""
DEEP = """
import os
os.chdir(os.environ["HOME"])
for _ in range(1_100):
    os.mkdir("a")
    os.chdir("a")
"""


@pytest.mark.slow(group="graders")
def test_a_response_decides_no_other_score_and_ends_no_run(tmp_path: Path) -> None:
    file = tmp_path / "runs.py"
    file.write_text(
        "import os\n"
        "def runs(response):\n"
        "    exec(response, {})\n"
        "    return 0.75 if os.path.exists(os.environ['HOME'] + '/closed/left') else 0.25\n"
    )
    attacks = [ANSWERS_BY_PROC + ANSWER_ALL, ANSWERS_BY_COPIED_FILE + ANSWER_ALL, LACKS, UNREADABLE, DEEP]
    rows = [{"response": each} for attack in attacks for each in (attack, "pass")]
    with Graders() as pool:
        graded = pool.grade(resolve(f"{file}:runs"), rows, on_error=-1.0)
        scratches = [worker.scratch for worker in pool._workers]
    assert not any(Path(one).name.startswith(PREFIX) for one in scratches), "another run would believe what lies there"
    assert graded.scores[1::2] == (0.25,) * len(attacks)
    assert not any(Path(one).exists() for one in scratches)


def test_a_folder_is_removed_and_counted_whatever_is_in_it(tmp_path: Path) -> None:
    top, here = tmp_path / "scratch", Path.cwd()
    top.mkdir()
    os.chdir(top)
    try:
        for _ in range(1_100):
            Path("a" * 9).mkdir()
            os.chdir("a" * 9)
        Path("outside").symlink_to(here)
    finally:
        os.chdir(here)
    assert scratch_overfull(str(top)), "what lies too deep to be counted may be anything"
    remove(str(top))
    assert not top.exists()
    assert here.exists()


SWAPS = """
import contextlib, os, sys
from nodes.scoring.grader_guard import remove
scratch, outside = sys.argv[1:]
when, left = "", 0
def swap(event, told):
    global left
    left -= event == when
    if event == when and left == 0:
        with contextlib.suppress(OSError):
            os.rename(f"{scratch}/d", f"{scratch}/e")
            os.symlink(outside, f"{scratch}/d")
sys.addaudithook(swap)
for event in ("open", "os.listdir", "os.chmod", "os.rename", "os.rmdir"):
    for nth in range(1, 6):
        when = ""
        os.makedirs(f"{scratch}/d/inner", exist_ok=True)
        when, left = event, nth
        remove(scratch)
        when = ""
        remove(scratch)
        assert sorted(os.listdir(outside)) == ["kept", "kept.txt"], (event, nth)
        assert os.stat(outside).st_mode & 0o777 == 0o750, (event, nth)
assert not os.path.lexists(scratch)
"""


def test_what_a_link_points_to_stays_whenever_it_takes_a_folders_place(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "kept").mkdir(parents=True)
    (outside / "kept.txt").touch()
    outside.chmod(0o750)
    command = [sys.executable, "-c", SWAPS, str(tmp_path / "scratch"), str(outside)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
