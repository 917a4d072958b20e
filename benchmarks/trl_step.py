"""Run GRPO steps with TRL's trainer, in TRL's environment: `python trl_step.py JOB.json`.

Only the standard library is imported above the functions, so that the tests of the scoring rules need no TRL.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Reward = Callable[..., list[float]]


def partial(response: str, truth: str) -> float:
    """Score the share of positions that are right of a response that did not end.

    Source: `nodes.scoring.rules.partial`, without the point for the end, since no response of the benchmark ends.
    """
    right = sum(given == wanted for given, wanted in zip(response, truth, strict=False))
    return right / (len(truth) + 1)


def number(response: str, truth: str) -> float:
    """Score a half if the number stands in the response, and a half if it is all there is.

    Source: `nodes.scoring.rules.number`.
    """
    whole = rf"(?<![0-9])(?<![0-9][.,])(?<!-){re.escape(truth)}(?![0-9])(?![.,][0-9])"
    return 0.5 * (re.search(whole, response) is not None) + 0.5 * (response.strip() == truth)


RULES: dict[str, Callable[[str, str], float]] = {"digits": partial, "addition": number}


def reward_of(rule: Callable[[str, str], float]) -> Reward:
    """Make a reward function as TRL calls it: all completions at once, with the data set's columns by name."""

    def reward(completions: Sequence[Any], ground_truth: Sequence[str], **_: Any) -> list[float]:
        texts = [completion[0]["content"] for completion in completions]
        return [rule(text, truth) for text, truth in zip(texts, ground_truth, strict=True)]

    return reward


def settings(job: dict[str, Any]) -> dict[str, Any]:
    """Return the options of `GRPOConfig`; benchmarks/README.md says why each is as it is."""
    return {
        "output_dir": job["folder"],
        "model_init_kwargs": {"dtype": "float32"},
        "max_steps": job["steps"],
        "seed": 0,
        # the same work as ours
        "num_generations": job["samples"],
        "per_device_train_batch_size": job["prompts"] * job["samples"],
        "gradient_accumulation_steps": 1,
        "max_completion_length": job["tokens"],
        "temperature": 1.0,
        "beta": 0.1,
        "use_bias_correction_kl": False,
        "epsilon": 0.2,
        "loss_type": "dapo",
        "scale_rewards": "group",
        "num_iterations": 1,
        "learning_rate": job["lr"],
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "shuffle_dataset": False,
        "bf16": False,
        "use_cpu": True,
        # in TRL's favour: nothing beside the step
        "gradient_checkpointing": False,
        "use_vllm": False,
        "log_completions": False,
        "logging_strategy": "no",
        "save_strategy": "no",
        "eval_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": False,
    }


def train(job: dict[str, Any]) -> dict[str, Any]:
    """Train for the job's steps, and tell what was done: the lengths of the responses, and the seconds."""
    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(1)
    rows = json.loads(Path(job["rows"]).read_text("utf-8"))
    reward = reward_of(RULES[job["data"]])
    data, config = Dataset.from_list(rows), GRPOConfig(**settings(job))
    trainer = GRPOTrainer(job["model"], reward_funcs=reward, args=config, train_dataset=data)
    start = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - start
    told = trainer.state.log_history[-1]  # means over the steps, logged once at the end
    return {
        "steps": trainer.state.global_step,
        "shortest": told["completions/min_length"],
        "longest": told["completions/max_length"],
        "reward": told["reward"],
        "kl": told["kl"],
        "step_s": seconds / trainer.state.global_step,
        "threads": torch.get_num_threads(),
    }


def main() -> None:
    """Read the job, train, and write the report beside it."""
    job = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    Path(job["report"]).write_text(json.dumps(train(job)), "utf-8")


if __name__ == "__main__":
    main()
