"""Programs are graded by their tests: all pass is 1, else the share of the first ten, as verl's prime_code does."""

from __future__ import annotations

import json

import pytest

from flowgraph.errors import RuleError
from nodes.scoring import program_tests
from nodes.scoring.confinement import lacks
from nodes.scoring.graders import Graders
from nodes.scoring.program_tests import as_call, prime_code, prime_code_all, program_of, same_print, same_value
from nodes.scoring.programs import Outcome, ProgramLimits
from nodes.scoring.rules import resolve, rule_for

confines = pytest.mark.skipif(bool(lacks()), reason="this machine cannot confine a process")

DOUBLES = {"inputs": [f"{n}\n" for n in range(12)], "outputs": [f"{2 * n}\n" for n in range(12)]}
ADDS = {"inputs": ["1\n2", "[3]\n[4]"], "outputs": ["3", "[3, 4]"], "fn_name": "add"}


class Table:
    """Runs no program: prints what the table has for its input."""

    def __init__(self, printed: dict[str, str]) -> None:
        self.printed, self.ran = printed, list[str]()

    def run(self, code: str, stdin: str = "", limits: ProgramLimits = ProgramLimits()) -> Outcome:  # noqa: B008
        self.ran.append(stdin)
        text = self.printed.get(stdin)
        return Outcome("", 1, "", "E: no") if text is None else Outcome(text, 0)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    made = Table({f"{n}\n": f"{2 * n}" for n in range(12)})
    monkeypatch.setitem(program_tests._RUNNERS, "", made)
    return made


def scored(truth: object, **settings: bool) -> dict[str, object]:
    graded = prime_code("pass", truth, **settings)
    assert isinstance(graded, dict)
    return graded


def test_all_tests_must_pass_for_full_marks_and_each_runs_once(table: Table) -> None:
    assert scored(DOUBLES) == {"score": 1.0, "acc": 1.0, "passed": 12, "tests": 12, "reason": ""}
    assert table.ran == DOUBLES["inputs"]


def test_the_share_of_the_first_ten_counts_once_a_test_fails(table: Table) -> None:
    table.printed |= {"3\n": "7", "5\n": "9"}
    why = "test 4 of 12: printed '7', not '6\\n'"
    assert scored(DOUBLES) == {"score": 0.8, "acc": 0.0, "passed": 8, "tests": 12, "reason": why}
    assert len(table.ran) == 10
    table.ran.clear()
    assert scored(DOUBLES, continuous=False)["score"] == 0.0
    assert len(table.ran) == 4
    graded = prime_code_all("pass", DOUBLES)
    assert isinstance(graded, dict) and graded["score"] == 0.0


def test_a_failure_beyond_the_first_ten_keeps_their_share_as_verl_does(table: Table) -> None:
    table.printed["11\n"] = "0"
    assert scored(DOUBLES)["score"] == 1.0 and scored(DOUBLES)["acc"] == 0.0
    assert scored(DOUBLES, continuous=False)["score"] == 0.0


def test_fewer_than_ten_tests_count_as_many_as_there_are(table: Table) -> None:
    truth = json.dumps({"inputs": ["1\n", "x", "2\n"], "outputs": ["2", "1", "4"], "fn_name": None})
    graded = scored(truth)
    assert graded["score"] == pytest.approx(2 / 3) and graded["reason"] == "test 2 of 3: E: no"


def test_tests_beyond_the_time_of_a_response_are_not_run(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, *(60.0 * n for n in range(20))])
    monkeypatch.setattr("nodes.scoring.program_tests.time.monotonic", lambda: next(now))
    assert scored(DOUBLES)["reason"] == "test 3 of 12: not run: over 110 s for all tests"
    assert table.ran == ["0\n", "1\n"]


def test_inputs_and_outputs_may_be_lists_of_lines(table: Table) -> None:
    table.printed["1\n2"] = "3\n4\n"
    assert scored({"inputs": [["1", "2"]], "outputs": [["3", "4"]]})["score"] == 1.0


def test_a_response_without_a_program_is_unreadable() -> None:
    for response in ("", "```python\n```", "text ```python\n  \n``` more"):
        graded = prime_code(response, DOUBLES)
        assert graded == 0.0 and getattr(graded, "unreadable", False)


