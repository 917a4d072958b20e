"""A user's own files, copied for workers: what goes along, where it lies, what stays, and that it imports alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from flowgraph.errors import DataError
from flowgraph.runtime.ray import code_shipping
from flowgraph.runtime.ray.code_shipping import stage

ROOT = Path(__file__).parents[5]

FLOW = """\
import beside_mine
from flowgraph import Value, flow, node
from flowgraph.language import Kind
from tools.counting import START


class Count(Value):
    kind = Kind.SCALAR


@node
def more(count: Count) -> Count:
    from plain.deep import late

    return Count(count.data + late.ROUNDS + START + beside_mine.MORE)


@flow
def counting(count: Count) -> Count:
    return more(count)
"""
FILES = {
    "mine.py": FLOW,
    "beside_mine.py": "MORE = 100\n",
    "tools/__init__.py": "",
    "tools/counting.py": "from tools.inner.one import START\n",
    "tools/inner/one.py": "START = 10\n",
    "plain/deep/late.py": "import lazily_plain.x\nROUNDS = 1\n",
    "lazily_plain/x.py": "",
}


def write(folder: Path, files: Iterable[str] | dict[str, str]) -> Path:
    """Write files with their texts, or empty ones, into a folder."""
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(files[name] if isinstance(files, dict) else "", encoding="utf-8")
    return folder


def names(staged: Path) -> list[str]:
    """List all files in the staged folder."""
    return [each.relative_to(staged).as_posix() for each in sorted(staged.rglob("*")) if each.is_file()]


def run(code: str, cwd: Path, ours: Path = ROOT) -> str:
    """Run code in a fresh interpreter that finds our packages in the folder `ours`."""
    env = {**os.environ, "PYTHONPATH": str(ours), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("started_in", ["project", "elsewhere"])
def test_a_staged_flow_imports_alone_with_its_modules_and_packages(
    started_in: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, away = write(tmp_path / "project", FILES), write(tmp_path / "elsewhere", ["x"])
    monkeypatch.chdir(tmp_path / started_in)
    staged = tmp_path / "staged"
    (flow,) = stage(project / "mine.py", [], staged)
    project.rename(tmp_path / "gone")
    code = f"""\
import sys
from pathlib import Path
from flowgraph.flows.flow_files import import_file
module = import_file(Path({str(staged / flow)!r}))
print(module.__name__, module.counting.name, module.more(module.Count(1000)).data)
names = ["beside_mine", "tools.counting", "tools.inner.one", "plain.deep.late", "lazily_plain.x"]
print(all(Path(sys.modules[name].__file__).is_relative_to({str(staged)!r}) for name in names))
"""
    assert run(code, away) == "flowgraph_flow.mine counting 1111\nTrue"


def test_files_keep_their_paths_below_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = ["flows/mine.py", "flows/near.py", "rules/one.py", "rules/two.py", "rules/deep/three.py", "other.py"]
    monkeypatch.chdir(write(tmp_path / "project", files))
    staged = stage(Path("flows/mine.py"), [Path("rules/one.py")], tmp_path / "staged")
    assert staged == [Path("flows/mine.py"), Path("rules/one.py")]
    assert names(tmp_path / "staged") == ["flows/mine.py", "flows/near.py", "rules/one.py", "rules/two.py"]


def test_folders_elsewhere_are_kept_together_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, ["flows/mine.py", "flows/near.py", "flows/rules/one.py", "shared/two.py", "here/three.py"])
    monkeypatch.chdir(tmp_path / "here")
    others = [Path("../flows/rules/one.py"), tmp_path / "shared/two.py", Path("three.py"), Path("../flows/near.py")]
    staged = stage(Path("../flows/mine.py"), others, tmp_path / "staged")
    assert staged[0] == Path("outside/0/mine.py")
    assert names(tmp_path / "staged") == [
        "outside/0/mine.py",
        "outside/0/near.py",
        "outside/0/rules/one.py",
        "outside/1/two.py",
        "three.py",
    ]


def test_only_what_could_be_imported_goes_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [
        *("data.json", ".hidden.py", ".git/hook.py", "notes/idea.py", "empty/deep/x.txt"),
        *("pkg/table.csv", "pkg/.old/__init__.py", "pkg/__pycache__/one.py", "pkg/node_modules/x.py"),
        *("env/__init__.py", "env/pyvenv.cfg", "pkg/env/pyvenv.cfg", "pkg/env/lib/x.py"),
        *("conda/__init__.py", "conda/conda-meta/x", "site-packages/__init__.py", "pkg/lib/site-packages/x.py"),
    ]
    took = ["mine.py", "near.py", "pkg/__init__.py", "pkg/inner/one.py", "pkg/sub/__init__.py"]
    monkeypatch.chdir(write(tmp_path / "project", [*left, *took]))
    stage(Path("mine.py"), [], tmp_path / "staged")
    assert names(tmp_path / "staged") == took


def test_a_folder_without_init_goes_along_where_its_name_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "mine.py": "def f():\n    from one.x import y\n",
        "one/x.py": "import two.z as z, os.path\nfrom .four import w\n",
        "two/deep/z.py": "import five  # what warns of its syntax is read too\n'\\d'\n",
        "five/x.py": "",
        "three/x.py": "",
        "four/x.py": "",
        "broken.py": "import three.(\n",
    }
    monkeypatch.chdir(write(tmp_path / "project", files))
    stage(Path("mine.py"), [], tmp_path / "staged")
    assert names(tmp_path / "staged") == ["broken.py", "five/x.py", "mine.py", "one/x.py", "two/deep/z.py"]


def test_a_symlink_is_followed_inside_the_folder_and_not_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, ["project/mine.py", "project/pkg/__init__.py", "project/pkg/a/one.py", "secret/__init__.py"])
    links = {
        "inside.py": "mine.py",
        "outside.py": "../secret/__init__.py",
        "secret": "../secret",
        "broken.py": "nowhere.py",
        "itself.py": "itself.py",
        "pkg/again": "a",
        "pkg/a/circle": "..",
        "pkg/secret": "../../secret",
    }
    monkeypatch.chdir(tmp_path / "project")
    for name, target in links.items():
        Path(name).symlink_to(target)
    stage(Path("mine.py"), [], tmp_path / "staged")
    assert names(tmp_path / "staged") == [
        "inside.py",
        "mine.py",
        "pkg/__init__.py",
        "pkg/a/one.py",
        "pkg/again/one.py",
    ]


def test_a_flow_named_by_a_symlink_is_the_file_it_leads_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write(tmp_path / "project", ["real.py", "near.py"]))
    write(tmp_path, ["links/x"])
    (tmp_path / "links/mine.py").symlink_to("../project/real.py")
    staged = stage(tmp_path / "links/mine.py", [], tmp_path / "staged")
    assert (staged, names(tmp_path / "staged")) == ([Path("real.py")], ["near.py", "real.py"])


def test_our_own_packages_stay(tmp_path: Path) -> None:
    """Stage a flow that lies at the top of a checkout, by the code of that checkout, and a rule inside our package."""
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "flowgraph", checkout / "flowgraph", ignore=shutil.ignore_patterns("__pycache__"))
    ours = [
        "nodes/__init__.py",
        "nodes/scoring/rules.py",
        "placements/__init__.py",
        "examples/__init__.py",
        "examples/grpo.py",
    ]
    write(checkout, [*ours, "mine.py", "mine/__init__.py", "mine/examples/__init__.py"])
    code = """\
