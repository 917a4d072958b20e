"""One Ray for all tests that start places of their own: it takes seconds to start, and its processes are used again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flowgraph.cluster.plan import Plan, Pool
from flowgraph.cluster.this_machine import laptop
from tests.conftest import ray_is_here

if TYPE_CHECKING:
    from flowgraph.runtime.ray.session import Session

MOST_DEVICES = 6  # of all plans that are open at a time


@pytest.fixture(scope="session")
def ray_session() -> Iterator[Callable[[], Session]]:
    """Yield `ray_session()`: Ray with room for the largest plan, started at the first call.

    Closing what it gives leaves Ray running for the next plan. It ends with the last test that asks for it, or where
    `ray_of_its_own` ends it for a test that starts Ray itself.
    """
    from flowgraph.runtime.ray.session import Session, connect

    class Shared(Session):
        def close(self) -> None:
            """Leave Ray running."""

        def give_back(self, groups: Sequence[Any]) -> None:
            """Free the devices for the next plan."""
            from ray.util import remove_placement_group

            for group in groups:
                remove_placement_group(group)

    def shared() -> Session:
        if not ray_is_here():
            connect(_room(), None, None, threads=1)
        return Shared(started=True)

    yield shared
    if ray_is_here():
        Session(started=True).close()


def _room() -> Plan:
    """Return a plan that takes as many devices as any."""
    pool = Pool(name="all", devices=tuple(("laptop", place) for place in range(MOST_DEVICES)))
    return Plan(flow="any", structure_hash="", cluster=laptop(MOST_DEVICES, 2**33), pools=(pool,), placed=())


@pytest.fixture(scope="session")
def model_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that models are loaded from, by every process."""
    return tmp_path_factory.mktemp("cache")