@pytest.mark.parametrize(
    ("truth", "why"),
    [
        ("{", "not JSON"),
        ("[1]", "is list, not an object"),
        (7, "is int, not an object"),
        ({}, "needs the lists `inputs` and `outputs`"),
        ({"inputs": [], "outputs": []}, "0 inputs and 0 outputs"),
        ({"inputs": ["1"], "outputs": []}, "1 inputs and 0 outputs"),
        ({"inputs": [1], "outputs": ["1"]}, "test 1 of the ground truth cannot be read: standard input"),
        ({"inputs": ["1", "("], "outputs": ["1", "2"], "fn_name": "f"}, "test 2 of the ground truth cannot be read"),
        ({"inputs": [7], "outputs": ["1"], "fn_name": "f"}, "the arguments of a call are a list"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_ground_truth_without_tests_is_an_error_not_a_score(truth: object, why: str) -> None:
    with pytest.raises(ValueError, match=why.replace("(", r"\(")):
        prime_code("pass", truth)


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("print(1)", "print(1)"),
        ("a\n```python\nx\n```\nb\n```python\ny\n```", "\ny\n"),
        ("```python\nx", "\nx"),
        ("text\n```\nx\n```", "text\n"),
        ("```python3\nx\n```", "3\nx\n"),
    ],
)
def test_the_last_python_block_is_the_program(response: str, program: str) -> None:
    assert program_of(response) == program


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("1\n", "1", True),
        ("1 \n2 \n", "1\n2", True),
        ("  1", "1\n\n", True),
        ("1\n\n2", "1\n2", True),
        ("1\n2", "1\n\n2\n", True),
        ("1 2", "1  2", False),
        ("2 1", "1 2", False),
        ("1.0000001", "1.0", True),
        ("1.0", "1", True),
        ("1.001", "1.0", False),
        ("0.5 0.5000001", "0.5 0.5", False),
        ("3", "3.0", True),
        ("10", "11", False),
        ("100000000", "100000001", False),
        ("-5", "-5.0", True),
        ("inf", "inf", True),
        ("1e400", "1", False),
        ("nan", "nan ", True),
        ("nan", "NaN", False),
        ("YES", "yes", False),
        ("", "", True),
        ("", "0", False),
        ("1\r\n2", "1\n2", True),
    ],
)
def test_printed_lines_are_compared_as_verl_does(printed: str, expected: str, same: bool) -> None:
    assert same_print(printed, expected) is same


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("3\n", 3, True),
        ("3\n", [3], True),
        ("[3]\n", [3], True),
        ("3\n", [3, 4], False),
        ("[[1, 2]]", [[[1, 2]]], True),
        ("true", 1, True),
        ("1.0", 1, True),
        ("null", None, True),
        ('"a"', "a", True),
        ("NaN", float("nan"), False),
        ("noise\n3", 3, True),
        ("3\nnoise", 3, False),
        ("", None, False),
        ("[" * 100_000, [], False),
        ("1" * 5_000, 1, False),
    ],
)
def test_returned_values_are_compared_as_json(printed: str, expected: object, same: bool) -> None:
    assert same_value(printed, expected) is same


CALLS = {
    "def add(a, b): return a + b": 1.0,
    "class Solution:\n    def add(self, a, b): print('noise'); return a + b": 1.0,
    "def add(a, b): return tuple(a + b) if isinstance(a, list) else a + b": 1.0,
    "def add(a, b): return a + b\nif __name__ == '__main__': print(input() + 1)": 1.0,
    "def add(a: List[int], b): return reduce(lambda x, y: x + y, [a, b])": 1.0,
    "def add(a, b): return 3": 0.5,
    "def add(a, b): return {a}": 0.0,
    "def plus(a, b): return a + b": 1.0,  # the names of the prelude include `operator.add`, as in verl
    "def add(a): return a": 0.0,
    # An object that equals anything passes verl's comparison; as JSON it is what it holds.
    "class All(list):\n    def __eq__(self, other): return True\ndef add(a, b): return All()": 0.0,
    "print(3)\nimport os\nos._exit(0)": 0.0,
    "def add(a, b):\n    import sys\n    sys.stdout = None\n    return a + b": 1.0,
}


@confines
def test_functions_are_called_with_the_arguments_of_each_test() -> None:
    for code, score in CALLS.items():
        graded = prime_code(f"Here:\n```python\n{code}\n```", json.dumps(ADDS))
        assert isinstance(graded, dict) and graded["score"] == score, (code, graded)


@confines
def test_integer_keys_of_a_first_argument_are_integers_to_the_function() -> None:
    truth = {"inputs": ['{"1": 10, "2": 20}', '{"a": 7}'], "outputs": ["[1, 2]", '["a"]'], "fn_name": "keys"}
    assert prime_code("def keys(table): return list(table)", truth)["score"] == 1.0  # type: ignore[index]


@pytest.mark.slow(group="graders")
@confines
def test_rows_of_the_four_sources_are_graded_by_the_rule() -> None:
    rule = {rule_for(source) for source in ("codecontests", "apps", "codeforces", "taco")}
    assert rule == {"prime_code"}
    rows = [
        {"response": "print(int(input()) * 2)", "ground_truth": json.dumps(DOUBLES)},
        {"response": "print(2)", "reward_model": {"ground_truth": DOUBLES}},
        {"response": "", "ground_truth": DOUBLES},
    ]
    with Graders() as pool:
        graded = pool.grade(resolve("prime_code"), rows)
        assert graded.scores == pytest.approx((1.0, 0.1, 0.0)) and graded.unreadable == 1
        assert pool.grade(resolve("prime_code_all"), rows[:2]).scores == (1.0, 0.0)
        with pytest.raises(RuleError, match="the ground truth needs the lists"):
            pool.grade(resolve("prime_code"), [{"response": "1", "ground_truth": "{}"}])


def test_a_call_is_a_program_of_its_own() -> None:
    compile(as_call("def f(x):\n    '''{braces}'''\n    return '\\n\"'", "f"), "program.py", "exec")
