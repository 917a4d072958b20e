"""Transports of weights to running servers: a folder of safetensors, a process group, or shared memory.

`stage` takes the weights before a server is paused, `deliver` sends them. The order of an update, and its checks, are
in `weight_updates`.
"""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import shutil
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed
import torch.distributed.distributed_c10d as c10d
from safetensors import SafetensorError
from safetensors.torch import save_file

from flowgraph.engines.servers.server_control import ServerControl
from flowgraph.errors import WorkerError

if TYPE_CHECKING:
    from torch import Tensor

Bucket = list[tuple[str, "Tensor"]]

FORM_S = 30.0  # for a group's members to meet
REFUSED_S = 0.1  # within which a server answers a call that it refuses, before anything is sent
LOOPBACK = "127.0.0.1"
OTHER_FILES = ("*.json", "*.jinja", "*.model", "*.txt")  # of a model's folder


class WeightTransport(ABC):
    """A transport of weights; by default it stores the iterable of buckets until `deliver`.

    `session` is true if servers of some versions need a call before and after the weights.
    """

    session = True
    _buckets: Iterable[Bucket] = ()

    def stage(self, buckets: Iterable[Bucket]) -> None:
        """Store an iterable of buckets of weights for `deliver`; it is called before the servers are paused."""
        self._buckets = buckets

    @abstractmethod
    def deliver(self, controls: Sequence[ServerControl]) -> None:
        """Send the staged weights to the paused servers; raise WorkerError if a server does not load them."""

    def close(self, controls: Sequence[ServerControl]) -> None:
        """Release everything that the transport has allocated, here and on the servers."""
        self._buckets = ()


def buckets(weights: Iterable[tuple[str, Tensor]], max_bytes: int) -> Iterator[Bucket]:
    """Yield the weights, in order, in buckets of at most `max_bytes` bytes; a larger tensor is a bucket by itself."""
    bucket, filled = Bucket(), 0
    for name, tensor in weights:
        if bucket and filled + tensor.nbytes > max_bytes:
            yield bucket
            bucket, filled = Bucket(), 0
        bucket.append((name, tensor))
        filled += tensor.nbytes
    if bucket:
        yield bucket


def run_in_thread(work: Callable[[], Any]) -> Future[Any]:
    """Start a function in a new daemon thread, and return a future that gets its result or its exception."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised where the future is waited for
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def call_all(controls: Sequence[ServerControl], call: Callable[[ServerControl], Any]) -> None:
    """Call `call` with each server's control client in parallel, and wait until all calls have ended.

    Then raise the error of the first of `controls` whose call failed, if any did.
    """
    futures = [run_in_thread(partial(call, control)) for control in controls]
    wait(futures)
    for future in futures:
        future.result()


class ByDisk(WeightTransport):
    """Writes weights to a folder in `scratch` that the servers can read: on this machine, or on a shared file system.

    `model_folder` is the folder of the servers' model. Raises WorkerError if `scratch` is None.
    """

    session = False

    def __init__(self, scratch: Path | None, model_folder: Path | None) -> None:
        if scratch is None:
            raise WorkerError("an update by disk needs a scratch folder that the servers can read")
        self._scratch, self._model_folder, self._folder = scratch, model_folder, Path()

    def stage(self, buckets: Iterable[Bucket]) -> None:
        """Write the weights as a new model folder in the scratch folder, with one safetensors file for each bucket.

        Configuration and tokenizer files are copied from the servers' model folder, if it is known. The folder of an
        earlier update is deleted. Raises WorkerError if a file cannot be written.
        """
        self.close()
        self._folder = self._scratch / f"weights-{secrets.token_hex(4)}"
        try:
            self._folder.mkdir(parents=True)
            for pattern in OTHER_FILES:
                for file in sorted((self._model_folder or self._folder).glob(pattern)):
                    if not file.name.endswith(".index.json"):
                        shutil.copy(file, self._folder)
            for number, bucket in enumerate(buckets):
                save_file(cpu_copies(bucket), self._folder / f"model-{number:05d}.safetensors", {"format": "pt"})
        except (OSError, SafetensorError) as error:
            self.close()
            raise WorkerError(f"weights cannot be written for an update: {error}", where=str(self._scratch)) from None

    def deliver(self, controls: Sequence[ServerControl]) -> None:
        """Let every server load the folder, then delete the folder; raise WorkerError if a server cannot load it."""
        try:
            path = str(self._folder.resolve())
            call_all(controls, lambda c: c.post("/update_weights_from_disk", model_path=path, flush_cache=False))
        finally:
            self.close()

    def close(self, controls: Sequence[ServerControl] = ()) -> None:
        """Delete the folder of the last update, if there is one."""
        if self._folder != Path():
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = Path()


def cpu_copies(bucket: Bucket) -> dict[str, Tensor]:
    """Return contiguous CPU copies of a bucket's tensors by name; they share no memory, as safetensors requires."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in bucket}


