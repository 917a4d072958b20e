"""Graders with real processes: rules that score, and rules that do everything else."""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flowgraph.errors import RuleError
from flowgraph.runtime import scratch
from nodes.scoring import graders as graders_module
from nodes.scoring.confinement import Allowed
from nodes.scoring.grader_worker import GraderWorker, kill_all
from nodes.scoring.graders import Clock, Graded, Graders
from nodes.scoring.rules import resolve
from tests.looped import looped
from tests.unit.nodes.scoring.rule_clock import Ticks

LIMIT_S = 0.5
WORKER_FILE, GUARD_FILE = (
    Path(graders_module.__file__).with_name(f"grader_{name}.py") for name in ("process", "guard")
)
GRANDCHILD = f"sleep 97.{os.getpid()}"  # like no other process of this machine
RULES = f"""\
import os, signal, subprocess, sys, time
GRANDCHILD = {GRANDCHILD!r}

def length(response): return len(response)
def same(response, ground_truth, finished): return finished and response == ground_truth
def everything(response, **row): return len(row)
def kind(extra_info, data_source): return extra_info["level"] + len(data_source)
def asked(response, prompt): return len(prompt[-1]["content"])
def default(response, nowhere=0.25): return nowhere
def half(response, *, weight=0.5): return weight
def shadow(response): return float(response)
def when(created): return float(created == "2026-01-02 00:00:00+00:00")
def pixels(image): return sum(image)
def array(response): import numpy; return numpy.float32(0.5)
def flag(response): import numpy; return numpy.bool_(True)
def verl(response): return {{"score": 0.75, "acc": True}}
def chatty(response):
    print("x" * 100_000); print("e", file=sys.stderr); os.system("echo from a child")
    return len(sys.stdin.read()) + 1
def forks(response): return float(os.fork() >= 0)
def process(response): return os.getpid()

def sleeps(response):
    if response == "3": tick(); time.sleep(100)
    return float(response)
def ticks(response):
    tick(); return 1.0
def tick(): print("tick", flush=True)
def spins(response): return 10 ** 10 ** 8
def breeds(response):
    subprocess.Popen(GRANDCHILD.split()); time.sleep(100)
def floods(response):
    while True: print("all work and no play")
def raises(response):
    print("thinking")
    raise ValueError("no " + response)
def indirect(response):
    import json
    return json.loads("{{" + response)
def nan(response): return float("nan")
def big(response): return 10 ** 400
def text(response): return "yes"
def none(response): return None
def nothing(response): return {{"acc": 1.0}}
def leaves(response): os._exit(3)
def exits(response): sys.exit("bye")
def crashes(response): os.kill(os.getpid(), signal.SIGSEGV)
def hangs_up(response): os.closerange(3, 50); time.sleep(100)
def misspelt(response, grond_truth): return 1.0
def unnamed(response, /): return 1.0
number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(RULES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def graders() -> Iterator[Graders]:
    with Graders() as pool:
        yield pool


@pytest.fixture
def hasty() -> Iterator[Graders]:
    with Graders(limit_s=LIMIT_S) as pool:
        yield pool


def row(response: str, **columns: object) -> dict[str, object]:
    return {"response": response, "finished": True, "reward_model": {"style": "rule", "ground_truth": "1"}, **columns}


def until(fact: Callable[[], bool], limit_s: float = 5.0) -> bool:
    """Wait for a fact, and tell if it came true."""
    end_s = time.monotonic() + limit_s
    while not fact() and time.monotonic() < end_s:
        time.sleep(0.02)
    return fact()


def running(words: str) -> list[int]:
    """Find the processes whose command line holds these words, by /proc; a zombie's is empty."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if words in (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                found.append(int(folder.name))
    return found


def processes_in(folder: Path) -> list[int]:
    """Find the grader processes, guards included, that work in this folder."""
    found: list[int] = []
    for one in [*running(f"-P -u {WORKER_FILE}"), *running(f"-P -u {GUARD_FILE}")]:
        with contextlib.suppress(OSError):
            found += [one] if Path(f"/proc/{one}/cwd").readlink() == folder else []
    return found


