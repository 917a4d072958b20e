"""Servers over HTTP that answer what a test says, in place of an engine's, and note what they were asked."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from flowgraph.engines.servers.remote_model import RemoteModel
from flowgraph.engines.servers.server_process import ServerAddress
from flowgraph.language.handle import SampleRequest, gather


class Tokens:
    """As much of a tokenizer as a handle asks for."""

    eos_token_id = 2


def encoded(told: Any) -> bytes:
    """Write an answer down."""
    return json.dumps(told).encode()


class Handler(BaseHTTPRequestHandler):
    """Answers each path by what `server.answers` gives for it, and notes what was asked."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        server: Any = self.server
        server.asked.append((self.path, json.loads(body or b"{}"), dict(self.headers)))
        status, told = server.answers(self.path)
        with contextlib.suppress(BrokenPipeError):  # the client may have hung up
            if status == 0:
                self.close_connection = True
            else:
                self.send_response(status)
                self.send_header("Content-Length", str(len(told)))
                self.end_headers()
            self.wfile.write(told)

    do_GET = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def replicas(version: str, **keys: str) -> Generator[Callable[..., Any]]:
    """Yield `replica(answers)`: a server of a version that answers so, as (status, bytes) by path."""
    servers: list[ThreadingHTTPServer] = []

    def make(answers: Callable[[str], tuple[int, bytes]]) -> Any:
        server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads, server.answers, server.asked = True, answers, []
        server.door = ServerAddress(
            f"http://127.0.0.1:{server.server_port}", f"replica {len(servers)}", version, **keys
        )  # type: ignore[arg-type]
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return server

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


def drawn(
    kind: type[RemoteModel], *doors: ServerAddress, requests: tuple[SampleRequest, ...], **settings: Any
) -> list[Any]:
    """Draw samples from servers by a handle of this kind."""
    model = kind(doors, Tokens(), **({"limit_s": 20.0} | settings))
    try:
        return gather(model, requests)
    finally:
        model.close()
