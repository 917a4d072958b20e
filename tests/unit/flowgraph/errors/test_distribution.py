"""The distribution's name stands in one place, and packages of other projects with our import names are named."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from flowgraph.errors import UserCodeError
from flowgraph.errors.distribution import (
    DISTRIBUTION,
    OURS,
    installed_version,
    other_projects,
    refuse_other_packages,
)
from tests.architecture.readability import sources

ROOT = Path(__file__).parents[4]
THEIR_INIT = "import pkgutil\n\n__path__ = pkgutil.extend_path(__path__, __name__)\n__all__ = ['__version__']\n"


def install(site: Path, name: str, package: str, init: str = THEIR_INIT) -> None:
    """Write what pip installs of a distribution with one package: its `__init__.py` and its metadata."""
    (site / package).mkdir(parents=True, exist_ok=True)
    (site / package / "__init__.py").write_text(init)
    info = site / f"{name.replace('-', '_')}-0.1.6.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 0.1.6\n")
    (info / "RECORD").write_text(f"{package}/__init__.py,,\n{info.name}/METADATA,,\n{info.name}/RECORD,,\n")


def command(*folders: Path) -> subprocess.CompletedProcess[str]:
    """Run `flowgraph --version` as a console script does, with folders before all others on the path."""
    code = f"import sys; sys.path[:0] = {[str(folder) for folder in folders]!r}; from flowgraph.cli import main; main()"
    script = [sys.executable, "-c", code, "--version"]
    return subprocess.run(script, capture_output=True, text=True, check=False, cwd=folders[0], timeout=240)


def test_the_name_is_that_of_the_project_file() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["name"] == DISTRIBUTION
    assert project["scripts"] == dict.fromkeys(("flowgraph", DISTRIBUTION), "flowgraph.cli:main")
    assert installed_version() in (None, project["version"])


def test_no_source_names_the_distribution_but_one() -> None:
    written = re.compile(rf"flowgraph\[\w|pip install '?(flowgraph|\.\[)|{DISTRIBUTION}\b")
    found = [str(each.path.relative_to(ROOT)) for each in sources().modules if written.search(each.text)]
    assert found == ["flowgraph/errors/distribution.py"]


def test_pages_install_our_distribution_and_not_that_of_another_project() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    commands = [
        (page.name, name) for page in pages for name in re.findall(r"pip install '?(flowgraph[\w-]*)", page.read_text())
    ]
    assert {name for page, name in commands if page != "CHANGELOG.md"} == {DISTRIBUTION}


def test_other_projects_with_our_import_names_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = other_projects()
    install(tmp_path, "some-nodes", "nodes")
    install(tmp_path, DISTRIBUTION, "flowgraph")
    install(tmp_path, "unrelated", "unrelated")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert other_projects() == sorted([*before, "some-nodes 0.1.6"])


def test_our_own_packages_are_not_taken_for_others() -> None:
    refuse_other_packages()


@pytest.mark.processes
def test_a_command_refuses_the_package_of_another_project_that_is_found_first(tmp_path: Path) -> None:
    install(tmp_path, "flowgraph", "flowgraph")
    done = command(tmp_path, ROOT)
    assert (done.returncode, done.stdout) == (1, "")
    text = " ".join(done.stderr.split())
    assert f"the package `flowgraph` of another project, flowgraph 0.1.6, and not that of {DISTRIBUTION}" in text
    assert f"hint: pip uninstall flowgraph, then install {DISTRIBUTION} again" in text
    assert "Traceback" not in done.stderr


@pytest.mark.processes
def test_a_command_refuses_a_package_that_overwrote_ours_in_the_same_folder(tmp_path: Path) -> None:
    for package in OURS:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    assert command(tmp_path).returncode == 0, "the copy works before"
    install(tmp_path, "flowgraph", "flowgraph")
    done = command(tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "of another project, flowgraph 0.1.6" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_users_file_with_a_name_of_ours_is_still_told_to_be_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nodes.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nodes", raising=False)
    with pytest.raises(UserCodeError, match=r"this file hides flowgraph's package `nodes`"):
        refuse_other_packages()
