"""ReMax: the score of the greedy response is the baseline of the sampled ones.

Source: Li et al. 2023, arXiv 2310.10505, section 3. Deviation: the loss is a mean over tokens, as elsewhere here.
"""

from __future__ import annotations

from typing import Annotated

from flowgraph import Loss, Rows, flow, node
from flowgraph.language.values import Group
from nodes import Advantages, Policy, Prompts, Scores, generate, logprobs, policy_gradient, score, update


@node(kind="advantage")
def against(
    scores: Scores, group: Group, *, greedy: Annotated[Scores, Rows.OTHER], prompt: Annotated[Group, Rows.OTHER]
) -> Advantages:
    """Subtract the score of the greedy response to the same prompt."""
    place = (group.data[:, None] == prompt.data).int().argmax(1)
    return Advantages(scores.data - greedy.data[place])


@flow
def remax(prompts: Prompts, policy: Policy) -> Policy:
    """Give each response what it scores above the greedy one."""
    rollout = generate(policy, prompts, n=4)
    baseline = generate(policy, prompts, temperature=0.0)
    advantages = against(score(rollout), rollout.group, greedy=score(baseline), prompt=baseline.group)

    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

    return update(policy, loss)
