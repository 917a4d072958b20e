"""What every source file keeps to: its name, its size, its docstrings, its words."""

from __future__ import annotations

import ast
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from flowgraph.engines.table import ENGINES
from tests.architecture.readability import PACKAGES, ROOT, sources

# Budgets. They may only get tighter.
FUNCTION_LINES_AT_MOST = 50  # without its docstring
BODY_LINES_AT_MOST = 46
SIGNATURE_BODY_LINES_AT_MOST = 12  # of a function that is mostly its keywords, one a line: nobody has to follow those
FILE_LINES_AT_MOST = 450
PUBLIC_NAMES_AT_MOST = 25

# A file is named for its one idea; these names stand for none.
EMPTY_NAMES = {"util", "helper", "common", "misc", "manager", "core"}

# The compiler never learns the names of its programs.
PROGRAM_WORDS = ("ppo", "grpo", "gpg", "gae", "advantage", "reward", "critic")
# The five kinds of node, as the field draws them, are data that diagrams and planner read.

Function = ast.FunctionDef | ast.AsyncFunctionDef


def place(path: Path, node: ast.AST | None = None) -> str:
    """Return where something stands, as `file:line`."""
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


def trees() -> list[tuple[Path, ast.Module]]:
    """Return the path and the syntax tree of each source file."""
    return [(module.path, module.tree) for module in sources().modules]


def identifiers(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.AST, str]]:
    """Yield every name that a file reads or defines; strings and comments are no names."""
    for node in nodes:
        if isinstance(node, ast.Name):
            yield node, node.id
        elif isinstance(node, ast.Attribute):
            yield node, node.attr
        elif isinstance(node, ast.arg | ast.keyword) and node.arg:
            yield node, node.arg
        elif isinstance(node, Function | ast.ClassDef):
            yield node, node.name
        elif isinstance(node, ast.alias):
            yield node, node.asname or node.name


def words_of(identifier: str) -> list[str]:
    """Split an identifier into its words, in lower case.

    >>> words_of("GRPOLoss_old"), words_of("heappop")
    (['grpo', 'loss', 'old'], ['heappop'])
    """
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", identifier)]


def public_definitions(body: list[ast.stmt]) -> Iterator[Function | ast.ClassDef]:
    """Yield the functions and classes that a reader may use, methods of such classes included."""
    for node in body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node.body)


def is_overload(node: Function | ast.ClassDef) -> bool:
    """Return whether this is one signature of several; the docstring stands at the last."""
    return any(ast.unparse(each).endswith("overload") for each in node.decorator_list)


def test_no_file_has_a_name_that_says_nothing() -> None:
    def words(path: Path) -> set[str]:
        return {word.removesuffix("s") for word in re.split(r"[/_.]", path.relative_to(ROOT).as_posix())}

    assert [place(module.path) for module in sources().modules if words(module.path) & EMPTY_NAMES] == []


def test_every_public_function_and_class_is_documented() -> None:
    missing = [
        f"{place(path, node)} {node.name}"
        for path, tree in trees()
        for node in public_definitions(tree.body)
        if not ast.get_docstring(node) and not is_overload(node)
    ]
    assert missing == []


def test_every_module_opens_with_what_is_in_it() -> None:
    assert [place(path) for path, tree in trees() if tree.body and not ast.get_docstring(tree)] == []


def test_the_compiler_knows_no_word_of_its_programs() -> None:
    breaches = [
        f"{place(module.path, node)} {name}"
        for module in sources().modules
        if module.name.startswith("flowgraph.") and module.room not in ("flowgraph.app", "flowgraph.cli")
        for node, name in identifiers(module.nodes)
        if any(word.startswith(PROGRAM_WORDS) for word in words_of(name))
    ]
    assert breaches == []


def engine_tables(nodes: Iterable[ast.AST]) -> Iterator[ast.Dict]:
    """Yield every dict that is keyed by the names of two engines or more."""
    for node in nodes:
        if isinstance(node, ast.Dict):
            keys = {key.value for key in node.keys if isinstance(key, ast.Constant)}
            if len(keys & ENGINES.keys()) > 1:
                yield node


