"""Exit codes: one for each class of errors, each documented, and scripts can rely on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import flowgraph.app.running.resuming
import nodes
import placements
from flowgraph import errors
from flowgraph.cli import application
from flowgraph.cli.commands.run import EXIT_CODES
from flowgraph.errors import FlowError
from flowgraph.errors.exit_codes import MEANINGS, ExitCode

Run = Callable[..., Any]

ROOT = Path(__file__).parents[2]
OTHER = {
    "BatchError": ExitCode.USAGE,
    "UsageError": ExitCode.USAGE,
    "NotResumableError": ExitCode.NOT_RESUMABLE,
}
"""The classes that do not end with ExitCode.FAULT."""


def classes(kind: type[FlowError]) -> Iterator[type[FlowError]]:
    """Yield a class of errors and those that derive from it."""
    yield kind
    for each in kind.__subclasses__():
        yield from classes(each)


def ours() -> dict[str, type[FlowError]]:
    """Return every class of errors of our packages, by name."""
    assert application and nodes and placements and flowgraph.app.running.resuming, "all are imported"
    packages = ("flowgraph", "nodes", "placements")
    return {each.__name__: each for each in classes(FlowError) if each.__module__.split(".")[0] in packages}


def test_each_class_of_errors_has_one_documented_exit_code() -> None:
    found = ours()
    assert {name for name in errors.__all__ if name.endswith("Error")} <= found.keys()
    for name, kind in found.items():
        assert kind.exit_code is OTHER.get(name, ExitCode.FAULT), name
        assert kind.exit_code in MEANINGS, name
    assert OTHER.keys() <= found.keys()
    assert list(MEANINGS) == list(ExitCode), "each code has a meaning"
    assert set(EXIT_CODES.values()) <= set(ExitCode)


@pytest.mark.parametrize("name", sorted(ours()))
def test_a_command_that_fails_with_an_error_ends_with_its_exit_code(
    name: str, flowgraph: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> int:
        raise ours()[name]("it failed", where="here")

    monkeypatch.setattr(application, "run_command", fail)
    said = flowgraph("flows")
    assert (said.code, said.out, said.err) == (ours()[name].exit_code, "", "here: it failed\n")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
        (FileNotFoundError(2, "No such file or directory", "gone"), ExitCode.FAULT),
    ],
)
def test_an_interrupt_and_a_refusal_of_the_system_have_codes_too(
    error: BaseException, code: ExitCode, flowgraph: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> int:
        raise error

    monkeypatch.setattr(application, "run_command", fail)
    assert flowgraph("flows").code == code


def test_a_command_line_that_cannot_be_read_is_a_usage_error(flowgraph: Run) -> None:
    for arguments in (
        (),
        ("flws",),
        ("plan",),
        ("plan", "grpo", "--batch", "0"),
        ("flows", "--no-such"),
        ("flows", "a"),
    ):
        said = flowgraph(*arguments)
        assert (said.code, said.out) == (ExitCode.USAGE, ""), arguments


def test_the_page_about_runs_has_every_exit_code() -> None:
    text = (ROOT / "docs" / "runs.md").read_text(encoding="utf-8")
    table = text.partition("## Exit codes\n")[2].partition("\n## ")[0]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == [int(code) for code in ExitCode]
