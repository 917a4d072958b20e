"""What is said of servers once they are there; no server is started."""

from __future__ import annotations

from pathlib import Path

from flowgraph.cluster.plan import Layout
from flowgraph.engines.servers.server_process import ServerAddress
from flowgraph.lowering.program import Home
from flowgraph.models.sources import resolve
from flowgraph.runtime.hosting import ModelSetup
from flowgraph.runtime.serving import Servers


def test_a_run_notes_the_version_of_the_engine_that_serves_a_model(tmp_path: Path) -> None:
    home = Home("policy", "pool", "sglang", Layout(data=2))
    servers = Servers(ModelSetup({"policy": resolve("tiny", cache=tmp_path)}, 0, tmp_path), tmp_path, 1.0)
    servers.handle(home, [ServerAddress(f"http://127.0.0.1:{port}", "a", "0.5.23") for port in (1, 2)])
    assert servers.told(home)["engine"] == "sglang 0.5.23"
