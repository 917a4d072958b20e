"""What is chosen for a start on Ray, by what the machines tell of themselves. No Ray starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flowgraph.cluster.plan import Pool
from flowgraph.runtime.ray.start import rendezvous_of

TOGETHER = Pool(name="train", devices=(("a", 0), ("a", 1)))
APART = Pool(name="train", devices=(("a", 0), ("b", 0)))


def first(*, sees: bool) -> dict[str, Any]:
    """Return what the first rank's process tells of itself."""
    return {"ip": "10.0.0.7", "port": 4711, "machine": "m", "gpus": (), "sees": sees}


def test_ranks_on_a_machine_that_has_the_drivers_folder_meet_in_a_file_there(tmp_path: Path) -> None:
    assert rendezvous_of(TOGETHER, {"fsdp"}, tmp_path, first(sees=True)) == tmp_path / "0-train.meeting"


def test_ranks_on_a_machine_that_does_not_have_the_drivers_folder_meet_on_its_loopback(tmp_path: Path) -> None:
    assert rendezvous_of(TOGETHER, {"fsdp", "local"}, tmp_path, first(sees=False)) == "tcp://127.0.0.1:4711"


def test_ranks_on_several_machines_meet_at_the_address_of_the_first(tmp_path: Path) -> None:
    assert rendezvous_of(APART, {"fsdp"}, tmp_path, first(sees=True)) == "tcp://10.0.0.7:4711"


def test_ranks_that_send_weights_to_other_machines_do_not_meet_on_loopback(tmp_path: Path) -> None:
    assert rendezvous_of(TOGETHER, {"fsdp"}, tmp_path, first(sees=True), several_machines=True) == "tcp://10.0.0.7:4711"


def test_ranks_that_need_no_group_meet_nowhere(tmp_path: Path) -> None:
    assert rendezvous_of(APART, {"local"}, tmp_path, first(sees=True)) is None
