"""Processes that run a test's file as a script, each as one rank.

They are forked from one server, which has imported what ranks need: that takes a rank longer than its test.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import runpy
import sys
import time
from pathlib import Path

PRELOADED = (
    "peft",
    "pytest",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "transformers.generation.utils",
    "flowgraph.engines.fsdp.model",
    "flowgraph.engines.local.model",
    "flowgraph.models",
    "nodes",
)


class RankProcesses:
    """Ranks that run `file` side by side, as `file rank count folder *more`, with `folder` for what they tell."""

    def __init__(self, file: str, count: int, folder: Path, *more: str) -> None:
        """Start the ranks; `wait` or `end` must follow."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(PRELOADED))
        self.errors = [folder / f"{rank}.stderr" for rank in range(count)]
        self.processes = [
            context.Process(target=_run, args=(file, str(rank), str(count), str(folder), *more), daemon=True)
            for rank in range(count)
        ]
        for process in self.processes:
            process.start()

    def wait(self, limit_s: float) -> None:
        """Wait until all have ended without an error; kill those that take longer than `limit_s`, or outlive others."""
        until = time.monotonic() + limit_s
        try:
            for rank, process in enumerate(self.processes):
                process.join(max(0.1, until - time.monotonic()))
                text = self.errors[rank].read_text("utf-8") if self.errors[rank].exists() else ""
                assert process.exitcode == 0, f"rank {rank} of {len(self.processes)}: {process.exitcode}\n{text}"
        finally:
            self.end()

    def end(self) -> None:
        """Kill those that still run."""
        for process in self.processes:
            process.kill()
            process.join()


def _run(file: str, rank: str, count: str, folder: str, *more: str) -> None:
    with Path(folder, f"{rank}.stderr").open("wb") as errors:
        os.dup2(errors.fileno(), sys.stderr.fileno())
    faulthandler.enable()
    sys.argv = [file, rank, count, folder, *more]
    runpy.run_path(file, run_name="__main__")
