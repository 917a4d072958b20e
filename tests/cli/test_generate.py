"""`generate`: responses to prompts, in a file that can be scored later, or printed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.cli.said import text_of
from tests.cli.test_bad_input import refused

Run = Callable[..., Any]
HERE = ("--cluster", "1xcpu")


def test_each_response_stands_with_its_prompt_its_tokens_and_where_it_is_from(flowgraph: Run, trained: Path) -> None:
    said = flowgraph("generate", trained, "--rows", 3, "--n", 2, "--seed", 7, *HERE, "-o", "folder/out.parquet")
    assert text_of(said) == "folder/out.parquet\n"
    assert said.err == "generate 3/3 prompts\n"
    table = pq.read_table("folder/out.parquet", page_checksum_verification=True)
    assert table.column_names == [
        *("data_source", "prompt", "ability", "reward_model", "extra_info"),
        *("prompt_index", "sample_index", "prompt_ids", "response", "response_ids", "logprobs", "finished"),
        *("model", "step", "temperature", "seed"),
    ]
    rows = table.to_pylist()
    assert [(row["prompt_index"], row["sample_index"]) for row in rows] == [(i, j) for i in range(3) for j in range(2)]
    for row in rows:
        assert row["prompt_ids"][1:-1] == [5 + int(digit) for digit in row["prompt"][0]["content"]]
        assert len(row["response"]) + row["finished"] <= len(row["response_ids"]) == len(row["logprobs"]) <= 4
        assert row["finished"] == (row["response_ids"][-1] == 2) and max(row["logprobs"]) < 0
        assert (row["step"], row["temperature"], row["seed"]) == (2, 1.0, 7)
        assert row["model"] == f"{trained}/weights/policy"
    facts = json.loads(table.schema.metadata[b"flowgraph.generations"])
    assert (facts["n"], facts["max_tokens"], facts["prompts"], len(facts["digest"])) == (2, 4, 3, 64)
    assert [path.name for path in Path("folder").iterdir()] == ["out.parquet"]


def test_samples_are_named_by_seed_prompt_and_sample_whatever_the_batch(flowgraph: Run, trained: Path) -> None:
    def drawn(*more: object) -> list[Any]:
        text_of(flowgraph("generate", trained, *HERE, "-o", "out.parquet", "--overwrite", *more))
        found: list[Any] = pq.read_table("out.parquet").select(["prompt_index", "sample_index", "response"]).to_pylist()
        return found

    whole = drawn("--rows", 10, "--n", 3)
    assert drawn("--rows", 10, "--n", 3, "--batch", 3) == whole
    fewer = drawn("--rows", 5, "--n", 2)
    assert fewer == [row for row in whole if row["prompt_index"] < 5 and row["sample_index"] < 2]
    assert drawn("--rows", 10, "--n", 3, "--seed", 1) != whole
    greedy = drawn("--rows", 10, "--n", 3, "--temperature", 0)
    assert greedy == drawn("--rows", 10, "--n", 3, "--temperature", 0, "--seed", 1)
    by_prompt = [{row["response"] for row in greedy if row["prompt_index"] == i} for i in range(10)]
    assert [len(each) for each in by_prompt] == [1] * 10
    assert len({row["response"] for row in whole if row["prompt_index"] == 0}) > 1


def test_a_runs_plan_says_where_its_weights_are_asked(flowgraph: Run, trained: Path, tmp_path: Path) -> None:
    asked = ("generate", trained, "--rows", 4)
    text_of(flowgraph(*asked, *HERE, "-o", "here.parquet"))
    text_of(flowgraph(*asked, "--plan", trained / "plan.json", "-o", "there.parquet"))
    assert pq.read_table("here.parquet").equals(pq.read_table("there.parquet"))
    plan = json.loads((trained / "plan.json").read_text())
    others = [each for each in plan["placed"] if not each["role"].endswith(".sample")]
    (tmp_path / "none.json").write_text(json.dumps(plan | {"placed": others}))
    text = refused(flowgraph(*asked, "--plan", "none.json", "-o", "out.parquet"))
    assert text.startswith("none.json: this plan of grpo does not sample from a model")


def test_prompts_of_the_command_line_are_answered_on_stdout(flowgraph: Run, trained: Path, tmp_path: Path) -> None:
    one = text_of(flowgraph("generate", trained, "--prompt", "12+3=", "--temperature", 0, *HERE))
    assert one.count("\n") == 1
    more = ("--prompt", "12+3=", "--prompt", "7", "--n", 2, "--max-tokens", 3)
    lines = text_of(flowgraph("generate", trained, *more, *HERE)).splitlines()
    assert lines[::2] == [f"[prompt {i}, sample {j}]" for i in range(2) for j in range(2)]
    rows = json.loads(text_of(flowgraph("generate", trained, *more, *HERE, "-o", "out.parquet", "--json")))
    assert [row["response"] for row in rows] == lines[1::2]
    assert [row["prompt"] for row in rows] == ["12+3=", "12+3=", "7", "7"]
    assert pq.read_table(tmp_path / "out.parquet").column("response").to_pylist() == lines[1::2]


# An interrupt may come while asyncio makes the loop of a batch: then only its finalizer closes the loop, or raises.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_leaves_what_was_done_under_another_name(flowgraph: Run, tmp_path: Path) -> None:
    def interrupt() -> None:
        until = time.monotonic() + 60
        while len(list(tmp_path.glob(".out.parquet.*.parts/*.parquet"))) < 3 and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    watcher = threading.Thread(target=interrupt)
    watcher.start()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        try:
            stopped = flowgraph("generate", "tiny", "--split", "train", "--batch", 1, *HERE, "-o", "out.parquet")
        finally:
            watcher.join()
            loops: list[Any] = [each for each in gc.get_objects() if issubclass(type(each), asyncio.BaseEventLoop)]
            for loop in loops:  # else one is closed when what refers to it ends, in another test perhaps
                with contextlib.suppress(AttributeError):  # it may be half made
                    loop.close()
                loop._closed = True
            gc.collect()
    assert (stopped.code, stopped.out) == (130, ""), stopped.err
    (left,) = [path.name for path in tmp_path.iterdir()]
    assert left == "out.partial.parquet"
    table = pq.read_table(left)
    assert 2 <= table.num_rows < 800
    # An interrupt between the writing of a part and its count leaves one more in the file than is told.
    said = [
        f"stopped after {n} of 800 prompts; their responses are in {left}\n"
        for n in (table.num_rows, table.num_rows - 1)
    ]
    assert any(each in stopped.err for each in said)
    assert table.column("prompt_index").to_pylist() == list(range(table.num_rows))


def test_columns_of_the_data_that_have_our_names_are_kept_apart_and_reach_rules(flowgraph: Run, tmp_path: Path) -> None:
    row = {"prompt": [{"role": "user", "content": "1"}], "response": "theirs", "seed": 5, "score": 0.25}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    text_of(flowgraph("generate", "tiny", "--data", "rows.jsonl", "--max-tokens", 2, *HERE, "-o", "out.parquet"))
    found = pq.read_table("out.parquet").to_pylist()[0]
    assert (found["data.response"], found["data.seed"], found["seed"]) == ("theirs", 5, 0)
    (tmp_path / "rules.py").write_text(
        "def rule(response, seed, score):\n    return score if seed == 5 and response != 'theirs' else 9.0\n"
    )
    again = flowgraph("eval", "--generations", "out.parquet", "--by", "rules.py:rule", "--json")
    now = flowgraph(
        *("eval", "tiny", "--data", "rows.jsonl", "--max-tokens", 2, "--temperature", 1, *HERE),
        *("--by", "rules.py:rule", "--json"),
    )
    assert json.loads(text_of(now))["report"] == json.loads(text_of(again))["report"]
    assert json.loads(text_of(now))["report"]["score"]["mean"] == 0.25


NOT_ASKED_WELL = {
    "names no model": (("-o", "out.parquet"), 2, "generate: names neither a model nor a run"),
    "nowhere to write": (("tiny",), 2, "generate: needs an output file\n  hint: -o FILE.parquet"),
    "two kinds of prompts": (("tiny", "--prompt", "1", "--rows", "2"), 2, "so --rows has no effect"),
    "no Parquet": (("tiny", "-o", "out.json"), 2, "out.json: its name ends in `.json`, not in .parquet"),
    "a folder": (("tiny", "-o", "folder.parquet"), 2, "folder.parquet: is a folder"),
    "there already": (("tiny", "-o", "there.parquet"), 2, "there.parquet: exists; nothing was written"),
    "no such run": (("runs/grpo-9/", "-o", "out.parquet"), 1, "runs/grpo-9/: no such folder"),
    "a folder of nothing": (("./folder.parquet", "-o", "out.parquet"), 1, "has no config.json; the folder is empty"),
    "a long prompt": (("tiny", "--prompt", "1" * 200, *HERE), 1, "exceed its 128 positions"),
}


@pytest.mark.parametrize("fault", NOT_ASKED_WELL)
def test_what_cannot_be_drawn_is_refused(flowgraph: Run, tmp_path: Path, fault: str) -> None:
    arguments, code, wanted = NOT_ASKED_WELL[fault]
    (tmp_path / "folder.parquet").mkdir()
    (tmp_path / "there.parquet").write_text("")
    assert wanted in refused(flowgraph("generate", *arguments), code)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.parquet", "there.parquet"]
