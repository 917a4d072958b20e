"""The wheel, installed away from the clone: it carries all that the command line and type checkers need.

The fresh environment has our packages from the wheel only; their dependencies are read from the running one. Which
files the wheel takes is asked of its builder for each change; the installed one is looked at by `make slow`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
PACKAGES = ("flowgraph", "nodes", "placements")
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input")


@dataclass(frozen=True)
class Installed:
    """A fresh environment, and a folder away from the clone where commands run."""

    wheel: Path
    env: Path
    cwd: Path

    @property
    def python(self) -> Path:
        """Return the environment's interpreter."""
        return self.env / "bin" / "python"

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command there; nothing of the caller's Python settings leaks in."""
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "MYPY"))
        }
        clean |= {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1", "XDG_CACHE_HOME": str(self.cwd / "cache"), "NO_COLOR": "1"}
        return subprocess.run(
            command, cwd=self.cwd, env=clean, capture_output=True, text=True, check=False, timeout=300
        )

    def flowgraph(self, *args: str) -> str:
        """Run the installed command line and give its stdout."""
        done = self.run(self.env / "bin" / "flowgraph", *args)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout

    def evaluate(self, expression: str, imports: str) -> object:
        """Evaluate an expression with the environment's interpreter."""
        done = self.run(self.python, "-c", f"import json, {imports}\nprint(json.dumps({expression}))")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Build the wheel and install it into a fresh environment, with no network."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [*PIP, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT]
    subprocess.run([sys.executable, *build], check=True, timeout=120)
    (wheel,) = folder.glob("flowgraph_rl-*.whl")
    env, cwd = folder / "env", folder / "away"
    venv.create(env, with_pip=False, symlinks=True)
    cwd.mkdir()
    made = Installed(wheel, env, cwd)
    install = [*PIP, "--python", made.python, "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run([sys.executable, *install], check=True, timeout=120)
    # Read after its own packages. A .pth in the folder named (an editable install of ours) is not followed.
    lib = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(env)}))
    folders = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    (lib / "dependencies.pth").write_text("\n".join(folders) + "\n", encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def copied(installed: Installed) -> Path:
    """Copy a shipped flow to a file of one's own."""
    installed.flowgraph("cp", "grpo", "my.py")
    return installed.cwd / "my.py"


@pytest.mark.slow(group="wheel")
def test_every_package_comes_from_the_wheel(installed: Installed) -> None:
    files = installed.evaluate("[m.__file__ for m in (flowgraph, nodes, placements)]", ", ".join(PACKAGES))
    assert isinstance(files, list)
    assert [file for file in files if not Path(file).is_relative_to(installed.env)] == []


def files_of_packages() -> set[str]:
    """Return every file of the packages by its path in the wheel."""
    folders = {"examples": "flowgraph/examples", **{name: name for name in PACKAGES}}
    return {
        f"{there}/{path.relative_to(ROOT / here).as_posix()}"
        for here, there in folders.items()
        for path in (ROOT / here).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheels_builder_takes_every_file_of_the_packages_and_nothing_else() -> None:
    taken = WheelBuilder(str(ROOT)).recurse_included_files()
    assert {each.distribution_path for each in taken} == files_of_packages()


@pytest.mark.slow(group="wheel")
def test_the_wheel_carries_every_file_of_the_packages_and_nothing_else(installed: Installed) -> None:
    inside = set(zipfile.ZipFile(installed.wheel).namelist())
    assert {name for name in inside if ".dist-info/" not in name} == files_of_packages()
    assert {name.partition("/")[2] for name in inside if ".dist-info/" in name} >= {"licenses/LICENSE", "METADATA"}


@pytest.mark.slow(group="wheel")
def test_the_installed_command_line_lists_the_shipped_flows(installed: Installed) -> None:
    listed = {flow["name"]: flow["path"] for flow in json.loads(installed.flowgraph("flows", "--json"))}
    assert listed.keys() >= {"grpo", "gpg"}
    assert [path for path in listed.values() if not Path(path).is_relative_to(installed.env)] == []


@pytest.mark.slow(group="wheel")
def test_an_installed_flow_knows_its_own_lines(installed: Installed) -> None:
    """A shipped flow is a user's file even where it lies inside our package: errors and drawings name its lines."""
    files = installed.evaluate(
        "sorted({Path(n.at.file).name for n in files.find_flow('grpo').flow.graph().nodes})",
        "flowgraph.flows.flow_files as files\nfrom pathlib import Path",
    )
    assert files == ["grpo.py"]


@pytest.mark.slow(group="wheel")
def test_the_installed_command_line_plans(installed: Installed) -> None:
    plan = json.loads(installed.flowgraph("plan", "grpo", "--model", "tiny", "--json"))
    assert "policy.train" in json.dumps(plan)


@pytest.mark.slow(group="wheel")
def test_mypy_accepts_a_copied_flow_and_sees_our_types(installed: Installed, copied: Path) -> None:
    check = [sys.executable, "-m", "mypy", "--strict", "--python-executable", installed.python]
    done = installed.run(*check, copied)
    assert (done.returncode, done.stdout) == (0, "Success: no issues found in 1 source file\n")
    done = installed.run(*check, spoiled(copied))
    assert done.returncode == 1
    assert '"Mask"' in done.stdout


@pytest.mark.slow(group="wheel")
def test_pyright_accepts_a_copied_flow_and_sees_our_types(installed: Installed, copied: Path) -> None:
    (installed.cwd / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}', encoding="utf-8")
    check = [sys.executable, "-m", "pyright", "--pythonpath", installed.python]
    done = installed.run(*check, copied)
    assert (done.returncode, done.stdout) == (0, "0 errors, 0 warnings, 0 informations\n")
    done = installed.run(*check, spoiled(copied))
    assert done.returncode == 1
    assert '"Mask"' in done.stdout


def spoiled(flow: Path) -> Path:
    """Write the known bug: the advantages where the mask belongs."""
    text = flow.read_text(encoding="utf-8")
    bad = text.replace("advantages, rollout.mask", "advantages, advantages")
    assert bad != text
    path = flow.with_name("spoiled.py")
    path.write_text(bad, encoding="utf-8")
    return path
