"""Fields of one type are named where a dataclass is built: two texts or two numbers in a row change places unseen."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.readability import ROOT, Sources, sources

POSITIONAL_AT_MOST = {"flowgraph.app": 0, "flowgraph.cli": 0}
"""Calls that fill two fields of one type by position, by room."""
ELSEWHERE_AT_MOST = 510  # in all other rooms; may only shrink


def dataclasses_of_one_type(sources: Sources) -> dict[str, tuple[str, ...]]:
    """Return the field annotations of each dataclass of ours without `kw_only` that has two fields of one type."""
    found: dict[str, tuple[str, ...]] = {}
    for module in sources.modules:
        for node in module.nodes:
            if isinstance(node, ast.ClassDef) and is_positional(node):
                fields = [each for each in node.body if isinstance(each, ast.AnnAssign) and is_field(each)]
                kinds = tuple(ast.unparse(each.annotation) for each in fields)
                if len(set(kinds)) < len(kinds):
                    found[node.name] = kinds
    return found


def is_positional(node: ast.ClassDef) -> bool:
    """Return whether a class is a dataclass whose fields may be filled by position."""
    texts = [ast.unparse(each) for each in node.decorator_list]
    return any(text.startswith(("dataclass", "dataclasses.dataclass")) and "kw_only=True" not in text for text in texts)


def is_field(each: ast.AnnAssign) -> bool:
    """Return whether an annotated name of a class is a field of its constructor."""
    return "ClassVar" not in ast.unparse(each.annotation) and "init=False" not in ast.unparse(each.value or each.target)


def breaches(sources: Sources) -> Iterator[tuple[str, str]]:
    """Yield the room and the place of each call that fills two fields of one type by position."""
    kinds = dataclasses_of_one_type(sources)
    for module in sources.modules:
        for call in module.nodes:
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id not in kinds:
                continue
            filled = kinds[call.func.id][: len(call.args)]
            starred = any(isinstance(each, ast.Starred) for each in call.args)
            if starred or len(set(filled)) < len(filled):
                yield module.room, f"{module.name}:{call.lineno} {call.func.id}"


def test_dataclasses_with_fields_of_one_type_are_built_by_keyword() -> None:
    found = list(breaches(sources()))
    for room, most in POSITIONAL_AT_MOST.items():
        here = [place for own, place in found if own == room]
        assert len(here) <= most, here
    assert len([place for own, place in found if own not in POSITIONAL_AT_MOST]) <= ELSEWHERE_AT_MOST


def test_a_call_by_position_is_seen(tmp_path: Path) -> None:
    text = "@dataclass\nclass Pair:\n    one: int\n    other: int\n\nPair(1, 2)\nPair(1, other=2)\nPair(*both)\n"
    (tmp_path / "flowgraph").mkdir()
    (tmp_path / "flowgraph" / "pairs.py").write_text(text)
    assert [place for _, place in breaches(Sources(tmp_path))] == ["flowgraph.pairs:6 Pair", "flowgraph.pairs:8 Pair"]
    assert ROOT.is_dir()
