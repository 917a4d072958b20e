"""Ranks of a pool: how processes meet, on loopback only, and what they tell each other."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

from flowgraph.engines.fsdp import ranks as process_ranks
from flowgraph.engines.fsdp.ranks import ProcessRanks, interface_to, join, loopback_interface
from flowgraph.errors import WorkerError

pytestmark = pytest.mark.processes  # its processes are started once

Told = list[dict[str, Any]]
COUNT = 3


@pytest.fixture(scope="module")
def told(run_ranks: Callable[..., Told], tmp_path_factory: pytest.TempPathFactory) -> Told:
    return run_ranks(__file__, tmp_path_factory.mktemp("ranks"), COUNT)


def test_each_process_knows_its_place(told: Told) -> None:
    assert [(each["rank"], each["count"]) for each in told] == [(0, 3), (1, 3), (2, 3)]


def test_totals_are_added_entry_by_entry_and_the_numbers_are_left_as_they_were(told: Told) -> None:
    assert [each["total"] for each in told] == [[3.0, 30.25]] * COUNT
    assert [each["numbers"] for each in told] == [[0.0, 10.25], [1.0, 10.0], [2.0, 10.0]]


def test_a_total_keeps_what_float32_would_lose(told: Told) -> None:
    assert [each["precise"] for each in told] == [[3 * 2.0**40 + 3.0]] * COUNT


def test_a_union_joins_in_order_of_rank_what_differs_in_length(told: Told) -> None:
    assert [each["union"] for each in told] == [[1, 2, 2]] * COUNT
    assert [each["large"] for each in told] == [[2**62, 2**62 + 1, 2**62 + 2]] * COUNT


def test_nothing_at_all_can_be_added_and_joined(told: Told) -> None:
    assert [each["nothing"] for each in told] == [[[], []]] * COUNT


def test_the_first_ranks_make_a_group_of_their_own_and_the_others_none(told: Told) -> None:
    assert [each["part"] for each in told] == [[0, 2, [1.0]], [1, 2, [1.0]], None]
    assert [each["whole"] for each in told] == [True] * COUNT


def test_whatever_listens_listens_on_loopback(told: Told) -> None:
    assert all(each["listens"] for each in told), "gloo listens, or this test sees nothing"
    assert {address for each in told for address in each["listens"]} <= {"127.0.0.1", "::1"}


def test_a_process_that_left_can_join_again(told: Told) -> None:
    assert [each["again"] for each in told] == [[0.0 + 1.0 + 2.0]] * COUNT
    assert [each["left"] for each in told] == [True] * COUNT


def test_waiting_for_a_process_that_does_not_come_ends(told: Told) -> None:
    assert [each["alone"] for each in told] == [True] * COUNT


def test_loopback_is_an_interface_of_this_machine() -> None:
    assert loopback_interface() in psutil.net_if_addrs()


def test_a_machine_without_a_loopback_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0": []})
    with pytest.raises(WorkerError, match="no network interface has a loopback address\n  hint: ip link set lo up"):
        loopback_interface()


def test_ranks_of_several_machines_meet_over_the_interface_that_leads_to_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, told in psutil.net_if_addrs().items():
        for each in told:
            if each.family == socket.AF_INET:
                assert interface_to(each.address) == name
    assert interface_to("no.such.host.invalid") == ""
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    for name in names:
        monkeypatch.setenv(name, "")  # restored after the test
        monkeypatch.delenv(name)
    monkeypatch.setattr(dist, "init_process_group", lambda *_given, **_named: None)
    monkeypatch.setattr(process_ranks, "interface_to", lambda host: {"10.0.0.7": "eth7"}[host])
    for own, wanted in ((None, "eth7"), ("ib0", "ib0")):  # what somebody has set himself stays
        if own is not None:
            monkeypatch.setenv(names[0], own)
        with pytest.raises(AssertionError, match="the group of all processes"):
            join(1, 2, "tcp://10.0.0.7:29500", limit_s=1)
        assert [os.environ[name] for name in names] == [wanted, "eth7"]


# ------------------------------------------------------------------------------------------- what each rank does


def run(rank: int, count: int, folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = {"alone": wait_for_nobody(folder / f"alone{rank}")}
    before = listening()
    ranks = join(rank, count, folder / "meeting", limit_s=30)
    told |= {"rank": ranks.rank, "count": ranks.count} | tell(ranks)
    part = ranks.part(2)
    told["part"] = part and [part.rank, part.count, part.total(torch.tensor([float(rank)])).tolist()]
    told["whole"] = ranks.part(count) is ranks
    told["listens"] = sorted({each.ip for each in listening() - before})
    ranks.leave()
    ranks.leave()
    told["left"] = not torch.distributed.is_initialized()
    other = join(rank, count, folder / "second meeting", limit_s=30)
    told["again"] = other.total(torch.tensor([float(rank)])).tolist()
    other.leave()
    return told


def tell(ranks: ProcessRanks) -> dict[str, Any]:
    rank = ranks.rank
    numbers = torch.tensor([rank, 10.0 + 0.25 * (rank == 0)], dtype=torch.float64)
    total = ranks.total(numbers).tolist()
    none = torch.zeros(0)
    return {
        "total": total,
        "numbers": numbers.tolist(),
        "precise": ranks.total(torch.tensor([2.0**40 + 1.0], dtype=torch.float64)).tolist(),
        "union": ranks.union(torch.full((rank,), rank)).tolist(),
        "large": ranks.union(torch.tensor([2**62 + rank])).tolist(),
        "nothing": [ranks.total(none).tolist(), ranks.union(none.long()).tolist()],
    }


def listening() -> set[Any]:
    found = psutil.Process().net_connections(kind="inet")
    return {each.laddr for each in found if each.status == psutil.CONN_LISTEN}


def wait_for_nobody(meeting: Path) -> bool:
    """Return whether joining raised, as nobody else comes to this place."""
    try:
        join(0, 2, meeting, limit_s=0.5)
    except RuntimeError:
        return not torch.distributed.is_initialized()
    return False


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(sys.argv[3])
    answer = run(int(sys.argv[1]), int(sys.argv[2]), place)
    (place / f"{sys.argv[1]}.json").write_text(json.dumps(answer))
