"""`--attach`: a run that draws from a server which someone else started, and what cannot be attached."""

from __future__ import annotations

import copy
import functools
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flowgraph.app import cache_folder
from flowgraph.engines.servers.environments import install
from flowgraph.engines.servers.server_engine import ServerSettings
from flowgraph.engines.servers.server_process import ServerProcess
from flowgraph.engines.sglang import SGLANG_CPU
from flowgraph.engines.sglang.server import Sglang
from tests.cli.said import text_of
from tests.cli.small_run import quietly

Run = Callable[..., Any]
QUICK = ("--runtime", "local", "--steps", "2", "--batch", "2", "--set", "policy.generate.n=2", "--eval-every", "0")


@functools.cache
def planned(cluster: str) -> str:
    """Return the text of a plan for a cluster, found once."""
    with tempfile.TemporaryDirectory() as folder:
        quietly(Path(folder), "plan", "grpo", "--cluster", cluster, "-o", "plan.json")
        return Path(folder, "plan.json").read_text()


def plan_on_servers(cluster: str = "1xcpu") -> str:
    """Write a plan whose samples are drawn by SGLang, as a person edits one."""
    plan = json.loads(planned(cluster))
    for placed in plan["placed"]:
        if placed["role"] == "policy.sample":
            placed |= {"engine": "sglang", "running": {"weights_by": "disk"}}
    Path("plan.json").write_text(json.dumps(plan))
    return "plan.json"


@pytest.fixture
def server(tmp_path: Path, tiny_parts: tuple[Any, Any]) -> Iterator[ServerProcess]:
    """Start a server on a model like the tiny one but with other weights, as someone else would."""
    from flowgraph.models import save

    install(SGLANG_CPU, cache_folder(None), say=print)
    model, tokenizer = copy.deepcopy(tiny_parts[0]), tiny_parts[1]
    for weight in model.parameters():
        weight.data.mul_(1.5)
    folder = save(model, tokenizer, tmp_path / "model")
    with Sglang().serve(folder, ServerSettings(max_tokens_cached=2048), log=tmp_path / "log") as running:
        yield running


def test_a_plan_says_what_promises_no_bits(flowgraph: Run) -> None:
    told = "not bit-reproducible\n  policy.sample on sglang: repeated and resumed runs are statistically equivalent\n"
    assert text_of(flowgraph("plan", "grpo", "--plan", plan_on_servers())).endswith(told)


@pytest.mark.slow(group="servers")
@pytest.mark.processes
def test_an_engine_draws_by_adapters_as_they_are_trained(flowgraph: Run) -> None:
    install(SGLANG_CPU, cache_folder(None), say=print)
    Path("rules.py").write_text("def rule(response):\n    return float(sum(map(ord, response)) % 7)\n")  # varies
    told = ("--set", "policy.update.lr=0.05", "--set", "score.by=rules.py:rule", "--set", "policy.generate.n=4")
    plan = ("--plan", plan_on_servers(), "-o", "ran", *told)
    assert flowgraph("run", "grpo", "--model", "tiny+lora=4", *QUICK, *plan, "--steps", "3").code == 0
    metrics = [json.loads(line) for line in Path("ran/metrics.jsonl").read_text().splitlines()]
    assert len(metrics) == 3
    for each in metrics:
        assert each["policy.update.grad_norm"] > 0, "adapters move, so what is drawn by them does"
        assert each["policy.mismatch.log_ppl_diff_max"] < 1e-4


@pytest.mark.slow(group="servers")
@pytest.mark.processes
def test_one_server_over_two_devices_draws_for_two_ranks_that_train(flowgraph: Run) -> None:
    install(SGLANG_CPU, cache_folder(None), say=print)
    plan = json.loads(Path(plan_on_servers("laptop")).read_text())
    for placed in plan["placed"]:
        if placed["role"] == "policy.sample":
            placed |= {"layout": {"tensor": 2}, "running": {"weights_by": "group"}}
    Path("plan.json").write_text(json.dumps(plan))
    assert flowgraph("run", "grpo", "--plan", "plan.json", *QUICK[2:], "-o", "ran").code == 0
    metrics = [json.loads(line) for line in Path("ran/metrics.jsonl").read_text().splitlines()]
    assert [each["policy.mismatch.log_ppl_diff_max"] < 1e-4 for each in metrics] == [True, True]


