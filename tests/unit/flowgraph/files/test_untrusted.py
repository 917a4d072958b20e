"""Files that anyone may have written are read within bounds; what is none is refused with its reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import BaseModel

from flowgraph.files.untrusted import MOST_DEPTH, json_as, parse_json, parse_toml, read_bytes, read_json


class Named(BaseModel):
    """Something with a name."""

    name: str


REFUSED = {
    "[" * 100_000: "it is nested more than 100 deep",
    "[" * (MOST_DEPTH + 2) + "]" * (MOST_DEPTH + 2): "it is nested more than 100 deep",
    '{"a": 1, "b": {"c": 1, "c": 2}}': "the key `c` appears twice",
    "9" * 5_000: "has more than 20 digits",
    "-1e999": "the number -1e999 is too large",
    "[NaN]": "NaN is not a JSON number",
    '["\\ud800"]': "a string contains half of a surrogate pair",
    '{"\\udfff": 1}': "a string contains half of a surrogate pair",
    "[" + "0," * 2_000_001 + "0]": "it has more than 2,000,000 values",
    "{": "Expecting property name",
}


def test_json_that_is_out_of_bounds_is_refused_with_its_reason() -> None:
    for text, why in REFUSED.items():
        for given in (text, text.encode()):
            with pytest.raises(ValueError, match=why):
                parse_json(given)
    with pytest.raises(ValueError, match="it is not UTF-8 at byte 1"):
        parse_json(b'"\xff"')
    with pytest.raises(ValueError, match="the key `name` appears twice"):
        json_as(Named, '{"name": "a", "name": "b"}')
    with pytest.raises(ValueError, match="it is nested too deep"):
        parse_toml("a = " + "[" * 5_000)


def test_json_within_bounds_is_what_it_says() -> None:
    text = '{"a": [1, -2.5e3, true, null, "\\ud83d\\ude00", {"b": {}}], "c": 18446744073709551615}'
    assert parse_json(text) == {"a": [1, -2500.0, True, None, "😀", {"b": {}}], "c": 2**64 - 1}
    assert str(parse_json('{"loss": NaN}', finite=False)) == "{'loss': nan}"
    assert json_as(Named, '{"name": "a"}') == Named(name="a")


def test_only_a_plain_file_of_bounded_size_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "huge").touch()
    os.truncate(tmp_path / "huge", 10 * 2**30)
    (tmp_path / "there").write_text("[1]")
    reasons = {
        "pipe": "it is not a plain file",
        "loop": "Too many levels of symbolic links",
        "huge": "it is larger than 33,554,432 bytes",
        "nowhere": "No such file or directory",
        "a\0b": "it is not the path of a file",
        "\ud800": "it is not the path of a file",
        ".": "Is a directory",
        "/dev/zero": "it is not a plain file",
        "x" * 300: "File name too long",
    }
    for name, why in reasons.items():
        with pytest.raises(OSError, match=why):
            read_bytes(tmp_path / name)
    assert read_json(tmp_path / "there") == [1]
