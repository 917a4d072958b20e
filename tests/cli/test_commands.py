"""Every verb, as a newcomer calls it."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flowgraph.flows.flow_files import shipped_files

Run = Callable[..., Any]
SMALL = ("--set", "policy.generate.n=4")
ALONE = ("--cluster", "1xcpu", "--eval-every", 0)
QUICK = (
    "--cluster",
    "1xcpu",
    "--steps",
    2,
    "--batch",
    2,
    "--set",
    "policy.generate.n=4",
    "--eval-rows",
    4,
    "--eval-every",
    1,
)


def test_flows_lists_the_shipped_ones(flowgraph: Run) -> None:
    names = [each["name"] for each in json.loads(flowgraph("flows", "--json").out)]
    assert names == sorted(path.stem for path in shipped_files())
    assert "Plain policy gradient on group-centred scores." in flowgraph("flows").out


def test_models_lists_the_built_in_ones(flowgraph: Run, tmp_path: Path) -> None:
    names = [each["name"] for each in json.loads(flowgraph("models", "--cache", tmp_path, "--json").out)]
    assert names == ["tiny", "smollm2-135m"]


def test_show_prints_the_graph_and_json_has_both_hashes(flowgraph: Run) -> None:
    assert flowgraph("show", "grpo").out.startswith("flow grpo(prompts: Prompts, policy: Policy, ref: Reference)\n")
    told = json.loads(flowgraph("show", "grpo", "--json").out)
    assert len(told["structure_hash"]) == len(told["full_hash"]) == 64


def test_show_takes_settings(flowgraph: Run) -> None:
    assert "n=4" in flowgraph("show", "grpo", "--set", "policy.generate.n=4").out


def test_draw_prints_mermaid_or_writes_it(flowgraph: Run, tmp_path: Path) -> None:
    text = flowgraph("draw", "grpo", "--to", "mmd").out
    assert "flowchart" in text
    assert flowgraph("draw", "grpo", "-o", "grpo.mmd").code == 0
    assert (tmp_path / "grpo.mmd").read_text() == text


def test_cp_copies_a_flow_that_shows_the_same_and_never_overwrites(flowgraph: Run) -> None:
    assert flowgraph("cp", "grpo", "my.py").code == 0
    assert flowgraph("show", "my.py").out.replace("my.py", "grpo.py") == flowgraph("show", "grpo").out
    said = flowgraph("cp", "gpg", "my.py")
    assert (said.code, said.err) == (2, "my.py: exists; nothing was written\n")


def test_data_writes_train_and_held_out_rows_that_run_takes_back(flowgraph: Run, tmp_path: Path) -> None:
    said = flowgraph("data", "digits:sort", "-o", "sorted", "--json")
    assert [each["rows"] for each in json.loads(said.out)] == [800, 200]
    assert flowgraph("plan", "grpo", "--data", "sorted").code == 0


def test_doctor_says_what_is_here(flowgraph: Run) -> None:
    told = json.loads(flowgraph("doctor", "--json").out)
    assert told["cores"] >= 1
    assert told["torch"]
    assert "disk_free_bytes" in told


def test_doctor_lists_another_projects_package_of_our_name(
    flowgraph: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flowgraph").mkdir()
    (tmp_path / "flowgraph" / "__init__.py").write_text("")
    info = tmp_path / "workflows-0.1.6.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: workflows\nVersion: 0.1.6\n")
    (info / "RECORD").write_text("flowgraph/__init__.py,,\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    said = flowgraph("doctor")
    assert re.search(r"other projects of the same name +workflows 0\.1\.6", said.out)
    assert "hint: pip uninstall workflows, and install flowgraph-rl again" in " ".join(said.err.split())


def test_plan_names_the_roles(flowgraph: Run) -> None:
    assert "policy.sample" in flowgraph("plan", "grpo").out
    assert "policy.train" in flowgraph("plan", "grpo", "--json").out


@pytest.fixture
def finished(flowgraph: Run, run_once: Callable[..., Path], tmp_path: Path) -> str:
    """Copy a run of two steps of GRPO on the tiny model here; return what the command printed."""
    kept = run_once("grpo", *map(str, QUICK))
    shutil.copytree(kept, tmp_path / "runs" / "grpo-1")
    return kept.relative_to(kept.parents[1]).as_posix()


def test_a_run_leaves_everything_that_it_promises(finished: str, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "grpo-1"
    assert finished == "runs/grpo-1"
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "run.json", "settings.json", "graph.json", "graph.txt", "flow.py", "flow.mmd", "plan.json", "plan.mmd",
        "program.txt", "metrics.jsonl", "measured.jsonl", "rollouts", "weights", "checkpoints",
        "validation", "lock",
    }  # fmt: skip
    origins = {each["name"]: each["origin"] for each in json.loads((folder / "settings.json").read_text())}
    assert origins["policy.generate.n"] == "--set"
    assert origins["policy.update.lr"] == "known for model tiny"
    assert origins["policy.generate.max_tokens"] == "known for data digits"
    assert origins["policy.update.epochs"] == "default"
    assert origins["policy.update.clipped.eps"].startswith("grpo.py:")
    facts = json.loads((folder / "run.json").read_text())
    assert (facts["status"], facts["steps_done"]) == ("finished", 2)


def test_metrics_hold_a_check_before_the_first_step_and_after_the_last(finished: str, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (tmp_path / "runs/grpo-1/metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], "eval/accuracy" in line) for line in lines] == [
        (0, True), (0, False), (1, True), (1, False), (2, True),
    ]  # fmt: skip
    assert {"score.reward", "policy.generate.response_length", "policy.update.kl_k3.kl"} <= set(lines[1])
    assert lines[1]["time"]["tokens_per_s"] > 0


def test_rollouts_are_scored_parquet(finished: str, tmp_path: Path) -> None:
    table = pq.read_table(tmp_path / "runs/grpo-1/rollouts/policy.generate/000000.parquet")
    assert table.num_rows == 8
    assert {"text", "tokens", "logprobs", "score", "group_normalize", "columns.prompt"} <= set(table.column_names)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_transformers_loads_the_weights(finished: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path / "runs" / "grpo-1" / "weights" / "policy"
    assert AutoModelForCausalLM.from_pretrained(folder).num_parameters() == 109_376
    assert AutoTokenizer.from_pretrained(folder)("12")["input_ids"]


def test_the_trained_weights_run_again_as_a_model_folder(flowgraph: Run, finished: str) -> None:
    said = flowgraph("run", "gpg", "--model", "runs/grpo-1/weights/policy", *QUICK)
    assert said.code == 0, said.err


def test_runs_and_report_sum_up_and_draw(flowgraph: Run, finished: str, tmp_path: Path) -> None:
    assert "finished" in flowgraph("runs").out
    said = flowgraph("report", "runs/grpo-1")
    assert said.code == 0, said.err
    assert "reward" in said.out
    ElementTree.parse(tmp_path / "runs" / "grpo-1" / "curves.svg")
    told = json.loads(flowgraph("report", "runs/grpo-1", "--json").out)
    assert "eval/accuracy" in told["metrics"]


def test_a_damaged_run_hides_no_other(flowgraph: Run, tmp_path: Path) -> None:
    (tmp_path / "runs" / "bad").mkdir(parents=True)
    (tmp_path / "runs" / "bad" / "run.json").write_text("{")
    assert flowgraph("runs").code == 0
    (told,) = json.loads(flowgraph("runs", "--json").out)
    assert told["status"].startswith("damaged: ")


def test_a_replay_gives_the_same_losses_and_weights(flowgraph: Run, finished: str, tmp_path: Path) -> None:
    said = flowgraph("run", "grpo", *QUICK, "--replay", "runs/grpo-1", "--out", "again")
    assert said.code == 0, said.err
    first, second = (
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (tmp_path / "runs/grpo-1", tmp_path / "again")
    )
    for a, b in zip(first, second, strict=True):
        same = set(a) & set(b) - {"time"}
        assert {name: a[name] for name in same} == {name: b[name] for name in same}
    assert any("policy.update.loss" in line for line in second)


FEW = ("--cluster", "1xcpu", "--steps", 2, "--batch", 2, "--eval-every", 0)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Write the flows, the nodes and the rule of the page `own.md` into one file."""
    text = (Path(__file__).parents[2] / "docs" / "own.md").read_text()
    blocks = [block.partition("```")[0] for block in text.split("```python\n")[1:]]
    (tmp_path / "my.py").write_text("\n\n".join(blocks))
    return tmp_path / "runs"


