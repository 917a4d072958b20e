"""Constants of engines: shipped within their bounds and with a source, by version, and moved by a calibration."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowgraph.engines import table
from flowgraph.engines.table import ENGINES
from flowgraph.errors import UnknownNameError
from placements.hardware.engine_constants import (
    HOST,
    EngineConstants,
    HostConstants,
    ServingConstants,
    TrainingConstants,
    bounds,
    constant_names,
    constants,
    engines,
    host_constants,
)
from tests.looped import looped


def kinds_of(engine: str) -> list[type[EngineConstants]]:
    """Return the kinds of constants that an engine has."""
    kinds: list[type[EngineConstants]] = [TrainingConstants, ServingConstants, HostConstants]
    return [kind for kind in kinds if set(constant_names(kind)) <= set(bounds(engine))]


@looped("engine", engines())
def test_each_constant_lies_within_its_bounds_and_has_a_source(engine: str) -> None:
    for name, each in bounds(engine).items():
        assert each.low <= each.value <= each.high, name
        assert each.source.strip(), name


@looped("engine", engines())
def test_an_engine_has_the_constants_of_its_kinds_and_no_others(engine: str) -> None:
    assert {name for kind in kinds_of(engine) for name in constant_names(kind)} == set(bounds(engine))


def test_every_engine_of_the_table_has_the_constants_of_what_it_does() -> None:
    assert set(ENGINES) <= set(engines())
    for name, engine in ENGINES.items():
        kinds = [TrainingConstants] * ("step" in engine.verbs) + [ServingConstants] * ("sample" in engine.verbs)
        assert kinds_of(name) == kinds


def test_the_newest_version_is_read_and_keeps_what_it_does_not_say() -> None:
    first, newest = bounds("fsdp", "1"), bounds("fsdp", "2")
    assert bounds("fsdp") == newest != first
    assert set(first) == set(newest)
    assert newest["traffic"] == first["traffic"]
    assert newest["step_s"] != first["step_s"]


def test_constants_are_the_values_of_their_bounds() -> None:
    told = bounds("megatron")
    read = constants(TrainingConstants, "megatron")
    assert {each.name: getattr(read, each.name) for each in fields(read)} == {n: b.value for n, b in told.items()}


def test_an_engine_or_version_without_constants_is_answered_with_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match="no engine `fsdpp`\n  hint: did you mean `fsdp`"):
        bounds("fsdpp")
    with pytest.raises(UnknownNameError, match="no version of fsdp `9`\n  hint: known: 1, 2"):
        constants(TrainingConstants, "fsdp", "9")


def test_a_calibration_moves_only_what_there_is() -> None:
    moved = host_constants({"driver_share": 0.2})
    assert moved == replace(host_constants(), driver_share=0.2)
    assert moved.slowed_share == bounds(HOST)["slowed_share"].value
    with pytest.raises(UnknownNameError, match="no constant `drivershare`\n  hint: did you mean `driver_share`"):
        host_constants({"drivershare": 0.2})


@dataclass(frozen=True)
class Pair(EngineConstants):
    """Two constants of no engine."""

    one: float
    two: float


@given(
    st.floats(0, 10),
    st.floats(0, 10),
    st.dictionaries(st.sampled_from(["one", "two"]), st.floats(0, 10)),
    st.dictionaries(st.sampled_from(["one", "two"]), st.floats(0, 10)),
)
def test_of_two_moves_the_later_counts(one: float, two: float, first: dict[str, float], then: dict[str, float]) -> None:
    assert Pair(one, two).moved(first).moved(then) == Pair(**({"one": one, "two": two} | first | then))


def test_an_engine_without_constants_is_refused_with_the_file_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "ENGINES", {**ENGINES, "toy": ENGINES["trtllm"]})
    with pytest.raises(UnknownNameError) as caught:
        bounds("toy")
    assert str(caught.value) == (
        "the engine `toy` has no constants, so it cannot be planned\n"
        "  hint: write flowgraph/engines/toy/constants.toml, as those of the other engines"
    )


def test_an_engine_that_lacks_the_constants_of_a_kind_is_refused_with_those_it_lacks() -> None:
    with pytest.raises(UnknownNameError) as caught:
        constants(ServingConstants, "fsdp")
    text = str(caught.value)
    assert text.startswith("the engine `fsdp` lacks constants for generating responses: layer_s, row_s, ")
    assert text.endswith("\n  hint: add them to flowgraph/engines/fsdp/constants.toml")
    with pytest.raises(UnknownNameError, match="the engine `vllm` lacks constants for training: matmul_share, "):
        constants(TrainingConstants, "vllm")
