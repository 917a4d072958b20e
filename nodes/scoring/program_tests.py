"""Grading of programs by their tests: what a program prints or returns against what was expected.

Running them is in `nodes.scoring.programs`, or remote in `nodes.scoring.sandbox_fusion`.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from nodes.scoring.programs import ProgramHost, ProgramLimits, Runner
from nodes.scoring.sandbox_fusion import SandboxFusion

FIRST_TESTS = 10
BUDGET_LIMITS = 11  # a response's seconds for all its tests, in limits of one test
MIN_OUTPUT_BYTES = 1 << 20
SHOWN_CHARACTERS = 60
RELATIVE, ABSOLUTE = 1e-5, 1e-8  # numpy's `allclose`

_CALL = """\
import json, sys, types

def _call():
    arguments, stdout = json.loads(sys.stdin.read()), sys.stdout
    if arguments and isinstance(arguments[0], dict):  # JSON has only texts as keys
        try:
            arguments[0] = {{int(key): value for key, value in arguments[0].items()}}
        except ValueError:
            pass
    module = sys.modules["solution"] = types.ModuleType("solution")
    vars(module).update({{name: value for name, value in globals().items() if not name.startswith("__")}})
    exec(compile({code!r}, "program.py", "exec"), vars(module))
    owner = module.Solution() if {in_class} else module
    value = json.dumps(getattr(owner, {name!r})(*arguments))
    print("\\n" + value, file=stdout)

_call()
"""


@dataclass(frozen=True)
class ProgramTest:
    """One test: the program's standard input, the expected output, and the function that judges its output."""

    stdin: str
    expected: str
    passes: Callable[[str], bool]


def prime_code(
    response: str, ground_truth: object, *, continuous: bool = True, limit_s: float = 10.0, sandbox: str = ""
) -> dict[str, object] | float:
    """Run the program in a response on its tests, and return a dict with its `score`.

    The score is 1 if the program passes all tests, else the share that it passes of the first ten, which is also 1 if
    only later tests fail. The dict also has `acc` (1 if all pass, else 0), `passed` and `tests` (how many tests passed,
    and how many there are) and `reason`, the first failure, or "". After a failure, only the first ten tests run.
    Without `continuous`, the first failure ends the tests, and the score is 0. The program is the last
    ```` ```python ```` block, or the text before any fence; a response without a program scores `NoProgram(0.0)`.
    `ground_truth` has `inputs` and `outputs`, one of each for a test, and for tests that call a function its name,
    `fn_name`; it may be JSON text. Each test has `limit_s` seconds, and all together 11 times that. `sandbox` is the
    URL of a SandboxFusion server, which then runs the programs. Raises ValueError if the ground truth cannot be read,
    and RuleError if this machine cannot confine programs or the server fails.

    Source: verl, `verl/utils/reward_score/prime_code`. Deviations: see `docs/graders.md`.
    """
    code = program_of(response)
    tests = list(tests_of(ground_truth))
    if not code.strip():
        return NoProgram(0.0)
    named = _truth(ground_truth).get("fn_name")
    program = as_call(code, str(named)) if named is not None else code
    if sandbox not in _RUNNERS:
        _RUNNERS[sandbox] = SandboxFusion(sandbox) if sandbox else ProgramHost()
    results = _results(program, tests, _RUNNERS[sandbox], limit_s)
    why = ""
    passed: list[bool] = []
    for at, failure in enumerate(results):
        passed.append(not failure)
        if failure and not why:
            why = f"test {at + 1} of {len(tests)}: {failure}"
        if why and (not continuous or len(passed) >= FIRST_TESTS):
            break
    first = passed[:FIRST_TESTS]
    score = 1.0 if not why else sum(first) / len(first) if continuous else 0.0
    return {"score": score, "acc": float(not why), "passed": sum(passed), "tests": len(tests), "reason": why}


def prime_code_all(
    response: str, ground_truth: object, *, limit_s: float = 10.0, sandbox: str = ""
) -> dict[str, object] | float:
    """Run the program in a response on its tests until one fails; return a dict whose `score` is 1 if all pass, else 0.

    This is `prime_code` without `continuous`; its other arguments, results and errors are the same.
    """
    return prime_code(response, ground_truth, continuous=False, limit_s=limit_s, sandbox=sandbox)


class NoProgram(float):
    """The score of a response without a program."""

    unreadable = True


def _results(program: str, tests: Sequence[ProgramTest], runner: Runner, limit_s: float) -> Iterator[str]:
    end_s = time.monotonic() + BUDGET_LIMITS * limit_s
    for test in tests:
        wall_s = min(limit_s, end_s - time.monotonic())
        if wall_s <= 0:
            yield f"not run: over {BUDGET_LIMITS * limit_s:g} s for all tests"
            continue
        output_bytes = max(MIN_OUTPUT_BYTES, 2 * len(test.expected.encode(errors="replace")))
        limits = ProgramLimits(wall_s=wall_s, cpu_s=math.ceil(wall_s), output_bytes=output_bytes)
        outcome = runner.run(program, test.stdin, limits)
        passes = not outcome.failure and test.passes(outcome.stdout)
        yield "" if passes else outcome.failure or f"printed {_shown(outcome.stdout)}, not {_shown(test.expected)}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…")


_RUNNERS: dict[str, Runner] = {}  # of each sandbox's URL, and of "" for this machine