def test_the_users_own_flow_with_a_greedy_baseline_and_two_rewards_runs(flowgraph: Run, own: Path) -> None:
    said = flowgraph("run", "my.py:short_remax", *FEW, "--set", "n=3")
    assert said.code == 0, said.err
    folder = own / "short_remax-1" / "rollouts"
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["policy.generate", "policy.generate#2"]
    assert pq.read_table(folder / "policy.generate" / "000000.parquet").num_rows == 6
    assert pq.read_table(folder / "policy.generate#2" / "000000.parquet").num_rows == 2


def test_the_users_own_flow_of_flows_and_its_dynamic_sampling_run(flowgraph: Run, own: Path) -> None:
    said = flowgraph("run", "my.py:two_scores", *FEW, "--set", "n=3", "--set", "scale.factor=0.5")
    assert said.code == 0, said.err
    told = pq.read_table(own / "two_scores-1" / "rollouts" / "policy.generate" / "000000.parquet").to_pydict()
    parts = zip(told["score"], told["score#2"], told["add"], strict=True)
    assert all(both == pytest.approx(0.5 * one + 0.3 * two) for one, two, both in parts)
    few = ("max_tokens=4", "by=my.py:polite", "groups=2")
    said = flowgraph("run", "my.py:dynamic", *FEW, *(f"--set=policy.refill.{each}" for each in few))
    assert said.code == 0, said.err
    lines = [json.loads(line) for line in (own / "dynamic-1" / "metrics.jsonl").read_text().splitlines()]
    assert [line["policy.refill.groups_tried"] for line in lines] == [2, 2]
    assert {"policy.refill.reward", "policy.refill.rounds", "policy.refill.no_signal"} <= lines[0].keys()


