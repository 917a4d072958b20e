"""The package's answers: asked of it in an environment of its own, and kept in `opinions/aiconfigurator.json`.

Its words, milliseconds and GiB; `Answer` has seconds and bytes. Not here: which questions (`serving_opinion_grid`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.environment import STAMP
from benchmarks.serving_opinion_grid import Question

HERE = Path(__file__).resolve().parent
PINS = HERE / "requirements-aiconfigurator.txt"
SNAPSHOT = HERE / "opinions" / "aiconfigurator.json"
COMMAND = "python benchmarks/serving_opinion.py --ask"
NUMBERS = ("first_ms", "each_ms", "prefill_ms", "step_ms", "memory_gib")
DIGITS = 4
FITS_NOT, NO_TABLE, REFUSED = "does not fit", "no table", "refused"
GIB = 2**30


@dataclass(frozen=True)
class Answer:
    """An opinion of one case: a request's first token and each other, and what they consist of.

    prefill_s: all prompts of the batch read at once; step_s: a token for each request, nothing else under way.
    memory_bytes: of each device, with a cache for all tokens of the batch.
    """

    first_s: float
    each_s: float
    prefill_s: float
    step_s: float
    weights_bytes: float
    memory_bytes: float


@dataclass(frozen=True)
class Opinion:
    """What was kept of one case: an answer and the engine's release that it is of, or why there is none."""

    answer: Answer | None
    release: str = ""
    why: str = ""


class Snapshot:
    """The kept answers: for each setup its release and weights, and for each lengths and batch the numbers."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        self.told = told

    @classmethod
    def read(cls, path: Path = SNAPSHOT) -> Snapshot:
        """Read them from a file."""
        return cls(json.loads(path.read_text("utf-8")))

    def write(self, path: Path = SNAPSHOT) -> None:
        """Write them to a file, a line for each setup."""
        head = [f'"{name}":{_json(each)}' for name, each in self.told.items() if name != "answers"]
        lines = [f'"{key}":{_json(each)}' for key, each in self.told["answers"].items()]
        path.parent.mkdir(exist_ok=True)
        path.write_text("{" + ",\n".join([*head, '"answers":{\n' + ",\n".join(lines) + "}"]) + "}\n", "utf-8")

    def opinion(self, question: Question) -> Opinion:
        """Return what was said of a case; raises KeyError for one that was not asked."""
        of = self.told["answers"][question.setup.key]
        found = of["at"][f"{question.prompt_tokens}/{question.response_tokens}"][str(question.batch)]
        if isinstance(found, str):
            return Opinion(None, why=found)
        first, each, prefill, step, memory = found
        times = (first / 1e3, each / 1e3, prefill / 1e3, step / 1e3)
        return Opinion(Answer(*times, of["weights_gib"] * GIB, memory * GIB), of["release"])


def snapshot(package: str, questions: Sequence[Question], answers: Sequence[Mapping[str, Any]]) -> Snapshot:
    """Keep answers, rounded to four digits."""
    kept = dict[str, dict[str, Any]]()
    for question, told in zip(questions, answers, strict=True):
        of = kept.setdefault(question.setup.key, {"at": {}})
        at = of["at"].setdefault(f"{question.prompt_tokens}/{question.response_tokens}", {})
        if "why" in told:
            at[str(question.batch)] = reason(told["why"])
            continue
        of |= {"release": told["release"], "weights_gib": rounded(told["weights_gib"])}
        at[str(question.batch)] = [rounded(told[name]) for name in NUMBERS]
    return Snapshot({"package": package, "command": COMMAND, "numbers": NUMBERS, "answers": kept})


def _json(told: object) -> str:
    return json.dumps(told, separators=(",", ":"))


def rounded(value: float) -> float:
    """Round to four digits.

    >>> rounded(1234.56), rounded(0.00123456)
    (1235.0, 0.001235)
    """
    return float(f"{value:.{DIGITS}g}")


def reason(why: str) -> str:
    """Return in short why the package has no answer.

    >>> reason("RuntimeError: OOM: the model does not fit"), reason("ValueError: Invalid quantized MoE configuration")
    ('does not fit', 'refused')
    """
    if "OOM" in why:
        return FITS_NOT
    return NO_TABLE if why.startswith("PerfDataNotAvailableError") else REFUSED


def ask(folder: Path, questions: Sequence[Question], known: Path | None = None) -> Snapshot:
    """Let the package answer, in its environment in `folder`; what `known` has answers to is not asked again.

    Raises `subprocess.CalledProcessError` where it cannot be installed.
    """
    pins = PINS.read_text("utf-8")
    told: dict[str, Any] = json.loads(known.read_text("utf-8")) if known is not None and known.is_file() else {}
    if told.get("pins") != pins:
        told = {"pins": pins, "answers": {}}
    asked = {json.dumps(each.asked) for each in questions}
    missing = sorted(asked - set(told["answers"]))
    if missing:
        told["version"], answers = _answers(environment(folder), missing)
        told["answers"] |= dict(zip(missing, answers, strict=True))
    if known is not None:
        known.parent.mkdir(parents=True, exist_ok=True)
        known.write_text(json.dumps(told), "utf-8")
    answers = [told["answers"][json.dumps(each.asked)] for each in questions]
    return snapshot(f"aiconfigurator {told['version']}", questions, answers)


def _answers(python: Path, asked: Sequence[str]) -> tuple[str, list[Mapping[str, Any]]]:
    with tempfile.TemporaryDirectory() as scratch:
        questions, answers = Path(scratch, "questions.json"), Path(scratch, "answers.json")
        questions.write_text(f"[{','.join(asked)}]", "utf-8")
        run = [str(python), "-W", "ignore", str(HERE / "serving_opinion_side.py"), str(questions), str(answers)]
        subprocess.run(run, check=True, cwd=scratch, stdout=subprocess.DEVNULL)
        told = json.loads(answers.read_text("utf-8"))
    return told["version"], told["answers"]


def environment(folder: Path) -> Path:
    """Return the Python of the package's environment; made where it is not, or from other pins.

    As `benchmarks.environment.ensure`, which wants a torch among the pins. Raises as that does.
    """
    python, stamp, pins = folder / "bin" / "python", folder / STAMP, PINS.read_text("utf-8")
    if stamp.is_file() and stamp.read_text("utf-8") == pins:
        return python
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "pyvenv.cfg").is_file():
        sys.exit(f"{folder} holds something else than an environment; name another folder with --env")
    print(f"making an environment for aiconfigurator in {folder}, once: 80 MB and a minute", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], check=True)
    install = ["-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([sys.executable, *install, "-r", str(PINS)], check=True)
    stamp.write_text(pins, "utf-8")
    return python