@pytest.mark.slow(group="graders")
@looped(
    "rule, score",
    [
        ("mine.py:length", 1.0),
        ("mine.py:same", 1.0),
        ("mine.py:everything", 9.0),
        ("mine.py:kind", 9.0),
        ("mine.py:asked", 5.0),
        ("mine.py:default", 0.25),
        ("mine.py:when", 1.0),
        ("mine.py:pixels", 6.0),
        ("mine.py:array", 0.5),
        ("mine.py:flag", 1.0),
        ("mine.py:verl", 0.75),
        ("mine.py:chatty", 1.0),
        ("mine.py:forks", 1.0),
        ("exact", 1.0),
        ("math:isqrt", None),
    ],
)
def test_a_rule_gets_what_its_parameters_name(folder: Path, graders: Graders, rule: str, score: float | None) -> None:
    import numpy as np

    columns = {
        "prompt": [{"role": "system", "content": ""}, {"role": "user", "content": "1 = ?"}],
        "data_source": "digits",
        "extra_info": {"level": 3},
        "created": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
        "image": np.array([1, 2, 3]),
        "other": b"\xff",
    }
    if score is None:
        with pytest.raises(RuleError, match="cannot be given by name"):
            graders.grade(resolve(rule), [row("1", **columns)])
    else:
        extras = ({"acc": 1.0}, {"acc": 1.0}) if rule == "mine.py:verl" else ()
        assert graders.grade(resolve(rule), [row("1", **columns)] * 2) == Graded((score, score), extras=extras)


@pytest.mark.slow(group="graders")
def test_a_setting_wins_over_the_row_and_the_default(folder: Path, graders: Graders) -> None:
    assert graders.grade(resolve("mine.py:half"), [row("1", weight=0.9)], {"weight": 0.125}).scores == (0.125,)
    assert graders.grade(resolve("mine.py:half"), [row("1", weight=0.9)]).scores == (0.9,)
    assert graders.grade(resolve("gsm8k"), [row("#### 2")], {"format_score": 0.1}).scores == (0.1,)


@pytest.mark.slow(group="graders")
@pytest.mark.parametrize("workers", [1, 3])
def test_scores_come_back_in_the_order_of_the_rows(folder: Path, workers: int) -> None:
    rows = [row(str(index)) for index in range(300)]
    with Graders(workers) as pool:
        assert pool.grade(resolve("mine.py:shadow"), rows).scores == tuple(float(index) for index in range(300))
        assert pool.grade(resolve("mine.py:shadow"), []).scores == ()


def test_many_rows_go_through_one_worker_that_stays_warm(folder: Path, graders: Graders) -> None:
    rows, workers = [row(str(index)) for index in range(256)], list[list[int]]()
    for _ in range(3):
        graders.grade(resolve("exact"), rows)
        workers.append(sorted(processes_in(folder)))
    assert len(workers[0]) == 2 and workers == workers[:1] * 3, "the guard and its process, started once"


def test_long_responses_pass_whole(folder: Path, graders: Graders) -> None:
    long = "é\n\ud800" * 300_000
    assert graders.grade(resolve("mine.py:length"), [row(long)] * 2).scores == (900_000.0, 900_000.0)


def test_each_response_has_a_process_of_its_own_unless_the_rule_may_keep_state(folder: Path, graders: Graders) -> None:
    assert len(set(graders.grade(resolve("mine.py:process"), [row("1")] * 5).scores)) == 5
    with Graders(allow=["state"]) as keeping:
        first = set(keeping.grade(resolve("mine.py:process"), [row("1")] * 5).scores)
        assert first == set(keeping.grade(resolve("mine.py:process"), [row("1")]).scores)
        (worker,) = first
        os.kill(int(worker), signal.SIGKILL)
        assert until(lambda: not Path(f"/proc/{int(worker)}").exists())
        (after,) = keeping.grade(resolve("mine.py:process"), [row("1")]).scores
        assert after != worker