def program_of(response: str) -> str:
    r"""Return the program in a response: its last ```` ```python ```` block, or else the text before any fence.

    >>> program_of("So:\n```python\nprint(1)\n```\nDone."), program_of("print(2)")
    ('\nprint(1)\n', 'print(2)')
    """
    return response.rpartition("```python")[2].partition("```")[0]


def as_call(code: str, name: str) -> str:
    """Return a program that calls the function `name` of `code` and prints its result as JSON on the last line.

    The arguments are a JSON list on standard input. The function is a method of `Solution` if the code has such a
    class. If the first argument is an object whose keys are all integers as text, they become integers, as in verl.
    """
    return _CALL.format(code=code, name=name, in_class="class Solution" in code)


def tests_of(ground_truth: object) -> Iterator[ProgramTest]:
    """Yield the tests of a ground truth, a dict or JSON text with `inputs` and `outputs`, and perhaps `fn_name`.

    Raises ValueError if the ground truth is not of this form, has no tests or not as many inputs as outputs, if
    `fn_name` cannot name a function, or if a test cannot be read.
    """
    truth = _truth(ground_truth)
    inputs, outputs = truth.get("inputs"), truth.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise ValueError("the ground truth needs the lists `inputs` and `outputs`")
    if len(inputs) != len(outputs) or not inputs:
        raise ValueError(f"the ground truth has {len(inputs)} inputs and {len(outputs)} outputs")
    if (name := truth.get("fn_name")) is not None and not (isinstance(name, str) and name.isidentifier()):
        raise ValueError(f"the ground truth has `fn_name`, which cannot name a function: {_shown(str(name))}")
    for at, (stdin, expected) in enumerate(zip(inputs, outputs, strict=True)):
        try:
            if truth.get("fn_name") is not None:
                yield _call_test(stdin, expected)
            else:
                yield ProgramTest(
                    stdin=_text(stdin), expected=_text(expected), passes=partial(same_print, expected=_text(expected))
                )
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"test {at + 1} of the ground truth cannot be read: {error}") from error


def _truth(ground_truth: object) -> Mapping[str, object]:
    try:
        truth: object = json.loads(ground_truth) if isinstance(ground_truth, str) else ground_truth
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the ground truth is not JSON: {error}") from error
    if not isinstance(truth, dict):
        raise ValueError(f"the ground truth is {type(truth).__name__}, not an object with `inputs` and `outputs`")
    return cast("dict[str, object]", truth)


def _text(value: object) -> str:
    lines = cast("list[object]", value if isinstance(value, list) else [value])
    texts = [line for line in lines if isinstance(line, str)]
    if len(texts) < len(lines):
        raise ValueError("standard input and output are texts, or lists of lines")
    return "\n".join(texts)


def _call_test(lines: object, expected: object) -> ProgramTest:
    arguments = [json.loads(line) for line in lines.split("\n")] if isinstance(lines, str) else lines
    if not isinstance(arguments, list):
        raise ValueError("the arguments of a call are a list, or JSON lines")
    truth: object = json.loads(expected) if isinstance(expected, str) else expected
    text = expected if isinstance(expected, str) else json.dumps(expected)
    return ProgramTest(stdin=json.dumps(arguments), expected=text, passes=lambda printed: same_value(printed, truth))


def same_print(printed: str, expected: str) -> bool:
    r"""Return whether a program printed the expected text, with a tolerance for spaces, empty lines and decimals.

    Either spaces around the printed lines are ignored, and spaces and empty lines at both ends of both texts; or spaces
    around the expected lines are, and all empty lines. Lines that are all numbers, at least one of them not a natural
    number, may differ by 1e-8 plus 1e-5 of the number.
    Source: verl, `run_test` of `prime_code/testing_util.py`.

    >>> same_print("1 2 \n3\n", "1 2\n3"), same_print("0.3333333", "0.33333333"), same_print("2 1", "1 2")
    (True, True, False)
    """
    lines = printed.splitlines()
    if printed.strip() == expected.strip() or "\n".join(lines).strip() == expected.strip():
        return True
    if "\n".join(line.strip() for line in lines).strip() == expected.strip():
        return True
    truth = [line.strip() for line in expected.split("\n") if line]
    filled = [line for line in lines if line]
    if truth in (lines, filled):
        return True
    if len(filled) != len(truth) or all(line.isdigit() for line in (*filled, *truth)):
        return False
    try:
        pairs = [(float(line), float(right)) for line, right in zip(filled, truth, strict=True)]
    except ValueError:
        return False
    return all(a == b or (math.isfinite(b) and abs(a - b) <= ABSOLUTE + RELATIVE * abs(b)) for a, b in pairs)


def same_value(printed: str, expected: object) -> bool:
    r"""Return whether the last printed line is, as JSON, the expected value, or the only item of an expected list.

    Text that is not JSON is not equal. Deviation: verl also accepts the first item of a longer list.

    >>> same_value("debug\n[1, 2]\n", [1, 2]), same_value("3\n", [3]), same_value("3\n", 4)
    (True, True, False)
    """
    lines = printed.strip().rsplit("\n", 1)
    try:
        value: object = json.loads(lines[-1])
        return value == expected or (isinstance(expected, list) and len(expected) == 1 and value == expected[0])
    except (ValueError, RecursionError):
        return False
