"""What of a user's own travels to workers, and by which names they read it there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowgraph.app.running.runtime_launch import stage_user_files
from flowgraph.flows.flow_files import FlowFile, find_flow
from flowgraph.flows.settings import resolve_settings
from flowgraph.language.graph import Graph
from flowgraph.passes import compile_graph


def made(by: str) -> tuple[FlowFile, Graph]:
    found = find_flow("grpo")
    return found, resolve_settings(compile_graph(found.flow.graph()), [], {"score.by": by})[0]


def scored_by(text: str) -> str:
    (score,) = (node for node in json.loads(text)["nodes"] if node["name"] == "score")
    return str(score["settings"]["by"])


@pytest.mark.parametrize("form", ["beside", "above", "absolute"])
def test_a_rule_file_travels_and_workers_read_its_copy(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, folder = tmp_path / "here", tmp_path / "staged"
    here.mkdir()
    monkeypatch.chdir(here)
    home = {"beside": here, "above": tmp_path / "project", "absolute": tmp_path / "project"}[form]
    home.mkdir(exist_ok=True)
    (home / "rules.py").write_text("def rule(response): return 1.0\n")
    by = {"beside": "rules.py", "above": "../project/rules.py", "absolute": str(home / "rules.py")}[form]
    file, graph = made(f"{by}:rule")
    flows = stage_user_files(file, [graph], folder)
    copy, _, name = scored_by(flows.graphs[0]).rpartition(":")
    assert name == "rule" and not Path(copy).is_absolute() and ".." not in Path(copy).parts
    assert (folder / copy).read_text() == (home / "rules.py").read_text()
    assert flows.file == "", "the flow itself is shipped: workers have it"


def test_a_shipped_flow_with_shipped_rules_takes_nothing_along(tmp_path: Path) -> None:
    file, graph = made("exact")
    flows = stage_user_files(file, [graph], tmp_path / "staged")
    assert scored_by(flows.graphs[0]) == "exact" and flows.file == "" and not (tmp_path / "staged").exists()
