"""Hostile rules and responses: contained where rules are confined, and shown to bite where they are not.

The attacks are in `hostile/attacks.py`. Confined, none gets through, the rewards after it are right and nothing is
left; with the same attack unconfined, in a process that keeps state, each one must do what it is written to do.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowgraph.errors import RuleError
from nodes.scoring.confinement import lacks
from nodes.scoring.graders import Graded, Graders
from nodes.scoring.rules import resolve
from tests.unit.nodes.scoring.rule_clock import Ticks

pytestmark = pytest.mark.skipif(bool(lacks()), reason="this machine cannot confine a process")

ATTACKS_FILE = Path(__file__).parent / "hostile" / "attacks.py"
OFF = ["unconfined", "state", "env=HOSTILE_SECRET"]
MARKER = f"sleep 98.{os.getpid()}"  # like no other process of this machine
HANGS = {"kills_its_parent", "stops_its_parent", "closes_everything", "matches_without_end", "counts_without_end"}
OF_ITS_OWN = {  # who runs code where a response is scored decides that one score: nothing can hold that
    "replaces_a_builtin",
    "replaces_the_graders_own_code",
    "replaces_what_writes_answers",
    "answers_for_later_rows",
    "hooks_calls",
}
BY_MACHINE = {  # what some machines refuse to every user, so that these need not bite there
    "traces_another",
    "opens_the_drivers_memory",
    "reads_anothers_memory",
    "makes_a_namespace",
    "asks_for_a_ring",
    "connects_by_multipath",
    "sends_with_the_first_packet",
    "links_a_secret_into_its_scratch",
    "raises_its_limits",
    "moves_another_to_one_core",
    "slows_another",
}


class World:
    """What an attack is after: files, sockets and a process, put back as they were after each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.secret, self.database, self.target = folder / "secret.txt", folder / "data.db", folder / "target.txt"
        self.home, self.beside = folder / "home", folder / "beside"
        self.secret.write_text("hunter2")
        with sqlite3.connect(self.database) as database:
            database.execute("create table t (x)")
            database.execute("insert into t values (1)")
        database.close()
        shutil.copy(ATTACKS_FILE, folder / "attacks.py")
        self.source = (folder / "attacks.py").read_bytes()
        self.sockets = [
            socket.create_server(("127.0.0.1", 0)),
            socket.socket(socket.AF_UNIX),
            socket.socket(socket.AF_UNIX),
        ]
        self.port = self.sockets[0].getsockname()[1]
        for one, name in zip(self.sockets[1:], (str(folder / "s"), f"\0hostile{os.getpid()}"), strict=True):
            one.bind(name)
            one.listen()
        self.victim: subprocess.Popen[bytes] | None = None
        self.restore()

    def restore(self) -> None:
        """Put back what an attack may have changed, and forget what it has started."""
        for path in (self.home, self.beside):
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
        (self.folder / "target.txtx").unlink(missing_ok=True)
        self.target.unlink(missing_ok=True)
        self.target.write_text("untouched")
        self.target.chmod(0o600)
        os.utime(self.target, (1_000, 1_000))
        self.file = self.target.stat()
        (self.folder / "attacks.py").write_bytes(self.source)
        if self.victim is None or self.hurt():
            self.bury()
            self.victim = subprocess.Popen(["sleep", "600"])
            self.before = self._process()
        for one in running(MARKER):
            os.kill(one, 9)

    def _process(self) -> tuple[str, ...]:
        assert self.victim is not None
        where = Path(f"/proc/{self.victim.pid}")
        limits = next(line for line in (where / "limits").read_text().splitlines() if "open files" in line)
        state = where.joinpath("stat").read_text().rpartition(") ")[2].split()
        return (
            "stopped" if state[0] == "T" else "",
            limits,
            state[16],
            (where / "oom_score_adj").read_text(),
        )

    def hurt(self) -> bool:
        """Tell if the process was ended, stopped or limited."""
        assert self.victim is not None
        return self.victim.poll() is not None or self._process() != self.before

    def bury(self) -> None:
        """End the process, stopped or not."""
        if self.victim is not None:
            self.victim.kill()
            self.victim.wait()

    def close(self) -> None:
        """End what was started."""
        self.restore()
        self.bury()
        for one in self.sockets:
            one.close()

    def told(self, confined: bool) -> dict[str, Any]:
        """What an attack is told: where everything is."""
        assert self.victim is not None
        paths = {
            name: str(getattr(self, name)) for name in ("folder", "secret", "database", "target", "home", "beside")
        }
        return {
            **paths,
            "port": self.port,
            "socket": str(self.folder / "s"),
            "abstract": f"\0hostile{os.getpid()}",
            "victim": self.victim.pid,
            "driver": os.getpid(),
            "marker": MARKER,
            "apart": confined,
            "confined": confined,
            "hangs": sorted(HANGS),
        }

    def changed(self) -> set[str]:
        """Name what an attack has changed."""
        effects = set[str]()
        if not self.target.exists() or self.target.read_text() != "untouched":
            effects.add("the file's text")
        elif (now := self.target.stat()) and (now.st_mode, now.st_mtime) != (self.file.st_mode, self.file.st_mtime):
            effects.add("the file's mode or time")
        if list(self.home.iterdir()) or list(self.beside.iterdir()):
            effects.add("a new file")
        if (self.folder / "attacks.py").read_bytes() != self.source:
            effects.add("the rule's file")
        if self.hurt():
            effects.add("another process")
        return effects