class ByMemory(WeightTransport):
    """Sends weights to servers on this machine: as handles of GPU memory, or on a CPU inside the HTTP call."""

    def deliver(self, controls: Sequence[ServerControl]) -> None:
        """Send each bucket to every server, which copies the tensors before it answers.

        Raises WorkerError if a server has more than one device, or does not load a bucket.
        """
        for door in (control.door for control in controls):
            if door.tensor > 1:
                what = f"weights through memory are for servers on one device; {door.name} has {door.tensor}"
                raise WorkerError(what, hint="update by group or disk")
        for bucket in self._buckets:
            text, _alive = serialize_bucket(bucket, controls[0].door.device)
            self.call(controls, serialized_named_tensors=[text], flush_cache=False)

    def call(self, controls: Sequence[ServerControl], **body: Any) -> None:
        """Send `body`, with one serialized bucket, to all servers; raise WorkerError if a server refuses it."""
        call_all(controls, lambda control: control.post("/update_weights_from_tensor", **body))


def serialize_bucket(bucket: Bucket, device: str) -> tuple[str, Bucket]:
    """Return a bucket as base 64 text in SGLang's format, and the tensors that must stay alive until it is copied.

    The format is a pickle of names and tensors. For `device` "cpu", the text contains the numbers, and the second
    result is empty. For another device, it contains handles of GPU memory, and SGLang must be installed in this Python.
    """
    import pickle  # noqa: TID251 - only written here: no pickle is read

    if device == "cpu":
        return base64.b64encode(pickle.dumps([(name, tensor.detach().cpu()) for name, tensor in bucket])).decode(), []
    from multiprocessing.reduction import ForkingPickler

    from sglang.srt.utils.patch_torch import monkey_patch_torch_reductions

    monkey_patch_torch_reductions()  # names devices by their ids: each process numbers its own from 0
    alive = [(name, tensor.detach().cuda().contiguous()) for name, tensor in bucket]
    return base64.b64encode(ForkingPickler.dumps(alive)).decode(), alive