def test_two_rules_share_no_process(folder: Path) -> None:
    (folder / "other.py").write_text("import os\ndef parent(response): return os.getppid()\n")
    (folder / "third.py").write_text("import os\ndef parent(response): return os.getppid()\n")
    with Graders() as pool:
        rules = [resolve(rule) for rule in ("other.py:parent", "third.py:parent", "other.py:parent")]
        first, second, third = (pool.grade(rule, [row("1")]).scores[0] for rule in rules)
    assert first == third != second


def test_a_pool_first_used_in_a_thread_that_ended_still_grades(folder: Path, graders: Graders) -> None:
    thread = threading.Thread(target=lambda: graders.grade(resolve("mine.py:length"), [row("1")]))
    thread.start()
    thread.join()
    assert graders.grade(resolve("mine.py:length"), [row("22")]).scores == (2.0,)


HAS = "    prompt 4, sample 2 has: finished, ground_truth, prompt_id, response, reward_model, sample\n"
WHERE = "    prompt 4, sample 2, response 'oops'\n"
HINT = "  hint: on_error=0.0 scores such a response 0.0 and counts it"


@pytest.mark.slow(group="graders")
@looped("name, text", [
        ("raises", "mine.py:{line}: rule `mine.py:raises` raised ValueError: no oops\n" + WHERE
         + "    last printed:\n      thinking\n" + HINT),
        ("exits", "mine.py:{line}: rule `mine.py:exits` raised SystemExit: bye\n" + WHERE + HINT),
        ("nan", "rule `mine.py:nan` returned nan (float), not a finite number\n" + WHERE + HINT),
        ("text", "rule `mine.py:text` returned 'yes' (str), not a finite number\n" + WHERE + HINT),
        ("none", "rule `mine.py:none` returned None, not a finite number\n" + WHERE + HINT),
        ("nothing", "rule `mine.py:nothing` returned {{'acc': 1.0}} (dict), which has no `score`, not a finite number\n"
         + WHERE + HINT),
        ("leaves", "rule `mine.py:leaves` ended its process: exit code 3\n" + WHERE + HINT),
        ("crashes", "rule `mine.py:crashes` ended its process: killed by SIGSEGV\n" + WHERE + HINT),
        ("hangs_up", "rule `mine.py:hangs_up` ended its process: killed by SIGKILL\n" + WHERE + HINT),
        ("spins", "rule `mine.py:spins` returned no score within 0.5 s\n" + WHERE + HINT),
        ("misspelt", "rule `mine.py:misspelt` takes `grond_truth`, but no column has that name\n"
         + HAS + "  hint: did you mean `ground_truth`?"),
        ("unnamed", "rule `mine.py:unnamed` cannot be loaded: its parameter `response` cannot be given by name"),
        ("number", "rule `mine.py:number` cannot be loaded: `number` is 3 (int), not a function"),
        ("rases", "rule `mine.py:rases` cannot be loaded: it has no `rases`\n  hint: did you mean `raises`?"),
    ])  # fmt: skip
def test_a_failure_says_which_rule_which_row_and_what(folder: Path, name: str, text: str) -> None:
    lines = RULES.splitlines()
    start = next((at for at, line in enumerate(lines) if line.startswith(f"def {name}(")), 0)
    line = next((at for at in range(start, len(lines)) if "raise " in lines[at] or "sys.exit" in lines[at]), 0) + 1
    with Graders(limit_s=LIMIT_S if name == "spins" else 10.0) as pool, pytest.raises(RuleError) as caught:
        pool.grade(resolve(f"mine.py:{name}"), [row("oops", prompt_id=4, sample=2)])
    assert str(caught.value) == text.format(line=line)