def running(words: str) -> list[int]:
    """Find the processes whose command line is this."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if words in (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                found.append(int(folder.name))
    return found


def gone(words: str, limit_s: float = 3.0) -> bool:
    """Wait until no process has these words on its command line."""
    end_s = time.monotonic() + limit_s
    while running(words) and time.monotonic() < end_s:
        time.sleep(0.02)
    return not running(words)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("HOSTILE_SECRET", "hunter2")
    made = World(tmp_path)
    yield made
    made.close()


def attacks() -> list[str]:
    lines = ATTACKS_FILE.read_text().splitlines()
    return [lines[at + 1].split("(")[0].removeprefix("def ") for at, line in enumerate(lines) if line == "@attack"]


def ask(world: World, pool: Graders, *responses: str, confined: bool) -> Graded:
    told = world.told(confined)
    rows = [{"response": response, "told": told} for response in responses]
    return pool.grade(resolve(f"{world.folder}/attacks.py:rule"), rows, on_error=-1.0)


@pytest.mark.slow(group="graders")
def test_no_attack_of_a_response_gets_through(world: World) -> None:
    through: dict[str, object] = {}
    with Graders(limit_s=8.0, allow=["memory=1GiB"]) as patient, Graders(limit_s=0.5) as hasty:
        hasty.clock = Ticks(hasty, 1.0)
        for name in attacks():
            pool = hasty if name in HANGS else patient
            graded = ask(world, pool, name, "honest", confined=True)
            effects = world.changed()
            if not gone(MARKER):
                effects.add("a process")
            own = graded.scores[0] == 1.0 and name not in OF_ITS_OWN
            if own or graded.scores[1] != 0.25 or effects:
                through[name] = graded, effects
            world.restore()
        workers = [worker.process.pid for pool in (patient, hasty) for worker in pool._workers]
        scratches = [worker.scratch for pool in (patient, hasty) for worker in pool._workers]
    assert through == {}
    assert not any(Path(f"/proc/{one}").exists() for one in workers)
    assert not any(Path(one).exists() for one in scratches)
    assert len(attacks()) >= 80


SAMPLE = (
    "reads_a_secret_file",
    "overwrites_a_file",
    "connects",
    "kills_another",
    "leaves_a_daemon",
    "replaces_the_rule",
)


def test_some_attacks_bite_where_nothing_confines_them(world: World) -> None:
    assert blunt(world, SAMPLE) == {}


@pytest.mark.slow
def test_every_attack_bites_where_nothing_confines_it(world: World) -> None:
    assert blunt(world, attacks()) == {}


def blunt(world: World, names: Iterable[str]) -> dict[str, object]:
    """Run attacks without confinement, and return those that do not do what they are written to do."""
    found: dict[str, object] = {}
    for_all = Graders(limit_s=5.0, allow=OFF), Graders(limit_s=0.5, allow=OFF)
    with for_all[0] as patient, for_all[1] as hasty:
        hasty.clock = Ticks(hasty, 1.0)
        for name in names:
            pool = hasty if name in HANGS else patient
            process, scored, honest, after = ask(
                world, pool, "process", name, "honest", "process", confined=False
            ).scores
            bit = scored == 1.0 or honest != 0.25 or after != process or world.changed() or running(MARKER)
            if not bit and name not in BY_MACHINE:
                found[name] = scored, honest
            if honest != 0.25:
                pool.close()
            world.restore()
    return found


DAEMON = """import os
read, write = os.pipe()
if os.fork() == 0:
    try:
        os.setsid()
        os.execvp("sleep", MARKER.split())
    finally:
        os._exit(1)
