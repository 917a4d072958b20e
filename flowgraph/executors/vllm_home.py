"""A home of a plan on vLLM: its servers, the handle that speaks for them, and who brings them new weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowgraph.executors.sglang_serving import Serving
from flowgraph.executors.vllm import VllmModel
from flowgraph.executors.vllm_serving import attach as serving_attach
from flowgraph.executors.vllm_serving import serve
from flowgraph.executors.vllm_updates import VllmUpdates
from flowgraph.executors.weight_updates import By

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


def handle(home: Home, doors: Sequence[Door], tokenizer: Any, servers: Sequence[Server], scratch: Path) -> VllmModel:
    """Give the handle on a home's replicas; `servers` are those of them that are children of this process."""
    return VllmModel(doors, tokenizer, update_by=weights_by(home, shared=False), scratch=scratch, servers=servers)


def updates(home: Home, doors: Sequence[Door], scratch: Path, *, shared: bool) -> VllmUpdates:
    """Give what brings new weights to replicas; `shared` says that they are on the devices of who has the weights."""
    return VllmUpdates(doors, by=weights_by(home, shared=shared), scratch=scratch)


def weights_by(home: Home, *, shared: bool) -> By:
    """Say how new weights come to a home's replicas, where the plan does not.

    Over a process group to devices that nobody shares; it cannot have one device twice, so else through files.
    """
    if home.running.weights_by is not None:
        return home.running.weights_by
    return "disk" if shared else "group"
