"""Type checkers read the flows: wrong programs fail on the lines they mark, right ones and a copied flow pass.

A line of tests/typing/programs ends with the codes that are expected on it: `# mypy: arg-type`,
`# pyright: reportArgumentType`; one of `reveal_type` with what both show, modules left out: `# shows: Rollout`. Each
checker runs once over all of them.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from flowgraph.files.shipped import flows_folder
from flowgraph.flows.flow_files import flows_in

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))
Lines = dict[tuple[str, int], set[str]]
Shown = dict[tuple[str, int], str]


def marked(checker: str) -> Lines:
    """Give the codes that the programs expect of a checker, by file and line."""
    return {place: set(mark.split(",")) for place, mark in marks(rf"# {checker}: ([\w,-]+)").items()}


def marks(pattern: str) -> Shown:
    """Give what a mark says at the end of the programs' lines, by file and line."""
    found: Shown = {}
    for path in PROGRAMS:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            mark = re.search(pattern, line)
            if mark:
                found[path.name, number] = mark[1]
    return found


def run(folder: Path, *command: str) -> str:
    told = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, cwd=folder, check=False)
    assert told.stdout, told.stderr
    return told.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the programs and the shipped flows into a folder of a user's own."""
    home = tmp_path_factory.mktemp("mine")
    for path in PROGRAMS:
        shutil.copy(path, home)
    for path in flows_folder().glob("[!_]*.py"):
        shutil.copy(path, home / f"my_{path.name}")
    return home


@dataclass(frozen=True)
class Told:
    """What a checker says of the programs: the codes of its errors, and the types that it reveals."""

    errors: Lines
    shown: Shown


@pytest.fixture(scope="module")
def by_mypy(folder: Path) -> Told:
    cache_folder = ROOT / ".mypy_cache" / "programs"  # of its own: other options would empty the project's
    settings = f"[mypy]\nmypy_path = {ROOT}\ncache_dir = {cache_folder}\nstrict = True\nfollow_imports = silent\n"
    (folder / "mypy.ini").write_text(settings, encoding="utf-8")
    options = ["--no-error-summary", "--hide-error-context", "--no-pretty", "--config-file", "mypy.ini"]
    told = run(folder, "mypy", *options, *sorted(path.name for path in folder.glob("*.py")))
    errors: Lines = {}
    shown: Shown = {}
    for line in told.splitlines():
        found = re.fullmatch(r"([\w./]+):(\d+)(?::\d+)?: (error|note): (.*?)(?:  \[([\w-]+)\])?", line)
        assert found, line
        place = found[1], int(found[2])
        if found[3] == "error":
            errors.setdefault(place, set()).add(found[5])
        elif found[4].startswith("Revealed type is "):
            shown[place] = found[4]
    return Told(errors, shown)


@pytest.fixture(scope="module")
def by_pyright(folder: Path) -> Told:
    (folder / "pyrightconfig.json").write_text(json.dumps(pyright_settings()), encoding="utf-8")
    told = json.loads(run(folder, "pyright", "--outputjson", "--pythonpath", sys.executable))
    errors: Lines = {}
    shown: Shown = {}
    for each in told["generalDiagnostics"]:
        place = (Path(each["file"]).name, each["range"]["start"]["line"] + 1)
        if each["severity"] == "error":
            errors.setdefault(place, set()).add(each["rule"])
        elif each["message"].startswith("Type of "):
            shown[place] = each["message"]
    return Told(errors, shown)


def pyright_settings() -> dict[str, object]:
    """Give the project's own settings, for a folder that is elsewhere."""
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pyright"]
    off = {name: value for name, value in ours.items() if name.startswith("report")}
    # The wrong programs leave results unused on purpose.
    return {"typeCheckingMode": "strict", "extraPaths": [str(ROOT)], "reportUnusedExpression": False, **off}


def test_mypy_finds_what_the_programs_mark_and_nothing_else(by_mypy: Told) -> None:
    assert by_mypy.errors == marked("mypy")


def test_pyright_finds_what_the_programs_mark_and_nothing_else(by_pyright: Told) -> None:
    assert by_pyright.errors == marked("pyright")


@pytest.mark.parametrize("checker", ["by_mypy", "by_pyright"])
def test_a_checker_shows_the_types_that_the_programs_mark(checker: str, request: pytest.FixtureRequest) -> None:
    told: Told = request.getfixturevalue(checker)
    wanted = marks(r"# shows: (.+)")
    assert told.shown.keys() == wanted.keys()
    shown = {place: re.sub(r"\w+\.(?=\w)", "", text) for place, text in told.shown.items()}
    assert {place: text for place, text in shown.items() if wanted[place] not in text} == {}
    plain = {place: text for place, text in shown.items() if re.fullmatch(r"\w+", wanted[place])}
    assert [text for place, text in plain.items() if not text.endswith(f' is "{wanted[place]}"')] == []


def test_the_known_bug_is_marked_for_both() -> None:
    text = next(path for path in PROGRAMS if path.name == "wrong_calls.py").read_text(encoding="utf-8")
    (line,) = [
        number for number, each in enumerate(text.splitlines(), 1) if "clipped(new, advantages, advantages" in each
    ]
    assert marked("mypy")["wrong_calls.py", line] == {"arg-type"}
    assert marked("pyright")["wrong_calls.py", line] == {"reportArgumentType"}


def test_every_wrong_line_is_marked_for_both_checkers() -> None:
    assert marked("mypy").keys() == marked("pyright").keys()
    wrong = {"wrong_calls.py", "wrong_critics.py", "wrong_values.py"}
    assert {path.name for path in PROGRAMS} == {"inferred.py", "right.py", "right_critics.py", *wrong}


def test_what_checkers_refuse_of_critics_and_corrections_is_refused_when_described() -> None:
    """Each marked line there is a call in a flow; all of a flow's faults are collected."""
    program = next(path for path in PROGRAMS if path.name == "wrong_critics.py")
    faults = [each for found in flows_in(program).values() for each in found.faults()]
    assert {each.where for each in faults} == {
        f"{name}:{line}" for name, line in marked("mypy") if name == program.name
    }
    assert {type(each).__name__ for each in faults} == {"FlowTypeError", "SettingError"}


def test_the_right_programs_are_described_too() -> None:
    right = [path for path in PROGRAMS if path.stem.startswith("right")]
    found = {name: each for path in right for name, each in flows_in(path).items()}
    assert {name: sorted(each.graph().carries()) for name, each in found.items()} == {
        "remax": ["policy"],
        "late": ["policy"],
        "actor_and_critic": ["coefficient", "critic", "policy"],
        "twice": ["policy"],
        "ppo": ["critic", "policy"],
        "adaptive": ["beta", "policy"],
        "averaging": ["policy", "ref"],
        "decoupled": ["policy"],
    }
