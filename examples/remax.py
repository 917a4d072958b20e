"""ReMax: the score of the greedy response to a prompt is the baseline of the sampled ones.

Source: Li et al. 2023, arXiv 2310.10505, section 4. Deviation: 16 sampled responses per prompt, while the paper
samples one; a mean over tokens; an entropy bonus, which keeps small models exploring.
"""

from __future__ import annotations

from flowgraph import Loss, flow
from nodes import (
    Policy,
    Prompts,
    entropy,
    entropy_bonus,
    generate,
    greedy_baseline,
    logprobs,
    policy_gradient,
    score,
    update,
)


@flow
def remax(prompts: Prompts, policy: Policy) -> Policy:
    """Use the greedy response's score as REINFORCE's baseline."""
    rollout = generate(policy, prompts, n=16)
    greedy = generate(policy, prompts, temperature=0.0)
    scores, baseline = score(rollout), score(greedy)
    advantages = greedy_baseline(scores, rollout.group, greedy=baseline, greedy_group=greedy.group)

    def loss(pi: Policy) -> Loss:
        surrogate = policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)
        return surrogate + 0.03 * entropy_bonus(entropy(pi, rollout), rollout.mask)

    return update(policy, loss)
