"""Flows in files: found by name, each file one module, and what a broken file is told."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.grpo import grpo
from flowgraph import Flow
from flowgraph.analysis.flat_graph import to_json
from flowgraph.errors import FlowError, UnknownNameError, UserCodeError
from flowgraph.flows.flow_files import find_flow, flows_in, import_file, shipped_files
from flowgraph.passes import compile_graph
from flowgraph.serialize.graph import from_json
from flowgraph.serialize.graph_text import graph_text
from tests.looped import looped

Golden = Callable[[str, str], None]

ONE = """\
from flowgraph import Value, flow, node
from flowgraph.language import Kind
from nodes import Prompts


class Count(Value):
    kind = Kind.SCALAR


@node
def count(prompts: Prompts) -> Count:
    return Count(1)


@flow
def counting(prompts: Prompts) -> Count:
    return count(prompts)
"""
TWO = ONE + "\n\n@flow\ndef other(prompts: Prompts) -> Count:\n    return count(prompts)\n"


@pytest.fixture(autouse=True)
def _modules_as_before() -> Iterator[None]:
    paths, modules = list(sys.path), dict(sys.modules)
    yield
    sys.path[:] = paths
    for name in set(sys.modules) - set(modules):
        del sys.modules[name]


def write(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def test_a_bare_name_is_a_shipped_flow() -> None:
    found = find_flow("grpo")
    assert (found.flow.name, found.path.name) == ("grpo", "grpo.py")
    assert graph_text(compile_graph(found.flow.graph())) == graph_text(compile_graph(grpo.graph()))
    assert {"grpo", "gpg"} <= {path.stem for path in shipped_files()}
    for path in shipped_files():
        assert path.stem in flows_in(path)


def test_a_file_with_one_flow_needs_no_name(tmp_path: Path) -> None:
    file = write(tmp_path, "mine.py", ONE)
    assert find_flow(str(file)).flow is find_flow(f"{file}:counting").flow
    assert find_flow(str(file)).source == ONE


def test_a_flow_imported_from_elsewhere_is_not_the_files_own(tmp_path: Path) -> None:
    file = write(tmp_path, "mine.py", f"from examples.grpo import grpo\n{ONE}again = counting\n")
    assert list(flows_in(file)) == ["counting"]


def test_a_file_has_one_module_name_and_its_types_are_one_class(tmp_path: Path) -> None:
    file = write(tmp_path, "mine.py", ONE)
    module: Any = import_file(file)
    assert module.__name__ == "flowgraph_flow.mine"
    assert import_file(file) is module
    graph = compile_graph(module.counting.graph())
    back = from_json(to_json(graph))
    assert back.outputs[0].type is module.Count
    assert back.nodes[0].op is graph.nodes[0].op


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    file = write(tmp_path, "mine.py", ONE)
    before = find_flow(str(file)).flow
    file.write_text(ONE.replace("counting", "numbering"), encoding="utf-8")
    assert find_flow(str(file)).flow.name == "numbering"
    assert before.name == "counting"


def test_two_files_of_one_name_do_not_mix(tmp_path: Path) -> None:
    one, two = write(tmp_path / "a", "mine.py", ONE), write(tmp_path / "b", "mine.py", ONE)
    first, second = find_flow(str(one)), find_flow(str(two))
    assert first.flow.graph().outputs[0].type is not second.flow.graph().outputs[0].type
    assert find_flow(str(one)).flow is first.flow
    graph = compile_graph(first.flow.graph())
    assert from_json(to_json(graph)).outputs[0].type is graph.outputs[0].type


def test_a_file_can_import_what_lies_beside_it(tmp_path: Path) -> None:
    write(tmp_path, "beside_mine.py", "ROUNDS = 3\n")
    module: Any = import_file(write(tmp_path, "mine.py", f"from beside_mine import ROUNDS\n{ONE}"))
    assert module.ROUNDS == 3


def test_a_file_with_an_odd_name_is_a_module_too(tmp_path: Path) -> None:
    assert isinstance(find_flow(str(write(tmp_path, "my flow-2.py", ONE))).flow, Flow)


MISSING = {
    "a_shipped_name": "grpp",
    "nothing": "",
    "a_file": "nowhere.py",
    "a_file_and_a_name": "nowhere.py:grpo",
    "a_shipped_name_with_a_name": "grpo:grpo",
    "a_folder": "empty.py",
    "no_flow": "none.py",
    "no_flow_of_that_name": "one.py:countin",
    "several_flows": "two.py",
    "several_flows_and_a_colon": "two.py:",
}


@looped("name", MISSING)
def test_a_flow_that_is_not_there_is_told_with_the_nearest(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.py").mkdir()
    for file, text in {"none.py": "ROUNDS = 3\n", "one.py": ONE, "two.py": TWO}.items():
        write(tmp_path, file, text)
    with pytest.raises(UnknownNameError) as raised:
        find_flow(MISSING[name])
    golden(str(raised.value).replace(str(tmp_path), "FOLDER"), f"errors/files/missing_{name}.txt")


BROKEN = {
    "does_not_parse": "def f(:\n    pass\n",
    "does_not_import": "import a_package_that_nobody_has\n",
    "raises": "ROUNDS = 3\nRATIO = 1 / 0\n",
    "raises_beside": "import raising\n",
    "does_not_parse_beside": "import unparsed\n",
    "exits": "import sys\n\nsys.exit(3)\n",
    "a_wrong_node": f"{ONE}\n\n@node\ndef f(a: Count, b: Count) -> Count:\n    return a\n",
    "a_wrong_setting_at_the_top": f"{ONE}\n\ncount(Prompts(group=1, columns=1))\n",
}


@looped("name", BROKEN)
def test_a_file_that_cannot_be_read_or_run_names_the_line_at_fault(name: str, tmp_path: Path, golden: Golden) -> None:
    write(tmp_path, "raising.py", "\nRATIO = 1 / 0\n")
    write(tmp_path, "unparsed.py", "\ndef f(:\n")
    file = write(tmp_path, "broken.py", BROKEN[name])
    with pytest.raises(FlowError) as raised:
        find_flow(str(file))
    golden(str(raised.value), f"errors/files/broken_{name}.txt")
    assert "flowgraph_flow.broken" not in sys.modules


def test_a_file_in_another_encoding_is_told(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_bytes("WORD = 'é'\n".encode("latin-1"))
    with pytest.raises(UserCodeError, match=r"^broken.py:1: does not parse: \(unicode error\) 'utf-8'"):
        find_flow(str(tmp_path / "broken.py"))


def test_a_file_with_a_null_byte_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match=r"^broken.py(:\d)?: does not parse: .*null bytes"):
        find_flow(str(write(tmp_path, "broken.py", "x = 1\0\n")))


def test_a_key_press_is_not_taken_for_a_fault_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        find_flow(str(write(tmp_path, "stopped.py", "raise KeyboardInterrupt\n")))


@pytest.mark.parametrize("name", ["nodes.py", "flowgraph.py", "placements/__init__.py"])
def test_a_file_beside_the_flow_that_hides_a_package_of_ours_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "placements").mkdir()
    write(tmp_path, name, "")
    with pytest.raises(UserCodeError) as raised:
        find_flow(str(write(tmp_path, "mine.py", ONE)))
    package = name.removesuffix(".py").partition("/")[0]
    assert str(raised.value) == (
        f"{tmp_path / name}: this file hides flowgraph's package `{package}` from every import of it\n"
        f"  hint: rename it, for example to my_{package}.py"
    )


def test_a_folder_of_that_name_without_a_module_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "nodes").mkdir()
    assert find_flow(str(write(tmp_path, "mine.py", ONE))).flow.name == "counting"


def test_a_file_that_gets_another_module_than_the_one_beside_it_says_so(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "beside_both.py").write_text(f"NAME = {folder!r}\n")
        (tmp_path / folder / f"of_{folder}.py").write_text("from beside_both import NAME\n")
    assert import_file(tmp_path / "one" / "of_one.py").NAME == "one"
    with pytest.raises(UserCodeError, match=r"`beside_both` is next to this file, but .*one/beside_both\.py"):
        import_file(tmp_path / "two" / "of_two.py")