@pytest.mark.slow(group="servers")
@pytest.mark.processes
def test_a_run_draws_from_a_server_that_runs_already_and_leaves_it_running(
    flowgraph: Run, server: ServerProcess
) -> None:
    door = server.door
    with Sglang.model.control(door, 10.0) as control:
        control.stamp("default")  # as SGLang does unless told otherwise
    told = {"policy": [{"url": door.url, "key": door.key, "admin_key": door.admin_key}]}
    Path("servers.json").write_text(json.dumps(told))
    plan = ("--plan", plan_on_servers(), "--attach", "servers.json", "-o", "ran")
    assert flowgraph("run", "grpo", *plan, *QUICK).code == 0
    drawn = [pq.read_table(each) for each in sorted(Path("ran/rollouts/policy.generate").iterdir())]
    assert [{*table.column("versions").combine_chunks().flatten().to_pylist()} for table in drawn] == [{0}, {1}]
    metrics = [json.loads(line) for line in Path("ran/metrics.jsonl").read_text().splitlines()]
    assert all(each["policy.mismatch.log_ppl_diff_max"] < 1e-4 for each in metrics), "it drew with our weights"
    server.check()
    with Sglang.model.control(door, 10.0) as control:
        assert control.version() in ("1", "2")
    written = [path.read_bytes() for path in Path("ran").rglob("*") if path.is_file()]
    assert not [each for each in written if door.key.encode() in each or door.admin_key.encode() in each]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "cannot be read: No such file or directory"),
        ("\udc80", "cannot be read: it is not text"),
        ("{", "cannot be read: Expecting property name"),
        ('{"policy": []}', "policy: Tuple should have at least 1 item"),
        ('{"policy": [{"url": "ftp://x"}]}', r"policy\[0\]\.url: String should match pattern"),
        ('{"policy": [{"url": "http://x", "kee": "k"}]}', r"policy\[0\]\.kee: Extra inputs are not permitted"),
        ('{"polcy": [{"url": "http://x"}]}', "the plan has no servers for `polcy`\n  hint: did you mean `policy`"),
        ('{"ref": [{"url": "http://x"}]}', "the plan has no servers for `ref`\n  hint: known: policy"),
        (
            '{"policy": [{"url": "http://x"}, {"url": "http://y"}]}',
            "2 for `policy`, but sglang in pool `all` has 1",
        ),
    ],
    ids=["none", "bytes", "cut", "empty", "address", "key", "name", "engine", "count"],
)
def test_what_cannot_be_attached_is_refused_before_a_run_begins(flowgraph: Run, text: str | None, told: str) -> None:
    if text is not None:
        Path("servers.json").write_text(text, errors="surrogateescape")
    plan = plan_on_servers()
    said = flowgraph("run", "grpo", "--plan", plan, "--attach", "servers.json", *QUICK)
    assert said.code == 2
    assert re.search(told, said.err), said.err
    assert not Path("runs").exists()


def test_a_plan_without_servers_has_none_to_attach(flowgraph: Run) -> None:
    Path("servers.json").write_text('{"policy": [{"url": "http://x"}]}')
    said = flowgraph("run", "grpo", "--cluster", "1xcpu", "--attach", "servers.json", *QUICK)
    assert (said.code, said.err) == (
        2,
        (
            "--attach servers.json: the plan has no servers for `policy`\n"
            "  hint: a plan's file says which engine hosts a role: sglang, vllm\n"
        ),
    )


def test_a_server_that_is_not_there_ends_the_run_and_is_named(flowgraph: Run) -> None:
    Path("servers.json").write_text('{"policy": [{"url": "http://127.0.0.1:9"}]}')
    said = flowgraph("run", "grpo", "--plan", plan_on_servers(), "--attach", "servers.json", *QUICK)
    assert said.code == 1
    assert "policy-all-0 cannot be reached for /server_info" in said.err
