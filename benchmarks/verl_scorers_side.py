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
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any


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


def main(folder: Path) -> None:
    """Score every answer; an exception is recorded as its text."""
    found = list[Any]()
    for answer in json.loads((folder / "answers.json").read_text("utf-8")):
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                result = scorer(answer["theirs"])(answer["response"], answer["truth"], answer["settings"])
            except Exception as error:  # noqa: BLE001 - what it raises is a result
                result = f"{type(error).__name__}: {error}"[:200]
        found.append(dict(result) if isinstance(result, dict) else result)
    about = {"verl": importlib.metadata.version("verl"), "found": found}
    (folder / "verl.json").write_text(json.dumps(about), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
