"""Programs of a model run as scripts, one process each, within limits; where none can be confined, none runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowgraph.errors import RuleError
from nodes.scoring.confinement import lacks
from nodes.scoring.graders import Graders
from nodes.scoring.programs import ProgramHost, ProgramLimits, run_program
from nodes.scoring.rules import resolve

confines = pytest.mark.skipif(bool(lacks()), reason="this machine cannot confine a process")


@pytest.fixture(scope="module")
def host() -> Iterator[ProgramHost]:
    with ProgramHost() as shared:
        yield shared


SCRIPTS = {
    "print(int(input()) * 2)": ("21", "42\n"),
    "import sys\nprint(sys.stdin.read().split())": ("a b\nc", "['a', 'b', 'c']\n"),
    "for line in sys.stdin: print(line.strip())": ("1\n2\n", "1\n2\n"),
    "print(open(0).read())": ("x", "x\n"),
    "print(stdin.readline())": ("y", "y\n"),
    "from __future__ import annotations\ndef f(x: Unknown): return x\nprint(f(1))": ("", "1\n"),
    "if __name__ == '__main__': print(deque([1]).popleft(), gcd(4, 6))": ("", "1 2\n"),
    "class A: pass\ndef f(): return A\nprint(f().__module__)": ("", "__main__\n"),
    "import sys\nprint(1); sys.exit()": ("", "1\n"),
    "print(2); exit(0); print(3)": ("", "2\n"),
    "import threading\nthreading.Thread(target=lambda: print('late')).start()": ("", "late\n"),
    "import atexit\nout = StringIO()\natexit.register(lambda: sys.stdout.write(out.getvalue()))\nout.write('z')": (
        "",
        "z",
    ),
    "def deep(n): return n and deep(n - 1)\nprint(deep(20_000))": ("", "0\n"),
    "open('kept', 'w').write('k'); print(open('kept').read())": ("", "k\n"),
    "import numpy\nprint(numpy.ones(2).sum())": ("", "2.0\n"),
    "sys.stdout.buffer.write('é'.encode())": ("", "é"),
    "print('\\ud800', input())": ("ü", "? ü\n"),
}


@confines
def test_a_script_reads_its_input_and_prints_as_python_would(host: ProgramHost) -> None:
    for code, (stdin, printed) in SCRIPTS.items():
        outcome = host.run(code, stdin, ProgramLimits(wall_s=60.0, cpu_s=60))
        assert (outcome.stdout, outcome.exit_code, outcome.failure) == (printed, 0, ""), code


FAILURES = {
    "1 / 0": (1, "ZeroDivisionError: division by zero"),
    "print(": (1, "SyntaxError: '(' was never closed"),
    "\0": (1, "SyntaxError: source code string cannot contain null bytes"),
    "sys.exit(3)": (3, "exit code 3"),
    "sys.exit('no answer')": (1, "no answer"),
    "class E(Exception):\n    def __str__(self): raise self\nraise E": (1, "E: <exception str() failed>"),
    "os = __import__('os'); os.abort()": (-signal.SIGABRT, "killed by SIGABRT"),
    "sys.stdout.close(); print(1)": (1, "ValueError: I/O operation on closed file."),
    "x = bytes(1 << 29)": (1, "over 128 MiB of memory"),
    "print('x' * (2 << 20))": (-signal.SIGKILL, "over 64 KiB of output"),
    "while True: pass": (-signal.SIGKILL, "over 0.4 s"),
    "import time; time.sleep(60)": (-signal.SIGKILL, "over 0.4 s"),
    "open('a', 'w').write('x' * (2 << 20))": (1, "OSError: [Errno 27] File too large"),
    "import os\nfor _ in range(40): os.dup(1)": (1, "OSError: [Errno 24] Too many open files"),
}


@confines
def test_a_program_that_fails_says_why(host: ProgramHost) -> None:
    limits = ProgramLimits(wall_s=0.4, memory_bytes=128 << 20, output_bytes=64 << 10, file_bytes=1 << 20, open_files=24)
    for code, (exit_code, why) in FAILURES.items():
        patient = ProgramLimits(**{**vars(limits), "wall_s": 0.4 if why == "over 0.4 s" else 20.0})
        outcome = host.run(code, "", patient)
        assert (outcome.exit_code, outcome.failure) == (exit_code, why), code


@confines
def test_cpu_time_is_limited_apart_from_time(host: ProgramHost) -> None:
    outcome = host.run("while True: pass", "", ProgramLimits(wall_s=60.0, cpu_s=1))
    # The kernel ends it by counted ticks, and reports measured time: up to a fifth less on a busy core.
    assert outcome.failure == "over 1 s of CPU time" and 0.5 < outcome.cpu_s < 2.0


@confines
def test_large_inputs_and_outputs_pass_and_unread_input_is_no_failure(host: ProgramHost) -> None:
    text = "\n".join(map(str, range(300_000)))
    assert host.run("sys.stdout.write(sys.stdin.read())", text).stdout == text
    assert host.run("print(1)", text).stdout == "1\n"
    assert host.run("sys.stdin.close(); print(2)", text).failure == ""


@pytest.mark.slow(group="graders")
@confines
def test_threads_run_programs_side_by_side(host: ProgramHost) -> None:
    printed = dict[int, str]()
    threads = [
        threading.Thread(target=lambda at=at: printed.update({at: run_program(f"print({at})").stdout}))
        for at in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert printed == {at: f"{at}\n" for at in range(4)}


@confines
def test_a_host_that_was_killed_blames_one_program_and_the_next_has_another() -> None:
    with ProgramHost() as mine:
        assert mine.run("print(1)").stdout == "1\n"
        assert mine._started is not None
        os.kill(mine._started.process.pid, signal.SIGKILL)
        mine._started.process.wait()
        assert mine.run("print(2)").stdout == "2\n"


@confines
def test_a_fork_does_not_use_its_parents_host() -> None:
    assert run_program("print(0)").stdout == "0\n"
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, run_program("print('of the fork')").stdout.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"of the fork\n"
    assert run_program("print(1)").stdout == "1\n"


@confines
def test_a_driver_that_is_killed_leaves_no_program(tmp_path: Path) -> None:
    marker = tmp_path.name
    driver = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from nodes.scoring.programs import *\n"
        "host = ProgramHost()\nhost.run('pass')\nprint(host._started.scratch, flush=True)\n"
        f"host.run('{marker} = 1\\nimport time; time.sleep(60)', '', ProgramLimits(wall_s=60.0))\n"
    )
    with subprocess.Popen([sys.executable, "-c", driver], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        scratch = Path(process.stdout.readline().strip())
        assert scratch.is_dir()
        process.kill()
    for _ in range(100):
        if not scratch.exists():
            break
        threading.Event().wait(0.05)
    assert not scratch.exists()


@pytest.mark.slow(group="graders")
@confines
def test_a_rule_of_your_own_runs_programs_too(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from nodes.scoring.programs import run_program\n"
        "def rule(response, ground_truth):\n"
        "    outcome = run_program(response, '3')\n"
        "    assert not outcome.failure, outcome.failure\n"
        "    return float(outcome.stdout == ground_truth)\n"
    )
    rows = [{"response": f"print(int(input()) ** {power})", "ground_truth": "9\n"} for power in (2, 3)]
    rows.append({"response": "import os; os.fork()", "ground_truth": ""})
    with Graders() as pool:
        assert pool.grade(resolve(f"{tmp_path}/mine.py:rule"), rows, on_error=-1.0).scores == (1.0, 0.0, -1.0)


def test_without_a_sandbox_no_program_runs_whatever_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("programs", "grader_rights"):
        monkeypatch.setattr(f"nodes.scoring.{module}.lacks", lambda: "the kernel has no Landlock")
    row = {"response": "print(1)", "ground_truth": '{"inputs": [""], "outputs": ["1"]}'}
    expected = (
        "a program that a model wrote cannot be confined on this machine: the kernel has no Landlock\n"
        "    unconfined, it would have your rights: files, network, keys; no setting allows that\n"
        "  hint: score.sandbox=URL sends programs to a SandboxFusion server"
    )
    with pytest.raises(RuleError) as caught:
        ProgramHost().run("print(1)")
    assert str(caught.value) == expected
    for allow in ([], ["unconfined"]):
        with Graders(allow=allow) as pool, pytest.raises(RuleError) as caught:
            pool.grade(resolve("prime_code"), [row])
        assert str(caught.value) == expected


@pytest.mark.slow(group="graders")
@confines
def test_walls_that_fail_to_rise_refuse_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodes.scoring.programs.system_paths", lambda: ["/no/such/folder"])
    with pytest.raises(RuleError, match="cannot be confined on this machine"):
        ProgramHost().run("print(1)")


@pytest.mark.slow(group="graders")
def test_confined_refuses_what_it_cannot_confine(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"response": "1", "finished": True, "ground_truth": "1"}
    with (
        Graders(confined=True, allow=["unconfined"]) as pool,
        pytest.raises(RuleError, match="confined and unconfined"),
    ):
        pool.grade(resolve("exact"), [row])
    if not lacks():
        with Graders(confined=True) as pool:
            assert pool.grade(resolve("exact"), [row]).scores == (1.0,)
    monkeypatch.setattr("nodes.scoring.grader_rights.lacks", lambda: "the kernel has no Landlock")
    with Graders(confined=True) as pool, pytest.raises(RuleError, match="`exact` cannot be confined"):
        pool.grade(resolve("exact"), [row])
