"""Start one SGLang server: run as a script by the Python of the server's environment, which need not have flowgraph.

What to start is one line of JSON on the standard input, so that no key stands in a command line or an environment. The
input stays open while whoever started this lives; when it ends, so does the server, with all of its processes.

SGLang starts its other processes by `spawn`, which runs this file again in each: `prepare` reaches all of them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

LOOPBACK = ("127.0.0.1", "localhost", "::1")
LOOK_S = 1.0  # how often to see whether the parent is still there


def conceal(*secrets: str) -> None:
    """Leave these texts out of whatever this process logs, as SGLang logs all of its settings."""
    made = logging.getLogRecordFactory()

    def record(*arguments: Any, **named: Any) -> logging.LogRecord:
        given = made(*arguments, **named)
        text = given.getMessage()
        if any(secret in text for secret in secrets):
            for secret in secrets:
                text = text.replace(secret, "***")
            given.msg, given.args = text, ()
        return given

    logging.setLogRecordFactory(record)


class Absent(ModuleType):
    """A package of GPU kernels that is imported on a CPU too, though none of its functions is called there.

    `torch.ops.sgl_kernel` stays as it is: SGLang looks there for an operator to learn whether the CPU has AMX.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)
        self.__path__ = list[str]()

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        if name.startswith("__"):
            raise AttributeError(name)

        def absent(*_arguments: object, **_named: object) -> NoReturn:
            raise NotImplementedError(f"{self.__name__}.{name}: there is no build of this kernel for a CPU")

        absent.__name__ = name
        return absent


def prepare() -> None:
    """Set up what SGLang finds missing on a CPU, and keep its rendezvous from listening on every interface."""
    if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
        for name in ("sgl_kernel", "sgl_kernel.mamba"):
            sys.modules[name] = Absent(name)
        declare_vision_operators()
    listen_on_loopback()


def declare_vision_operators() -> None:
    """Declare two operators of torchvision's native part, which its wheel of PyPI has for CUDA only."""
    import torch

    library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call, unused-ignore]
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    sys.modules[__name__].__dict__["_library"] = library  # an operator is there as long as its library is


def listen_on_loopback() -> None:
    """Have torch's store listen on loopback only where its address is that; by itself it takes every interface."""
    import torch.distributed as _  # noqa: F401 - imports the module that is changed here

    module: Any = sys.modules["torch.distributed.rendezvous"]  # the package has a function of this name
    store: Any = module.TCPStore

    def on_loopback(*arguments: Any, **named: Any) -> Any:
        named = dict(zip(("host_name", "port", "world_size", "is_master"), arguments, strict=False)) | named
        host = named["host_name"]
        if named.get("is_master") and host in LOOPBACK and named.get("master_listen_fd") is None:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            named["master_listen_fd"] = socket.create_server((host, named["port"]), family=family).detach()
        return store(*arguments[4:], **named)

    module.TCPStore = on_loopback


def end_with(parent: int) -> None:
    """Kill this process group when the standard input ends, or the parent is another: who started us is gone."""
    while os.getppid() == parent:
        ready, _, _ = select.select([0], [], [], LOOK_S)
        if ready and not os.read(0, 4096):
            break
    end_group()


def end_with_parent() -> None:
    """Have a process that a server started end the whole group when its own parent is gone.

    Whoever kills the first process alone, as Ray does with the children of a worker, leaves it no time for the others;
    the engine's own watch over its parent begins only when it has started.
    """
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    end_group()


def end_group() -> None:
    """Kill this process group, and take the names off the memory that it shares, which would stay."""
    mapped = {inode for each in Path("/proc").glob("[0-9]*") for inode in shared_memory(int(each.name))}
    for file in Path("/dev/shm").iterdir() if mapped else ():
        with contextlib.suppress(OSError):
            if file.stat().st_ino in mapped:
                file.unlink()
    os.killpg(0, signal.SIGKILL)


def shared_memory(pid: int) -> set[int]:
    """Return the inodes of what a process of this group maps of /dev/shm; of other processes none."""
    try:
        if os.getpgid(pid) != os.getpgid(0):
            return set()
        text = Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return set()
    lines = [line.split(maxsplit=5) for line in text.splitlines()]
    return {int(parts[4]) for parts in lines if len(parts) == 6 and parts[5].startswith("/dev/shm/")}


def read_line() -> bytes:
    """Read the standard input up to the end of its first line, and no further."""
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(0, 65536)
        if not more:
            sys.exit("nothing to start: the standard input ended")
        line += more
    return line


def main() -> None:
    """Read what to start, and run the server until it is killed."""
    parent = os.getppid()
    told = json.loads(read_line())
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    settings = prepare_server_args(told["arguments"])
    settings.api_key, settings.admin_api_key = told["key"], told["admin_key"]
    conceal(told["key"], told["admin_key"])
    try:
        run_server(settings)
    except BaseException:
        traceback.print_exc()  # the next line leaves no time for it
        raise
    finally:
        end_group()


if __name__ == "__mp_main__":
    end_with_parent()
if __name__ in ("__main__", "__mp_main__"):
    prepare()
if __name__ == "__main__":
    main()
