"""Constants of engines from a profile file: read, and anything else refused."""

from __future__ import annotations

import pytest

from flowgraph.errors import DataError, UnknownNameError
from placements.calibration.profiles import read_profile
from tests.looped import looped


def test_a_plain_number_is_read_too():
    assert read_profile("[fsdp]\nmatmul_share = 0.7\n") == {"fsdp": {"matmul_share": 0.7}}


@looped(
    "text, error, says",
    [
        ("[fsdp", DataError, "mine.toml: no TOML"),
        ("fsdp = 1", DataError, "mine.toml: `fsdp` must be a table of constants"),
        ("[fsdq]\nmatmul_share = 0.7", UnknownNameError, "no engine `fsdq`"),
        ("[fsdp]\nmatmul_shares = 0.7", UnknownNameError, "no constant `matmul_shares`"),
        ("[fsdp]\nmatmul_share = 7", DataError, "mine.toml: fsdp.matmul_share=7, but it may be 0.4 to 1.1"),
        ('[fsdp]\nmatmul_share = { value = "a" }', DataError, "mine.toml: `fsdp.matmul_share` must be a number"),
        ("[fsdp]\nmatmul_share = nan", DataError, "mine.toml: fsdp.matmul_share=nan"),
    ],
)
def test_a_profile_that_says_something_else_is_refused(text: str, error: type[Exception], says: str):
    with pytest.raises(error) as raised:
        read_profile(text, "mine.toml")
    assert says in str(raised.value)
