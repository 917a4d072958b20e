"""verl's formulas on the batches that verl_formulas.py wrote; runs in verl's environment and imports nothing of ours.

python verl_side.py FOLDER: reads FOLDER/jobs.json and FOLDER/<batch>.npz, writes FOLDER/verl.npz.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import verl
from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.ppo import core_algos, rollout_corr_helper
from verl.utils import torch_functional
from verl.workers.config import ActorConfig
from verl.workers.config.actor import PolicyLossConfig
from verl.workers.reward_manager.dapo import DAPORewardManager

Columns = Mapping[str, torch.Tensor]
Results = Mapping[str, Any]

POLICY_LOSS = ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio", "ppo_kl_coef", "dro_beta")
BATCH_INFO = ("batch_num_tokens", "global_batch_size", "loss_scale_factor", "dp_size")


def estimator(columns: Columns, *, name: str, rewards: str, values: str = "values", **settings: Any) -> Results:
    """Return an estimator's advantages and returns, called as the trainer calls it."""
    call = core_algos.get_adv_estimator_fn(name)
    uids = np.array([f"prompt-{each}" for each in columns["group"].tolist()], dtype=object)
    given = {
        "token_level_rewards": columns[rewards].clone(),
        "response_mask": columns["mask"],
        "values": columns[values],
        "index": uids,
        "reward_baselines": columns["greedy"],
        "old_log_probs": columns["old"],
        "sum_pi_squared": columns["squared"],
        "config": OmegaConf.create(settings),
        **settings,
    }
    if settings.pop("weighted", False):
        given["rollout_is_weights"] = columns["weights"]
    if "gdpo_reward_keys" in settings:
        given["non_tensor_batch"] = {key: columns[key].numpy() for key in settings["gdpo_reward_keys"]}
        shown = (torch.arange(columns["mask"].shape[1])[None] < columns["lengths"][:, None]).long()
        given["batch"] = {"prompts": torch.zeros(len(shown), 0), "attention_mask": shown}
    taken = inspect.signature(call).parameters
    advantages, returns = call(**{each: value for each, value in given.items() if each in taken})
    return {"advantages": advantages, "returns": returns}


def loss(columns: Columns, *, name: str, how: str, advantages: str, weighted: bool = False, **settings: Any) -> Results:
    """Return a registered policy loss and its metrics, called as the actor calls it: the mask as booleans."""
    if settings.pop("half", False):
        columns, counts = _half(columns)
        settings |= counts
    return _loss(core_algos.get_policy_loss_fn(name), columns, how, advantages, weighted, settings)