def test_one_table_says_what_engines_can_do() -> None:
    assert list(engine_tables(ast.walk(ast.parse("CAN = {'sglang': 1, 'vllm': 2}")))), "a second table is found"
    inside = ROOT / "flowgraph" / "engines"
    found = [place(module.path, node) for module in sources().modules for node in engine_tables(module.nodes)]
    assert [each for each in found if not each.startswith(f"{inside.relative_to(ROOT)}/")] == []


def test_functions_stay_short() -> None:
    functions = [
        (module.path, node) for module in sources().modules for node in module.nodes if isinstance(node, Function)
    ]
    lengths = [(place(path, node), node.name, *lines_of(node)) for path, node in functions]
    long = [each for each in lengths if each[2] > FUNCTION_LINES_AT_MOST and each[3] > SIGNATURE_BODY_LINES_AT_MOST]
    assert [*long, *(each for each in lengths if each[3] > BODY_LINES_AT_MOST)] == []


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[int, int]:
    """Return the lines of a function without its docstring, and those of its body alone."""
    end, first = function.end_lineno or 0, function.body[0]
    documented = ast.get_docstring(function) is not None
    doc_lines = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
    body = function.body[1:] if documented else function.body
    return end - function.lineno + 1 - doc_lines, end - body[0].lineno + 1 if body else 0


def test_files_stay_short() -> None:
    lengths = [(place(module.path), len(module.text.splitlines())) for module in sources().modules]
    assert [each for each in lengths if each[1] > FILE_LINES_AT_MOST] == []


def test_no_setting_of_ours_is_an_environment_variable() -> None:
    constants = [(module.path, n) for module in sources().modules for n in module.nodes if isinstance(n, ast.Constant)]
    texts = [(path, n) for path, n in constants if isinstance(n.value, str)]
    ours = [place(path, n) for path, n in texts if re.match(r"FLOWGRAPH_[A-Z]", str(n.value))]
    assert ours == []


def test_flowgraph_exports_few_names_sorted_and_all_there() -> None:
    import flowgraph

    exported = list(flowgraph.__all__)
    assert [name for name in exported if not hasattr(flowgraph, name)] == []
    assert exported == sorted(exported)
    assert len(exported) <= PUBLIC_NAMES_AT_MOST


def shared_files() -> list[Path]:
    """List what a commit would hold; without git (an unpacked sdist) there is nothing to look at."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def machine_words() -> re.Pattern[str]:
    """Match what belongs to one machine: its paths, and the hosts its packages came from."""
    shared = {Path("/"), Path("/tmp"), Path(tempfile.gettempdir())}
    folders = [folder for folder in (ROOT.parent, Path.home()) if folder not in shared]
    hosts = [r"(://|trusted-host[= ]+)([\w-]+[.])*(pypi|pythonhosted|npmjs|debian)[.]", r"--(extra-)?index-url"]
    homes = [r"/home/\w+/", r"/Users/\w+/", r"C:\\Users"]
    return re.compile("|".join([*(re.escape(f"{folder}/") for folder in folders), *homes, *hosts]))


def test_no_file_names_a_machine_or_a_package_host() -> None:
    pattern, found = machine_words(), []
    for path in shared_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # an image or a data file
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in pattern.finditer(text)]
    assert found == []


def test_every_package_says_that_it_is_typed_and_travels_in_the_wheel() -> None:
    assert [package for package in PACKAGES if not (ROOT / package / "py.typed").is_file()] == []


# Files that we ship, or that a process of ours has just written.
OWN_JSON = {"flowgraph/models/table.py", "flowgraph/runtime/measure/profiling.py", "nodes/interop/keys.py"}


def test_a_file_of_json_is_read_by_the_one_reader_that_has_bounds() -> None:
    reads = re.compile(r"(json\.loads?|validate_json)\([^\n]*(read_text|read_bytes|\.open)\(")
    found = {str(module.path.relative_to(ROOT)) for module in sources().modules if reads.search(module.text)}
    assert found == OWN_JSON
