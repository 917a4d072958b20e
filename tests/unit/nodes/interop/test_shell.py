"""Launch scripts as words: what bash would hand to a program, without running anything."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowgraph.errors import UsageError
from nodes.interop.shell import Word, commands
from nodes.interop.shell_arithmetic import Unknown, evaluate
from tests.looped import looped


def words(text: str) -> list[str]:
    """Return the words of a text's last command."""
    return [word.text for word in commands(text)[-1]]


@looped(
    "text, wanted",
    [
        ("run a\\\n  b", ["run", "a", "b"]),
        ("run 'a b' \"c d\" e\\ f", ["run", "a b", "c d", "e f"]),
        ("A=1\nrun $A ${A} \"$A\" '$A' x${A}y", ["run", "1", "1", "1", "$A", "x1y"]),
        ("run ${A:-1} ${A:-${B:-2}} ${A:-}", ["run", "1", "2"]),
        ("A=\nrun ${A:-1} ${A-2}", ["run", "1"]),
        ("A='x y'\nrun $A \"$A\"", ["run", "x", "y", "x y"]),
        ("A=(a 'b c'  # why\n  d\n)\nrun \"${A[@]}\" ${A[@]}", ["run", "a", "b c", "d", "a", "b", "c", "d"]),
        ("A=(a)\nA+=(b)\nrun ${A[@]}", ["run", "a", "b"]),
        ("A=1; export B=$A\nrun $B", ["run", "1"]),
        ("N=2\nrun $((1024 * N)) $(((N + 3) / 2)) $(( -7 / 2 )) $((7 % 3))", ["run", "2048", "2", "-3", "1"]),
        ("run a # b\n", ["run", "a"]),
        ("run a#b", ["run", "a#b"]),
        ("run x=['a','b'] y=[1,2]", ["run", "x=[a,b]", "y=[1,2]"]),
        ("run ~/x $HOME/y ${HOME}/z", ["run", "~/x", "~/y", "~/z"]),
        ('run a "$@" $@ $1 2>&1', ["run", "a"]),
        ('A=()\nrun a "${A[@]}" "${@:2}" \'\' "$*" b', ["run", "a", "", "", "b"]),
        ('run "a\\"b\\$c"', ["run", 'a"b$c']),
        ("run a \\\n  # not in the command\n", ["run", "a"]),
        ("run a\\\r\n b", ["run", "a", "b"]),
        ("A=x\nA+=y\nrun $A", ["run", "xy"]),
        ("A='a=1'\nA+=' b=2'\nrun $A", ["run", "a=1", "b=2"]),
        ("A=(a b)\nA+=c\nrun ${A[@]}", ["run", "ac", "b"]),
        ("cat > /dev/null <<EOF\nit's \"one\nEOF\nrun a", ["run", "a"]),
        ("cat > /dev/null <<-'EOF'\n\tit's\n\tEOF\nrun a", ["run", "a"]),
        ("cat > /dev/null << A; cat > /dev/null << B\nit's\nA\n\"\nB\nrun a", ["run", "a"]),
        ("eval \"run a 'b c'\"", ["run", "a", "b c"]),
        ("A='run a'\neval $A b", ["run", "a", "b"]),
    ],
)
def test_a_text_is_read_as_bash_reads_it(text: str, wanted: list[str], tmp_path: Path) -> None:
    assert words(text) == wanted
    script = tmp_path / "x.sh"
    shown = 'run() { for each in run "$@"; do printf "%s\\0" "$each"; done; }\nHOME="~"\n'
    script.write_text(shown + text.replace("\r", ""), encoding="utf-8")
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, check=False)
    assert done.stdout.split("\0")[:-1] == wanted, done.stderr


def test_only_a_running_shell_knows_some_words() -> None:
    (command,) = commands("run ${A} $(date) `date` ${B##x} ${C:?wanted} $((D * 2))")
    assert [word.unset for word in command[1:]] == [
        ("A",),
        ("a command's output",),
        ("a command's output",),
        ("${B##x}",),
        ("C",),
        ("D",),
    ]


def test_what_stands_under_a_condition_sets_nothing() -> None:
    text = 'N=8\nif [ "$X" = npu ]; then\n  N=16\nfi\ncase $X in\n  npu)\n    N=32 ;;\nesac\nrun $N\n'
    assert words(text) == ["run", "8"]


def test_what_is_set_in_several_branches_and_nowhere_else_has_its_first_value() -> None:
    text = "case $X in\n  gpu)\n    N=${M:-8} ;;\n  npu)\n    N=16 ;;\nesac\nif [ $Y ]; then\n  K=1\nfi\nrun $N $K\n"
    word, once = commands(text)[-1][1:]
    assert (word.text, word.guessed, word.unset) == ("8", ("N",), ())
    assert (once.text, once.unset) == ("", ("K",))  # the branch may not run


