"""A change to what slow tests read is not made without them: the hashes of their inputs are those they passed with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import slow_inputs
from tests.slow_inputs import ROOT, SlowGroup, read_groups, significant, write_hash

GROUPS = {group.name: group for group in read_groups()}


@pytest.mark.parametrize("name", GROUPS)
def test_the_slow_tests_of_a_group_passed_with_these_inputs(name: str) -> None:
    group = GROUPS[name]
    assert not group.is_stale(), (
        f"The inputs of the slow tests `{name}` changed since these tests last passed. "
        f"Run `{group.command()}` and commit tests/slow_inputs.toml, which it updates."
    )


def test_each_group_of_slow_tests_has_inputs_and_each_input_a_group() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    assert {name for text in texts for name in re.findall(r'\bslow\(group="(\w+)"\)', text)} == GROUPS.keys()


def test_each_long_test_that_is_listed_exists() -> None:
    for name in (ROOT / "tests" / "long_tests.txt").read_text(encoding="utf-8").splitlines():
        file, _, test = name.partition("::")
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), name


def test_words_in_docstrings_and_comments_are_no_change_and_code_is(tmp_path: Path) -> None:
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_text('"""Say this."""\n\n\ndef f():\n    """Return 1."""\n    return 1\n')
    other.write_text('"""Say that, at\nlength."""\n# why\ndef f():\n    """Return one."""\n\n    return 1\n')
    assert significant(one) == significant(other)
    other.write_text(other.read_text().replace("return 1", "return 2"))
    assert significant(one) != significant(other)


def test_a_pattern_that_names_no_file_is_an_error() -> None:
    with pytest.raises(FileNotFoundError, match=r"`flowgraph/no_such\.py` of `faults` names no file"):
        SlowGroup("faults", ("flowgraph/no_such.py",), "").digest()


def test_a_written_hash_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "slow_inputs.toml"
    table.write_text('[inputs]\none = ["Makefile"]\ntwo = ["Makefile"]\n\n[passed]\none = ""\ntwo = ""\n')
    monkeypatch.setattr(slow_inputs, "TABLE", table)
    write_hash("two", "abc")
    assert [(group.name, group.passed) for group in read_groups()] == [("one", ""), ("two", "abc")]
