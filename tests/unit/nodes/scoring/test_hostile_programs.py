"""Hostile programs as what a model wrote: confined, each scores 0 with a reason and changes nothing; off, it bites.

The attacks are in `hostile/programs.py`, which is itself the program: its input names the attack.
"""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from flowgraph.errors import RuleError
from nodes.scoring.confinement import lacks
from nodes.scoring.graders import Graders
from nodes.scoring.program_tests import prime_code
from nodes.scoring.programs import ProgramHost, ProgramLimits
from nodes.scoring.rules import resolve
from tests.unit.nodes.scoring.hostile.world import MARKER, World, gone, running

pytestmark = pytest.mark.skipif(bool(lacks()), reason="this machine cannot confine a process")

PROGRAM = Path(__file__).parent / "hostile" / "programs.py"
LIMIT_S, PATIENT_S = 0.5, 8.0
TIMED = {  # what the limit of time stops; every other attack must be stopped by something else
    "counts_without_end",
    "sleeps_without_end",
    "ignores_every_signal",
    "leaves_a_thread_that_does_not_end",
    "stays_after_closing_its_output",
    "computes_without_end",
}
BY_MACHINE = {  # what some machines refuse to every user, so that these need not bite there
    "traces_another",
    "reads_anothers_memory",
    "takes_its_parents_descriptor",
    "makes_a_namespace",
    "changes_its_root",
    "asks_for_a_ring",
    "reads_through_a_hard_link",
    "writes_beside_pythons_modules",
    "asks_for_much_memory",
    "asks_for_much_shared_memory",
    "makes_a_long_text",
}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("HOSTILE_SECRET", "hunter2")
    made = World(tmp_path)
    yield made
    made.close()


def attacks() -> list[str]:
    lines = PROGRAM.read_text().splitlines()
    return [lines[at + 1].split("(")[0].removeprefix("def ") for at, line in enumerate(lines) if line == "@attack"]


def a_test(world: World, name: str) -> str:
    """The one test of a hostile program: it passes if the attack does."""
    return json.dumps({"inputs": [json.dumps({**world.told(), "attack": name})], "outputs": ["through"]})


def test_no_hostile_program_gets_through(world: World) -> None:
    code, through = PROGRAM.read_text(), dict[str, object]()
    for name in attacks():
        graded = prime_code(code, a_test(world, name), limit_s=LIMIT_S if name in TIMED else PATIENT_S)
        assert isinstance(graded, dict)
        effects = world.changed()
        if not gone(MARKER):
            effects.add("a process")
        by_time = str(graded["reason"]).endswith(f"over {LIMIT_S:g} s")
        if graded["score"] != 0.0 or not graded["reason"] or effects or by_time != (name in TIMED):
            through[name] = graded, effects
        world.restore()
    assert through == {}
    assert len(attacks()) >= 60
    honest = prime_code("print(input())", {"inputs": ["1"], "outputs": ["1"]})
    assert isinstance(honest, dict) and honest["score"] == 1.0


def test_a_batch_of_hostile_programs_is_graded_to_its_end(world: World) -> None:
    names = ["forks", "sleeps_without_end", "floods_with_threads", "reads_a_secret_file", "floods_its_output"]
    honest = {"response": "print(1)", "ground_truth": json.dumps({"inputs": [""], "outputs": ["1"]})}
    rows = [{"response": PROGRAM.read_text(), "ground_truth": a_test(world, name)} for name in names]
    with Graders(limit_s=1.0, allow=["memory=2GiB"]) as pool:
        graded = pool.grade(resolve("prime_code"), [row for hostile in rows for row in (hostile, honest)])
        workers = [worker.process.pid for worker in pool._workers]
        scratches = [worker.scratch for worker in pool._workers]
    assert graded.scores == (0.0, 1.0) * len(names)
    assert graded.failures == 0
    assert not world.changed() and gone(MARKER)
    assert not any(Path(f"/proc/{one}").exists() for one in workers)
    assert not any(Path(one).exists() for one in scratches)


def test_what_a_rule_is_allowed_is_not_allowed_to_programs(world: World) -> None:
    names = ["connects", "sends_a_datagram", "reads_a_secret_file", "reads_a_key_of_the_environment", "forks"]
    rows = [{"response": PROGRAM.read_text(), "ground_truth": a_test(world, name)} for name in names]
    may = ["network", f"read={world.secret}", "env=HOSTILE_SECRET", "state"]
    for allow in (may, ["unconfined", "env=HOSTILE_SECRET"]):
        with Graders(limit_s=PATIENT_S, allow=allow) as pool:
            assert pool.grade(resolve("prime_code"), rows).scores == (0.0,) * len(names)