def test_arithmetic_with_a_shift_begins_no_document() -> None:
    assert words("if (( 1 << 3 )); then A=1; fi\nrun a\n") == ["run", "a"]


HANDED = """srun --nodes=1 -w "$node" bash -c \\
"pip install x \\
&& ray job submit --json='{\\"a\\": 1}' \\
   -- python -m some.module \\
   --one $ONE \\
   --two ${TWO:-2}" &>> log
"""


def test_a_text_that_another_shell_is_handed_is_read_with_its_lines_and_what_is_not_set() -> None:
    found = commands(HANDED)[-1]
    assert [word.text for word in found] == [
        "ray", "job", "submit", '--json={"a": 1}', "--", "python", "-m", "some.module", "--one", "", "--two", "2",
    ]  # fmt: skip
    assert (found[7].line, found[8].line, found[10].line) == (4, 5, 6)
    assert found[9].unset == ("ONE",)


@looped(
    "text",
    ["bash -c 'run $A'", 'A=9 bash -lc "run $A"', "ssh host sh -c 'run $A'", "bash <<EOF\nrun $A\nEOF", "eval run $A"],
)
def test_every_way_to_hand_a_text_on_is_read(text: str) -> None:
    assert words(f"A=1\n{text}")[-2:] == ["run", "9" if text.startswith("A=") else "1"]


def test_a_script_and_an_option_are_no_text_for_a_shell() -> None:
    assert [each[0].text for each in commands("bash run.sh -c 'x'\nbash --rcfile c 'y z'\n")] == ["bash", "bash"]


def test_shells_within_shells_end() -> None:
    text = "x"
    for _ in range(6):
        text = "bash -c " + "'" + text.replace("'", "'\\''") + "'"
    assert words(text) == ["x"]


def test_lines_are_counted_through_continued_lines_quotes_and_arrays() -> None:
    (command,) = commands("A=(\n  a\n  b\n)\nrun 'x\ny' \\\n  z ${A[@]}")
    assert [(word.text, word.line) for word in command] == [
        ("run", 5),
        ("x\ny", 5),
        ("z", 7),
        ("a", 2),
        ("b", 3),
    ]


@looped(
    "text, said",
    [
        ("run\nrun 'a b", "line 2: `'a b`: this quote is never closed"),
        ('run "a', 'line 1: `"a`: this quote is never closed'),
        ("A=(a\nb", "line 1: `(`: this array is never closed"),
        ("run ${A", "line 1: `${`: is never closed"),
        ("run $((1 + 2", "line 1: `$(`: is never closed"),
        ("run a \\  \n  b", "line 1: `\\`: spaces follow it, so it does not continue the line"),
        ("A=aaaaaaaaaa\n" + "A=$A$A$A$A$A$A$A$A$A$A\n" * 9, "line 6: its variables grow without end"),
        ("A=(a b)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40, "line 17: its variables grow without end"),
        ("run " + "${A:-" * 60 + "}" * 60, "line 1: `" + "${A:-" * 8 + "`: defaults within defaults go too deep"),
        ("x" * 1_000_001, "line 1: more than 1,000,000 characters are not a launch script"),
    ],
)
def test_a_text_that_no_shell_reads_is_told_by_line_and_word(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        commands(text)
    assert str(caught.value) == said


@given(st.text(st.sampled_from("ab \n\t'\"\\${}()[]#;&|<>=:-+@*1 "), max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = commands(text)
    except UsageError as error:
        found = [(Word(error.where, int(error.where.removeprefix("line "))),)]
    assert all(1 <= word.line <= text.count("\n") + 1 for command in found for word in command)


@given(st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6), st.sampled_from("+-*/%"))
def test_arithmetic_is_that_of_a_shell(left: int, right: int, op: str) -> None:
    text = f"({left}) {op} ({right})"
    if op in "/%" and right == 0:
        with pytest.raises(Unknown):
            evaluate(text, {}.__getitem__)
        return
    quotient = int(left / right) if op in "/%" else 0
    wanted = {"+": left + right, "-": left - right, "*": left * right, "/": quotient, "%": left - right * quotient}
    assert evaluate(text, {}.__getitem__) == wanted[op]


@looped("text", ["2 ** 99999999", "x = 1", "__import__('os')", "1 if 1 else 2", "9" * 600, "(" * 99])
def test_any_other_expression_is_left_to_the_shell(text: str) -> None:
    with pytest.raises(Unknown):
        evaluate(text, {}.__getitem__)
