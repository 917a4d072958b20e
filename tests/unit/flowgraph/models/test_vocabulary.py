"""Who can read whose tokens: the same ids for the same pieces of text, or a refusal that names one of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowgraph.errors import ModelError
from flowgraph.models import tiny
from flowgraph.models.loading import refuse_other_tokens, vocabulary
from flowgraph.models.sources import resolve


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Save the tiny model with two of its ids changed about."""
    folder = tiny.make(0, tmp_path / "other")
    told = json.loads((folder / "tokenizer.json").read_text())
    ids = told["model"]["vocab"]
    ids["7"], ids["8"] = ids["8"], ids["7"]
    (folder / "tokenizer.json").write_text(json.dumps(told))
    return folder


def refuse(reader: str, writer: str, cache: Path) -> None:
    sources = {"teacher": resolve(reader, cache=cache), "policy": resolve(writer, cache=cache)}
    refuse_other_tokens("teacher", "policy", sources, cache, print)


def test_a_saved_model_has_the_vocabulary_that_it_was_made_with(tmp_path: Path) -> None:
    folder = tiny.make(0, tmp_path / "saved")
    assert vocabulary(resolve(str(folder), cache=tmp_path), tmp_path, print) == dict(
        zip(tiny.VOCABULARY, range(20), strict=True)
    )
    refuse(str(folder), "tiny", tmp_path)
    refuse("tiny:hidden=32", "tiny", tmp_path)


def test_a_model_with_other_ids_for_the_same_text_is_refused(tmp_path: Path, other: Path) -> None:
    with pytest.raises(ModelError) as raised:
        refuse(str(other), "tiny", tmp_path)
    assert str(raised.value) == (
        f"--model: `teacher` ({other}) cannot read the tokens of `policy` (tiny): their ids differ\n"
        "    '7' is 12 for `policy`, but `teacher` knows it as 13\n"
        "  hint: both need one tokenizer"
    )