os.close(write)
os.read(read, 1)  # until the program runs, which closes the other end
"""
ANSWERS = "import os\nfor d in range(3, 30):\n    try: os.write(d, b'{}\\n' * 9)\n    except OSError: pass"
IMPORTED = {
    "reads a key": "import os; assert os.environ['HOSTILE_SECRET'] == 'hunter2'",
    "reads a file": "open(SECRET).read()",
    "writes a file": "open(TARGET, 'w').write('taken')",
    "removes a file": "import os; os.unlink(TARGET)",
    "connects": "import socket; socket.create_connection(('127.0.0.1', PORT), 1)",
    "kills another": "import os; os.kill(VICTIM, 15)",
    "leaves a daemon": DAEMON,
    "answers at once": ANSWERS.format('{"id": 0, "ready": true}'),
    "answers for all": ANSWERS.format('{"id": 1, "score": 1.0}'),
    "never ends": "while True: pass",
    "exits": "raise SystemExit(0)",
    "ends": "import os; os._exit(0)",
    "ends its guard": "import os; os.kill(os.getppid(), 9)",
}
HARMLESS_OFF = {
    "never ends",
    "exits",
    "ends",
    "answers at once",
    "answers for all",
}  # the parent holds these, not the kernel


@pytest.mark.slow(group="graders")
@pytest.mark.parametrize("confined", [True, False])
def test_a_hostile_file_is_held_while_it_is_imported(world: World, confined: bool) -> None:
    wrong: dict[str, object] = {}
    for name, code in IMPORTED.items():
        assert world.victim is not None
        facts = {"SECRET": str(world.secret), "TARGET": str(world.target), "PORT": world.port}
        facts |= {"VICTIM": world.victim.pid, "MARKER": MARKER}
        given = "\n".join(f"{key} = {value!r}" for key, value in facts.items())
        own = "def rule(response): return 0.5\n"
        (world.folder / "bad.py").write_text(f"{given}\n{code}\n{own}")
        limit_s = 1.0 if name == "never ends" else 30.0
        with Graders(start_limit_s=limit_s, allow=[] if confined else OFF) as pool:
            loaded = True
            try:
                scores = pool.grade(resolve(f"{world.folder}/bad.py:rule"), [{"response": "1"}] * 3).scores
                assert scores == (0.5,) * 3
            except RuleError:
                loaded = False
            through = loaded and name in (
                "reads a key",
                "reads a file",
                "connects",
                "removes a file",
                "kills another",
                "ends its guard",
            )
            effects = world.changed() | ({"a process"} if running(MARKER) and not confined else set())
        if not gone(MARKER):
            effects.add("a process that stays")
        if confined and (through or effects):
            wrong[name] = through, effects
        if not confined and name not in HARMLESS_OFF and not (through or effects or not loaded):
            wrong[name] = "does not bite"
        world.restore()
    assert wrong == {}


def test_nothing_runs_without_confinement_unless_it_is_allowed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodes.scoring.grader_rights.lacks", lambda: "the kernel has no Landlock")
    row = {"response": "1", "finished": True, "ground_truth": "1", "told": world.told(False)}
    with Graders() as pool:
        assert pool.grade(resolve("exact"), [row]).scores == (1.0,)  # it only compares text
        for rule in ("reasoning_gym", f"{world.folder}/attacks.py:rule"):
            with pytest.raises(RuleError) as caught:
                pool.grade(resolve(rule), [row])
            assert str(caught.value) == (
                f"rule `{rule}` cannot be confined on this machine: the kernel has no Landlock\n"
                "    a response that takes over the rule would have your rights: files, network, keys\n"
                '  hint: allow=["unconfined"] runs it anyway'
            )
    with Graders(allow=["unconfined"]) as pool:
        assert pool.grade(resolve(f"{world.folder}/attacks.py:rule"), [{**row, "response": "honest"}]).scores == (0.25,)


def test_a_rule_gets_what_it_is_allowed_and_no_more(world: World) -> None:
    wanted = ["connects", "reads_a_secret_file", "reads_a_key_of_the_environment", "overwrites_a_file"]
    allow = ["network", f"read={world.secret}", "env=HOSTILE_SECRET"]
    with Graders(allow=allow) as pool:
        assert ask(world, pool, *wanted, confined=True).scores == (1.0, 1.0, 1.0, 0.0)
    with pytest.raises(RuleError, match="a rule cannot be allowed `netwrok`"):
        Graders(allow=["netwrok"]).grade(resolve("exact"), [])


@pytest.mark.slow(group="graders")
def test_memory_that_several_processes_share_out_is_counted_together(world: World) -> None:
    (world.folder / "greedy.py").write_text(
        "import mmap, time\n"
        "def rule(response):\n"
        "    if response == 'honest': return 0.25\n"
        "    much, some = mmap.mmap(-1, 5 << 28), b'x' * (1 << 24)\n"
        "    for at in range(0, len(much), len(some)): much[at:at + len(some)] = some\n"
        "    time.sleep(5)\n"
        "    return 1.0\n"
    )
    rows = [{"response": "much"}, {"response": "honest"}]
    with Graders(allow=["memory=1GiB"]) as pool:
        graded = pool.grade(resolve(f"{world.folder}/greedy.py:rule"), rows, on_error=-1.0)
    assert graded.scores == (-1.0, 0.25)
    assert "flowgraph ended this process: over 1024 MiB of memory" in graded.first_failure


def test_a_driver_that_was_stopped_blames_nobody_for_the_time_in_between(world: World) -> None:
    (world.folder / "slow.py").write_text("import time\ndef rule(response):\n    time.sleep(0.5)\n    return 1.0\n")
    program = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from nodes.scoring.graders import Graders\nfrom nodes.scoring.rules import resolve\n"
        "pool = Graders(limit_s=4.0)\n"
        f"rule = resolve({str(world.folder / 'slow.py:rule')!r})\n"
        "pool.grade(rule, [{'response': '1'}])\nprint('warm', flush=True)\n"
        "print(pool.grade(rule, [{'response': '1'}] * 4).scores)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None and driver.stdout.readline() == "warm\n"
        time.sleep(0.2)
        driver.send_signal(19)
        time.sleep(5.0)
        driver.send_signal(18)
        assert driver.communicate(timeout=30)[0] == "(1.0, 1.0, 1.0, 1.0)\n"


@pytest.mark.slow(group="graders")
def test_a_call_in_which_every_response_hangs_has_a_limit_of_its_own(world: World) -> None:
    (world.folder / "hangs.py").write_text(
        "import time\ndef rule(response):\n    print('tick', flush=True)\n    time.sleep(60)\n"
    )
    rows = [{"response": str(at)} for at in range(64)]
    with Graders(limit_s=0.3, call_limit_s=1.5) as pool:
        pool.clock = Ticks(pool, 0.6)
        graded = pool.grade(resolve(f"{world.folder}/hangs.py:rule"), rows, on_error=0.0)
        assert graded.failures == 64 and pool.clock.now_s() == pytest.approx(3 * 0.6)
        with pytest.raises(RuleError, match=r"scored 0 of 64 responses within 0\.2 s, the limit of one call"):
            Graders(limit_s=9.0, call_limit_s=0.2).grade(resolve(f"{world.folder}/hangs.py:rule"), rows)