def test_a_failure_in_a_library_is_placed_at_the_rules_own_line(folder: Path, graders: Graders) -> None:
    with pytest.raises(RuleError) as caught:
        graders.grade(resolve("mine.py:indirect"), [row("x" * 100)])
    line = RULES.splitlines().index('    return json.loads("{" + response)') + 1
    assert caught.value.where == f"mine.py:{line}"
    assert caught.value.notes == (f"row 0, response {'x' * 80!r}…",)


def test_a_number_too_large_for_a_float_is_no_score(folder: Path, graders: Graders) -> None:
    with pytest.raises(RuleError, match=r"returned 10{79}… \(int\), not a finite number"):
        graders.grade(resolve("mine.py:big"), [row("1")])


def test_a_flood_of_prints_does_not_hide_a_hang(folder: Path, hasty: Graders) -> None:
    with pytest.raises(RuleError, match=r"returned no score within 0\.5 s") as caught:
        hasty.grade(resolve("mine.py:floods"), [row("1")])
    assert sum(map(len, caught.value.notes)) < 4_000


@pytest.mark.slow(group="graders")
@looped("rule, source, text", [
        ("f.py:f", "x = 1\ndef f(:\n", "f.py:2: rule `f.py:f` cannot be loaded: SyntaxError: invalid syntax"),
        ("f.py:f", "\nimport none_such\n",
         "f.py:2: rule `f.py:f` cannot be loaded: ModuleNotFoundError: No module named 'none_such'"),
        ("f.py:f", "print('so long')\nimport os\nos._exit(5)\n",
         "rule `f.py:f` cannot be loaded: its process ended: exit code 5\n    last printed:\n      so long"),
        ("f.py:f", "raise SystemExit(0)\n", "f.py:1: rule `f.py:f` cannot be loaded: SystemExit: 0"),
        ("f.py:f", "import time\ntime.sleep(100)\n", "rule `f.py:f` cannot be loaded: it took over 0.5 s"),
        ("nowhere.f:f", "", "rule `nowhere.f:f` cannot be loaded: ModuleNotFoundError: No module named 'nowhere'"),
    ])  # fmt: skip
def test_a_file_that_does_not_load_is_said_whatever_on_error_is(
    folder: Path, rule: str, source: str, text: str
) -> None:
    (folder / "f.py").write_text(source)
    with Graders(start_limit_s=LIMIT_S if "sleep" in source else 60.0) as pool, pytest.raises(RuleError) as caught:
        pool.grade(resolve(rule), [row("1")], on_error=0.0)
    assert str(caught.value) == text


@pytest.mark.slow(group="graders")
def test_an_unknown_setting_is_refused(folder: Path, graders: Graders) -> None:
    with pytest.raises(RuleError) as caught:
        graders.grade(resolve("gsm8k"), [row("1")], {"format_scor": 0.1})
    assert str(caught.value) == ("rule `gsm8k` takes no setting `format_scor`\n  hint: did you mean `format_score`?")


def test_on_error_scores_and_counts_the_rows_that_fail(folder: Path, hasty: Graders) -> None:
    hasty.clock = Ticks(hasty, 2 * LIMIT_S)
    rows = [row(text) for text in ("1", "2", "3", "four", "5", "3", "6")]
    graded = hasty.grade(resolve("mine.py:sleeps"), rows, on_error=-1.0)
    assert graded.scores == (1.0, 2.0, -1.0, -1.0, 5.0, -1.0, 6.0)
    assert graded.failures == 3
    asleep = "rule `mine.py:sleeps` returned no score within 0.5 s\n    row 2, response '3'"
    assert graded.first_failure.startswith(asleep)


def test_the_deadline_is_for_each_response_not_for_all(folder: Path, hasty: Graders) -> None:
    hasty.clock = clock = Ticks(hasty, 0.9 * LIMIT_S)
    assert hasty.grade(resolve("mine.py:ticks"), [row("1")] * 6).scores == (1.0,) * 6
    assert clock.elapsed_s() > 2 * LIMIT_S


def test_a_gap_between_two_looks_counts_as_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 100.5, 250.0, 250.25])
    monkeypatch.setattr(graders_module.time, "monotonic", lambda: next(times))
    clock = Clock()
    assert [clock.now_s() for _ in range(3)] == [0.5, 1.5, 1.75]