@pytest.mark.slow(group="faults")
@pytest.mark.processes
def test_an_interrupted_run_says_where_it_stands_and_leaves_no_process(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "flowgraph",
        "run",
        "grpo",
        "--cluster",
        "1xcpu",
        "--steps",
        "100000",
        "--eval-every",
        "0",
    ]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    metrics = tmp_path / "runs" / "grpo-1" / "metrics.jsonl"
    deadline = time.monotonic() + 90
    while not (metrics.is_file() and metrics.read_text().count("\n") > 2):
        assert time.monotonic() < deadline and process.poll() is None, process.communicate()
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    assert "stopped after step" in err
    assert "Traceback" not in err
    assert json.loads((tmp_path / "runs/grpo-1/run.json").read_text())["status"] == "interrupted"
    assert (tmp_path / "runs/grpo-1/weights/policy/config.json").is_file()
    left = [path for path in Path("/proc").glob("[0-9]*") if str(process.pid) in _parent_argument(path)]
    assert left == []


def _parent_argument(process: Path) -> list[str]:
    """Return the arguments of a grader process, the last of which is its parent's id."""
    try:
        arguments = (process / "cmdline").read_bytes().decode().split("\0")
    except OSError:
        return []
    return arguments if any("grader_process" in each for each in arguments) else []


def test_an_engine_is_installed_where_either_cache_option_says(
    flowgraph: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches = list[Path]()
    monkeypatch.setattr(
        "flowgraph.engines.servers.environments.install", lambda wanted, cache, say: caches.append(cache)
    )
    for command in (
        ["--cache", "a", "install"],
        ["install", "--cache", "b"],
        ["--cache", "a", "install", "--cache", "b"],
    ):
        assert flowgraph("engines", *command, "sglang-cpu").code == 0
    assert [cache.name for cache in caches] == ["a", "b", "b"]
