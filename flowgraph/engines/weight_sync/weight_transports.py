"""The ways of weights to running servers: a folder of safetensors, a process group, or memory that both can read.

`stage` takes the weights before a server is held, `deliver` brings them to it. What order they stand in, and what is
checked, is in `weight_updates`.
"""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch.distributed
import torch.distributed.distributed_c10d as c10d
from safetensors import SafetensorError
from safetensors.torch import save_file

from flowgraph.engines.sglang.http import ServerControl
from flowgraph.errors import WorkerError

if TYPE_CHECKING:
    from torch import Tensor

Bucket = list[tuple[str, "Tensor"]]

LOOK_S = 0.005
FORM_S = 30.0  # for a group's members to meet
REFUSED_S = 0.1  # a call that is refused is answered within this time, before anything is sent
LOOPBACK = "127.0.0.1"
BESIDE = ("*.json", "*.jinja", "*.model", "*.txt")  # what lies in a model's folder beside its weights


class WeightTransport(Protocol):
    """One way of weights; `session` says that servers of some versions want it announced and closed."""

    session: bool

    def stage(self, buckets: Iterable[Bucket]) -> None:
        """Take the weights, in buckets of bounded size."""
        ...

    def deliver(self, controls: Sequence[ServerControl]) -> None:
        """Bring them to the servers, which hold still meanwhile."""
        ...

    def close(self, controls: Sequence[ServerControl]) -> None:
        """Leave nothing behind."""
        ...


def buckets(weights: Iterable[tuple[str, Tensor]], most_bytes: int) -> Iterator[Bucket]:
    """Put weights together, in order, to buckets of at most so many bytes, or of one tensor."""
    bucket, filled = Bucket(), 0
    for name, tensor in weights:
        if bucket and filled + tensor.nbytes > most_bytes:
            yield bucket
            bucket, filled = Bucket(), 0
        bucket.append((name, tensor))
        filled += tensor.nbytes
    if bucket:
        yield bucket


def started(work: Callable[[], Any]) -> Future[Any]:
    """Run something in a thread that does not keep this process alive, and give its future."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - whoever waits for the future gets what went wrong
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def everywhere(controls: Sequence[ServerControl], call: Callable[[ServerControl], Any]) -> None:
    """Make one call to each server at once; the first that fails is raised, after all have answered."""
    futures = [started(lambda each=each: call(each)) for each in controls]  # type: ignore[misc]
    wait(futures)
    for each in futures:
        each.result()


class ByDisk:
    """Through a folder that servers read: on this machine, or on a file system that all of them see."""

    session = False

    def __init__(self, scratch: Path, beside: Path | None) -> None:
        self._scratch, self._beside, self._folder = scratch, beside, Path()

    def stage(self, buckets: Iterable[Bucket]) -> None:
        """Write the weights as a model's folder, one file a bucket."""
        self._clear()
        self._folder = self._scratch / f"weights-{secrets.token_hex(4)}"
        try:
            self._folder.mkdir(parents=True)
            for pattern in BESIDE if self._beside is not None else ():
                for file in sorted(self._beside.glob(pattern)) if self._beside is not None else ():
                    if not file.name.endswith(".index.json"):
                        shutil.copy(file, self._folder)
            for place, bucket in enumerate(buckets):
                whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in bucket}
                save_file(whole, self._folder / f"model-{place:05d}.safetensors", {"format": "pt"})
        except (OSError, SafetensorError) as error:
            self._clear()
            raise WorkerError(f"weights cannot be written for an update: {error}", where=str(self._scratch)) from None

    def deliver(self, controls: Sequence[ServerControl]) -> None:
        """Have every server read the folder; then it is removed."""
        try:
            path = str(self._folder.resolve())
            everywhere(controls, lambda c: c.post("/update_weights_from_disk", model_path=path, flush_cache=False))
        finally:
            self._clear()

    def close(self, controls: Sequence[ServerControl]) -> None:
        """Remove what was written."""
        self._clear()

    def _clear(self) -> None:
        if self._folder != Path():
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = Path()


