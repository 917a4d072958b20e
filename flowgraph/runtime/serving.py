"""Inference servers: one for each replica of a home, as a child of the process of the replica's first device.

One handle, in the process of the home's first device, sends requests to all its servers. `engines.servers` implements
how a server is started and queried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from flowgraph.engines.table import ENGINES
from flowgraph.errors import LawError
from flowgraph.lowering.program import Home
from flowgraph.models.loading import load
from flowgraph.models.saving import save
from flowgraph.runtime.hosting import ModelSetup
from flowgraph.runtime.ray.deadlines import UNKNOWN_S
from flowgraph.runtime.ray.session import LOOPBACK
from flowgraph.runtime.scratch import note_group

if TYPE_CHECKING:
    from flowgraph.engines.servers.server_engine import ServerEngine
    from flowgraph.language.handle import Handle
    from flowgraph.models.loading import LoadedModel


@dataclass(frozen=True)
class ServerPlace:
    """The place of one replica of a home: a torch device type, GPUs of its machine, and the address to listen on."""

    home: Home
    device: str
    gpus: tuple[str, ...] = ()
    replica: int = 0
    host: str = LOOPBACK

    @property
    def name(self) -> str:
        """Return a name for the replica: `PARAM-POOL-REPLICA`."""
        return f"{self.home.param}-{self.home.pool}-{self.replica}"


@dataclass(eq=False)
class Servers:
    """The servers that are children of this process; the models that they load are written to `scratch`.

    A server may take `limit_s` seconds to start, and uses `threads` CPU threads.
    """

    setup: ModelSetup
    scratch: Path
    limit_s: float
    threads: int = 1
    _running: list[Any] = field(default_factory=list[Any])
    _models: dict[str, LoadedModel] = field(default_factory=dict[str, "LoadedModel"])
    _versions: dict[Home, str] = field(default_factory=dict[Home, str])

    def start(self, place: ServerPlace) -> Any:
        """Start the server of one replica and return its door: its address and access keys.

        For attached servers, which already run, only the door is created. Raises LawError if the number of attached
        servers differs from the number of replicas, ModelError if the model cannot be loaded, and WorkerError if the
        server does not start within `limit_s` seconds or, when attached, cannot be used.
        """
        home = place.home
        engine, frozen = engine_of(home), home.param in self.setup.frozen
        if attached := self.setup.attached.get(home.param, ()):
            if len(attached) != home.layout.data:
                what = f"{len(attached)} servers are attached for {home.param}, whose plan has {home.layout}"
                raise LawError(what, hint="one server for each data rank")
            server = attached[place.replica]
            keys = {"key": server.key.get_secret_value(), "admin_key": server.admin_key.get_secret_value()}
            return engine.attach(server.url, name=place.name, stamp=frozen, **keys)
        folder = self.scratch / f"{home.param}-{home.pool}"
        if not folder.is_dir():  # the replicas read one folder, with adapters merged into their base
            loaded = self._model(home)
            save(loaded.model, loaded.tokenizer, folder, sums=False)  # its server reads it at once
        server = engine.start(
            folder,
            place,
            seed=self.setup.seed,
            threads=self.threads,
            keeps=frozen,
            log=self.scratch / f"{place.name}.log",
            cache=self.setup.cache,
            limit_s=self.limit_s,
            begun=partial(note_group, self.scratch),
        )
        self._running.append(server)
        return server.door

    def handle(self, home: Home, doors: Sequence[Any], *, shared: bool = False) -> Handle:
        """Return a handle that sends requests to all servers of a home, the replicas of one copy of a model.

        `doors` are the servers' addresses and keys, as `start` returns them; `shared` means that the servers are on the
        device of this process. The model is loaded, for its tokenizer, if this process has not loaded it; this may
        raise ModelError.
        """
        handle: Any = engine_of(home).handle(
            home,
            doors,
            self._model(home).tokenizer,
            self._running,
            self.scratch,
            shared=shared,
            limit_s=self.setup.limits_s.get(home.param, UNKNOWN_S),
        )
        self._versions[home] = ", ".join(sorted({str(door.version) for door in doors}))
        typed: Handle = handle  # its version is a property, which a protocol's attribute is not to pyright
        return typed

    def open(self, home: Home, device: str) -> Handle:
        """Start every replica of a home on this machine, and return one handle that sends requests to all of them.

        `device` is the torch device type. Raises the errors of `start`; servers that have started then run until
        `close`.
        """
        doors = [self.start(place) for place in server_places(home, device).values()]
        return self.handle(home, doors, shared=device != "cpu")

    def check(self) -> None:
        """Raise WorkerError if a server has ended, or has a process that repeated calls found stopped by a signal."""
        for server in self._running:
            server.check()
            server.check_stopped()

    def close(self) -> None:
        """End every server that this process started."""
        for server in self._running:
            server.close()
        self._running.clear()

    def facts(self, home: Home) -> dict[str, str]:
        """Return the `name`, `digest` and `notes` of the model of a home's servers, and the `engine` with its version.

        The model is loaded if this process has not loaded it; this may raise ModelError.
        """
        loaded, engine = self._model(home), f"{home.engine} {self._versions.get(home, '')}".strip()
        return {"name": loaded.name, "digest": loaded.digest, "notes": "; ".join(loaded.notes), "engine": engine}

    def _model(self, home: Home) -> LoadedModel:
        source, setup = self.setup.sources[home.param], self.setup
        if source.name not in self._models:  # without messages: the process that started the run has printed them
            self._models[source.name] = load(
                source, seed=setup.seed, cache=setup.cache, head=setup.head(home.param), say=lambda line: None
            )
        return self._models[source.name]


def engine_of(home: Home) -> ServerEngine:
    """Return a new object of the server engine that hosts a home, such as SGLang's."""
    engine: ServerEngine = resolve_name(ENGINES[home.engine].server)()
    return engine


def server_places(home: Home, device: str, gpus: Sequence[Sequence[str]] = ()) -> dict[int, ServerPlace]:
    """Return the place of each replica of a home, by the index of the replica's first device in the home.

    `device` is the torch device type of all of them. `gpus` has the ids of the GPUs of each device of the home; it may
    be empty.

    >>> from flowgraph.cluster.plan import Layout
    >>> [*server_places(Home("policy", "all", "sglang", Layout(data=2, tensor=4)), "cuda")]
    [0, 4]
    """
    size = home.layout.devices // home.layout.data
    return {
        first: ServerPlace(home, device, tuple(chain.from_iterable(gpus[first : first + size])), first // size)
        for first in range(0, home.layout.devices, size)
    }
