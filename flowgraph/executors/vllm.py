"""A model that vLLM servers generate with, seen as a handle: it samples, and it takes weights.

It runs in any process: it talks to servers by their doors and imports nothing of vLLM. How requests are dealt to
replicas, waited for and settled is as for SGLang (`SglangModel`); what is said to a server is in `vllm_http`.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import finalize

from flowgraph.errors import LawError, WorkerError
from flowgraph.executors.base import Optimizer, Ranks, Request, Rows, Stepped, TokenStats
from flowgraph.executors.servers import Door, Server
from flowgraph.executors.sglang import CONNECTIONS, CONNECTS, DYING_S, FIRST_PAUSE_S, SglangModel, Tag
from flowgraph.executors.sglang_http import Answer, Control, refusal
from flowgraph.executors.vllm_http import GENERATE, VllmControl, question, read_sample
from flowgraph.executors.vllm_updates import VllmUpdates
from flowgraph.executors.weight_updates import By, Hold

if TYPE_CHECKING:
    import httpx
    from torch import Tensor


class VllmModel(SglangModel):
    """A handle on the vLLM replicas of one model, each behind its door; its settings are those of `SglangModel`."""

    def __init__(
        self,
        doors: Sequence[Door],
        raw_tokenizer: Any,
        *,
        version: int = 0,
        limit_s: float = 600.0,
        update_by: By = "disk",
        hold: Hold = "idle",
        scratch: Path | None = None,
        address: str = "",
        servers: Sequence[Server] = (),
        connections: int = CONNECTIONS,
        ranks: Ranks | None = None,
    ) -> None:
        if scratch is None:
            scratch = Path(tempfile.mkdtemp(prefix="weights-"))
            finalize(self, shutil.rmtree, scratch, ignore_errors=True)
        super().__init__(
            doors,
            raw_tokenizer,
            version=version,
            limit_s=limit_s,
            hold=hold,
            scratch=scratch,
            servers=servers,
            connections=connections,
            ranks=ranks,
        )
        self._updates = VllmUpdates(self.doors, by=update_by, scratch=scratch, hold=hold, address=address)

    async def _ask(self, client: httpx.AsyncClient, door: Door, request: Request) -> Answer:
        """Ask until there is a connection; what breaks off after that is not asked again."""
        import httpx

        called = f"sample {request.sample} of prompt {request.prompt}"
        headers = {"Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {door.key}"} if door.key else {}
        body = json.dumps(question(request, sorted(self.ends))).encode()
        for left in reversed(range(CONNECTS)):
            try:
                answer = await client.post(f"{door.url}{GENERATE}", content=body, headers=headers)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                await self._see(door)
                if not left:
                    raise _lost(door, called, f"is not reached: {str(error) or 'no connection'}") from None
                await asyncio.sleep(FIRST_PAUSE_S * 2 ** (CONNECTS - 1 - left))
            except httpx.TimeoutException:
                raise TimeoutError from None
            except (httpx.TransportError, httpx.DecodingError) as error:
                await self._see(door, DYING_S)
                raise _lost(door, called, f"broke off: {str(error) or type(error).__name__}") from None
            else:
                break
        else:
            raise AssertionError("the last try answers or raises")
        if answer.status_code != 200:
            raise refusal(door.name, f"{GENERATE} ({called})", answer.status_code, answer.text)
        return read_sample(f"{door.name} ({called})", answer.content, request)

    def sleep(self, tags: Sequence[Tag] = ("kv_cache", "weights")) -> None:
        """Give the servers' device memory back, once they are idle. Weights that sleep are lost: load them anew.

        vLLM drops its cache whenever weights sleep, and keeps weights only with the cache alone (its level 1 holds a
        copy of them in the machine's memory). On a CPU, and on servers that were not started with `sleeps`, this has
        no effect.
        """
        level = 2 if "weights" in tags else 1
        self._sleepers(f"/sleep?level={level}&mode=wait")

    def wake(self, tags: Sequence[Tag] = ("weights", "kv_cache")) -> None:
        """Take device memory again; weights first, so that they can be loaded while there is no cache yet."""
        self._sleepers("/wake_up?" + "&".join(f"tags={tag}" for tag in tags))

    def _sleepers(self, path: str) -> None:
        for door in self.doors:
            if door.sleeps:
                with VllmControl(door, self.limit_s) as control:
                    control.each(path)

    def token_stats(self, rows: Rows, wanted: Sequence[str]) -> TokenStats:
        """Refuse: generation is all that this engine is asked for."""
        _not_offered("reads no rows")

    def step(self, losses: Sequence[Callable[[], Tensor]], optimizer: Optimizer) -> Stepped:
        """Refuse: an engine for generation trains nothing."""
        _not_offered("trains nothing")

    def weights(self) -> dict[str, Tensor]:
        """Refuse: weights come to this engine, and are read where they are trained."""
        _not_offered("gives no weights")

    def _each(self, call: Callable[[Control], Any]) -> None:
        for door in self.doors:
            with VllmControl(door, self.limit_s) as control:
                call(control)


def _not_offered(what: str) -> NoReturn:
    raise LawError(f"the engine `vllm` {what}: it offers sample and load")


def _lost(door: Door, called: str, how: str) -> WorkerError:
    hint = "the server's log says why" if "broke" in how else ""
    return WorkerError(f"{door.name} {how}", notes=[f"it was to draw {called}", f"at {door.url}"], hint=hint)