import sys
sys.path.insert(0, "")
from pathlib import Path
from flowgraph.runtime.ray.code_shipping import stage
stage(Path("mine.py"), [Path("nodes/scoring/rules.py")], Path("../staged"))
"""
    run(code, checkout, checkout)
    took = ["mine/__init__.py", "mine/examples/__init__.py", "mine.py", "nodes/scoring/rules.py"]
    assert names(tmp_path / "staged") == took


def refusal(flow: Path, into: Path, others: Iterable[Path] = ()) -> str:
    with pytest.raises(DataError) as caught:
        stage(flow, others, into)
    return str(caught.value)


def test_a_folder_of_too_many_files_is_refused_and_nothing_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = write(tmp_path / "home", ["mine.py", "one.py", "pkg/__init__.py"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(code_shipping, "MAX_FILES", 3)
    stage(home / "mine.py", [home / "one.py"], tmp_path / "enough")
    assert len(names(tmp_path / "enough")) == 3
    write(home, ["pkg/two.py"])
    assert refusal(home / "mine.py", tmp_path / "staged") == (
        f"{home}: this folder has more than 3 files of Python next to mine.py, too many to send to workers\n"
        "  hint: move mine.py and what it imports to a folder of their own"
    )
    assert not (tmp_path / "staged").exists()


def test_files_of_too_many_bytes_are_refused_and_nothing_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write(tmp_path / "home", ["mine.py", "large.py"]))
    with Path("large.py").open("r+b") as file:
        file.truncate(64 * 2**20 + 1)
    assert refusal(Path("mine.py"), tmp_path / "staged") == (
        f"{tmp_path}/home: this folder has more than 64.0 MiB of Python next to mine.py, too many to send to workers\n"
        "  hint: move mine.py and what it imports to a folder of their own"
    )
    assert not (tmp_path / "staged").exists()


def test_a_file_named_twice_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write(tmp_path / "project", {"mine.py": "# mine", "near.py": "# near"}))
    monkeypatch.setattr(code_shipping, "MAX_FILES", 2)
    monkeypatch.setattr(code_shipping, "MAX_BYTES", 12)
    stage(Path("mine.py"), [Path("near.py"), Path("mine.py")], tmp_path / "staged")
    assert names(tmp_path / "staged") == ["mine.py", "near.py"]


def test_files_are_copied_into_an_empty_folder_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write(tmp_path / "project", ["mine.py"]))
    old = write(tmp_path / "old", ["x"])
    assert refusal(Path("mine.py"), old) == f"{old}: is not empty, so the workers' files cannot be written to it"
    assert refusal(Path("mine.py"), old / "x") == (
        f"{old}/x: cannot be made for the workers' files\n    [Errno 17] File exists: '{old}/x'"
    )


def test_a_file_that_is_not_there_is_said_to_be_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write(tmp_path / "project", ["mine.py"]))
    gone = tmp_path / "project/gone.py"
    assert refusal(Path("mine.py"), tmp_path / "staged", [Path("gone.py")]) == (
        f"{gone}: cannot be sent to workers\n    [Errno 2] No such file or directory: '{gone}'"
    )
