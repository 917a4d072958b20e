"""A double of the server of a model: it speaks the APIs of OpenAI, vLLM and SGLang, in threads of the test."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Reply = tuple[int, bytes]
Answer = Callable[[dict[str, Any]], Reply]


class Double:
    """A server that records what it is asked, and answers as told; a path takes only the fields that it documents."""

    KNOWN = {  # noqa: RUF012
        "/v1/chat/completions": {"model", "messages", "temperature", "max_tokens"},
        "/classify": {"model", "messages", "input", "text", "add_special_tokens", "use_activation"},
        "/pooling": {"model", "messages", "input", "add_special_tokens", "use_activation"},
    }

    def __init__(self) -> None:
        self.asked = list[tuple[str, dict[str, Any], str]]()
        self.reply: Answer = lambda body: verdict("[[7]]")
        self.open, self.most_open = 0, 0
        lock, double = threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    double.asked.append((self.path, body, self.headers.get("Authorization", "")))
                    double.open += 1
                    double.most_open = max(double.most_open, double.open)
                unknown = body.keys() - double.KNOWN.get(self.path, set())
                status, answer = (404, b'{"detail": "Not Found"}') if unknown else double.reply(body)
                with lock:
                    double.open -= 1
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def ok(answer: object) -> Reply:
    return 200, json.dumps(answer).encode()


def verdict(text: object, **choice: object) -> Reply:
    return ok({"object": "chat.completion", "choices": [{"message": {"content": text}, **choice}]})
