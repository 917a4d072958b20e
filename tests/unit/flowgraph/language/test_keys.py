"""Random keys: a draw depends on its name and on nothing else."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from flowgraph import Key

WHOLE = st.integers(-(2**63), 2**63 - 1)


@given(WHOLE, WHOLE, st.text(max_size=20), st.lists(WHOLE, max_size=3))
def test_the_same_name_gives_the_same_bits_and_any_change_gives_others(
    seed: int, step: int, node: str, parts: list[int]
) -> None:
    key = Key(seed, step, node)
    bits = key.bits(*parts)
    assert bits == Key(seed, step, node).bits(*parts)
    assert all(0 <= word < 2**64 for word in bits)
    others = [replace(key, seed=seed ^ 1), replace(key, step=step ^ 1), replace(key, node=node + "x")]
    assert bits not in [other.bits(*parts) for other in others]
    assert bits != key.bits(*parts, 0)


def test_no_two_names_are_written_alike() -> None:
    assert Key(node="a").bits(1, 2) != Key(node="a").bits(2, 1)
    assert Key(1, 23).bits() != Key(12, 3).bits()
    assert Key(1, 2).bits(3) != Key(1, 2, ",3").bits()
    assert Key(node="\x01" + "\x00" * 7).bits() != Key().bits(1)


def test_a_seed_may_be_any_whole_number() -> None:
    assert Key(2**80).bits() != Key(2**80 + 1).bits()


def test_bits_are_the_same_on_every_machine_and_in_every_version() -> None:
    assert Key(1, 2, "policy.generate").bits(3, 4) == (3557243690297182056, 7443150126847713522)


def test_a_draw_at_a_position_does_not_depend_on_the_draws_before_it() -> None:
    drawn = [Key(1).generator(7, position=position).random(4).tolist() for position in (0, 1, 2)]
    assert drawn[2] == Key(1).generator(7, position=2).random(4).tolist()
    assert len({tuple(each) for each in drawn}) == 3