class ByMemory:
    """Through memory of this machine: CUDA's handles on a GPU; on a CPU the numbers go as part of the call."""

    session = True

    def __init__(self) -> None:
        self._buckets: Iterable[Bucket] = ()

    def stage(self, buckets: Iterable[Bucket]) -> None:
        """Keep the weights until they are asked for."""
        self._buckets = buckets

    def deliver(self, controls: Sequence[ServerControl]) -> None:
        """Show each bucket to every server, which copies it before it answers."""
        for control in controls:
            if control.door.tensor > 1:
                what = "weights through memory are for servers on one device"
                raise WorkerError(
                    f"{what}; {control.door.name} has {control.door.tensor}", hint="update by group or disk"
                )
        for bucket in self._buckets:
            text, _kept = shown(bucket, controls[0].door.device)
            told = {"serialized_named_tensors": [text], "flush_cache": False}
            everywhere(controls, lambda c, told=told: c.post("/update_weights_from_tensor", **told))  # type: ignore[misc]

    def close(self, controls: Sequence[ServerControl]) -> None:
        """Forget the weights."""
        self._buckets = ()


def shown(bucket: Bucket, device: str) -> tuple[str, Bucket]:
    """Write tensors as the server reads them, and give those it reads from here: they are there while these are.

    The wire form is the server's own, a pickle, of which its reader takes nothing but tensors. On a GPU it holds
    handles of memory. On a CPU it holds the numbers: handles of files would need torch's memory manager, a process that
    stays until the server ends, and handles of descriptors end the server.
    """
    import pickle  # noqa: TID251 - only written here: no pickle is read

    if device == "cpu":
        return base64.b64encode(pickle.dumps([(name, tensor.detach().cpu()) for name, tensor in bucket])).decode(), []
    from multiprocessing.reduction import ForkingPickler

    from sglang.srt.utils.patch_torch import monkey_patch_torch_reductions

    monkey_patch_torch_reductions()  # devices by their ids, since each process counts its own from 0
    kept = [(name, tensor.detach().cuda().contiguous()) for name, tensor in bucket]
    return base64.b64encode(ForkingPickler.dumps(kept)).decode(), kept


