"""Models of the hub: what is cached needs no network, and a hub that is not reached is told in bounded time."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from flowgraph.errors import ModelError
from flowgraph.models import hub, tiny


class _Nothing(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


@pytest.fixture
def empty_hub() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Nothing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def silent_hub() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_hub_that_refuses_the_connection_is_not_reached() -> None:
    with pytest.raises(ModelError) as caught:
        hub.fetch("org/name", say=print, endpoint="http://127.0.0.1:9")
    assert str(caught.value) == (
        "org/name: not a local folder, not in the hub's cache here, and the hub was not reached\n"
        "    ConnectError: [Errno 111] Connection refused\n"
        "  hint: give a local folder, or `tiny`, which needs no network"
    )


def test_a_hub_that_never_answers_is_given_up(silent_hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "TIMEOUT_S", 0.5)
    start_s = time.monotonic()
    with pytest.raises(ModelError, match="the hub was not reached"):
        hub.config_folder("org/name", endpoint=silent_hub)
    assert time.monotonic() - start_s < 5


def test_a_model_that_the_hub_does_not_have_is_refused(empty_hub: str) -> None:
    with pytest.raises(ModelError) as caught:
        hub.fetch("org/name", say=print, endpoint=empty_hub)
    assert str(caught.value) == (
        "org/name: it is neither on the hub nor a folder\n"
        "  hint: if it is private or gated, log in with `hf auth login` first"
    )


def test_without_a_network_a_cached_model_loads_and_of_any_other_it_is_said(tmp_path: Path) -> None:
    """Both in one process: importing what loads a model takes most of the time."""
    home = tmp_path / "models--org--name"
    tiny.make(0, home / "snapshots" / "abc")
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("abc")
    code = """
from pathlib import Path
from flowgraph.models import load, resolve, shape
here = Path(".")
source, other = (resolve(name, cache=here) for name in ("org/name", "org/other"))
print(shape(source).parameters, load(source, seed=0, cache=here, say=print).name)
try:
    load(other, seed=0, cache=here, say=print)
except Exception as error:
    print(type(error).__name__, error)
"""
    environment = {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1", "PATH": ""}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    loaded, refused = done.stdout.split("\n", 1)
    assert (loaded, done.stderr) == ("109376 org/name", "")
    assert refused.startswith("ModelError org/other: not a local folder, not in the hub's cache here, and")
    assert "OfflineModeIsEnabled" in refused
