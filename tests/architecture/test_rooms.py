"""The rooms of `placements`: in order, each knows those before it only, late imports and those for types included."""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import TopologicalSorter

import placements
from tests.architecture.test_imports import ROOT, imports, module_of, modules_named, sources

# Inner first. `format` is the one formatter, a module of its own.
ROOMS = (
    "format",
    "solver",
    "hardware",
    "workload",
    "memory",
    "time",
    "step",
    "search",
    "calibration",
    "report",
    "placements",  # the front door: `placements/__init__.py`
)
MOST_FLOORS = 7  # rooms above each other, the front door left out; may only shrink
MOST_ARROWS = 29  # pairs of rooms of which one imports the other; may only shrink


def room_of(module: str) -> str:
    """Return the room of a module of placements: its folder, or its own name beside the folders."""
    return module.split(".")[1] if "." in module else module


def own_imports() -> Iterator[tuple[str, str, str]]:
    """Yield each import within placements: where it stands, the module that imports, and the one that is imported."""
    for file in sources("placements"):
        for each in imports(file, types_too=True):
            yield from ((str(each), module_of(file), name) for name in modules_named(each) if is_ours(name))


def is_ours(module: str) -> bool:
    return module.split(".")[0] == "placements"


def arrows() -> set[tuple[str, str]]:
    """Return which room imports which, the front door left out."""
    found = {(room_of(here), room_of(there)) for _, here, there in own_imports()}
    return {(here, there) for here, there in found if here not in (there, "placements")}


def test_every_module_of_placements_is_in_a_room() -> None:
    assert {room_of(module_of(file)) for file in sources("placements")} == set(ROOMS)


def test_a_room_imports_those_before_it_only() -> None:
    rank = {room: place for place, room in enumerate(ROOMS)}
    assert [line for line, here, there in own_imports() if rank[room_of(there)] > rank[room_of(here)]] == []


def test_no_module_of_placements_imports_itself_in_a_circle_late_or_not() -> None:
    needs: dict[str, set[str]] = {module_of(file): set() for file in sources("placements")}
    for _, here, there in own_imports():
        needs[here] |= {there} - {here}
    assert len(list(TopologicalSorter(needs).static_order())) == len(needs)


def test_placements_imports_its_own_modules_at_the_top() -> None:
    late = [str(each) for file in sources("placements") for each in imports(file) if not each.at_top]
    assert [line for line in late if "imports placements" in line] == []


def test_rooms_have_few_floors_and_few_arrows() -> None:
    below: dict[str, set[str]] = {room: set() for room in ROOMS}
    for here, there in arrows():
        below[here].add(there)
    floors: dict[str, int] = {}
    for room in TopologicalSorter(below).static_order():
        floors[room] = 1 + max((floors[each] for each in below[room]), default=0)
    assert max(floors.values()) <= MOST_FLOORS, floors
    assert len(arrows()) <= MOST_ARROWS, sorted(arrows())


def test_files_lie_in_rooms() -> None:
    assert {path.stem for path in (ROOT / "placements").glob("*.py")} == {"__init__", "format"}


FRONT_DOOR = 12  # names that `placements` exports, at most


def test_the_front_door_has_few_names() -> None:
    assert len(placements.__all__) <= FRONT_DOOR
