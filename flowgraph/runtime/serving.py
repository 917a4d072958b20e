"""Engines with processes of their own: a server for each replica of a home, as a child of the process that leads it.

The first of a home's devices speaks for all its servers. Not here: how a server is started and asked (`executors`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.engines.table import ENGINES
from flowgraph.errors import LawError
from flowgraph.lowering.program import Home
from flowgraph.models.loading import load
from flowgraph.models.saving import save
from flowgraph.runtime.hosting import ModelSetup, named
from flowgraph.runtime.ray.deadlines import UNKNOWN_S
from flowgraph.runtime.ray.session import LOOPBACK
from flowgraph.runtime.scratch import note_group

if TYPE_CHECKING:
    from flowgraph.engines.servers.server_engine import ServerEngine
    from flowgraph.language.handle import Handle
    from flowgraph.models.loading import LoadedModel


@dataclass(frozen=True)
class ServerPlace:
    """Where one replica of a home is served: on a torch device type, these GPUs of its machine, and an address."""

    home: Home
    device: str
    gpus: tuple[str, ...] = ()
    replica: int = 0
    host: str = LOOPBACK

    @property
    def name(self) -> str:
        """Name the replica, for logs and errors."""
        return f"{self.home.param}-{self.home.pool}-{self.replica}"


@dataclass(eq=False)
class Servers:
    """The servers that are children of this process, and the models whose folders they read; `scratch` takes these."""

    setup: ModelSetup
    scratch: Path
    limit_s: float
    threads: int = 1
    _running: list[Any] = field(default_factory=list[Any])
    _loaded: dict[str, LoadedModel] = field(default_factory=dict[str, "LoadedModel"])
    _versions: dict[Home, str] = field(default_factory=dict[Home, str])

    def start(self, post: ServerPlace) -> Any:
        """Start one replica's server and give its door: where it is reached, and the key to it.

        Where servers are attached the replica's is one of them, and only its door is made.
        """
        there = self.setup.attached.get(post.home.param, ())
        if there:
            if len(there) != post.home.layout.data:
                what = f"{len(there)} servers are attached for {post.home.param}, whose plan has {post.home.layout}"
                raise LawError(what, hint="one server for each data rank")
            told = there[post.replica]
            keys = {"key": told.key.get_secret_value(), "admin_key": told.admin_key.get_secret_value()}
            return engine_of(post.home).attach(told.url, name=post.name, stamp=self._frozen(post.home), **keys)
        server = engine_of(post.home).start(
            self._folder(post.home),
            post,
            seed=self.setup.seed,
            threads=self.threads,
            keeps=self._frozen(post.home),
            log=self.scratch / f"{post.name}.log",
            cache=self.setup.cache,
            limit_s=self.limit_s,
            begun=partial(note_group, self.scratch),
        )
        self._running.append(server)
        return server.door

    def _frozen(self, home: Home) -> bool:
        return home.param in self.setup.frozen

    def handle(self, home: Home, doors: Sequence[Any], *, shared: bool = False) -> Handle:
        """Give the handle that speaks for all servers of a home; `shared`: they are on the device of this process."""
        made: Any = engine_of(home).handle(
            home,
            doors,
            self._model(home).tokenizer,
            self._running,
            self.scratch,
            shared=shared,
            limit_s=self.setup.limits_s.get(home.param, UNKNOWN_S),
        )
        self._versions[home] = ", ".join(sorted({str(door.version) for door in doors}))
        handle: Handle = made  # its version is a property, which a protocol's attribute is not to pyright
        return handle

    def open(self, home: Home, device: str) -> Handle:
        """Start every replica of a home here, and give the handle that speaks for them."""
        return self.handle(home, [self.start(post) for post in posts(home, device).values()], shared=device != "cpu")

    def check(self) -> None:
        """Raise WorkerError for a server that has ended, or of which a signal has stopped a process."""
        for server in self._running:
            server.check()
            server.check_stopped()

    def close(self) -> None:
        """End every server."""
        for server in self._running:
            server.close()
        self._running.clear()

    def told(self, home: Home) -> dict[str, str]:
        """Return what a home's servers loaded, and their engine with its version."""
        loaded, engine = self._model(home), f"{home.engine} {self._versions.get(home, '')}".strip()
        return {"name": loaded.name, "digest": loaded.digest, "notes": "; ".join(loaded.notes), "engine": engine}

    def _model(self, home: Home) -> LoadedModel:

        source = self.setup.sources[home.param]
        if source.name not in self._loaded:
            self._loaded[source.name] = load(
                source, seed=self.setup.seed, cache=self.setup.cache, head=self.setup.head(home.param), say=_quietly
            )
        return self._loaded[source.name]

    def _folder(self, home: Home) -> Path:
        """Write a home's model where its server reads it, once; adapters are merged into what they stand on."""
        loaded, folder = self._model(home), self.scratch / f"{home.param}-{home.pool}"
        if not folder.is_dir():
            save(loaded.model, loaded.tokenizer, folder, sums=False)  # its server reads it at once
        return folder


def engine_of(home: Home) -> ServerEngine:
    """Give the engine of a home that has processes of its own."""
    engine: ServerEngine = named(ENGINES[home.engine].server)()
    return engine


def _quietly(line: str) -> None:
    """Say nothing: whoever started the run has said it."""


def posts(home: Home, device: str, gpus: Sequence[Sequence[str]] = ()) -> dict[int, ServerPlace]:
    """Give the posts of a home by the place of the device that leads each; `gpus` are those of each device.

    >>> from flowgraph.cluster.plan import Layout
    >>> [*posts(Home("policy", "all", "sglang", Layout(data=2, tensor=4)), "cuda")]
    [0, 4]
    """
    each = home.layout.devices // home.layout.data
    leads = range(0, home.layout.devices, each)
    return {
        lead: ServerPlace(
            home,
            device,
            tuple(name for names in gpus[lead : lead + each] for name in names),
            lead // each,
        )
        for lead in leads
    }
