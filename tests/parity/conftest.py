"""One Ray for all tests of a file: it takes seconds to start, and its processes are used again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from flowgraph.cluster.plan import Plan
    from flowgraph.runtime.ray.session import Session


@pytest.fixture(scope="module")
def ray_session() -> Iterator[Callable[[Plan], Session]]:
    """Give `ray_session(plan)`: Ray with room for a plan, started at the first call, which the first plan sizes.

    Closing what it gives leaves Ray running for the next plan; it ends with the file's last test.
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

    started = list[Session]()

    def shared(plan: Plan) -> Session:
        if not started:
            started.append(connect(plan, None, None, threads=1))
        return Shared(started=True)

    try:
        yield shared
    finally:
        for session in started:
            session.close()


@pytest.fixture(scope="session")
def model_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder that models are loaded from, by every process."""
    return tmp_path_factory.mktemp("cache")
