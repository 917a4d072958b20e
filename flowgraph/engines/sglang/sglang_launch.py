"""Start one SGLang server: a script for the Python of the server's environment, which need not have flowgraph.

The standard input contains one line of JSON with arguments and keys, so that no command line and no environment
contains a key. It stays open while the parent runs; when it ends, the server and all of its processes end.

SGLang starts its other processes by `spawn`, which runs this file again in each: `prepare_process` applies to all.
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
LOOK_S = 1.0  # between two checks that the parent lives


def mask_secrets(*secrets: str) -> None:
    """Patch `logging` to replace `secrets` by `***` in all later messages of this process: SGLang logs its settings."""
    factory = logging.getLogRecordFactory()

    def masked(*arguments: Any, **options: Any) -> logging.LogRecord:
        record = factory(*arguments, **options)
        text = record.getMessage()
        if any(secret in text for secret in secrets):
            for secret in secrets:
                text = text.replace(secret, "***")
            record.msg, record.args = text, ()
        return record

    logging.setLogRecordFactory(masked)


class Absent(ModuleType):
    """A package of GPU kernels that SGLang imports on a CPU too, but whose functions it does not call there.

    `torch.ops.sgl_kernel` is unchanged: SGLang looks for an operator in it to learn whether the CPU has AMX.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)
        self.__path__ = list[str]()

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        if name.startswith("__"):
            raise AttributeError(name)

        def absent(*_arguments: object, **_options: object) -> NoReturn:
            raise NotImplementedError(f"{self.__name__}.{name}: this kernel has no build for a CPU")

        absent.__name__ = name
        return absent


def prepare_process() -> None:
    """Patch this process so that SGLang can be imported, and torch's TCPStore listens on loopback for loopback hosts.

    If `SGLANG_USE_CPU_ENGINE` is 1, SGLang's packages of GPU kernels are replaced by packages whose functions raise
    NotImplementedError, and the operators that torchvision's CPU wheel lacks are declared.
    """
    if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
        for name in ("sgl_kernel", "sgl_kernel.mamba"):
            sys.modules[name] = Absent(name)
        declare_vision_operators()
    listen_on_loopback()


def declare_vision_operators() -> None:
    """Declare torchvision's operators `nms` and `qnms` in this process, so that its CPU wheel can be imported."""
    import torch

    library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call, unused-ignore]
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    sys.modules[__name__].__dict__["_library"] = library  # operators live as long as their library


def listen_on_loopback() -> None:
    """Patch torch in this process: a TCPStore whose host is a loopback address then listens only there.

    By default it listens on every network interface.
    """
    import torch.distributed as _  # noqa: F401 - imports the module that is changed here

    module: Any = sys.modules["torch.distributed.rendezvous"]  # the package has a function of this name
    store: Any = module.TCPStore

    def on_loopback(*arguments: Any, **options: Any) -> Any:
        options = dict(zip(("host_name", "port", "world_size", "is_master"), arguments, strict=False)) | options
        host = options["host_name"]
        if options.get("is_master") and host in LOOPBACK and options.get("master_listen_fd") is None:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            options["master_listen_fd"] = socket.create_server((host, options["port"]), family=family).detach()
        return store(*arguments[4:], **options)

    module.TCPStore = on_loopback


def end_when_parent_ends(parent: int) -> None:
    """Wait until the parent process has ended, then kill this process group with SIGKILL; does not return.

    The files in /dev/shm that the group's processes have mapped are deleted first. `parent` is the process id of the
    parent. It counts as ended if this process gets another parent, or if the standard input is closed; anything that is
    sent there is discarded.
    """
    while os.getppid() == parent:
        ready, _, _ = select.select([0], [], [], LOOK_S)
        if ready and not os.read(0, 4096):
            break
    end_group()


def end_with_parent() -> None:
    """Start a thread that kills this process group when the parent process ends.

    It is for processes that a server spawns: the server's first process may be killed alone, for example by Ray.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_S)
        end_group()

    threading.Thread(target=watch, daemon=True).start()


def end_group() -> None:
    """Unlink the files in /dev/shm that this process group maps, and kill the group with SIGKILL; does not return."""
    mapped = {inode for folder in Path("/proc").glob("[0-9]*") for inode in shared_memory(int(folder.name))}
    for file in Path("/dev/shm").iterdir() if mapped else ():
        with contextlib.suppress(OSError):
            if file.stat().st_ino in mapped:
                file.unlink()
    os.killpg(0, signal.SIGKILL)


def shared_memory(pid: int) -> set[int]:
    """Return the inodes of the files in /dev/shm that process `pid` maps.

    The set is empty if the process is in another process group or cannot be read.
    """
    try:
        if os.getpgid(pid) != os.getpgid(0):
            return set()
        text = Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return set()
    lines = [line.split(maxsplit=5) for line in text.splitlines()]
    return {int(parts[4]) for parts in lines if len(parts) == 6 and parts[5].startswith("/dev/shm/")}


def read_line() -> bytes:
    """Return the first line of the standard input, as bytes with its newline; blocks until it has been sent.

    Nothing may be sent directly after the line. Exits the process with a message if the input ends before the newline.
    """
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(0, 65536)
        if not chunk:
            sys.exit("nothing to start: the standard input ended")
        line += chunk
    return line


def main() -> None:
    """Run the server that a line of JSON on standard input describes; kill this process group when the server ends.

    The JSON has the keys `arguments`, `key` and `admin_key`. The group is also killed when the parent or the input
    ends.
    """
    parent = os.getppid()
    job = json.loads(read_line())
    threading.Thread(target=end_when_parent_ends, args=(parent,), daemon=True).start()
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    settings = prepare_server_args(job["arguments"])
    settings.api_key, settings.admin_api_key = job["key"], job["admin_key"]
    mask_secrets(job["key"], job["admin_key"])
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
    prepare_process()
if __name__ == "__main__":
    main()