def _half(columns: Columns) -> tuple[Columns, dict[str, float]]:
    """Return the first half of the rows as a micro-batch, and the counts of the whole minibatch."""
    kept = columns["mask"].sum(1)
    counts = {"batch_num_tokens": int(kept.sum()), "global_batch_size": int((kept > 0).sum())}
    return {name: each[: len(kept) // 2] for name, each in columns.items()}, counts


def reinforce(columns: Columns, *, how: str, advantages: str, weighted: bool = False, **settings: Any) -> Results:
    """Return REINFORCE with importance weights, which no name is registered for."""
    call = core_algos.compute_policy_loss_reinforce
    return _loss(call, columns, how, advantages, weighted, settings, old="rollout_log_prob")


def bypass(columns: Columns, *, how: str, advantages: str, correction: dict[str, Any], **settings: Any) -> Results:
    """Return the loss of two policies, weights and rejection included."""
    call = core_algos.get_policy_loss_fn("bypass_mode")
    return _loss(call, columns, how, advantages, False, settings, correction=OmegaConf.create(correction))


def _loss(
    call: Callable[..., Any],
    columns: Columns,
    how: str,
    advantages: str,
    weighted: bool,
    settings: Mapping[str, Any],
    *,
    old: str = "old_log_prob",
    correction: Any = None,
) -> Results:
    gain = columns[advantages]
    mask = columns["mask"].bool()
    given = {
        old: columns["old"],
        "log_prob": columns[settings.get("new", "new")],
        "advantages": gain[:, None] * torch.ones_like(columns["new"]) if gain.ndim == 1 else gain,
        "response_mask": mask,
        "loss_agg_mode": how,
        "config": _actor(settings, correction),
        "rollout_is_weights": columns["weights"] if weighted else None,
    }
    given["advantages"] = given["advantages"].detach()
    value, metrics = call(**given)
    return {"loss": value, **{key.rsplit("/")[-1]: each for key, each in metrics.items()}}


def _actor(settings: Mapping[str, Any], correction: Any = None) -> ActorConfig:
    """Make the actor's configuration; counts of a whole minibatch go where the engine puts them."""
    inner = {key: value for key, value in settings.items() if key in POLICY_LOSS}
    if correction is not None:
        inner["rollout_correction"] = correction
    info = {key: value for key, value in settings.items() if key in BATCH_INFO}
    rest = {key: value for key, value in settings.items() if key not in (*inner, *info, "new")}
    policy_loss = PolicyLossConfig(**inner)
    return ActorConfig(
        strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, policy_loss=policy_loss, global_batch_info=info, **rest
    )


def aggregate(columns: Columns, *, how: str, values: str = "new", sign: float = 1.0, **settings: Any) -> Results:
    """Return a matrix aggregated; an entropy bonus and a cross-entropy are this with the sign -1."""
    return {"loss": core_algos.agg_loss(sign * columns[values], columns["mask"].bool(), how, **settings)}


def kl(columns: Columns, *, kind: str, how: str | None = None) -> Results:
    """Return an estimate of KL per token, or in the loss."""
    tokens = core_algos.kl_penalty(columns["new"], columns["ref"], kind)
    return {"tokens": tokens} if how is None else {"loss": core_algos.agg_loss(tokens, columns["mask"].bool(), how)}


def kl_in_reward(columns: Columns, *, kind: str, beta: float, target: float, horizon: float) -> Results:
    """Return rewards less KL, the KL that the controller is told, and its next factor."""
    known = {"core_algos": core_algos, "masked_mean": torch_functional.masked_mean, "torch": torch}
    apply = _lifted("trainer/ppo/ray_trainer.py", "apply_kl_penalty", known | {"DataProto": DataProto})
    controller = core_algos.AdaptiveKLController(beta, target, horizon)
    names = {"token_level_scores": "earned", "response_mask": "mask", "old_log_probs": "old", "ref_log_prob": "ref"}
    data = DataProto.from_dict({theirs: columns[ours].clone() for theirs, ours in names.items()})
    data, metrics = apply(data, controller, kind)
    told = metrics["actor/reward_kl_penalty"]
    return {"rewards": data.batch["token_level_rewards"], "kl": told, "factor": controller.value}


def _lifted(file: str, name: str, known: Mapping[str, Any]) -> Callable[..., Any]:
    """Return one function of a module of verl's that would import all of its trainer."""
    source = (Path(verl.__file__).parent / file).read_text("utf-8")
    (found,) = [each for each in ast.parse(source).body if isinstance(each, ast.FunctionDef) and each.name == name]
    space = dict(known)
    exec(compile(ast.Module([found], []), file, "exec"), space)
    made: Callable[..., Any] = space[name]
    return made


def whiten(columns: Columns, *, values: str, shift_mean: bool = True) -> Results:
    """Return a column whitened over its mask."""
    return {"tokens": torch_functional.masked_whiten(columns[values], columns["mask"], shift_mean)}


def value_loss(columns: Columns, *, how: str, clip: float) -> Results:
    """Return the critic's loss and the share of tokens where it was clipped."""
    new, old, wanted, mask = columns["new_values"], columns["values"], columns["returns"], columns["mask"].bool()
    value, clipped = core_algos.compute_value_loss(new, wanted, old, mask, clip, how)
    return {"loss": value, "clipfrac": clipped}


def weights(columns: Columns, *, level: str, threshold: float | str, normalize: bool = False) -> Results:
    """Return importance weights and their metrics."""
    given, metrics = rollout_corr_helper.compute_rollout_correction_weights(
        columns["old"] - columns["roll"], columns["mask"], level, threshold, normalize
    )
    return {"weights": given, **metrics}


def rejection(columns: Columns, *, options: str, threshold: str) -> Results:
    """Return the mask that is left, and the shares that were rejected."""
    given, metrics = rollout_corr_helper.compute_rollout_rejection_mask(
        columns["old"] - columns["roll"], columns["mask"], options, threshold
    )
    return {"mask": given, **metrics}


def mismatch(columns: Columns) -> Results:
    """Return the metrics of two policies' log-probs."""
    return rollout_corr_helper.compute_offpolicy_metrics(columns["old"], columns["roll"], columns["mask"])


def overlong(columns: Columns, *, longest: int, buffer: int, factor: float) -> Results:
    """Return each row's score less the penalty for length, and where it is put."""
    rows, width = columns["mask"].shape
    shown = (torch.arange(width)[None] < columns["lengths"][:, None]).long()
    tensors = {"prompts": torch.ones(rows, 1, dtype=torch.long), "responses": torch.zeros(rows, width)}
    tensors["attention_mask"] = torch.cat([tensors["prompts"], shown], 1)
    facts = np.array([{"ground_truth": each} for each in columns["scores"].tolist()], dtype=object)
    sources = np.array(["none"] * rows, dtype=object)
    data = DataProto.from_dict(tensors, {"reward_model": facts, "data_source": sources, "extra_info": _empty(rows)})
    settings = SimpleNamespace(enable=True, len=buffer, penalty_factor=factor, log=False)
    speller = SimpleNamespace(decode=lambda ids, skip_special_tokens: "", eos_token="<end>")
    manager = DAPORewardManager(speller, 0, lambda ground_truth, **_: ground_truth, "data_source", longest, settings)
    rewards = manager(data)
    return {"rewards": rewards, "scores": rewards.sum(1)}


def _empty(rows: int) -> np.ndarray:
    return np.array([{} for _ in range(rows)], dtype=object)


FUNCTIONS: Mapping[str, Callable[..., Results]] = {
    each.__name__: each
    for each in (
        *(estimator, loss, reinforce, bypass, aggregate, kl, kl_in_reward, whiten, value_loss),
        *(weights, rejection, mismatch, overlong),
    )
}


REGISTRIES = {
    "estimator": core_algos.ADV_ESTIMATOR_REGISTRY,
    "loss": core_algos.POLICY_LOSS_REGISTRY,
    "rejection": rollout_corr_helper.SUPPORTED_ROLLOUT_RS_OPTIONS,
}
"""All that verl has by name."""


def answer(job: Mapping[str, Any], columns: Columns) -> dict[str, np.ndarray]:
    """Do one job; what verl refuses is the result `error`, and the gradient is that of the loss, or of a sum."""
    dtype = getattr(torch, job["dtype"])
    columns = {name: (each.to(dtype) if each.is_floating_point() else each).clone() for name, each in columns.items()}
    by = job["by"]
    if by:
        columns[by].requires_grad_()
    try:
        given = dict(FUNCTIONS[job["function"]](columns, **job["settings"]))
        if by:
            total = given["loss"] if "loss" in given else _sum(given["tokens"], columns["mask"])
            given["gradient"] = torch.autograd.grad(total, columns[by])[0]
    except Exception as error:  # noqa: BLE001 - what verl raises is what is asked
        return {"error": np.array(f"{type(error).__name__}: {error}")}
    return {name: np.asarray(torch.as_tensor(value).detach()) for name, value in given.items()}


def _sum(tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (tokens * mask).sum()


def main() -> None:
    """Answer every job."""
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    jobs = json.loads((folder / "jobs.json").read_text("utf-8"))
    batches: dict[str, Columns] = {}
    found = {"version": np.array(verl.__version__), "torch": np.array(f"torch {torch.__version__}")}
    for name, registry in REGISTRIES.items():
        found[f"all|{name}"] = np.array(sorted(registry))
    for job in jobs:
        if job["batch"] not in batches:
            with np.load(folder / f"{job['batch']}.npz") as arrays:
                batches[job["batch"]] = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        for name, value in answer(job, batches[job["batch"]]).items():
            found[f"{job['key']}|{job['batch']}|{name}"] = value
    np.savez(folder / "verl.npz", **found)


if __name__ == "__main__":
    main()