class ByGroup(WeightTransport):
    """Broadcasts weights in a process group of this process and all devices of the servers.

    The group's store listens at `address`, an address of this machine. The group remains open from one update to the
    next. A broadcast may take `limit_s` seconds.
    """

    def __init__(self, address: str, limit_s: float) -> None:
        self._address, self._limit_s = address, limit_s
        self._group: Any = None
        self._name = ""

    def deliver(self, controls: Sequence[ServerControl]) -> None:
        """Broadcast each bucket of weights to all servers; the first call forms the process group.

        Raises WorkerError if the group cannot be formed, or if a server refuses or takes longer than the time limit; a
        refusal is raised without waiting for the limit. Raises OSError if this machine does not have the group's
        address. After an error the group is aborted, and the next call forms another.
        """
        if self._group is None:
            self._open(controls)
        try:
            for bucket in self._buckets:
                self._send(controls, bucket)
        except BaseException:
            # The other members may wait for what never comes; the end of the group waits for them, so not here.
            group, self._group = self._group, None
            run_in_thread(getattr(group, "abort", lambda: None))
            raise

    def close(self, controls: Sequence[ServerControl]) -> None:
        """Destroy the process group, if there is one, here and on the servers that still answer."""
        group, self._group = self._group, None
        if group is None:
            return
        with contextlib.suppress(WorkerError):
            call_all(controls, lambda c: c.post("/destroy_weights_update_group", group_name=self._name))
        torch.distributed.destroy_process_group(group)

    def _open(self, controls: Sequence[ServerControl]) -> None:
        backend = "nccl" if controls[0].door.device == "cuda" else "gloo"
        world = 1 + sum(control.door.tensor for control in controls)
        self._name = f"weights-{secrets.token_hex(4)}"
        listening = socket.create_server((self._address, 0))
        port = listening.getsockname()[1]
        untyped: Any = torch.distributed
        limit = timedelta(seconds=self._limit_s)
        store = untyped.TCPStore(self._address, port, world, True, limit, False, master_listen_fd=listening.detach())
        group = {"master_address": self._address, "master_port": port, "world_size": world, "backend": backend}
        joining, offset = list[Future[Any]](), 1
        for control in controls:
            body = group | {"group_name": self._name, "rank_offset": offset}
            joining.append(run_in_thread(partial(control.post, "/init_weights_update_group", **body)))
            offset += control.door.tensor
        _raise_failures(joining, REFUSED_S)
        limit_s = min(FORM_S, self._limit_s)
        try:
            with _on_loopback(self._address):
                self._group = _join_as_first(store, world, self._name, backend, timedelta(seconds=limit_s))
        except RuntimeError as error:  # torch's errors of a store and of a group derive from it
            _raise_failures(joining)
            raise WorkerError.failed(f"forming a group for weights within {limit_s:.0f} s", str(error)) from None
        _raise_failures(joining, limit_s)

    def _send(self, controls: Sequence[ServerControl], bucket: Bucket) -> None:
        device = controls[0].door.device
        tensors = [tensor.detach().to(device).contiguous() for _, tensor in bucket]
        body: dict[str, Any] = {
            "names": [name for name, _ in bucket],
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for tensor in tensors],
            "shapes": [list(tensor.shape) for tensor in tensors],
            "group_name": self._name,
            "flush_cache": False,
        }
        calls = [
            run_in_thread(partial(control.post, "/update_weights_from_distributed", **body)) for control in controls
        ]
        _raise_failures(calls, REFUSED_S)
        options = torch.distributed.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        works = [self._group.broadcast([tensor], options) for tensor in tensors]
        _raise_failures(calls, self._limit_s)
        if not all(call.done() for call in calls):
            raise WorkerError(f"weights were not received within {self._limit_s:.0f} s")
        for work in works:
            work.wait()


def _raise_failures(calls: Sequence[Future[Any]], limit_s: float = 0.0) -> None:
    """Wait up to `limit_s` until a call has failed or all have ended; raise the error of the first that has failed."""
    wait(calls, timeout=limit_s, return_when=FIRST_EXCEPTION)
    for error in (call.exception() for call in calls if call.done()):
        if isinstance(error, WorkerError):
            raise error
        if error is not None:
            raise WorkerError.failed("the group for weights", str(error)) from error


def _join_as_first(store: Any, world: int, name: str, backend: str, limit: timedelta) -> Any:
    """Join a group as its first rank, as SGLang does: torch has no public call for processes without a common group."""
    inner: Any = c10d
    prefixed = c10d.PrefixStore(name, store)
    group, _ = inner._new_process_group_helper(
        world, 0, [], c10d.Backend(backend), prefixed, group_name=name, timeout=limit
    )
    inner._world.pg_group_ranks[group] = {rank: rank for rank in range(world)}
    return group


@contextlib.contextmanager
def _on_loopback(address: str) -> Generator[None]:
    name = "GLOO_SOCKET_IFNAME"
    if address != LOOPBACK or name in os.environ or not Path("/sys/class/net/lo").exists():
        yield
        return
    os.environ[name] = "lo"
    try:
        yield
    finally:
        del os.environ[name]
