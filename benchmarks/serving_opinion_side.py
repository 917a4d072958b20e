"""What aiconfigurator says of the questions in a file; runs in its environment and imports nothing of ours.

python serving_opinion_side.py QUESTIONS.json ANSWERS.json
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from aiconfigurator.cli.api import cli_estimate
from aiconfigurator_core.sdk.perf_database import get_latest_database_version


@cache
def release(system: str, backend: str) -> str | None:
    """Return the newest release of an engine that the package has tables of; kept, since finding it takes seconds."""
    found = get_latest_database_version(system=system, backend=backend)
    return None if found is None else str(found)


def answer(question: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return milliseconds and GiB, or why there are none.

    Aggregated: `batch` requests always under way, one prompt read at a time. Static: all prompts read at once, then
    all responses drawn together.
    """
    asked = dict(question, backend_version=release(question["system_name"], question["backend_name"]))
    try:
        kept, fixed = cli_estimate(**asked, mode="agg"), cli_estimate(**asked, mode="static")
    except Exception as error:  # noqa: BLE001 - one question without an answer does not end the others
        return {"why": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    memory = kept.summary.get_memory()
    return {
        "release": kept.backend_version,
        "first_ms": kept.ttft,
        "each_ms": kept.tpot,
        "prefill_ms": fixed.ttft,
        "step_ms": fixed.tpot,
        "weights_gib": memory["weights"],
        "memory_gib": memory["total"],
    }


def main() -> None:
    """Answer all questions."""
    logging.disable(logging.WARNING)  # a line for each table that is read
    questions = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    told = {"version": version("aiconfigurator"), "answers": [answer(each) for each in questions]}
    Path(sys.argv[2]).write_text(json.dumps(told), "utf-8")


if __name__ == "__main__":
    main()
