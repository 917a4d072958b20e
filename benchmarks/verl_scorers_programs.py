"""The programs on which `prime_code` is compared with verl's: right, partly right, wrong, slow and crashing ones.

The programs are in `verl_scorers_programs.txt`, each after a line with its problem and what is special about it. verl
runs them without confinement, so none of them does any harm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

PROBLEMS: Mapping[str, Mapping[str, object]] = {
    "double": {"inputs": ["1\n", "20\n", "-3\n"], "outputs": ["2\n", "40\n", "-6\n"]},
    "twelve": {"inputs": [f"{n}\n" for n in range(12)], "outputs": [f"{2 * n}\n" for n in range(12)]},
    "sum": {"inputs": ["3\n1 2 3\n", "1\n7\n", "2\n-1 1"], "outputs": ["6\n", "7", "0\n"]},
    "squares": {"inputs": ["3\n", "1\n"], "outputs": ["1\n4\n9\n", "1\n"]},
    "third": {"inputs": ["1\n", "2\n", "300000\n"], "outputs": ["0.33333333", "0.66666667", "100000.0"]},
    "blank": {"inputs": ["ab\n\ncd\n", "x\n\ny\n"], "outputs": ["abcd", "xy"]},
    "echo": {"inputs": ["a b\n", "Zoë 𝔸\n"], "outputs": ["a b\n", "Zoë 𝔸\n"]},
    "pair": {"inputs": ["3 4\n", "10 -2\n"], "outputs": ["7 12\n", "8 -20\n"]},
    "nothing": {"inputs": ["1\n"], "outputs": [""]},
    "lists": {"inputs": [["1", "2"], ["5", "6"]], "outputs": [["1", "2"], ["5", "6"]]},
    "add": {"inputs": ["1\n2", "[3]\n[4]"], "outputs": ["3", "[3, 4]"], "fn_name": "add"},
    "half": {"inputs": ["1", "3"], "outputs": ["0.5", "1.5"], "fn_name": "half"},
    "pairs": {"inputs": ["[1, 2]", "[]"], "outputs": ["[[[1, 1], [2, 4]]]", "[[]]"], "fn_name": "pairs"},
    "tally": {"inputs": ['"abca"', '""'], "outputs": ['{"a": 2, "b": 1, "c": 1}', "{}"], "fn_name": "tally"},
    "total": {"inputs": ['{"1": 10, "2": 20}', '{"5": 1}'], "outputs": ["50", "5"], "fn_name": "total"},
    "invert": {"inputs": ["[5, 7]"], "outputs": ['{"5": 0, "7": 1}'], "fn_name": "invert"},
    "name": {"inputs": ['"ada"', '"bob"'], "outputs": ['"Ada"', '"Bob"'], "fn_name": "name"},
    "even": {"inputs": ["2", "3"], "outputs": ["true", "false"], "fn_name": "even"},
}

_AROUND: Mapping[str, str] = {
    "no block": "{code}",
    "block not closed": "So:\n```python\n{code}",
    "two blocks": "```python\nprint('no')\n```\nNo, wait:\n```python\n{code}\n```",
    "two blocks, last wrong": "```python\n{code}\n```\nor\n```python\nprint('no')\n```",
    "block without a language": "So:\n```\n{code}\n```",
    "block of Python 3": "So:\n```python3\n{code}\n```",
    "block of py": "So:\n```py\n{code}\n```",
    "block in capitals": "So:\n```Python\n{code}\n```",
    "block with spaces": "So:\n``` python\n{code}\n```",
    "block of another language": "```python\n{code}\n```\nIn C:\n```c\nint main() {{}}\n```",
    "thinking": "<think>\n```python\nprint(0)\n```\n</think>\n```python\n{code}\n```",
    "text only": "I would double the number.",
    "empty block": "```python\n```",
    "empty": "",
}


def program_responses() -> Iterator[tuple[str, str, str]]:
    """Yield what is special about a response, the response, and the problem whose tests judge it."""
    for shape, text in _AROUND.items():
        yield shape, text.format(code="print(int(input()) * 2)"), "double"
    for section in Path(__file__).with_suffix(".txt").read_text("utf-8").split("=== ")[1:]:
        title, _, code = section.partition("\n")
        problem, _, shape = title.partition(": ")
        yield shape, f"Here it is:\n```python\n{code.rstrip()}\n```", problem
