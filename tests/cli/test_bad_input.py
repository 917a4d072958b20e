"""Bad input, each a clear error of ours: whole texts, exit codes, and never a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

Run = Callable[..., Any]

FLOW = """
from __future__ import annotations
from flowgraph import Loss, flow
from nodes import Policy, Prompts, gpg_advantages, generate, logprobs, policy_gradient, score, update

@flow
def mine(prompts: Prompts, policy: Policy) -> Policy:
    rollout = generate(policy, prompts, n=2)
    advantages = gpg_advantages(score(rollout, by="{by}", limit_s=0.5), rollout.group)

    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

    return update(policy, loss)
"""

QUICK = ("--cluster", "1xcpu", "--steps", 1, "--batch", 2, "--eval-every", 0)


def refused(said: Any, code: int = 1) -> str:
    """Return the error's text; there is no traceback, and nothing on stdout."""
    assert said.code == code, said
    assert "Traceback" not in said.err
    assert said.out == ""
    text: str = said.err
    return text


def test_a_flow_file_that_does_not_import_is_named_with_its_line(flowgraph: Run, tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text("import flowgraph\nimport no_such_module\n")
    assert refused(flowgraph("show", "my.py")) == (
        "my.py:2: importing it raised ModuleNotFoundError: No module named 'no_such_module'\n"
    )


def test_a_flow_file_that_does_not_parse_is_named_with_its_line(flowgraph: Run, tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text("def f(:\n")
    assert refused(flowgraph("show", "my.py")).startswith("my.py:1: does not parse: ")


def test_a_missing_flow_is_answered_with_the_nearest_name(flowgraph: Run) -> None:
    assert refused(flowgraph("show", "grop")) == "no shipped flow `grop`\n  hint: did you mean `grpo`?\n"


def test_a_missing_file_is_named_whole(flowgraph: Run, tmp_path: Path) -> None:
    assert f"no file {tmp_path / 'my.py'}" in refused(flowgraph("show", "my.py"))


def test_an_unknown_setting_is_answered_with_the_nearest_name(flowgraph: Run) -> None:
    text = refused(flowgraph("run", "grpo", "--set", "policy.generate.temprature=1"))
    assert "policy.generate" in text
    assert "did you mean `temperature`?" in text


def test_an_unknown_node_is_answered_with_the_nearest_name(flowgraph: Run) -> None:
    assert "did you mean `policy.generate.n`?" in refused(flowgraph("run", "grpo", "--set", "polcy.generate.n=4"))


def test_a_setting_out_of_range_says_the_range(flowgraph: Run) -> None:
    text = refused(flowgraph("run", "grpo", "--set", "policy.generate.n=0"))
    assert "policy.generate.n" in text
    assert "greater than or equal to 1" in text


def test_an_unknown_option_is_a_usage_error(flowgraph: Run) -> None:
    refused(flowgraph("run", "grpo", "--no-such-option"), code=2)


def test_an_unknown_model_parameter_is_a_usage_error(flowgraph: Run) -> None:
    assert "known: policy, ref" in refused(flowgraph("run", "grpo", "--model", "critic=tiny"), code=2)


def test_a_corrupt_parquet_file_is_named(flowgraph: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"PAR1" + b"\0" * 100)
    assert "bad.parquet" in refused(flowgraph("run", "grpo", "--data", "bad.parquet", *QUICK))


def test_a_parquet_file_without_prompts_names_the_column(flowgraph: Run, tmp_path: Path) -> None:
    pq.write_table(pa.table({"promt": ["a"]}), tmp_path / "rows.parquet")
    text = refused(flowgraph("run", "grpo", "--data", "rows.parquet", *QUICK))
    assert "rows.parquet" in text
    assert "`prompt`" in text


def test_a_bad_row_is_named_with_file_row_and_column(flowgraph: Run, tmp_path: Path) -> None:
    rows = [{"prompt": [{"role": "user", "content": "1"}]}, {"prompt": []}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = refused(flowgraph("run", "grpo", "--data", "rows.jsonl", *QUICK))
    assert "rows.jsonl:2" in text
    assert "prompt" in text


def test_a_model_folder_without_weights_says_what_it_saw(flowgraph: Run, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "llama"}')
    text = refused(flowgraph("run", "grpo", "--model", "./model", *QUICK))
    assert "model" in text
    assert "config.json" in text


RULES = {
    "raises": "def rule(response):\n    raise KeyError('no answer')\n",
    "hangs": "import time\ndef rule(response):\n    time.sleep(60)\n",
    "gives_nan": "def rule(response):\n    return float('nan')\n",
    "gives_text": "def rule(response):\n    return 'good'\n",
}
TOLD = {"raises": "KeyError", "hangs": "0.5 s", "gives_nan": "nan", "gives_text": "'good'"}


@pytest.mark.parametrize("fault", RULES)
def test_a_rule_that_fails_is_named_with_its_response(flowgraph: Run, tmp_path: Path, fault: str) -> None:
    (tmp_path / "rules.py").write_text(RULES[fault])
    (tmp_path / "my.py").write_text(FLOW.format(by="rules.py:rule"))
    text = refused(flowgraph("run", "my.py", *QUICK))
    assert "my.py:9" in text
    assert "rules.py" in text
    assert TOLD[fault] in text
    assert "runs/mine-1" in text


def test_a_rule_that_is_not_there_is_found_out_before_anything_is_loaded(flowgraph: Run, tmp_path: Path) -> None:
    assert refused(flowgraph("run", "grpo", "--set", "score.by=gms8k")).startswith("no shipped rule `gms8k`\n")
    assert not (tmp_path / "runs").exists()


def test_a_rule_that_prints_does_no_harm(flowgraph: Run, tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text("def rule(response):\n    print('{\"score\": 5}')\n    return 0.5\n")
    (tmp_path / "my.py").write_text(FLOW.format(by="rules.py:rule"))
    said = flowgraph("run", "my.py", *QUICK)
    assert said.code == 0
    assert said.out == "runs/mine-1\n"


def test_a_users_own_nodes_py_beside_the_flow_is_named(flowgraph: Run, tmp_path: Path) -> None:
    (tmp_path / "nodes.py").write_text("")
    (tmp_path / "my.py").write_text(FLOW.format(by="exact"))
    text = refused(flowgraph("show", "my.py"))
    assert str(tmp_path / "nodes.py") in text
    assert "hint: rename it, for example to my_nodes.py" in text


def test_too_little_memory_refuses_before_anything_is_loaded(flowgraph: Run, tmp_path: Path) -> None:
    text = refused(flowgraph("run", "grpo", "--model", "smollm2-135m", "--data", "addition", "--memory", "1GiB"))
    assert "policy.train" in text
    assert "more than the 512.0 MiB that" in text, "half of it for each of two devices"
    assert not (tmp_path / "runs").exists()


def test_a_run_folder_that_exists_is_left_alone(flowgraph: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    text = refused(flowgraph("run", "grpo", "--out", "mine", *QUICK))
    assert text == "mine: this run folder already exists; nothing in it was changed\n  hint: --out mine-1\n"


def test_a_flow_that_returns_no_model_shows_but_does_not_run(flowgraph: Run, tmp_path: Path) -> None:
    text = FLOW.format(by="exact").replace("-> Policy:\n    rollout", "-> Advantages:\n    rollout")
    text = text.replace("return update(policy, loss)", "return advantages").replace(
        "import Policy", "import Advantages, Policy"
    )
    (tmp_path / "my.py").write_text(text)
    assert flowgraph("show", "my.py").code == 0
    assert "returns no model" in refused(flowgraph("run", "my.py"))


def test_more_prompts_a_step_than_there_are_is_refused(flowgraph: Run) -> None:
    assert "800" in refused(flowgraph("run", "grpo", "--batch", 1000), code=2)


def test_a_report_of_no_run_is_refused(flowgraph: Run) -> None:
    assert refused(flowgraph("report", "nothing")) == "nothing: is not a run folder\n"
