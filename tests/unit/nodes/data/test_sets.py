"""What `--data` may say, and what it says back."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from flowgraph.errors import DataError, UsageError
from nodes.data.parquet import write_parquet
from nodes.data.published import PUBLISHED
from nodes.data.sets import NAMES, DataSet, kept, load, save
from nodes.data.suggestions import batch_for, suggested
from nodes.data.tasks import addition, digits
from tests.looped import looped


def fault_of(spec: str, cache: Path) -> str:
    with pytest.raises(DataError) as caught:
        load(spec, cache=cache)
    return str(caught.value)


@looped("spec", [name for name in NAMES if name not in PUBLISHED])
def test_a_shipped_name_is_made_with_its_held_out_rows(spec: str, tmp_path: Path) -> None:
    data = load(spec, cache=tmp_path)
    assert (data.name, data.origin, data.data_source) == (spec, "made", spec.partition(":")[0])
    assert data.held_out is not None
    assert len(data.digest) == 64
    assert list(tmp_path.iterdir()) == []


def test_bare_digits_are_to_be_copied(tmp_path: Path) -> None:
    assert load("digits", cache=tmp_path, seed=3).digest == load("digits:copy", cache=tmp_path, seed=3).digest


def test_the_seed_changes_the_split_and_the_digest(tmp_path: Path) -> None:
    assert load("digits", cache=tmp_path, seed=1).digest != load("digits", cache=tmp_path).digest


@pytest.mark.parametrize("prefix", ["reasoning_gym", "rg"])
def test_a_reasoning_gym_task_has_a_long_and_a_short_name(prefix: str, tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym")
    data = load(f"{prefix}/leg_counting", cache=tmp_path)
    assert (data.name, data.data_source) == ("reasoning_gym/leg_counting", "reasoning_gym/leg_counting")


def test_a_saved_set_is_a_folder_that_loads_with_the_same_digest(tmp_path: Path) -> None:
    made = load("addition", cache=tmp_path)
    folder = tmp_path / "sums"
    assert save(made, folder) == (folder / "train.parquet", folder / "test.parquet")
    back = load(str(folder), cache=tmp_path)
    assert (back.name, back.origin, back.digest) == ("sums", str(folder), made.digest)


def test_the_digest_of_a_data_set_is_that_of_the_rows_that_are_kept(tmp_path: Path) -> None:
    data = load("addition", cache=tmp_path)

    def first(rows: int) -> DataSet:
        return kept(data, lambda _, table: (table.slice(0, rows), [row < rows for row in range(table.num_rows)]))

    shorter = first(10)
    assert shorter.digest not in (data.digest, first(11).digest)
    save(shorter, tmp_path / "shorter")
    assert load(str(tmp_path / "shorter"), cache=tmp_path).digest == shorter.digest
    assert first(10**6).digest == data.digest, "where no row was left out"


def test_a_folder_may_hold_json_lines_and_no_held_out_rows(tmp_path: Path) -> None:
    rows = [{"prompt": [{"role": "user", "content": "x"}]}]
    (tmp_path / "train.jsonl").write_text(json.dumps(rows[0]))
    data = load(str(tmp_path), cache=tmp_path)
    assert (data.train.to_pylist(), data.held_out, data.data_source) == (rows, None, tmp_path.name)


def test_one_file_has_held_out_rows_only_if_they_are_given(tmp_path: Path) -> None:
    train, held_out = digits()
    write_parquet(train, tmp_path / "a.parquet")
    write_parquet(held_out, tmp_path / "b.parquet")
    alone = load(str(tmp_path / "a.parquet"), cache=tmp_path)
    both = load(str(tmp_path / "a.parquet"), cache=tmp_path, held_out=str(tmp_path / "b.parquet"))
    assert (alone.name, alone.held_out) == ("a", None)
    assert both.held_out is not None
    assert both.held_out.equals(held_out)
    assert alone.digest != both.digest == load("digits", cache=tmp_path).digest


def test_given_held_out_rows_take_the_place_of_the_own(tmp_path: Path) -> None:
    write_parquet(addition()[1], tmp_path / "b.parquet")
    data = load("digits", cache=tmp_path, held_out=str(tmp_path / "b.parquet"))
    assert data.held_out is not None
    assert data.held_out.num_rows == 15


def test_rows_of_two_sources_go_by_the_name_of_the_set(tmp_path: Path) -> None:
    lines = [{"prompt": [{"role": "user", "content": "x"}], "data_source": source} for source in ("a", "b")]
    (tmp_path / "mixed.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert load(str(tmp_path / "mixed.jsonl"), cache=tmp_path).data_source == "mixed"


@looped(
    "spec, expected",
    [
        ("digit", "unknown data set `digit`\n  hint: did you mean `digits`?"),
        ("digits:sorted", "unknown kind of digits `sorted`\n  hint: did you mean `sort`?"),
        (
            "zzz",
            (
                "unknown data set `zzz`\n  hint: known: addition, aime, apps, codecontests, digits, digits:copy, "
                "digits:max, digits:reverse, digits:sort, gsm8k, hh, math … (14 in all)"
            ),
        ),
        ("none/here.parquet", "none/here.parquet: no such file"),
        ("/none/here", "/none/here: no such file"),
        ("openai/gsm8k", "openai/gsm8k: no such file\n  hint: from the Hugging Face hub: hf:openai/gsm8k"),
    ],
)
def test_what_is_not_known_is_answered_with_what_is_near(spec: str, expected: str, tmp_path: Path) -> None:
    assert fault_of(spec, tmp_path) == expected


def test_an_empty_name_is_not_the_folder_that_you_are_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parquet(pa.table({"prompt": [[{"role": "user", "content": "?"}]]}), tmp_path / "train.parquet")
    monkeypatch.chdir(tmp_path)
    assert fault_of("", tmp_path).startswith("unknown data set ``")


def test_a_held_out_set_has_no_weight(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="held-out set has no weight"):
        load("digits", cache=tmp_path, held_out="digits:max:0.5")


def test_a_folder_without_train_says_what_it_holds(tmp_path: Path) -> None:
    lacks = f"{tmp_path}: has no train.parquet or train.jsonl\n  hint: "
    assert fault_of(str(tmp_path), tmp_path) == f"{lacks}it is empty"
    (tmp_path / "training.parquet").touch()
    assert fault_of(str(tmp_path), tmp_path) == f"{lacks}it has training.parquet"


def test_a_folder_with_two_train_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.parquet").touch()
    (tmp_path / "train.jsonl").touch()
    assert fault_of(str(tmp_path), tmp_path) == f"{tmp_path}: has both train.parquet and train.jsonl"


SAMPLERS = ("generate.max_tokens", "refill.max_tokens")


def test_every_shipped_set_has_settings_to_start_from(tmp_path: Path) -> None:
    assert suggested(load("digits", cache=tmp_path).data_source) == dict.fromkeys(SAMPLERS, 4)
    assert suggested(load("addition", cache=tmp_path).data_source) == dict.fromkeys(SAMPLERS, 12)
    assert suggested("openai/gsm8k") == dict.fromkeys(SAMPLERS, 256)
    assert suggested("reasoning_gym/leg_counting") == dict.fromkeys(SAMPLERS, 128)
    assert suggested("my own") == {}
    sources = ("digits", "addition", "openai/gsm8k", "reasoning_gym/leg_counting", "my own")
    assert [batch_for(source) for source in sources] == [16, 8, 16, 16, 16]


def test_nothing_is_suggested_for_rows_without_a_data_source() -> None:
    assert suggested() == {}
    assert batch_for() == batch_for("my own")


def test_a_data_set_is_immutable() -> None:
    data = DataSet("a", digits()[0], None, "made", "")
    with pytest.raises(AttributeError):
        data.name = "b"  # type: ignore[misc]