class ByGroup:
    """Through a process group of this process and all servers' devices, which is kept from one update to the next."""

    session = True

    def __init__(self, address: str, limit_s: float) -> None:
        self._address, self._limit_s = address, limit_s
        self._buckets: Iterable[Bucket] = ()
        self._group: Any = None
        self._name = ""

    def stage(self, buckets: Iterable[Bucket]) -> None:
        """Keep the weights until they are asked for."""
        self._buckets = buckets

    def deliver(self, controls: Sequence[ServerControl]) -> None:
        """Broadcast each bucket. A server that refuses is found before or while it is sent, not when time is over."""
        if self._group is None:
            self._open(controls)
        try:
            for bucket in self._buckets:
                self._send(controls, bucket)
        except BaseException:
            self._abandon()
            raise

    def close(self, controls: Sequence[ServerControl]) -> None:
        """End the group here and at the servers that still answer."""
        group, self._group = self._group, None
        if group is None:
            return
        with contextlib.suppress(WorkerError):
            everywhere(controls, lambda c: c.post("/destroy_weights_update_group", group_name=self._name))

        torch.distributed.destroy_process_group(group)

    def _open(self, controls: Sequence[ServerControl]) -> None:

        backend = "nccl" if controls[0].door.device == "cuda" else "gloo"
        world = 1 + sum(control.door.tensor for control in controls)
        self._name = f"weights-{secrets.token_hex(4)}"
        listening = socket.create_server((self._address, 0))
        port = listening.getsockname()[1]
        distributed: Any = torch.distributed
        store = distributed.TCPStore(
            self._address, port, world, True, _time(self._limit_s), False, master_listen_fd=listening.detach()
        )
        joining, offset = list[Future[Any]](), 1
        for control in controls:
            told = {"master_address": self._address, "master_port": port, "world_size": world, "backend": backend}
            told |= {"group_name": self._name, "rank_offset": offset}
            joining.append(started(lambda c=control, t=told: c.post("/init_weights_update_group", **t)))  # type: ignore[misc]
            offset += control.door.tensor
        wait(joining, timeout=REFUSED_S, return_when=FIRST_EXCEPTION)
        self._look(joining)
        limit_s = min(FORM_S, self._limit_s)
        try:
            self._group = _group(store, world, self._name, backend, limit_s, self._address)
            wait(joining, timeout=limit_s, return_when=FIRST_EXCEPTION)
        except RuntimeError as error:  # torch's errors of a store and of a group derive from it
            self._look(joining)
            raise WorkerError.failed(f"forming a group for weights within {limit_s:.0f} s", str(error)) from None
        self._look(joining)

    def _raise(self, done: Future[Any]) -> None:
        error = done.exception()
        if isinstance(error, WorkerError):
            raise error
        if error is not None:
            raise WorkerError.failed("the group for weights", str(error)) from error

    def _send(self, controls: Sequence[ServerControl], bucket: Bucket) -> None:

        kept = [_on(tensor, controls[0].door.device) for _, tensor in bucket]
        told: dict[str, Any] = {
            "names": [name for name, _ in bucket],
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for tensor in kept],
            "shapes": [list(tensor.shape) for tensor in kept],
            "group_name": self._name,
            "flush_cache": False,
        }
        asked = [started(lambda c=c: c.post("/update_weights_from_distributed", **told)) for c in controls]  # type: ignore[misc]
        wait(asked, timeout=REFUSED_S, return_when=FIRST_EXCEPTION)
        self._look(asked)
        first = torch.distributed.BroadcastOptions()
        first.rootRank, first.rootTensor = 0, 0
        works = [self._group.broadcast([tensor], first) for tensor in kept]
        until = time.monotonic() + self._limit_s
        while not all(each.done() for each in asked):
            self._look(asked)
            if time.monotonic() > until:
                raise WorkerError(f"weights were not received within {self._limit_s:.0f} s")
            time.sleep(LOOK_S)
        self._look(asked)
        for work in works:
            work.wait()

    def _look(self, asked: Sequence[Future[Any]]) -> None:
        for each in asked:
            if each.done():
                self._raise(each)

    def _abandon(self) -> None:
        """Leave a group whose other members may wait for what never comes; its end waits for them, so not here."""
        group, self._group = self._group, None
        if group is not None:
            started(getattr(group, "abort", lambda: None))


def _on(tensor: Tensor, device: str) -> Tensor:
    return (tensor.detach().cuda() if device == "cuda" else tensor.detach().cpu()).contiguous()


def _time(limit_s: float) -> Any:
    from datetime import timedelta

    return timedelta(seconds=limit_s)


def _group(store: Any, world: int, name: str, backend: str, limit_s: float, address: str) -> Any:
    """Join a group as its first rank, beside whatever groups this process has, as SGLang's side does.

    torch offers no public call for a group of processes that are in no common one.
    """
    inner: Any = c10d
    with _on_loopback(address):
        group, _ = inner._new_process_group_helper(
            world,
            0,
            [],
            c10d.Backend(backend),
            c10d.PrefixStore(name, store),
            group_name=name,
            timeout=_time(limit_s),
        )
    inner._world.pg_group_ranks[group] = {rank: rank for rank in range(world)}
    return group


@contextlib.contextmanager
def _on_loopback(address: str) -> Generator[None]:
    """Have gloo listen on loopback only while a group is formed whose address is that."""
    name, before = "GLOO_SOCKET_IFNAME", os.environ.get("GLOO_SOCKET_IFNAME")
    if address != LOOPBACK or before is not None or not Path("/sys/class/net/lo").exists():
        yield
        return
    os.environ[name] = "lo"
    try:
        yield
    finally:
        del os.environ[name]
