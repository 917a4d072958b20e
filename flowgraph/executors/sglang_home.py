"""A home of a plan on SGLang: its servers, the handle that speaks for them, and who brings them new weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.executors.sglang import SglangModel
from flowgraph.executors.sglang_serving import Serving, serve
from flowgraph.executors.sglang_serving import attach as serving_attach
from flowgraph.executors.weight_updates import By, Updates

if TYPE_CHECKING:
    from flowgraph.executors.servers import Door, Server
    from flowgraph.lowering.program import Home
    from flowgraph.runtime.serving import Post


def start(folder: Path, post: Post, *, cache: Path, seed: int, threads: int, limit_s: float, log: Path) -> Server:
    """Start one replica on a model's folder, as the plan says; raises as `serve` does."""
    running = post.home.running
    told = Serving(
        precision=running.precision,
        tensor=post.home.layout.tensor,
        cache_share=running.cache_share,
        seed=seed,
        threads=threads,
        sleeps=running.sleeps,
    )
    device: Any = post.device
    return serve(folder, told, device=device, gpus=post.gpus, name=post.name, limit_s=limit_s, log=log, cache=cache)


def attach(told: Any, name: str) -> Door:
    """Give the door of a server that runs already: `told` has its `url`, and `key` and `admin_key` as secrets."""
    keys = {"key": told.key.get_secret_value(), "admin_key": told.admin_key.get_secret_value()}
    return serving_attach(told.url, name=name, **keys)


def handle(home: Home, doors: Sequence[Door], tokenizer: Any, servers: Sequence[Server], scratch: Path) -> SglangModel:
    """Give the handle on a home's replicas; `servers` are those of them that are children of this process."""
    return SglangModel(doors, tokenizer, update_by=weights_by(home, shared=False), scratch=scratch, servers=servers)


def updates(home: Home, doors: Sequence[Door], scratch: Path, *, shared: bool) -> Updates:
    """Give what brings new weights to replicas; `shared` says that they are on the devices of who has the weights."""
    return Updates(doors, by=weights_by(home, shared=shared), scratch=scratch)


def weights_by(home: Home, *, shared: bool) -> By:
    """Say how new weights come to a home's replicas, where the plan does not.

    In the memory of a device that both share, if one process holds a replica's weights; a process group cannot have one
    device twice, so else through files; and over a process group to devices that nobody shares.
    """
    if home.running.weights_by is not None:
        return home.running.weights_by
    if not shared:
        return "group"
    return "memory" if home.layout.tensor == 1 else "disk"
