"""What a plan takes of Ray's machines, and what is said of a cluster that is not there. No Ray starts."""

from __future__ import annotations

import errno
import socket
from typing import Any

import pytest

from flowgraph.cluster.cluster import Cluster, Device, Machine
from flowgraph.cluster.plan import Plan, Pool
from flowgraph.errors import ResourceError, WorkerError
from flowgraph.runtime.ray.session import connect, match_cluster, match_machines, resources_needed

CPU, GPU = (Device(kind=kind, memory_bytes=2**30) for kind in ("cpu", "gpu"))


def plan(nodes: dict[str, tuple[Device, ...]], **pools: list[tuple[str, int]]) -> Plan:
    """Make a plan of machines with devices, and of pools on them; it places nothing."""
    cluster = Cluster(
        nodes=tuple(Machine(name=name, devices=each, host_memory_bytes=2**32, cores=4) for name, each in nodes.items())
    )
    made = tuple(Pool(name=name, devices=tuple(devices)) for name, devices in pools.items())
    return Plan(flow="f", structure_hash="0" * 64, cluster=cluster, pools=made, placed=())


def machine(address: str, alive: bool = True, **resources: float) -> dict[str, Any]:
    """Describe a machine as `ray.nodes` does."""
    return {"NodeID": address, "NodeManagerAddress": address, "Alive": alive, "Resources": resources}


def found(made: Plan, *there: dict[str, Any]) -> dict[str, str]:
    """Return the address of each machine of a plan."""
    return {name: each["NodeManagerAddress"] for name, each in match_machines(made, there).items()}


def test_a_device_takes_a_cpu_and_a_gpu_if_it_is_one() -> None:
    both = plan({"one": (CPU, GPU, GPU)}, train=[("one", 0), ("one", 1)], judge=[("one", 2)])
    assert resources_needed(both, both.cluster.nodes[0]) == {"CPU": 3, "GPU": 2}
    only = plan({"one": (CPU, GPU)}, train=[("one", 0)])
    assert resources_needed(only, only.cluster.nodes[0]) == {"CPU": 1}


def test_machines_without_a_pool_are_not_asked_for() -> None:
    made = plan({"one": (CPU,), "two": (GPU,)}, train=[("one", 0)])
    assert found(made, machine("a", CPU=1)) == {"one": "a"}


def test_the_machine_of_a_plan_that_takes_most_chooses_first_and_none_is_chosen_twice() -> None:
    made = plan({"small": (GPU,), "large": (GPU, GPU)}, train=[("small", 0), ("large", 0), ("large", 1)])
    there = [machine("a", CPU=8, GPU=2), machine("b", CPU=8, GPU=1)]
    assert found(made, *there) == {"large": "a", "small": "b"}


def test_a_machine_of_a_plan_without_gpus_leaves_those_that_have_some() -> None:
    judges = [("judge", place) for place in range(8)]
    made = plan({"judge": (CPU,) * 8, "train": (GPU,) * 4}, judge=judges, train=[("train", n) for n in range(4)])
    there = [machine("a", CPU=64, GPU=4), machine("b", CPU=32)]
    assert found(made, *there) == {"train": "a", "judge": "b"}


def test_devices_that_no_pool_uses_do_not_let_a_machine_choose_first() -> None:
    made = plan({"idle": (GPU,) * 8, "busy": (GPU, GPU)}, one=[("idle", 0)], two=[("busy", 0), ("busy", 1)])
    assert found(made, machine("a", CPU=8, GPU=2), machine("b", CPU=8, GPU=1)) == {"busy": "a", "idle": "b"}


def refused(made: Plan, *there: dict[str, Any]) -> str:
    """Return what is said of a plan whose machines are not there."""
    with pytest.raises(ResourceError) as caught:
        match_machines(made, there)
    return str(caught.value)


def test_a_machine_that_is_missing_is_told_with_those_that_are_there() -> None:
    made = plan({"one": (GPU, GPU)}, train=[("one", 0), ("one", 1)])
    assert refused(made, machine("a", CPU=3), machine("b", CPU=8, GPU=1)) == (
        "node one: the plan needs 2 CPU and 2 GPU; Ray's machines have 3 CPU and 0 GPU; 8 CPU and 1 GPU"
    )


def test_a_second_machine_that_is_missing_is_told() -> None:
    made = plan({"one": (CPU,), "two": (CPU,)}, train=[("one", 0), ("two", 0)])
    assert refused(made, machine("a", CPU=8)) == "node two: the plan needs 1 CPU; Ray has no further machine"


def test_a_machine_that_has_left_is_none() -> None:
    made = plan({"one": (CPU,)}, train=[("one", 0)])
    assert refused(made, machine("a", alive=False, CPU=8)) == (
        "node one: the plan needs 1 CPU; Ray has no further machine"
    )


def test_a_cluster_without_a_cpu_for_host_nodes_is_told_before_anything_starts() -> None:
    made = plan({"one": (CPU,), "two": (CPU,) * 2}, train=[("one", 0)], draw=[("two", 0), ("two", 1)])
    exact = [machine("a", CPU=2), machine("b", CPU=1)]
    with pytest.raises(ResourceError) as caught:
        match_cluster(made, [*exact, machine("c", alive=False, CPU=8)])
    assert str(caught.value) == (
        "host nodes: the plan needs 1 CPU beyond the 3 of its devices; "
        "Ray's machines have 2 CPU and 0 GPU; 1 CPU and 0 GPU\n"
        "  hint: ray start --num-cpus=… on one machine with 1 more than its devices"
    )


@pytest.mark.parametrize("there", [[machine("a", CPU=2)], [machine("a", CPU=1), machine("b", CPU=1)]])
def test_a_cpu_for_host_nodes_may_be_on_any_machine(there: list[dict[str, Any]]) -> None:
    assert match_cluster(plan({"one": (CPU,)}, train=[("one", 0)]), there) == {"one": there[0]}


@pytest.mark.parametrize("prefix", ["", "ray://"])
def test_an_address_where_nothing_listens_is_found_out_at_once(monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("RAY_py_gcs_connect_timeout_s", "15")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"{prefix}127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(WorkerError) as caught:
        connect(plan({"one": (CPU,)}, train=[("one", 0)]), address, None, 1)
    why = f"[Errno {errno.ECONNREFUSED}] Connection refused"
    assert str(caught.value) == (
        f"the connection to Ray could not be started: nothing answers at {address} ({why})\n"
        "  hint: `ray status` shows its address"
    )


def test_an_address_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("RAY_py_gcs_connect_timeout_s", "15")
    with pytest.raises(WorkerError) as caught:
        connect(plan({"one": (CPU,)}, train=[("one", 0)]), "nonsense", None, 1)
    assert str(caught.value) == (
        "Ray could not be started: Invalid address format: nonsense\n  hint: check that a Ray cluster runs at nonsense"
    )