def test_a_rule_that_may_read_proc_runs_no_program(world: World) -> None:
    row = {"response": "print(1)", "ground_truth": {"inputs": [""], "outputs": ["1"]}}
    with Graders(allow=["read=/proc"]) as pool, pytest.raises(RuleError, match="its rule may read /proc"):
        pool.grade(resolve("prime_code"), [row])


SAMPLE = ("reads_a_secret_file", "overwrites_a_file", "connects", "kills_another", "leaves_a_daemon", "forks")


def test_some_hostile_programs_bite_where_nothing_confines_them(world: World) -> None:
    assert harmless(world, SAMPLE) == []


@pytest.mark.slow
def test_every_hostile_program_bites_where_nothing_confines_it(world: World) -> None:
    assert harmless(world, [name for name in attacks() if name not in BY_MACHINE]) == []


def harmless(world: World, names: Iterable[str]) -> list[str]:
    """Run programs without confinement, with a limit of memory alone, and return those that do nothing."""
    found = list[str]()
    for name in names:
        scratch = world.folder / "scratch"
        scratch.mkdir(exist_ok=True)
        given = json.dumps({**world.told(), "attack": name})
        with (world.folder / "printed").open("w+") as printed:
            program = subprocess.Popen(
                [sys.executable, "-I", str(PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=printed,
                stderr=subprocess.DEVNULL,
                cwd=scratch,
                text=True,
                start_new_session=True,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30)),  # noqa: PLW1509
            )
            program.communicate(given, timeout=30)
            printed.seek(0)
            # What is stopped at a limit bites by using what the limit does not give.
            through = "through" in printed.read()[-20:]
        if not through and not world.changed() and not running(MARKER):
            found.append(name)
        world.restore()
        subprocess.run(["rm", "-rf", str(scratch)], check=True)
    return found


def test_a_program_finds_nothing_of_the_one_before_it() -> None:
    search = (
        "import gc, ctypes\n"
        "needle = 'xyz'.replace('y', '-secret-')\n"
        "def deep(o): return isinstance(o, str) and needle in o and o is not needle\n"
        "found = [o for o in gc.get_objects() if isinstance(o, dict) and any(deep(v) for v in o.values())]\n"
        "try:\n"
        "    found += open('/proc/self/mem', 'rb').read(1)\n"
        "except PermissionError: pass\n"
        "print(len(found), os.listdir('.')) if 'os' in globals() else print(len(found))\n"
    )
    with ProgramHost() as host:
        first = host.run("open('left', 'w').write(input()); secret = 'x-secret-z'; print(secret)", "x-secret-z")
        assert first.stdout == "x-secret-z\n"
        assert host.run("import os\n" + search).stdout == "0 []\n"


def test_what_a_program_writes_to_other_descriptors_answers_nothing() -> None:
    forged = (
        "import os, struct\n"
        'answer = b\'{"stdout": "forged", "stderr": "", "code": 0, "stopped": ""}\'\n'
        "for descriptor in range(3, 300):\n"
        "    try: os.write(descriptor, struct.pack('>Q', len(answer)) + answer)\n"
        "    except OSError: pass\n"
        "print('mine')\n"
    )
    with ProgramHost() as host:
        assert host.run(forged).stdout == "mine\n"
        assert host.run("print(1)").stdout == "1\n"


def test_many_threads_end_the_host_and_the_next_program_has_another() -> None:
    flood = json.dumps({"attack": "floods_with_threads"})
    with ProgramHost() as host:
        outcome = host.run(PROGRAM.read_text(), flood, ProgramLimits(wall_s=20.0, memory_bytes=2 << 30))
        assert outcome.stopped == "over 1024 threads" and outcome.exit_code == -signal.SIGKILL
        assert host.run("print(1)").stdout == "1\n"


def test_closing_a_host_leaves_no_process_and_no_folder() -> None:
    host = ProgramHost()
    host.run("pass")
    assert host._started is not None
    process, scratch = host._started.process.pid, Path(host._started.scratch)
    assert Path(f"/proc/{process}").exists() and scratch.exists()
    host.close()
    assert not Path(f"/proc/{process}").exists() and not scratch.exists()
