"""A handle on a model that inference servers host: it generates samples and accepts new weights.

It runs in any process: it uses HTTP and imports no engine. The differences between engines are in `sglang` and `vllm`.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn
from weakref import WeakKeyDictionary, finalize

from flowgraph.engines.servers.router import Router
from flowgraph.engines.servers.sample_answer import SampleAnswer
from flowgraph.engines.servers.server_control import ServerControl, bearer, certificates, refusal
from flowgraph.engines.servers.server_process import ServerAddress, ServerProcess
from flowgraph.engines.weight_sync.weight_updates import LIMIT_S, By, Hold, WeightUpdates
from flowgraph.errors import LawError, WorkerError
from flowgraph.files.untrusted import read_json
from flowgraph.language.handle import (
    Completion,
    Optimizer,
    Ranks,
    ResponseRows,
    SampleRequest,
    SingleRank,
    StepReport,
    TokenStats,
    Verb,
)
from flowgraph.models.tokenizing import ChatTokenizer, cut_at_stop, end_tokens, refuse_request

if TYPE_CHECKING:
    import httpx
    from torch import Tensor

Waiting = list[tuple[SampleRequest, "asyncio.Future[Completion]"]]
Tag = Literal["weights", "kv_cache"]

CONNECTIONS = 512  # open at a time, to all replicas together
CONNECTS = 4  # attempts to connect
CONNECT_S = 5.0
FIRST_PAUSE_S = 0.2
LOOK_S = 0.05
KEEP_S = 2.0  # an idle connection is dropped before the server, which waits 5 s, may drop it
BEAT_S = 5.0  # between checks of servers that samples wait for
ANSWER_S = 10.0  # for a server to answer such a check
MAX_MISSED = 4  # checks in a row that a server may miss
DYING_S = 2.0  # how long after a failure a server may be seen to end


class RemoteModel(ABC):
    """A handle on the replicas of one model at `doors`; `servers` are those replicas that this process started.

    Samples must come from weights of `version`. `load` leaves `version` unchanged, as in every handle; the next version
    that is set after `load` is sent to the servers. `update_by`, `hold`, `scratch` and `address` define how weights are
    sent (see `WeightUpdates`); `scratch` is a temporary folder by default. A sample may take `limit_s` seconds.
    """

    engine: ClassVar[str]
    path: ClassVar[str]  # to which requests for samples go
    control: ClassVar[type[ServerControl]] = ServerControl
    updates: ClassVar[type[WeightUpdates]] = WeightUpdates

    verbs: frozenset[Verb] = frozenset({"sample", "weights"})
    packs = False
    micro_batch_tokens: int | None = None

    @staticmethod
    @abstractmethod
    def question(request: SampleRequest, ends: Sequence[int], vocabulary: int | None) -> dict[str, Any]:
        """Return the JSON body of a request for one sample; `ends` are the token ids that end the response.

        `vocabulary` is the number of the model's token ids; None if it is unknown. Raises WorkerError if the engine
        would apply a setting of the request differently from the engine `local`.
        """

    @staticmethod
    @abstractmethod
    def read(name: str, text: bytes, request: SampleRequest) -> SampleAnswer:
        """Return the parsed answer `text` of server `name`; raise WorkerError if it does not fit `request`."""

    def __init__(
        self,
        doors: Sequence[ServerAddress],
        raw_tokenizer: Any,
        *,
        version: int = 0,
        limit_s: float = 600.0,
        update_by: By = "disk",
        hold: Hold = "idle",
        scratch: Path | None = None,
        address: str = "",
        servers: Sequence[ServerProcess] = (),
        ranks: Ranks | None = None,
    ) -> None:
        self.doors, self.raw_tokenizer, self.limit_s = tuple(doors), raw_tokenizer, limit_s
        self.tokenizer = ChatTokenizer(raw_tokenizer)
        self.ranks: Ranks = ranks or SingleRank()
        config = dict[str, Any]()  # {} without a folder
        for name in ("config.json", "generation_config.json") if self.doors and self.doors[0].folder else ():
            path = Path(self.doors[0].folder) / name
            config |= read_json(path) if path.is_file() else {}
        self.ends = end_tokens(config.get("eos_token_id"), raw_tokenizer)
        self.positions: int | None = config.get("max_position_embeddings")
        self.vocabulary: int | None = config.get("vocab_size")
        if scratch is None:
            scratch = Path(tempfile.mkdtemp(prefix="weights-"))
            finalize(self, shutil.rmtree, scratch, ignore_errors=True)
        self._updates = self.updates(self.doors, by=update_by, scratch=scratch, hold=hold, address=address)
        self._version, self._unstamped = version, False
        self._asleep = set[Tag]()
        self._servers = {server.door.url: server for server in servers}
        self._router = Router(len(self.doors))
        self._waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, Waiting] = WeakKeyDictionary()
        self._rounds = set[asyncio.Task[None]]()

    @property
    def version(self) -> int:
        """Return the version of the weights that samples must come from; `sample` says when newer ones are accepted."""
        return self._version

    @version.setter
    def version(self, version: int) -> None:
        """Set the version that samples must come from; after `load`, also set it on the servers if it is another one.

        Only the first version that is set after `load` is sent to the servers. Raises WorkerError if a server is not
        reached, refuses, or takes too long; `version` is then unchanged here.
        """
        if self._unstamped and version != self._version:
            self._each(lambda control: control.stamp(str(version)))
        self._version, self._unstamped = version, False

    # --------------------------------------------------------------------------------------- samples

    async def sample(self, request: SampleRequest) -> Completion:
        """Return the sample for one request; requests of one turn of the event loop are distributed together.

        The memory of a sleeping cache is allocated first, as by `wake`. The response is cut after the first text or
        token id of `request.stopping` in it. Its tokens may come from any version of the weights between the value of
        `version` when the request is sent and its value when the answer arrives; newer versions are accepted too,
        unless `hold` is "idle".

        Raises ModelError for a request without a context, with more tokens than the model has positions, or with a stop
        token id that the model does not have. Raises WorkerError for settings that the engine applies differently from
        the engine `local`, or if the cache's memory cannot be allocated. Raises WorkerError, which names replica and
        sample, if the replica cannot be reached, closes the connection, refuses, takes longer than `limit_s` seconds,
        or returns an invalid answer or one from another version of the weights. Raises WorkerError, which names only
        the replica, if a replica misses four health checks in a row, or if one that this process started ends or is
        stopped by a signal. If a health check finds this, all open requests that were distributed together fail.
        """
        refuse_request(request, self.positions, self.vocabulary)
        self.wake(("kv_cache",))  # after a sleep, nothing can be sampled without it
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()
        waiting = self._waiting.setdefault(loop, [])
        waiting.append((request, future))
        if len(waiting) == 1:
            loop.call_soon(self._drain, loop)
        return await future

    def _drain(self, loop: asyncio.AbstractEventLoop) -> None:
        task = loop.create_task(self._round(self._waiting.pop(loop)))
        self._rounds.add(task)
        task.add_done_callback(self._rounds.discard)

    async def _round(self, waiting: Waiting) -> None:
        """Send requests at once, and resolve each future with its answer: the last after connections are closed."""
        import httpx

        replicas = self._router.deal([request for request, _ in waiting])
        ended = list[asyncio.Task[Completion]]()
        futures = dict[asyncio.Task[Completion], "asyncio.Future[Completion]"]()

        def end(task: asyncio.Task[Completion]) -> None:
            ended.append(task)
            if len(ended) < len(futures):
                _settle(futures[task], task)

        async with httpx.AsyncClient(
            limits=httpx.Limits(max_connections=CONNECTIONS, keepalive_expiry=KEEP_S),
            timeout=httpx.Timeout(self.limit_s, connect=min(CONNECT_S, self.limit_s)),
            verify=certificates(self.doors),
            trust_env=False,
        ) as client:
            for replica, (request, future) in zip(replicas, waiting, strict=True):
                futures[asyncio.ensure_future(self._complete(client, replica, request))] = future
            for task, future in futures.items():
                task.add_done_callback(end)
                future.add_done_callback(partial(_cancel, task))
            watch = asyncio.ensure_future(self._watch({self.doors[replica] for replica in replicas}))
            watch.add_done_callback(partial(_give_up, futures))
            await asyncio.gather(*futures, return_exceptions=True)
            watch.cancel()
        _settle(futures[ended[-1]], ended[-1])

    async def _watch(self, doors: Set[ServerAddress]) -> None:
        """Raise WorkerError when a server has missed several health checks; samples have their own time limit."""

        def answers(door: ServerAddress) -> bool:
            with self.control(door, self.limit_s) as control:
                return control.healthy(ANSWER_S)

        missed = dict.fromkeys(doors, 0)
        while True:
            await asyncio.sleep(BEAT_S)
            for door in doors:
                await asyncio.to_thread(self._check, door)
                missed[door] = 0 if await asyncio.to_thread(answers, door) else missed[door] + 1
                if missed[door] == MAX_MISSED:
                    raise WorkerError.stuck(door.name, [], MAX_MISSED * (BEAT_S + ANSWER_S))

    async def _complete(self, client: httpx.AsyncClient, replica: int, request: SampleRequest) -> Completion:
        door, oldest = self.doors[replica], self.version
        try:
            async with asyncio.timeout(self.limit_s):
                answer = await self._ask(client, door, request)
        except TimeoutError:
            raise _lost(door, request, f"did not answer within {self.limit_s:.0f} s") from None
        finally:
            self._router.done(replica, request)
        starts, versions = [start for start, _ in answer.spans], [version for _, version in answer.spans]
        numbers = [int(version) for version in versions if version.isdecimal()]
        # A trainer elsewhere sends weights in flight to the servers first, and then says so here.
        newest = self.version if self._updates.hold == "idle" else max(numbers, default=oldest)
        in_range = all(oldest <= number <= newest for number in numbers)
        if len(numbers) < len(versions) or numbers != sorted(numbers) or not in_range:
            expected = str(oldest) if oldest == self.version else f"{oldest} to {self.version}"
            what = f"{door.name} sampled with version {', '.join(versions)} of the weights; {expected} was expected"
            raise WorkerError(what, notes=[_called(request)])
        finished = answer.meta_info.finish_reason.type == "stop"
        spans = tuple(zip(starts, numbers, strict=True))
        completion = Completion(tuple(answer.output_ids), answer.logprobs, finished, spans)
        return cut_at_stop(completion, request.stopping, self.raw_tokenizer)

    async def _ask(self, client: httpx.AsyncClient, door: ServerAddress, request: SampleRequest) -> SampleAnswer:
        """Return the answer to a request for a sample: a connection is tried several times, the request itself once."""
        import httpx

        headers = {"Content-Type": "application/json", **bearer(door.key)}
        question = self.question(request, sorted(request.ends(self.ends)), self.vocabulary)
        if self._updates.hold == "in_place":  # a server then keeps what it has cached of older weights
            question["cache_salt"] = f"version {self.version}"
        body = json.dumps(question).encode()
        for left in reversed(range(CONNECTS)):
            try:
                answer = await client.post(f"{door.url}{self.path}", content=body, headers=headers)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                self._check(door)
                if not left:
                    raise _lost(door, request, f"cannot be reached: {str(error) or 'no connection'}") from None
                await asyncio.sleep(FIRST_PAUSE_S * 2 ** (CONNECTS - 1 - left))
            except httpx.TimeoutException:
                raise TimeoutError from None
            except (httpx.TransportError, httpx.DecodingError) as error:
                await asyncio.to_thread(self._check_dying, door)
                raise _lost(door, request, f"broke the connection: {str(error) or type(error).__name__}") from None
            else:
                if answer.status_code != 200:
                    raise refusal(door.name, f"{self.path} ({_called(request)})", answer.status_code, answer.text)
                return self.read(f"{door.name} ({_called(request)})", answer.content, request)
        raise AssertionError("the last attempt answers or raises")

    def _check(self, door: ServerAddress) -> None:
        server = self._servers.get(door.url)
        if server is not None:
            server.check()
            server.check_stopped()

    def _check_dying(self, door: ServerAddress) -> None:
        """Raise WorkerError if a server of this process ends within `DYING_S` seconds, which explains a failed call."""
        server, until = self._servers.get(door.url), time.monotonic() + DYING_S
        while server is not None and time.monotonic() < until:
            server.check()
            time.sleep(LOOK_S)

    # --------------------------------------------------------------------------------------- weights and control

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Replace the weights of every replica by the full `weights`, without changing `version`.

        Setting another `version` afterwards also sends that version to the servers. Raises WorkerError if the update
        fails, and ModelError if the servers' model folder has invalid weight files.
        """
        self._updates.send(weights.items(), self._version)
        self._unstamped = True

    def take(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Replace the weights of every replica by the full `weights`, and set `version` here and on the servers.

        Raises WorkerError if the update fails, and ModelError if the servers' model folder has invalid weight files;
        `version` is then unchanged here.
        """
        self._updates.send(weights.items(), version)
        self._version, self._unstamped = version, False

    def pause(self, hold: Literal["retract", "in_place"] = "retract") -> None:
        """Stop the servers from generating until `resume`; requests wait.

        With "retract", the caches of running requests are dropped and recomputed afterwards; "in_place" keeps them.
        Raises WorkerError if a server is not reached, refuses, or takes too long.
        """
        self._each(lambda control: control.post("/pause_generation", mode=hold))

    def resume(self) -> None:
        """Let the servers generate again after `pause`.

        Raises WorkerError if a server is not reached, refuses, or takes too long.
        """
        self._each(lambda control: control.post("/continue_generation"))

    def abort(self) -> None:
        """Abort all requests that run on the servers; `sample` then raises WorkerError for each aborted request.

        Raises WorkerError if a server is not reached, refuses, or takes too long.
        """
        self._each(lambda control: control.post("/abort_request", rid="", abort_all=True))

    def sleep(self, tags: Sequence[Tag] = ("kv_cache", "weights")) -> None:
        """Release the servers' device memory for `tags`; tags that are already released are ignored.

        No request may be running. Released weights are lost, and must be loaded again, unless the servers keep a copy.
        On a CPU, and on servers that were started without `sleeps`, no memory is released. Raises WorkerError if a
        server is not reached, refuses, or takes too long.
        """
        leaving = [tag for tag in tags if tag not in self._asleep]
        if leaving:
            self._release(leaving)
            self._asleep |= {*leaving}

    def wake(self, tags: Sequence[Tag] = ("weights",)) -> None:
        """Allocate the servers' device memory for `tags` again; tags that are not released are ignored.

        By default, only the memory of weights is allocated, so that weights can be loaded before the cache takes its
        memory; the next `sample` allocates the cache. Raises WorkerError if a server is not reached, refuses, or takes
        too long.
        """
        coming: list[Tag] = [tag for tag in tags if tag in self._asleep]
        if coming:
            self._restore(coming)
            self._asleep -= {*coming}

    @abstractmethod
    def _release(self, tags: Sequence[Tag]) -> None:
        """Release the servers' device memory for these tags."""

    @abstractmethod
    def _restore(self, tags: Sequence[Tag]) -> None:
        """Allocate the servers' device memory for these tags again."""

    def close(self) -> None:
        """Release the process group or the files of weight updates; the servers continue to run."""
        self._updates.close()

    def token_stats(self, rows: ResponseRows, wanted: Sequence[str]) -> TokenStats:
        """Raise LawError: this engine only generates samples, and computes no statistics of tokens."""
        self._not_offered("cannot read rows")

    def step(self, losses: Sequence[Callable[[], Tensor]], optimizer: Optimizer) -> StepReport:
        """Raise LawError: this engine does not train."""
        self._not_offered("trains nothing")

    def weights(self) -> dict[str, Tensor]:
        """Raise LawError: weights are available only from the engine that trains them."""
        self._not_offered("cannot return weights")

    def _not_offered(self, what: str) -> NoReturn:
        raise LawError(f"the engine `{self.engine}` {what}: it supports sample and load")

    def _each(self, call: Callable[[Any], Any]) -> None:
        for door in self.doors:
            try:
                with self.control(door, min(self.limit_s, LIMIT_S)) as control:
                    call(control)
            except WorkerError:
                self._check_dying(door)
                raise


def _give_up(futures: Mapping[asyncio.Task[Completion], asyncio.Future[Completion]], watch: asyncio.Task[None]) -> None:
    """Fail all open requests with the error of the health checks, unless these were cancelled."""
    error = None if watch.cancelled() else watch.exception()
    if error is None:
        return
    for task, future in futures.items():
        if not future.done():
            future.set_exception(error)
        task.cancel()


def _settle(future: asyncio.Future[Completion], task: asyncio.Task[Completion]) -> None:
    if future.done():
        return
    error = None if task.cancelled() else task.exception()
    if task.cancelled():
        future.cancel()
    elif error is not None:
        future.set_exception(error)
    else:
        future.set_result(task.result())


def _cancel(task: asyncio.Task[Completion], future: asyncio.Future[Completion]) -> None:
    if future.cancelled():
        task.cancel()


def _called(request: SampleRequest) -> str:
    return f"sample {request.sample} of prompt {request.prompt}"


def _lost(door: ServerAddress, request: SampleRequest, how: str) -> WorkerError:
    hint = "see the server's log" if "broke" in how else ""
    return WorkerError(f"{door.name} {how}", notes=[f"its request was {_called(request)}", f"at {door.url}"], hint=hint)
