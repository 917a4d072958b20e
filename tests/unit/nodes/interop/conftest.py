"""Plans made by hand, for any shipped flow and named placement: what exports are tested on."""

from __future__ import annotations

import importlib
import subprocess
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.analysis.roles import roles
from flowgraph.cluster.cluster import Cluster, Device, Machine
from flowgraph.cluster.plan import Layout, PlacedRole, Plan, PlanAssumptions, Pool, RoleSettings
from flowgraph.flows.settings import resolve_settings
from flowgraph.language.graph import Graph
from flowgraph.passes import named
from placements.search.named_placements import variant

GPU = Device(kind="gpu", memory_bytes=80 * 2**30, model="h100-sxm-80g")
MODEL = "Qwen/Qwen2.5-7B-Instruct"
TRAINED = RoleSettings(
    precision="bfloat16", checkpointing="full", offload=("parameters", "optimizer"), micro_batch_tokens=16384
)
FROZEN = RoleSettings(precision="bfloat16", offload=("parameters",), micro_batch_tokens=16384)
SAMPLED = RoleSettings(precision="bfloat16", cache_share=0.6, sleeps=True)


def graph_of(flow: str, sets: Mapping[str, object] | None = None, module: str = "") -> Graph:
    """Describe a flow, with settings by node."""
    return resolve_settings(_described(flow, module), (), sets)[0] if sets else _with_defaults(flow, module)


@cache
def _described(flow: str, module: str) -> Graph:
    found = importlib.import_module(module or f"examples.{flow}")
    graph: Graph = named(getattr(found, flow).graph())
    return graph


@cache
def _with_defaults(flow: str, module: str) -> Graph:
    return resolve_settings(_described(flow, module), (), {})[0]


def plan_of(
    graph: Graph,
    placement: str,
    *,
    devices: int = 8,
    tensor: int = 2,
    lag: int = 0,
    models: Mapping[str, str] | None = None,
    change: Callable[[PlacedRole], PlacedRole] = lambda placed: placed,
    **assumed: Any,
) -> Plan:
    """Place a flow's roles on one machine for each part of a named placement."""
    groups = variant(placement).parts_of(graph)
    machines = tuple(
        Machine(name=f"m{i}", devices=(GPU,) * devices, host_memory_bytes=2**40, cores=64) for i in range(len(groups))
    )
    placed = [_placed(role, f"p{i}", devices, tensor, lag) for i, group in enumerate(groups) for role in group]
    told = {role.param: MODEL for role in roles(graph)} | dict(models or {})
    wanted = {"batch": 512, "prompt_tokens": "1024", "response_tokens": "", **assumed}
    return Plan(
        flow=graph.name,
        structure_hash=structure_hash(graph),
        cluster=Cluster(nodes=machines),
        pools=tuple(
            Pool(name=f"p{i}", devices=tuple((f"m{i}", place) for place in range(devices))) for i in range(len(groups))
        ),
        placed=tuple(change(each) for each in placed),
        assumed=PlanAssumptions(flow=graph.name, models=told, **wanted),
    )


def _placed(role: str, pool: str, devices: int, tensor: int, lag: int) -> PlacedRole:
    use = role.rpartition(".")[2]
    if use == "sample":
        layout = Layout(data=devices // tensor, tensor=tensor)
        return PlacedRole(role=role, pool=pool, engine="vllm", layout=layout, running=SAMPLED, lag=lag)
    layout = Layout(data=devices, sharding="full")
    return PlacedRole(role=role, pool=pool, engine="fsdp", layout=layout, running=TRAINED if use == "train" else FROZEN)


@pytest.fixture(scope="session")
def graph() -> Callable[..., Graph]:
    """Return `graph(flow, sets, module)`: a described flow."""
    return graph_of


@pytest.fixture(scope="session")
def plan() -> Callable[..., Plan]:
    """Return `plan(graph, placement, …)`: a plan made by hand."""
    return plan_of


@pytest.fixture
def argv(tmp_path: Path) -> Callable[[str], list[str]]:
    """Return `argv(script)`: the words that bash hands to the program that a script starts, which is never run."""
    stub = tmp_path / "bin"
    stub.mkdir()
    for name in ("python3", "ray"):
        (stub / name).write_text('#!/bin/bash\nfor each in "$@"; do printf "%s\\0" "$each"; done\n', encoding="utf-8")
        (stub / name).chmod(0o755)

    def run(script: str) -> list[str]:
        path = tmp_path / "run.sh"
        path.write_text(script, encoding="utf-8")
        names = ("TRAIN_FILES", "VAL_FILES", "PROMPT_DATA", "REWARD_FILE", "TOTAL_PROMPTS")
        env = {"PATH": f"{stub}:/usr/bin:/bin", **dict.fromkeys(names, "given")}
        done = subprocess.run(["bash", str(path)], capture_output=True, env=env, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stderr.decode()
        assert sorted(each.name for each in tmp_path.iterdir()) == ["bin", "run.sh"], "a name left its quotes"
        return done.stdout.decode().split("\0")[:-1]

    return run


def keys_of(args: list[str]) -> list[str]:
    """Return the keys that a command is told: Hydra's, or flags without their dashes."""
    if "verl" in " ".join(args[:2]):
        return [each.partition("=")[0] for each in args[2:] if "=" in each and not each.startswith("--")]
    return [each[2:] for each in args[args.index("--") + 1 :] if each.startswith("--")]


@pytest.fixture(scope="session")
def told_keys() -> Callable[[list[str]], list[str]]:
    """Return `told_keys(argv)`: the keys of a command."""
    return keys_of


def flat(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return a nested mapping by dotted keys."""
    found = dict[str, Any]()
    for key, value in tree.items():
        found |= flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return found


@pytest.fixture(scope="session")
def dotted() -> Callable[..., dict[str, Any]]:
    """Return `dotted(mapping)`: a nested mapping by dotted keys."""
    return flat
