"""Hostile programs of a model: contained in the sandbox and scored 0 with a reason, and shown to bite without it.

The programs are in `hostile/programs.py`. Each is graded by `prime_code`, which would score 1 for one that got through.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest

from nodes.scoring import program_tests, programs
from nodes.scoring.confinement import Allowed, lacks
from nodes.scoring.graders import Graders
from nodes.scoring.program_tests import prime_code
from nodes.scoring.programs import ProgramHost
from nodes.scoring.rules import resolve
from tests.unit.nodes.scoring.test_hostile_rules import MARKER, World, gone, running, world

__all__ = ["world"]  # the fixture
pytestmark = pytest.mark.skipif(bool(lacks()), reason="this machine cannot confine a process")

PROGRAMS_FILE = Path(__file__).parent / "hostile" / "programs.py"
OPEN_HOST = str(PROGRAMS_FILE.with_name("open_host.py"))
CODE = PROGRAMS_FILE.read_text()
NAMES = [line.split("(")[0].removeprefix("def ") for line in CODE.splitlines() if line.startswith("def ")]
HOSTILE = [name for name in NAMES if name != "honest"]
BOMBS = HOSTILE[HOSTILE.index("sleeps") :]
SAMPLE = (
    *("forks", "allocates_a_lot", "connects", "reads_a_secret", "overwrites_a_file", "kills_another"),
    *("kills_its_parent", "leaves_a_daemon", "floods_its_output", "answers_and_stays"),
)
BY_MACHINE = {  # what some machines refuse to every user, so that these need not bite there
    *("traces_another", "reads_the_drivers_memory", "makes_a_namespace", "asks_for_a_ring", "raises_its_limits"),
    *("connects_by_multipath", "links_a_file_into_its_scratch"),
}


def row(world: World, name: str, bomb_s: float) -> dict[str, str]:
    """Return the row of a hostile program: its ground truth is that it gets through."""
    assert world.victim is not None
    paths = {key: str(getattr(world, key)) for key in ("folder", "secret", "target", "home", "beside")}
    facts = {
        **paths,
        "port": world.port,
        "socket": str(world.folder / "s"),
        "abstract": f"\0hostile{os.getpid()}",
        "victim": world.victim.pid,
        "driver": os.getpid(),
        "marker": MARKER,
        "bomb_s": bomb_s,
    }
    truth = {"fn_name": name, "inputs": [json.dumps(facts)], "outputs": ["true"]}
    return {"response": f"```python\n{CODE}\n```", "ground_truth": json.dumps(truth)}


def graded(world: World, host: ProgramHost, name: str, bomb_s: float, limit_s: float) -> tuple[float, str, set[str]]:
    """Grade a program; return its score, the reason, and what it did to the world and to the host of programs."""
    before = host._started
    result = prime_code(**row(world, name, bomb_s), limit_s=limit_s)
    assert isinstance(result, dict)
    effects = world.changed()
    if before is not None and host._started is not before:
        effects.add("the host")
    return float(str(result["score"])), str(result["reason"]), effects


def test_sixty_hostile_programs_are_contained_and_scored_0_with_a_reason(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    through: dict[str, object] = {}
    with ProgramHost() as host:
        monkeypatch.setitem(program_tests._RUNNERS, "", host)
        for name in HOSTILE:
            score, reason, effects = graded(world, host, name, 60.0, 0.5 if name in BOMBS else 30.0)
            if score or not reason or effects or running(MARKER):
                through[name] = score, reason, effects
            world.restore()
            if name in SAMPLE:  # the next program finds nothing of it
                assert graded(world, host, "honest", 0.0, 30.0)[:2] == (1.0, ""), name
        assert host._started is not None
        process, scratch = host._started.process.pid, host._started.scratch
    assert through == {}
    assert len(HOSTILE) >= 60
    assert gone(MARKER) and not Path(f"/proc/{process}").exists() and not Path(scratch).exists()


@pytest.mark.slow(group="graders")
def test_a_batch_with_hostile_programs_is_graded_to_its_end(world: World) -> None:
    names = [name for hostile in SAMPLE[:6] for name in (hostile, "honest")]
    with Graders(limit_s=30.0) as pool:
        result = pool.grade(resolve("prime_code"), [row(world, name, 60.0) for name in names])
    assert result.scores == (0.0, 1.0) * 6 and result.failures == result.unreadable == 0
    assert [bool(extra["reason"]) for extra in result.extras] == [True, False] * 6
    assert world.changed() == set()


def test_some_of_them_bite_without_the_sandbox(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert blunt(world, monkeypatch, SAMPLE) == {}


@pytest.mark.slow
def test_each_of_them_bites_without_the_sandbox(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert blunt(world, monkeypatch, HOSTILE) == {}


def blunt(world: World, monkeypatch: pytest.MonkeyPatch, names: Iterable[str]) -> dict[str, object]:
    """Run programs without walls, and return those that do not do what they are written to do."""
    monkeypatch.setattr(programs, "_OWN_FILES", [OPEN_HOST, *programs._OWN_FILES[1:]])
    monkeypatch.setattr(programs, "Allowed", partial(Allowed, unconfined=True))
    found: dict[str, object] = {}
    with ProgramHost() as host:
        monkeypatch.setitem(program_tests._RUNNERS, "", host)
        host.run("pass")
        for name in names:
            score, reason, effects = graded(world, host, name, 1.0, 30.0)
            if not (score == 1.0 or effects or running(MARKER)) and name not in BY_MACHINE:
                found[name] = reason
            world.restore()
    return found