@pytest.mark.slow(group="graders")
def test_a_pool_goes_on_after_a_failure(folder: Path, graders: Graders) -> None:
    for _ in range(2):
        with pytest.raises(RuleError):
            graders.grade(resolve("mine.py:raises"), [row("1")] * 200)
        assert graders.grade(resolve("mine.py:length"), [row("22")]).scores == (2.0,)


def test_a_hanging_rule_goes_with_all_that_it_started(folder: Path, hasty: Graders) -> None:
    with pytest.raises(RuleError, match="returned no score"):
        hasty.grade(resolve("mine.py:breeds"), [row("1")])
    assert until(lambda: not running(GRANDCHILD))
    assert until(lambda: not processes_in(folder))


def test_a_file_beside_the_rule_can_be_imported_but_shadows_nothing(folder: Path, graders: Graders) -> None:
    (folder / "beside.py").write_text("worth = 0.5\n")
    (folder / "json.py").write_text("raise RuntimeError('shadowed')\n")
    (folder / "asks.py").write_text("import json, beside\ndef rule(response): return beside.worth\n")
    assert graders.grade(resolve("asks.py:rule"), [row("1")]).scores == (0.5,)


PARENT = """
import sys
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with it ignored
from nodes.scoring.graders import Graders
from nodes.scoring.rules import resolve
pool = Graders(limit_s=60.0)
pool.grade(resolve("mine.py:length"), [{"response": "1"}])
print("warm", flush=True)
if sys.argv[1] == "hang":
    pool.grade(resolve("mine.py:breeds"), [{"response": "1"}])
elif sys.argv[1] == "idle":
    sys.stdin.read()
"""


@contextlib.contextmanager
def parent(folder: Path, what: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that has a warm pool of its own and then hangs in a rule, idles, or ends."""
    program = [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{PARENT}", what]
    with subprocess.Popen(
        program,
        cwd=folder,
        text=True,
        process_group=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "warm\n"
        yield process
        process.kill()


@pytest.mark.slow(group="graders")
@pytest.mark.parametrize("what", ["hang", "idle"])
def test_the_worker_goes_when_its_parent_is_killed(folder: Path, what: str) -> None:
    with parent(folder, what) as process:
        assert until(lambda: bool(processes_in(folder)))
        if what == "hang":
            assert until(lambda: bool(running(GRANDCHILD)))
        process.kill()
        process.wait()
        assert until(lambda: not processes_in(folder) and not running(GRANDCHILD), limit_s=3.0)


@pytest.mark.slow(group="graders")
def test_an_interrupt_leaves_nothing_behind(folder: Path) -> None:
    with parent(folder, "hang") as process:
        assert until(lambda: bool(running(GRANDCHILD)))
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to its foreground group
        _, errors = process.communicate(timeout=60)
        assert errors.rstrip().endswith("KeyboardInterrupt")
        assert until(lambda: not processes_in(folder) and not running(GRANDCHILD))


def test_a_pool_that_nobody_closed_ends_with_its_process_in_silence(folder: Path) -> None:
    with parent(folder, "end") as process:
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")
        assert not processes_in(folder)


def test_a_pool_that_is_forgotten_takes_its_processes_along(folder: Path) -> None:
    pool = Graders(allow=["state"])
    (worker,) = pool.grade(resolve("mine.py:process"), [row("1")]).scores
    del pool
    assert until(lambda: not Path(f"/proc/{int(worker)}").exists())


def test_where_rules_write_is_no_name_that_a_sweep_believes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    worker = GraderWorker(resolve("exact"), Allowed(), sys.path)
    try:
        made = Path(worker.scratch)
        assert made.parent == tmp_path
        assert made.name.startswith(scratch.RULE_PREFIX) and not made.name.startswith(scratch.PREFIX)
    finally:
        kill_all([worker], os.getpid())
