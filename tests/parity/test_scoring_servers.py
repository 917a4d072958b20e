"""Real servers score as their models do: a judge and a reward model behind a URL, of vLLM and of SGLang, on a CPU.

Each server starts in its engine's environment, which is installed first if it is not there. The judge is SmolLM2; the
reward model has its tokenizer, two of its layers, and a head of random weights. `make slow` runs them.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from flowgraph.app import cache_folder
from flowgraph.engines.local.model import LocalModel
from flowgraph.engines.servers.environments import install, python_of
from flowgraph.engines.servers.server_engine import ServerEngine
from flowgraph.engines.sglang.server import Sglang
from flowgraph.engines.vllm.server import Vllm
from flowgraph.errors import RuleError
from flowgraph.models import load, resolve, save
from nodes import Rollout, remote_judge, remote_reward
from nodes.scoring.remote import read_verdict
from tests.model_server import answered

pytestmark = [pytest.mark.processes, pytest.mark.slow]

START_S = 600.0  # on two busy cores
LIMIT_S = 200.0
CLOSE = 1e-3  # of scores around 10, by other kernels
KEY = "scoring-servers-key"
MOST = 60
PATTERN = r"(\d+)"
ENGINES = Path(__file__).parents[2] / "flowgraph" / "engines"
QUESTIONS, ANSWERS = ("3 + 4?", "2 + 2?"), ("7", "8", "four", "4")
ASK = "Write the number {{ ground_truth }} and nothing else."
PLAIN = "{{ prompt }} {{ response }}"

VLLM = """
import sys
sys.path.append(sys.argv.pop(1))
import vllm_launch
vllm_launch.prepare_process()
if __name__ == "__main__":
    from vllm.entrypoints.cli.main import main
    main()
"""
SGLANG = """
import sys
sys.path.append(sys.argv.pop(1))
import sglang_launch
sglang_launch.prepare_process()
if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args
    run_server(prepare_server_args(sys.argv[1:]))
"""


@dataclass(frozen=True)
class Served:
    """How an engine's own server is started in its environment, for a judge (`asked`) and a reward model (`graded`)."""

    engine: ServerEngine
    script: str
    asked: tuple[str, ...]
    graded: tuple[str, ...]
    both: tuple[str, ...]
    variables: dict[str, str]

    def command(self, folder: Path, model: Path, port: int, *more: str) -> list[str]:
        """Return the command that starts a server; its script is written to `folder`."""
        (folder / "serve.py").write_text(self.script)
        name = self.engine.name.lower()
        return [
            *(str(python_of(self.engine.on_cpu, cache_folder(None))), str(folder / "serve.py"), str(ENGINES / name)),
            *(part.format(model=model) for part in (*more, *self.both)),
            *("--served-model-name", "it", "--host", "127.0.0.1", "--port", str(port)),
        ]


OF_VLLM = Served(
    Vllm(),
    VLLM,
    asked=("serve", "{model}", "--api-key", KEY),
    graded=("serve", "{model}", "--runner", "pooling"),
    both=("--dtype", "float32", "--max-model-len", "1024", "--max-num-seqs", "8", "--enforce-eager"),
    variables={
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
    },
)
OF_SGLANG = Served(
    Sglang(),
    SGLANG,
    asked=("--model-path", "{model}", "--api-key", KEY),
    graded=("--model-path", "{model}", "--is-embedding"),
    both=(
        *("--device", "cpu", "--dtype", "float32", "--attention-backend", "torch_native", "--grammar-backend", "none"),
        *("--sampling-backend", "pytorch", "--max-total-tokens", "8192", "--context-length", "1024", "--sleep-on-idle"),
    ),
    variables={"SGLANG_USE_CPU_ENGINE": "1", "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0"},
)
BOTH = pytest.mark.parametrize("served", [OF_VLLM, OF_SGLANG], ids=lambda served: served.engine.name)


