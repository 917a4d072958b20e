"""Which way weights take to servers, by what their machines share."""

from __future__ import annotations

import pytest

from flowgraph.cluster.plan import Layout, RoleSettings, WeightsBy
from flowgraph.errors import WorkerError
from flowgraph.lowering.program import Home
from flowgraph.runtime.ray.weight_routes import DeviceLocation, refuse_split_servers, weight_transport


def train(pool: str = "train", data: int = 2) -> Home:
    """Return a home that trains."""
    return Home("policy", pool, "fsdp", Layout(data=data, sharding="full"))


def draw(pool: str = "draw", by: WeightsBy | None = None, layout: Layout | None = None) -> Home:
    """Return a home of servers."""
    return Home("policy", pool, "sglang", layout or Layout(data=2), RoleSettings(weights_by=by))


def spots(train: str, draw: str = "", *, sees: str = "a", gpu: bool = True) -> dict[str, list[DeviceLocation]]:
    """Return the devices of two pools, a letter for the machine of each; on those in `sees` is the driver's folder."""
    return {
        name: [DeviceLocation(machine, machine in sees, gpu) for machine in machines]
        for name, machines in {"train": train, "draw": draw, "all": train}.items()
    }


@pytest.mark.parametrize("there", [spots("aa", "aa"), spots("aa", "bb"), spots("bb", "aa"), spots("aa", "ab", sees="")])
def test_weights_go_over_a_group_to_devices_of_others_wherever_these_are(
    there: dict[str, list[DeviceLocation]],
) -> None:
    assert weight_transport(train(), draw(), there) == "group"


def test_weights_go_through_memory_on_devices_of_both_whatever_machines_these_are_on() -> None:
    assert weight_transport(train("all"), draw("all"), spots("ab")) == "memory"


def test_a_server_over_several_devices_that_train_too_reads_files_of_its_machine() -> None:
    assert weight_transport(train("all"), draw("all", layout=Layout(data=1, tensor=2)), spots("bb")) == "disk"


def test_one_trainer_sends_files_to_servers_of_which_one_is_on_its_gpu() -> None:
    assert weight_transport(train("all", 1), draw("all"), spots("bb")) == "disk"
    assert weight_transport(train("all", 1), draw("all"), spots("aa", gpu=False)) == "group"


@pytest.mark.parametrize("there", [spots("bb", "bb"), spots("ab", "ab", sees="ab"), spots("aa", "aa", sees="")])
def test_files_are_sent_within_a_machine_or_where_all_see_the_drivers_folder(
    there: dict[str, list[DeviceLocation]],
) -> None:
    assert weight_transport(train(), draw(by="disk"), there) == "disk"


def refused(source: Home, target: Home, there: dict[str, list[DeviceLocation]]) -> str:
    """Return what is said of a way that cannot be."""
    with pytest.raises(WorkerError) as caught:
        weight_transport(source, target, there)
    return str(caught.value)


def test_files_are_refused_where_servers_do_not_see_them() -> None:
    assert refused(train(), draw(by="disk"), spots("aa", "bb")) == (
        "weights of `policy` cannot go from train/fsdp to draw/sglang through a folder that all their machines see\n"
        "  hint: weights_by: group"
    )
    assert refused(train("all", 1), draw("all"), spots("ab")) == (
        "weights of `policy` cannot go from all/fsdp to all/sglang through a folder that all their machines see"
    )


def test_memory_of_gpus_is_refused_between_machines() -> None:
    assert refused(train(), draw(by="memory"), spots("aa", "bb")) == (
        "weights of `policy` cannot go from train/fsdp to draw/sglang through memory, which is that of one machine\n"
        "  hint: weights_by: group"
    )
    assert (
        weight_transport(train(), draw(by="memory"), spots("aa", "bb", gpu=False)) == "memory"
    )  # the numbers, in the call


def test_a_server_on_devices_of_two_machines_is_refused() -> None:
    split = draw(layout=Layout(data=2, tensor=2))
    refuse_split_servers(split, spots("a", "aabb"))
    with pytest.raises(WorkerError) as caught:
        refuse_split_servers(split, spots("a", "aaab"))
    assert str(caught.value) == (
        "policy on draw/sglang could not be started: server 1 would be on devices of several machines\n"
        "  hint: a server's devices are on one machine"
    )
