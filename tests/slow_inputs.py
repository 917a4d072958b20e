"""Which groups of slow tests must run again: those whose input files changed since the group last passed.

A group is the tests that `pytest.mark.slow(group="…")` marks. `slow_inputs.toml` lists each group's input files and the
hash of them when the group last passed. `make slow` writes that hash; tests/architecture/test_slow_inputs.py compares.
"""

from __future__ import annotations

import ast
import hashlib
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True)
class SlowGroup:
    """A group of slow tests: the patterns of its input files, and the hash of them when it last passed."""

    name: str
    inputs: tuple[str, ...]
    passed: str

    def files(self) -> list[Path]:
        """Return the input files, sorted. Raises FileNotFoundError for a pattern that names no file."""
        found = set[Path]()
        for pattern in self.inputs:
            matched = [path for path in ROOT.glob(pattern) if path.is_file()]
            if not matched:
                raise FileNotFoundError(f"{TABLE.name}: `{pattern}` of `{self.name}` names no file")
            found.update(matched)
        return sorted(found)

    def digest(self) -> str:
        """Return the hash of what the input files say, with their names."""
        parts = [f"{path.relative_to(ROOT).as_posix()}\n{significant(path)}\n" for path in self.files()]
        return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]

    def is_stale(self) -> bool:
        """Return whether an input changed since the group last passed."""
        return self.digest() != self.passed

    def command(self) -> str:
        """Return the command that runs the group."""
        return f"make slow GROUP={self.name}"


def read_groups() -> list[SlowGroup]:
    """Return the groups of `slow_inputs.toml`."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return [SlowGroup(name, tuple(inputs), table["passed"][name]) for name, inputs in table["inputs"].items()]


def significant(path: Path) -> str:
    """Return a file's text; of Python without docstrings, empty lines and lines that are only a comment."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return text
    tree = ast.parse(text)
    left_out = {line for start, end in docstrings(tree) for line in range(start, end + 1)}
    lines = [line.rstrip() for number, line in enumerate(text.splitlines(), 1) if number not in left_out]
    return "\n".join(line for line in lines if line and not line.lstrip().startswith("#"))


def docstrings(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """Yield the first and last line of each docstring."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for each in ast.walk(tree):
        if isinstance(each, documented) and ast.get_docstring(each, clean=False) is not None:
            yield each.body[0].lineno, each.body[0].end_lineno or 0


def group_of(item: pytest.Item) -> str:
    """Return the group of a slow test; nothing for a slow test of no group, and for any other."""
    marks = (mark.kwargs.get("group", "") for mark in item.iter_markers("slow"))
    return next(filter(None, marks), "")


@dataclass(eq=False)  # pytest keeps plugins in sets
class SlowResults:
    """A pytest plugin that writes the hash of each group whose tests all ran and passed or were skipped."""

    collected: set[str] = field(default_factory=set[str])
    incomplete: set[str] = field(default_factory=set[str])
    by_test: dict[str, str] = field(default_factory=dict[str, str])

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        """Note groups that do not run whole."""
        self.incomplete.update(map(group_of, items))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note the groups that run; none where only some files were collected."""
        if session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
            return
        self.by_test = {item.nodeid: group for item in session.items if (group := group_of(item))}
        self.collected = set(self.by_test.values())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a group with a failure."""
        if report.failed:
            self.incomplete.add(self.by_test.get(report.nodeid, ""))

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the hashes, unless the session was broken off."""
        ended = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        passed = self.collected - self.incomplete if ended and not session.config.option.collectonly else set[str]()
        for group in read_groups() if passed else ():
            if group.name in passed and group.is_stale():
                write_hash(group.name, group.digest())


def write_hash(name: str, digest: str) -> None:
    """Write the hash that a group passed with."""
    head, passed, tail = TABLE.read_text(encoding="utf-8").partition("[passed]\n")
    TABLE.write_text(head + passed + re.sub(rf'(?m)^{name} = ".*"$', f'{name} = "{digest}"', tail), encoding="utf-8")
