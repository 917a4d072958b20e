"""GPG as in verl's recipe for Qwen2-7B-Instruct on GSM8K and MATH: 5 responses per prompt, no KL, no entropy bonus.

Run it with `flowgraph run gpg_qwen2_7b --model Qwen/Qwen2-7B-Instruct --data FILE --batch 1024`, with a Parquet file of
both data sets. Source: verl, `examples/gpg_trainer/run_qwen2-7b_math.sh` (2025), and Chu et al. 2025, arXiv 2504.02546.
Its 1,024 prompts per step are four minibatches of 256. Deviation: no weight decay; verl's default is 0.01.
"""

from __future__ import annotations

from flowgraph import Loss, flow
from nodes import (
    Policy,
    Prompts,
    entropy,
    entropy_bonus,
    generate,
    gpg_advantages,
    logprobs,
    policy_gradient,
    score,
    update,
)


@flow
def gpg_qwen2_7b(prompts: Prompts, policy: Policy, *, entropy_weight: float = 0.0) -> Policy:
    """Train Qwen2-7B by GPG on mathematics, by verl's recipe."""
    rollout = generate(policy, prompts, n=5, max_tokens=1024)
    advantages = gpg_advantages(score(rollout), rollout.group)

    def loss(pi: Policy) -> Loss:
        surrogate = policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)
        return surrogate + entropy_weight * entropy_bonus(entropy(pi, rollout), rollout.mask)

    return update(policy, loss, lr=1e-6, minibatch=256)
