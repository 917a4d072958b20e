"""A command run in this process, and a run of two steps that later commands read."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from unittest import mock

from flowgraph.cli import main

ARGUMENTS = ("--cluster", "1xcpu", "--steps", "2", "--batch", "4", "--set", "policy.generate.n=4")


def quietly(folder: Path, *arguments: str) -> str:
    """Run `flowgraph ARGUMENTS` in a folder; give what it prints."""
    out, err = io.StringIO(), io.StringIO()
    streams = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    code: object = 0
    with contextlib.chdir(folder), streams[0], streams[1], mock.patch.object(sys, "argv", ["flowgraph", *arguments]):
        try:
            main()
        except SystemExit as stop:
            code = stop.code
    assert not code, err.getvalue()
    return out.getvalue()


def small_run(folder: Path, flow: str = "grpo", *more: str) -> Path:
    """Train a tiny model for two steps, checked on 20 held-out prompts; give the run's folder."""
    checks = ("--eval-every", "2", "--eval-rows", "20")
    return folder / quietly(folder, "run", flow, *ARGUMENTS, *checks, *more).strip()
