"""Odd and hostile answers to every reasoning-gym task: none raises, none runs, and what cannot be read is counted."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from nodes.scoring.confinement import lacks
from nodes.scoring.graders import Graders
from nodes.scoring.gym import extract_answer, read_expression, read_integers, read_literal, score_answer
from nodes.scoring.rules import RULES, Unreadable, reasoning_gym, resolve

gym = pytest.importorskip("reasoning_gym")

RUNNING = (
    *("n_queens", "spiral_matrix", "binary_matrix", "string_insertion", "countdown", "puzzle24"),
    *("polynomial_multiplication", "simple_integration", "intermediate_integration"),
)
"""The tasks whose scorers, as they come, run an answer as Python."""

SAMPLED = (
    *RUNNING,
    "prime_factorization",
    "boxnet",
    "coin_flip",
    "game_of_life",
    "calendar_arithmetic",
    "time_intervals",
)

TOUCH = "__import__('pathlib').Path({canary!r}).touch()"
HOSTILE = (  # each runs code, ends or stalls the process where an answer is evaluated as it comes
    TOUCH,
    "[" + TOUCH + "]",
    "[[" + TOUCH + "]]",
    "(lambda: " + TOUCH + ")()",
    "[x for x in [" + TOUCH + "]]",
    "[*map(lambda p: p, [" + TOUCH + "])]",
    "(x := " + TOUCH + ")",
    'f"{' + TOUCH.replace("'", "\\x27") + '}"' if sys.version_info >= (3, 12) else "[" + TOUCH + "][0]",
    "{1: " + TOUCH + "}",
    "1 if " + TOUCH + " else 2",
    "not " + TOUCH,
    "(" + TOUCH + ", 1)[1]",
    "[1, 2][" + TOUCH + " or 0]",
    "print(" + TOUCH + ")",
    "open({canary!r}, 'w').close()",
    "[open({canary!r}, 'w')]",
    "exec(\"open({canary}, 'w')\".replace('{canary}', repr({canary!r})))",
    'eval(compile("' + TOUCH.replace('"', '\\"').replace("'", "\\'") + "\", 'x', 'eval'))",
    "getattr(__import__('os'), 'system')('touch {canary}')",
    "__import__('subprocess').run(['touch', {canary!r}])",
    "[c(['touch', {canary!r}]).wait() for c in ().__class__.__base__.__subclasses__() if c.__name__ == 'Popen']",
    "globals()['__builtins__']['open']({canary!r}, 'w')",
    "vars(__import__('builtins'))['open']({canary!r}, 'w')",
    "(lambda f: f({canary!r}, 'w'))(open)",
    "sorted([1], key=lambda _: " + TOUCH + " or 0)",
    "max([1], key=lambda _: " + TOUCH + " or 0)",
    "[" + TOUCH + " for _ in range(1)]",
    "{{" + TOUCH + "}}",
    "b''.join([" + TOUCH + " or b''])",
    "dict(a=" + TOUCH + ")",
    "''.join([str(" + TOUCH + ")])",
    "24 + 0*len(str(" + TOUCH + "))",
    "x**2 + 0*len(str(" + TOUCH + "))",
    "[i for i in (" + TOUCH + ",)]",
    "__import__('os').environ.setdefault('A', 'B') and " + TOUCH,
    "__import__('sys').exit(" + TOUCH + ")",
    "__import__('os')._exit(open({canary!r}, 'w').fileno() and 3)",
    "type('X', (), {{'__init__': lambda s: " + TOUCH + "}})()",
    "(yield_ := [" + TOUCH + "]) and yield_",
    "any([" + TOUCH + " for _ in '1'])",
)

ODD = (
    *("", " ", "\n", "\t\n", "x", "X", "abc", "hello world", "I do not know", "None", "null", "true", "False", "yes"),
    *("0", "-0", "00", "1", "-1", "+1", "1.", ".5", "1e5", "1e999", "-1e999", "nan", "inf", "-inf", "NaN", "Infinity"),
    *("1/0", "1/2", "0/0", "1//0", "2**9", "9**9**9", "1,000", "1 000", "1_000", "0x10", "0b11", "½", "²", "١٢٣"),
    *("[]", "[[]]", "{}", "()", "[1]", "[1, 2", "[1, 2]]", "[[1, 2], [3]]", "[[[[]]]]", '{"a": 1}', '{"a":', "(1,"),
    *("a,b", "a, b, c", ",", ",,,", "a=1", "x = 1", "1 2 3", "1\n2\n3", "2 × 3", "2 × x", "2x3", "×", "->", "A -> "),
    *("\x00", "a\x00b", "\u202e", "\ufeff1", "é", "👍", "\ud800", "<answer>", "</answer>", "%s%n", "{0}", "$(x)"),
    *("9" * 400, "9" * 5_000, "-" * 5_000, "(" * 500, "[" * 5_000, "[" * 500 + "]" * 500, "a" * 5_000, "1 " * 2_000),
    *("01/01/2020", "2020-13-45", "25:61", "Monday", "{}{}", "12 days", "days", "-5 days", "#### 5", "\\boxed{5}"),
)  # fmt: skip


def entries(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Make one entry of each task, as it comes back from a file."""
    found = {name: json.dumps(gym.create_dataset(name, size=1, seed=11)[0], default=str) for name in names}
    return {name: json.loads(entry) for name, entry in found.items()}


