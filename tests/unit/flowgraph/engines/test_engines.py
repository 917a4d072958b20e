"""The table of engines: what runs is part of what is modelled, and what the table names is there."""

from __future__ import annotations

import importlib
from inspect import isclass, isfunction
from pathlib import Path

import pytest

import flowgraph.engines
from flowgraph.analysis.roles import USES
from flowgraph.cluster.plan import RoleSettings
from flowgraph.engines.capabilities import EngineCapabilities, Support
from flowgraph.engines.table import ENGINES, VERBS, engines_for, is_server, ranks_of
from placements.hardware.engine_constants import engines as engines_with_constants
from tests.looped import looped

EVERY = looped("engine", ENGINES.values())
RUNNING = [each for each in ENGINES.values() if each.supported is not None]
DEGREES = ("data", "tensor", "pipeline", "expert", "sequence", "replicas")


def there(path: str) -> object:
    """Return what `module:name` names."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


@EVERY
def test_an_engine_has_a_folder_by_its_name(engine: EngineCapabilities) -> None:
    found = importlib.import_module(f"flowgraph.engines.{engine.name}")
    assert found.ENGINE is ENGINES[engine.name] is engine
    assert engine.verbs <= {"token_stats", "sample", "step", "weights"}


def test_every_folder_of_an_engine_is_in_the_table() -> None:
    folder = Path(*flowgraph.engines.__path__)
    described = {each.parent.name for each in folder.glob("*/__init__.py") if "ENGINE = " in each.read_text()}
    assert described == {*ENGINES}
    assert {*ENGINES} <= {*engines_with_constants()}


@pytest.mark.parametrize("engine", RUNNING, ids=lambda each: each.name)
def test_what_is_supported_is_part_of_what_is_modelled(engine: EngineCapabilities) -> None:
    ours, known = engine.supported, engine.modelled
    assert ours is not None
    assert ours.devices <= known.devices
    assert all(getattr(ours, degree) <= getattr(known, degree) for degree in DEGREES)
    assert ours.sharding <= known.sharding
    assert ours.single_device >= known.single_device
    assert _within(ours, known)


def _within(ours: Support, known: Support) -> bool:
    """Return whether each setting with each value that is supported is modelled too."""
    if known.settings is None:
        return True
    if ours.settings is None or not ours.settings.keys() <= known.settings.keys():
        return False
    return all(
        not known.settings[name] or (values and {*values} <= {*known.settings[name]})
        for name, values in ours.settings.items()
    )


@EVERY
def test_settings_are_fields_of_a_plan_and_its_usual_values_are_taken(engine: EngineCapabilities) -> None:
    for support in (engine.modelled, engine.supported):
        for name, values in (support.settings or {} if support is not None else {}).items():
            assert name in RoleSettings.model_fields
            assert not values or getattr(RoleSettings(), name) in values


@EVERY
def test_handles_servers_and_process_groups_of_the_table_are_there(engine: EngineCapabilities) -> None:
    assert not (engine.handle and engine.server)
    assert bool(engine.handle or engine.server) == (engine.supported is not None)
    assert not engine.process_group or engine.handle
    for path in filter(None, (engine.handle, engine.server)):
        assert isclass(there(path))
    if engine.process_group:
        assert isfunction(there(engine.process_group))
    if engine.handle:
        assert all(hasattr(there(engine.handle), verb) for verb in engine.verbs - {"weights"})


def test_an_engine_with_processes_of_its_own_is_spoken_for_by_one_rank() -> None:
    servers = {name for name, engine in ENGINES.items() if engine.server}
    assert {name for name in ENGINES if is_server(name)} == servers >= {"sglang", "vllm"}
    assert {name: ranks_of(name, 4) for name in ENGINES} == {name: 1 if name in servers else 4 for name in ENGINES}
    assert not is_server("megatorn")


@pytest.mark.parametrize("use", USES)
def test_each_use_has_an_engine_that_runs_and_all_have_its_verbs(use: str) -> None:
    assert engines_for(use, supported=True)
    for name in ENGINES:
        assert (name in engines_for(use)) == ENGINES[name].verbs.issuperset(VERBS[use])
        runs = name in engines_for(use) and ENGINES[name].supported is not None
        assert (name in engines_for(use, supported=True)) == runs
