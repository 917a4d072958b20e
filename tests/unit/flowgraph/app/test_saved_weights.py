"""The folder of a run's weights, which the newest weights replace."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flowgraph.app.running.run_state import save_weights
from nodes.evaluation import evaluate


def test_a_flow_that_carries_no_model_leaves_an_existing_folder_as_it_is(tmp_path: Path) -> None:
    graph = evaluate.graph({})
    ready: Any = SimpleNamespace(inputs=SimpleNamespace(graph=graph))
    assert not graph.carries()
    target = tmp_path / "weights"
    target.mkdir()
    (target / "mine").write_text("kept")
    executor: Any = None
    save_weights(ready, executor, target)
    assert (target / "mine").read_text() == "kept"
    save_weights(ready, executor, tmp_path / "none")
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]