def wrong(names: Iterable[str], answers: Iterable[str]) -> dict[str, object]:
    """Score answers to tasks, and return those that raise or give what is no score."""
    found: dict[str, object] = {}
    for task, entry in entries(names).items():
        for answer in answers:
            try:
                score = score_answer(task, answer, entry)
            except Exception as error:  # noqa: BLE001 - it is what is looked for
                found[f"{task} {answer[:30]!r}"] = error
                continue
            if score is not None and not (math.isfinite(score) and 0 <= score <= 1):
                found[f"{task} {answer[:30]!r}"] = score
    return found


def hostile(canary: Path) -> list[str]:
    return [
        answer.replace("{canary!r}", repr(str(canary)))
        .replace("{canary}", str(canary))
        .replace("{{", "{")
        .replace("}}", "}")
        for answer in HOSTILE
    ]


@pytest.mark.slow(group="graders")
def test_no_answer_raises_or_runs_in_the_tasks_where_some_did(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    assert wrong(SAMPLED, (*ODD[::3], *hostile(canary))) == {}
    assert not canary.exists()
    assert len(ODD) >= 100 and len(HOSTILE) >= 40


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the tasks' own: they leave files open
def test_no_answer_raises_or_runs_in_any_task(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    tasks = [name for name in sorted(gym.factory.DATASETS) if name != "composite"]  # which is made of others
    assert len(tasks) == 105
    assert wrong(tasks, (*ODD, *hostile(canary))) == {}
    assert not canary.exists()


def test_right_answers_of_these_tasks_still_score_full_marks() -> None:
    made = entries((*SAMPLED, "bitwise_arithmetic", "number_sorting"))
    scores = {task: score_answer(task, str(entry["answer"]), entry) for task, entry in made.items() if entry["answer"]}
    assert scores == dict.fromkeys(scores, 1.0) and len(scores) > 12


@pytest.mark.slow(group="graders")
def test_every_hostile_answer_runs_where_it_is_scored_as_it_comes(tmp_path: Path) -> None:
    program = (
        "import json, os, pathlib, sys\nimport reasoning_gym\n"
        "answers, tasks, canary = json.loads(sys.stdin.read())\nblunt = []\n"
        "for answer in answers:\n"
        "    for task, entry in tasks.items():\n"
        "        if os.fork() == 0:\n"
        "            sys.stdout = sys.stderr = open(os.devnull, 'w')\n"
        "            try: reasoning_gym.get_score_answer_fn(task)(answer, entry)\n"
        "            finally: os._exit(0)\n"
        "        os.wait()\n"
        "        if os.path.exists(canary): break\n"
        "    else: blunt.append(answer)\n"
        "    pathlib.Path(canary).unlink(missing_ok=True)\n"
        "print(json.dumps(blunt))\n"
    )
    canary = tmp_path / "canary"
    told = json.dumps([hostile(canary), entries(("n_queens", "puzzle24", "simple_integration")), str(canary)])
    ran = subprocess.run(
        [sys.executable, "-c", program], input=told, capture_output=True, text=True, timeout=120, check=True
    )
    assert json.loads(ran.stdout.splitlines()[-1]) == []


@pytest.mark.slow(group="graders")
@pytest.mark.skipif(bool(lacks()), reason="this machine cannot confine a process")
def test_what_a_shipped_rule_cannot_read_scores_0_and_is_counted_and_the_run_goes_on(tmp_path: Path) -> None:
    task = entries(["prime_factorization"])["prime_factorization"]
    told = {"dataset": "prime_factorization", "entry": json.dumps(task)}
    slow = {
        "dataset": "polynomial_multiplication",
        "entry": json.dumps(entries(["polynomial_multiplication"])["polynomial_multiplication"]),
    }
    rows = [
        {"response": f"<answer>{task['answer']}</answer>", "extra_info": told},
        {"response": "no idea", "extra_info": told},
        {"response": "(x+y+z+1)**99", "extra_info": slow},
        {"response": str(task["answer"]), "extra_info": told},
    ]
    with Graders() as pool:
        graded = pool.grade(resolve("reasoning_gym"), rows)
    assert graded.scores == (1.0, 0.0, 0.0, 1.0)
    assert (graded.unreadable, graded.failures) == (1, 0)


def test_a_broken_entry_is_not_blamed_on_the_response() -> None:
    with pytest.raises(KeyError):
        reasoning_gym("no idea", {"dataset": "prime_factorization", "entry": '{"metadata": {}}'})


def test_rules_that_read_say_what_they_cannot() -> None:
    assert isinstance(RULES["gsm8k"]("72", "72"), Unreadable)
    assert not isinstance(RULES["gsm8k"]("#### 71", "72"), Unreadable)


def test_an_answer_is_taken_out_in_time_in_proportion_to_the_text() -> None:
    assert extract_answer("<answer>" * 200_000) == "<answer>" * 200_000


@pytest.mark.parametrize("read", [read_literal, read_integers, read_expression])
def test_a_reader_refuses_what_is_large_or_no_value(read: Any) -> None:
    for text in (
        "9**9**9",
        "f(x)",
        "x.y",
        "x[0]",
        "lambda: 1",
        "'a' * 9",
        "x" * 30_000,
        "(" * 900,
        "__import__('os')",
        "",
        "\x00",
        "1 if 1 else 2",
    ):
        with pytest.raises((ValueError, SyntaxError, MemoryError, RecursionError)):
            read(text)
