"""verl's scores of the answers that verl_scorers.py wrote; runs in verl's environment and imports nothing of ours.

python verl_scorers_side.py FOLDER: reads FOLDER/answers.json, writes FOLDER/verl.json. verl's scorers import parts of
verl whose packages import torch, which scorers do not need; so those packages are entered without running them.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import io
import json
import os
import resource
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

CPU_S, LIMIT_S, MEMORY_BYTES = 15, 600.0, 4 << 30


def enter(package: str, folder: Path) -> None:
    """Register a package without running its `__init__.py`, so that its modules can be imported."""
    module = sys.modules.setdefault(package, ModuleType(package))
    module.__path__ = [str(folder)]


VERL = Path(importlib.util.find_spec("verl").submodule_search_locations[0])  # type: ignore[union-attr,index]
enter("verl", VERL)
enter("verl.utils", VERL / "utils")
enter("verl.utils.metric", VERL / "utils" / "metric")
sys.modules["verl.utils.metric"].Metric = object  # type: ignore[attr-defined]  # a type in a signature


def scorer(name: str) -> Callable[[str, str, Any], Any]:
    """Return verl's scorer of a grader: by a `data_source` as its trainer calls it, or a function by `module:name`."""
    if ":" not in name:
        score = importlib.import_module("verl.utils.reward_score").default_compute_score
        return lambda response, truth, _: score(name, response, truth)
    module, _, function = name.partition(":")
    scored = getattr(importlib.import_module(f"verl.utils.reward_score.{module}"), function)
    return lambda response, truth, settings: scored(response, truth, **settings)


def result_of(answer: dict[str, Any]) -> Any:
    """Return verl's result for an answer; what it raises as text."""
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            result = scorer(answer["theirs"])(answer["response"], answer["truth"], answer["settings"])
        except Exception as error:  # noqa: BLE001 - what it raises is a result
            return f"{type(error).__name__}: {error}"[:200]
    result = result[0] if isinstance(result, tuple) else result
    return dict(result) if isinstance(result, dict) else float(result)


def result_in_time(answer: dict[str, Any]) -> Any:
    """Return verl's result from a fork of this process, or a text if it takes over 15 CPU seconds or 4 GiB."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
        os.write(write, json.dumps(result_of(answer)).encode() + b"\n")
        os._exit(0)
    os.close(write)
    ready = select.select([read], [], [], LIMIT_S)[0]
    found = os.read(read, 65_536) if ready else b""
    os.close(read)
    for kill in (os.kill, os.killpg):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return json.loads(found) if found else "no result within 15 CPU seconds and 4 GiB"


def main(folder: Path) -> None:
    """Score every answer. Math-Verify has processes and limits of its own, and is slow to start."""
    jobs = json.loads((folder / "answers.json").read_text("utf-8"))
    if any(answer["theirs"].startswith("math_verify") for answer in jobs):
        warm = {"theirs": "math_verify:compute_score", "response": "\\boxed{1}", "truth": "1", "settings": {}}
        while result_of(warm) != 1.0:  # its processes take long to start, which must not count as a wrong answer
            continue
    found = [(result_of if answer["theirs"].startswith("math_verify") else result_in_time)(answer) for answer in jobs]
    about = {"verl": importlib.metadata.version("verl"), "found": found}
    (folder / "verl.json").write_text(json.dumps(about), "utf-8")


if __name__ == "__main__":
    for name in {"math_reward", "gsm8k", "geo3k", "prime_math", "search_r1_like_qa_em", "math_dapo", "prime_code"}:
        importlib.import_module(f"verl.utils.reward_score.{name}")  # now, so that no fork has to
    main(Path(sys.argv[1]))
