"""Phases of RL steps as logs, blogs and issues of many systems publish them, in one format, against our forecasts.

A row has the seconds of a whole step and of its phases, where its source says them; each that can be forecast is a
case. Rows of NeMo-RL's performance summary are read as `rl_rows` reads that table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from benchmarks.forecast.report import Case, Row, Table, View
from benchmarks.forecast.rl import cases_of
from benchmarks.forecast.rl_recipes import Recipe
from benchmarks.forecast.rl_rows import Read, read_end_to_end, read_nemo_rl

METRICS: Mapping[str, str] = {
    "step_s": "step",
    "gen_s": "gen",
    "old_logprob_s": "old_log_prob",
    "ref_logprob_s": "ref_log_prob",
    "all_logprobs_s": "forward_pass",
    "update_s": "update_actor",
}
"""By column, what the trainer's clock is called in the format of `rl_end2end.csv`."""
LISTED = re.compile(r"=(\[.*\])")
OTHER_ROWS = re.compile(r"image|VL-|agent|tools|MemAgent|mixed|train \+", re.IGNORECASE)
OTHER_WORK = "images, tools or two kinds of device"
SLOW = re.compile(r"slow case|abnormally slow|second hand|speculative decoding", re.IGNORECASE)


def reads(row: Row) -> Iterator[Read]:
    """Return what a row can be held against: the step, and each phase that it has seconds of."""
    listed = LISTED.search(row["train_parallel"])
    if row["system"] == "NeMo RL" and listed is not None:
        yield read_nemo_rl(_summary(row, listed[1]))
        return
    for column, metric in METRICS.items():
        if row[column]:
            yield read_end_to_end(_end_to_end(row, metric, row[column]))


def _summary(row: Row, layout: str) -> Row:
    """Return the row as NeMo-RL's performance summary has it."""
    drawn = LISTED.search(row["rollout_parallel"])
    late = re.search(r"\d+-step", row["mode"])
    return {
        "version": row["version"],
        "algorithm": row["algorithm"],
        "model": row["model"],
        "policy_mode": f"{late[0]} Off" if late else "On policy",
        "gpus": row["n_gpus"],
        "gpu": row["gpu"],
        "precision": "fp8" if "fp8" in row["train_backend"].casefold() else "bf16",
        "max_seq_len": row["max_total_tokens"],
        "avg_seq_len": row["mean_total_tokens"],
        "gen_gbs": row["samples_per_step"],
        "train_gbs": row["train_global_batch_samples"],
        "gen_tp_pp": drawn[1] if drawn else "",
        "train_tp_cp_ep_pp_vpp": layout,
        "step_time_s": row["step_s"],
        "source": row["source"],
    }


def _end_to_end(row: Row, metric: str, seconds: str) -> Row:
    """Return one phase of the row as `rl_end2end.csv` has it."""
    split = f" {row['n_gpus_rollout']} gen : {row['n_gpus_train']} train" if row["n_gpus_rollout"] else ""
    prompts, each, all_of = row["prompts_per_step"], row["samples_per_prompt"], row["samples_per_step"]
    if all_of and not prompts:
        each = each or ("1" if "PPO" in row["algorithm"] else str(Recipe().samples))
        prompts = str(int(all_of) // int(each))
    elif all_of and not each:
        each = str(int(all_of) // int(prompts))
    most = row["max_response_tokens"] or row["max_total_tokens"]
    apart = any(map(SLOW.search, (row["note"], row["quality"]))) or any(
        map(OTHER_ROWS.search, (row["system"], row["model"], row["algorithm"], row["gpu"]))
    )
    return {
        "framework": row["system"],
        "algorithm": row["algorithm"],
        "model": re.sub(r"\(.*?\)", "", row["model"]).strip(),
        "gpu": row["gpu"],
        "n_gpus": row["n_gpus"],
        "placement_mode": OTHER_WORK if apart else row["mode"] + split,
        "train_backend": f"{row['train_backend']} {row['train_parallel']}",
        "rollout_backend": f"{row['rollout_backend']} {row['rollout_parallel']}",
        "parallelism": row["train_parallel"],
        "prompts_per_step": prompts,
        "samples_per_prompt": each,
        "prompt_len": row["mean_prompt_tokens"],
        "max_resp_len": most,
        "mean_resp_len": row["mean_response_tokens"],
        "metric": metric,
        "value": seconds,
        "unit": "s",
        "quality": "table",
        "note": row["note"],
        "source": row["source"],
    }


def _cases(rows: Sequence[Row], wanted: str) -> Iterator[Case]:
    found = (each for row in rows for each in reads(row))
    yield from cases_of(each for each in found if re.fullmatch(wanted, each.metric))


PHASES = {
    "a step": "step",
    "generation": "gen",
    "log-probs": "old_log_prob|ref_log_prob|forward_pass",
    "an update": "update_actor",
}

TABLES = (
    Table(
        "phases of RL steps whose mean lengths are stated",
        frozenset((*METRICS, "system", "n_gpus_rollout", "mean_response_tokens", "train_parallel")),
        tuple(View(name, "s", partial(_cases, wanted=wanted)) for name, wanted in PHASES.items()),
    ),
)
