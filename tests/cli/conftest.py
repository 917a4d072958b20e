"""The command line, run in this process from an empty folder: exit code, stdout, stderr."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from flowgraph.cli import main
from tests.cli.small_run import quietly, small_run


@dataclass(frozen=True)
class Said:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def flowgraph(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Said]:
    """Run `flowgraph ARGUMENTS` in an empty folder; only one marked `processes` or `slow` may start Ray."""
    monkeypatch.chdir(tmp_path)
    starts_ray = any(map(request.node.get_closest_marker, ("processes", "slow")))

    def run(*arguments: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["flowgraph", *map(str, arguments)])
        code: object = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        told = capsys.readouterr()
        assert isinstance(code, int), code
        assert starts_ray or "starting Ray" not in told.err, "a Ray of its own takes 10 s: `--cluster 1xcpu` needs none"
        return Said(code, told.out, told.err)

    return run


@pytest.fixture(scope="session")
def run_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return `run_once(*arguments)`: the folder of `flowgraph run ARGUMENTS`, made once and to be left as it is."""

    @functools.cache
    def run(*arguments: str) -> Path:
        folder = tmp_path_factory.mktemp("kept")
        return folder / quietly(folder, "run", *arguments).strip()

    return run


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of two steps, which stays as it is."""
    return small_run(tmp_path_factory.mktemp("trained"))
