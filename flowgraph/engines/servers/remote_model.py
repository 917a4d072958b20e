"""A model that servers generate with, seen as a handle: it samples, and it takes weights.

It runs in any process: it talks to servers by their doors and imports nothing of their engine. What differs from engine
to engine is in `sglang` and `vllm`.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn
from weakref import WeakKeyDictionary, finalize

from flowgraph.engines.local.model import ChatTokenizer
from flowgraph.engines.servers.router import Router
from flowgraph.engines.servers.server_process import ServerAddress, ServerProcess
from flowgraph.engines.sglang.http import SampleAnswer, ServerControl, as_number, certificates, refusal
from flowgraph.engines.weight_sync.weight_updates import LIMIT_S, By, Hold, WeightUpdates
from flowgraph.errors import LawError, ModelError, WorkerError
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

if TYPE_CHECKING:
    import httpx
    from torch import Tensor

Waiting = list[tuple[SampleRequest, "asyncio.Future[Completion]"]]
Tag = Literal["weights", "kv_cache"]

CONNECTIONS = 512  # at a time, to all replicas together
CONNECTS = 4  # tries to connect
CONNECT_S = 5.0
FIRST_PAUSE_S = 0.2
LOOK_S = 0.05
KEEP_S = 2.0  # an idle connection is dropped before the server, which waits 5 s, may drop it
BEAT_S = 5.0  # how often servers are looked at while they are waited for
ANSWER_S = 10.0  # how long one may take to answer that it is there
MISSED_AT_MOST = 4  # times in a row that one may not answer
DYING_S = 2.0  # how long a server that broke off may take to be seen as ended


class RemoteModel:
    """A handle on the replicas of one model, each behind its door; `servers` are those of them that this process owns.

    `version` is what samples are to be stamped with. `load` leaves it, as every handle's does; the next version that is
    set after it is stamped on the servers. `update_by`, `hold`, `scratch` and `address` say how weights come to them
    (`WeightUpdates`). A sample has `limit_s` seconds.
    """

    engine: ClassVar[str]
    path: ClassVar[str]  # where a server takes questions
    control: ClassVar[type[ServerControl]]
    updates: ClassVar[type[WeightUpdates]]

    @staticmethod
    def question(request: SampleRequest, ends: Sequence[int]) -> dict[str, Any]:
        """Give the body that asks for one sample."""
        raise NotImplementedError

    @staticmethod
    def read(name: str, text: bytes, request: SampleRequest) -> SampleAnswer:
        """Read what came of it; raise WorkerError for what is no such sample."""
        raise NotImplementedError

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
        connections: int = CONNECTIONS,
        ranks: Ranks | None = None,
    ) -> None:
        self.doors, self.raw_tokenizer, self.limit_s = tuple(doors), raw_tokenizer, limit_s
        self.tokenizer = ChatTokenizer(raw_tokenizer)
        self.ranks: Ranks = ranks or SingleRank()
        self.ends, self.positions = _ends_and_positions(self.doors, raw_tokenizer)
        if scratch is None:
            scratch = Path(tempfile.mkdtemp(prefix="weights-"))
            finalize(self, shutil.rmtree, scratch, ignore_errors=True)
        self._updates = self.updates(self.doors, by=update_by, scratch=scratch, hold=hold, address=address)
        self._version, self._unstamped = version, False
        self._asleep = set[Tag]()
        self._servers = {server.door.url: server for server in servers}
        self._router, self._connections = Router(len(self.doors)), connections
        self._waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, Waiting] = WeakKeyDictionary()
        self._rounds = set[asyncio.Task[None]]()

    @property
    def version(self) -> int:
        """Give the version that samples are to be stamped with."""
        return self._version

    @version.setter
    def version(self, version: int) -> None:
        """Expect this version from now on; the first that is set after a `load` is stamped on the servers."""
        if self._unstamped and version != self._version:
            self._each(lambda control: control.stamp(str(version)))
        self._version, self._unstamped = version, False

    @property
    def packs(self) -> bool:
        """Say that nothing is read here."""
        return False

    @property
    def micro_batch_tokens(self) -> int | None:
        """Say that nothing is trained here."""
        return None

    @property
    def verbs(self) -> frozenset[Verb]:
        """Give the verbs this handle offers."""
        return frozenset({"sample", "weights"})

    async def sample(self, request: SampleRequest) -> Completion:
        """Draw one sample; requests made in one turn of the event loop are dealt to the replicas together.

        Raises ModelError for a request that the model has no positions for, and WorkerError, which names the replica
        and the sample, where it is not reached, breaks off, refuses, takes too long, or answers with what cannot be
        used or was drawn with other weights than `version`.
        """
        if not request.context:
            raise ModelError.no_prompt()
        if self.positions is not None and len(request.context) + request.max_tokens > self.positions:
            raise ModelError.too_long(len(request.context), request.max_tokens, self.positions)
        self.wake(("kv_cache",))  # for the first since it slept: nothing can be drawn before that
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
        """Send requests at once, and give each future what came of its request; the last when nothing is left open."""
        replicas = self._router.deal([request for request, _ in waiting])
        ended = list[asyncio.Task[Completion]]()
        futures = dict[asyncio.Task[Completion], "asyncio.Future[Completion]"]()

        def end(task: asyncio.Task[Completion]) -> None:
            ended.append(task)
            if len(ended) < len(futures):
                _settle(futures[task], task)

        async with self._client() as client:
            for replica, (request, future) in zip(replicas, waiting, strict=True):
                futures[asyncio.ensure_future(self._one(client, replica, request))] = future
            for task, future in futures.items():
                task.add_done_callback(end)
                future.add_done_callback(partial(_cancel, task))
            looking = asyncio.ensure_future(self._look({self.doors[replica] for replica in replicas}))
            looking.add_done_callback(partial(_give_up, futures))
            await asyncio.gather(*futures, return_exceptions=True)
            looking.cancel()
        _settle(futures[ended[-1]], ended[-1])

    async def _look(self, doors: Set[ServerAddress]) -> None:
        """See now and then whether servers are well while they are waited for; raise WorkerError for one that is not.

        What is asked is whether the server answers at all: how long a sample may take is another limit.
        """
        missed = dict.fromkeys(doors, 0)
        while True:
            await asyncio.sleep(BEAT_S)
            for door in doors:
                await asyncio.to_thread(self._see, door)
                missed[door] = 0 if await asyncio.to_thread(self._answers, door) else missed[door] + 1
                if missed[door] == MISSED_AT_MOST:
                    raise WorkerError.stuck(door.name, [], MISSED_AT_MOST * (BEAT_S + ANSWER_S))

    def _answers(self, door: ServerAddress) -> bool:
        with self.control(door, self.limit_s) as control:
            return control.healthy(ANSWER_S)

    def _client(self) -> httpx.AsyncClient:
        import httpx

        limits = httpx.Limits(max_connections=self._connections, keepalive_expiry=KEEP_S)
        limit = httpx.Timeout(self.limit_s, connect=min(CONNECT_S, self.limit_s))
        return httpx.AsyncClient(limits=limits, timeout=limit, verify=certificates(self.doors), trust_env=False)

    async def _one(self, client: httpx.AsyncClient, replica: int, request: SampleRequest) -> Completion:
        door, first = self.doors[replica], self.version
        try:
            async with asyncio.timeout(self.limit_s):
                answer = await self._ask(client, door, request)
        except TimeoutError:
            raise _lost(door, request, f"does not answer within {self.limit_s:.0f} s") from None
        finally:
            self._router.done(replica, request)
        return self._completion(door, request, answer, first)

    async def _ask(self, client: httpx.AsyncClient, door: ServerAddress, request: SampleRequest) -> SampleAnswer:
        """Ask until there is a connection; what breaks off after that is not asked again."""
        import httpx

        headers = {"Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {door.key}"} if door.key else {}
        body = json.dumps(self.question(request, sorted(self.ends))).encode()
        for left in reversed(range(CONNECTS)):
            try:
                answer = await client.post(f"{door.url}{self.path}", content=body, headers=headers)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                self._see(door)
                if not left:
                    raise _lost(door, request, f"is not reached: {str(error) or 'no connection'}") from None
                await asyncio.sleep(FIRST_PAUSE_S * 2 ** (CONNECTS - 1 - left))
            except httpx.TimeoutException:
                raise TimeoutError from None
            except (httpx.TransportError, httpx.DecodingError) as error:
                await asyncio.to_thread(self._see_end, door)
                raise _lost(door, request, f"broke off: {str(error) or type(error).__name__}") from None
            else:
                break
        else:
            raise AssertionError("the last try answers or raises")
        if answer.status_code != 200:
            raise refusal(door.name, f"{self.path} ({_called(request)})", answer.status_code, answer.text)
        return self.read(f"{door.name} ({_called(request)})", answer.content, request)

    def _see(self, door: ServerAddress) -> None:
        """Raise what is known of a server of ours that has ended."""
        server = self._servers.get(door.url)
        if server is not None:
            server.check()
            server.check_stopped()

    def _completion(self, door: ServerAddress, request: SampleRequest, answer: SampleAnswer, first: int) -> Completion:
        spans, last = answer.spans, self.version
        numbers = [as_number(version) for _, version in spans]
        known = [number for number in numbers if number is not None]
        if known != numbers or known != sorted(known) or not all(first <= number <= last for number in known):
            told = ", ".join(version for _, version in spans)
            wanted = str(last) if first == last else f"{first} to {last}"
            what = f"{door.name} sampled with version {told} of the weights; {wanted} was expected"
            raise WorkerError(what, notes=[_called(request)])
        versions = tuple((start, number) for (start, _), number in zip(spans, known, strict=True))
        finished = answer.meta_info.finish_reason.type == "stop"
        return Completion(tuple(answer.output_ids), answer.logprobs, finished, versions)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Replace the weights of every replica; raise WorkerError, as `WeightUpdates.send` does, where that fails."""
        self._updates.send(weights.items(), self._version)
        self._unstamped = True

    def take(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Replace the weights of every replica and stamp their version, in one go."""
        self._updates.send(weights.items(), version)
        self._version, self._unstamped = version, False

    def pause(self, hold: Literal["retract", "in_place"] = "retract") -> None:
        """Keep the servers from generating until `resume`; requests wait."""
        self._each(lambda control: control.post("/pause_generation", mode=hold))

    def resume(self) -> None:
        """Let paused servers go on."""
        self._each(lambda control: control.post("/continue_generation"))

    def abort(self) -> None:
        """Break off every request that runs; whoever waits for one gets WorkerError."""
        self._each(lambda control: control.post("/abort_request", rid="", abort_all=True))

    def sleep(self, tags: Sequence[Tag] = ("kv_cache", "weights")) -> None:
        """Give the servers' device memory back, once they are idle; what sleeps already is left alone.

        Weights that sleep are lost, unless the servers keep them: load them anew. On a CPU, and on servers that were
        not started with `sleeps`, this has no effect.
        """
        leaving = [tag for tag in tags if tag not in self._asleep]
        if leaving:
            self._release(leaving)
            self._asleep |= {*leaving}

    def wake(self, tags: Sequence[Tag] = ("weights",)) -> None:
        """Take device memory again: that of weights, so that they can be loaded; the first sample takes the cache's.

        So whoever brings weights can step aside before there is a cache.
        """
        coming: list[Tag] = [tag for tag in tags if tag in self._asleep]
        if coming:
            self._resume(coming)
            self._asleep -= {*coming}

    def _release(self, tags: Sequence[Tag]) -> None:
        """Have the servers give this memory back."""
        raise NotImplementedError

    def _resume(self, tags: Sequence[Tag]) -> None:
        """Have the servers take this memory again."""
        raise NotImplementedError

    def close(self) -> None:
        """End what updates have kept; the servers run on, and are ended by whoever owns them."""
        self._updates.close()

    def token_stats(self, rows: ResponseRows, wanted: Sequence[str]) -> TokenStats:
        """Refuse: generation is all that this engine is asked for."""
        self._not_offered("reads no rows")

    def step(self, losses: Sequence[Callable[[], Tensor]], optimizer: Optimizer) -> StepReport:
        """Refuse: an engine for generation trains nothing."""
        self._not_offered("trains nothing")

    def weights(self) -> dict[str, Tensor]:
        """Refuse: weights come to this engine, and are read where they are trained."""
        self._not_offered("gives no weights")

    def _not_offered(self, what: str) -> NoReturn:
        raise LawError(f"the engine `{self.engine}` {what}: it offers sample and load")

    def _each(self, call: Callable[[Any], Any]) -> None:
        for door in self.doors:
            try:
                with self.control(door, min(self.limit_s, LIMIT_S)) as control:
                    call(control)
            except WorkerError:
                self._see_end(door)
                raise

    def _see_end(self, door: ServerAddress) -> None:
        """Raise what is known of a server of ours that has ended, or does so soon: that is why a call failed."""
        server, until = self._servers.get(door.url), time.monotonic() + DYING_S
        while server is not None and time.monotonic() < until:
            server.check()
            time.sleep(LOOK_S)


def _give_up(
    futures: Mapping[asyncio.Task[Completion], asyncio.Future[Completion]], looking: asyncio.Task[None]
) -> None:
    """Break off all requests with the error of who looked after the servers, unless that was cancelled."""
    error = None if looking.cancelled() else looking.exception()
    if error is None:
        return
    for task, future in futures.items():
        if not future.done():
            future.set_exception(error)
        task.cancel()


def _settle(future: asyncio.Future[Completion], task: asyncio.Task[Completion]) -> None:
    """Give a future what came of a task, unless nobody waits for it any more."""
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
    """Break off a request that nobody waits for: the server sees the connection close."""
    if future.cancelled():
        task.cancel()


def _called(request: SampleRequest) -> str:
    return f"sample {request.sample} of prompt {request.prompt}"


def _lost(door: ServerAddress, request: SampleRequest, how: str) -> WorkerError:
    hint = "the server's log says why" if "broke" in how else ""
    return WorkerError(f"{door.name} {how}", notes=[f"it was to draw {_called(request)}", f"at {door.url}"], hint=hint)


def _ends_and_positions(doors: Sequence[ServerAddress], raw_tokenizer: Any) -> tuple[frozenset[int], int | None]:
    """Read which tokens end a response, as the reference engine has them, and how many positions the model has."""
    told, positions = dict[str, Any](), None
    for door in doors[:1]:
        for name in ("config.json", "generation_config.json"):
            path = Path(door.folder) / name
            if door.folder and path.is_file():
                told |= read_json(path)
        positions = told.get("max_position_embeddings")
    named = told.get("eos_token_id")
    listed = named if isinstance(named, list) else [named]
    ends = [*listed, getattr(raw_tokenizer, "eos_token_id", None)]
    return frozenset(int(each) for each in ends if each is not None), positions
