"""Type checkers read the flows: wrong programs fail on the lines they mark, right ones and a copied flow pass.

A line of tests/typing/programs ends with the codes that are expected on it: `# mypy: arg-type`,
`# pyright: reportArgumentType`. Each checker runs once over all of them.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from flowgraph.files import flows_in
from flowgraph.shipped import flows_folder

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))
Lines = dict[tuple[str, int], set[str]]


def marked(checker: str) -> Lines:
    """Give the codes that the programs expect of a checker, by file and line."""
    found: Lines = {}
    for path in PROGRAMS:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            mark = re.search(rf"# {checker}: ([\w,-]+)", line)
            if mark:
                found[path.name, number] = set(mark[1].split(","))
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


def by_mypy(folder: Path) -> Lines:
    cache_folder = ROOT / ".mypy_cache" / "programs"  # of its own: other options would empty the project's
    settings = f"[mypy]\nmypy_path = {ROOT}\ncache_dir = {cache_folder}\nstrict = True\nfollow_imports = silent\n"
    (folder / "mypy.ini").write_text(settings, encoding="utf-8")
    options = ["--no-error-summary", "--hide-error-context", "--no-pretty", "--config-file", "mypy.ini"]
    told = run(folder, "mypy", *options, *sorted(path.name for path in folder.glob("*.py")))
    found: Lines = {}
    for line in told.splitlines():
        error = re.fullmatch(r"([\w./]+):(\d+)(?::\d+)?: error: .*\[([\w-]+)\]", line)
        if error:
            found.setdefault((error[1], int(error[2])), set()).add(error[3])
        else:
            assert ": note: " in line, line
    return found


def by_pyright(folder: Path) -> Lines:
    (folder / "pyrightconfig.json").write_text(json.dumps(pyright_settings()), encoding="utf-8")
    told = json.loads(run(folder, "pyright", "--outputjson", "--pythonpath", sys.executable))
    found: Lines = {}
    for each in told["generalDiagnostics"]:
        if each["severity"] == "error":
            place = (Path(each["file"]).name, each["range"]["start"]["line"] + 1)
            found.setdefault(place, set()).add(each["rule"])
    return found


def pyright_settings() -> dict[str, object]:
    """Give the project's own settings, for a folder that is elsewhere."""
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pyright"]
    off = {name: value for name, value in ours.items() if name.startswith("report")}
    # The wrong programs leave results unused on purpose.
    return {"typeCheckingMode": "strict", "extraPaths": [str(ROOT)], "reportUnusedExpression": False, **off}


def test_mypy_finds_what_the_programs_mark_and_nothing_else(folder: Path) -> None:
    assert by_mypy(folder) == marked("mypy")


def test_pyright_finds_what_the_programs_mark_and_nothing_else(folder: Path) -> None:
    assert by_pyright(folder) == marked("pyright")


def test_the_known_bug_is_marked_for_both() -> None:
    text = next(path for path in PROGRAMS if path.name == "wrong_calls.py").read_text(encoding="utf-8")
    (line,) = [
        number for number, each in enumerate(text.splitlines(), 1) if "clipped(new, advantages, advantages" in each
    ]
    assert marked("mypy")["wrong_calls.py", line] == {"arg-type"}
    assert marked("pyright")["wrong_calls.py", line] == {"reportArgumentType"}


def test_every_wrong_line_is_marked_for_both_checkers() -> None:
    assert marked("mypy").keys() == marked("pyright").keys()
    assert {path.name for path in PROGRAMS} == {"right.py", "wrong_calls.py"}


def test_the_right_programs_are_described_too() -> None:
    found = flows_in(Path(__file__).parent / "programs" / "right.py")
    assert {name: sorted(each.graph().carries()) for name, each in found.items()} == {
        "remax": ["policy"],
        "late": ["policy"],
        "actor_and_critic": ["coefficient", "critic", "policy"],
        "twice": ["policy"],
    }
