"""A server of the test: it answers JSON that is posted to it, in threads."""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Reply = tuple[int, bytes]
"""A status and a body; the status 0 ends the connection without an answer."""


class JsonServer(ABC):
    """Listens on a free port of this machine at `url` until the end of the `with` block."""

    def __init__(self) -> None:
        double = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, answer = double.answer(self.path, body, self.headers)
                if status:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)

            def log_message(self, *ignored: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *ignored: object) -> None:
                """A client that ends a request early is what some tests are about."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @abstractmethod
    def answer(self, path: str, body: dict[str, Any], headers: Mapping[str, str]) -> Reply:
        """Return the answer to a request; requests may come at the same time."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()