@contextmanager
def running(served: Served, folder: Path, model: Path, *more: str) -> Iterator[str]:
    """Start a server in `folder` and yield its URL; end all its processes on exit."""
    install(served.engine.on_cpu, cache_folder(None), say=print)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = os.environ | served.variables | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command, log = served.command(folder, model, port, *more), folder / "log"
    with log.open("wb") as lines, subprocess.Popen(command, env=environment, stdout=lines, stderr=lines) as process:
        try:
            wait_for(f"http://127.0.0.1:{port}/health", process, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            for each in [*psutil.Process(process.pid).children(recursive=True), process]:
                each.kill()


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server answers."""
    until = time.monotonic() + START_S
    while True:
        assert process.poll() is None and time.monotonic() < until, log.read_text(errors="replace")[-3000:]
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except (OSError, urllib.error.URLError):
            time.sleep(0.5)
        else:
            return


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    """Return SmolLM2, its tokenizer, and a folder with both."""
    folder = tmp_path_factory.mktemp("judge")
    loaded = load(resolve("smollm2-135m", cache=folder), seed=0, cache=folder, say=print)
    tokenizer = LocalModel(loaded.model, loaded.tokenizer).raw_tokenizer
    save(loaded.model, tokenizer, folder / "model")
    return loaded.model, tokenizer, folder / "model"


@pytest.fixture(scope="module")
def reward(judge: tuple[Any, Any, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    """Return a model that gives a text one number, its tokenizer, and a folder with both."""
    from transformers import LlamaConfig, LlamaForSequenceClassification

    folder, (language_model, tokenizer, _) = tmp_path_factory.mktemp("reward"), judge
    labels: Any = {"num_labels": 1, "id2label": {0: "score"}, "label2id": {"score": 0}}
    shape = language_model.config.to_dict() | labels | {"num_hidden_layers": 2, "pad_token_id": tokenizer.eos_token_id}
    torch.manual_seed(0)
    model: Any = LlamaForSequenceClassification(LlamaConfig(**shape)).eval()
    with torch.no_grad():
        model.score.weight.mul_(20)  # so that texts differ
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return model, tokenizer, folder / "model"


@pytest.fixture
def rollout() -> Rollout:
    """Return two responses to each of two prompts."""
    return answered([[{"role": "user", "content": QUESTIONS[i // 2]}] for i in range(4)], ANSWERS, ["model"] * 4)


@BOTH
def test_the_verdicts_of_a_judge_are_what_its_model_writes(
    served: Served, judge: tuple[Any, Any, Path], rollout: Rollout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer, folder = judge
    expected = list[float]()
    for truth in range(4):
        chat = [{"role": "user", "content": ASK.replace("{{ ground_truth }}", str(truth))}]
        context = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_tensors="pt", return_dict=False
        )
        written = model.generate(context, do_sample=False, max_new_tokens=MOST)[0, context.shape[1] :]
        text = tokenizer.decode(written, skip_special_tokens=True)
        answer = {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}
        expected.append(read_verdict(answer, pattern=PATTERN, scale=(0.0, 10.0)).score)
    assert len(set(expected)) > 1
    monkeypatch.setenv("JUDGE_KEY", KEY)
    settings: dict[str, Any] = {"template": ASK, "pattern": PATTERN, "max_tokens": MOST, "limit_s": LIMIT_S}
    with running(served, tmp_path, folder, *served.asked) as url:
        for where in (url, f"{url}/v1"):
            scores = remote_judge(rollout, url=where, model="it", api_key_env="JUDGE_KEY", **settings)
            assert scores.data.tolist() == pytest.approx(expected)
        with pytest.raises(RuleError, match="refused a request: status 401"):
            remote_judge(rollout, url=url, model="it", on_error=0.0, **settings)
        cut = remote_judge(
            rollout, url=url, model="it", api_key_env="JUDGE_KEY", on_error=0.5, **{**settings, "max_tokens": 2}
        )
        assert cut.data.tolist() == [0.5] * 4, "a verdict that is cut at max_tokens has no score"
        if served is OF_VLLM:  # SGLang answers to any name
            with pytest.raises(RuleError, match="status 404"):
                remote_judge(rollout, url=url, model="other", api_key_env="JUDGE_KEY", on_error=0.0, **settings)


@BOTH
def test_the_scores_of_a_reward_model_are_those_of_its_model(
    served: Served, reward: tuple[Any, Any, Path], rollout: Rollout, tmp_path: Path
) -> None:
    model, tokenizer, folder = reward
    plain, chat = list[float](), list[float]()
    for index, answer in enumerate(ANSWERS):
        question = QUESTIONS[index // 2]
        said = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        ids = tokenizer.apply_chat_template(said, return_tensors="pt", return_dict=False)
        text = tokenizer(f"{question} {answer}", add_special_tokens=False, return_tensors="pt").input_ids
        with torch.no_grad():
            chat.append(float(model(ids).logits))
            plain.append(float(model(text).logits))
    assert max(plain) - min(plain) > 1 and max(chat) - min(chat) > 1
    with running(served, tmp_path, folder, *served.graded) as url:
        settings: dict[str, Any] = {"url": url, "model": "it", "limit_s": LIMIT_S}
        apis: tuple[Any, ...] = ("vllm/classify", "vllm/pooling") if served is OF_VLLM else ("sglang/classify",)
        for api in apis:
            scores = remote_reward(rollout, api=api, template=PLAIN, **settings)
            assert scores.data.tolist() == pytest.approx(plain, abs=CLOSE), api
            if served is OF_VLLM:  # it applies the model's chat template
                assert remote_reward(rollout, api=api, **settings).data.tolist() == pytest.approx(chat, abs=CLOSE), api
