"""What is read of a graph: each shipped flow by its ops, and what is not understood by name."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from flowgraph import By, Loss, flow, node
from flowgraph.language.values import Mask
from flowgraph.passes import named
from nodes import LogProbs, Policy, Prompts, generate, group_normalize, logprobs, score, update
from nodes.interop.algorithm import read_algorithm
from nodes.interop.export_spec import ExportModel, most_tokens
from nodes.values import Advantages

READ = {
    "ppo": ("gae", "clipped", True),
    "grpo": ("group_normalize", "clipped", False),
    "gpg": ("gpg_advantages", "policy_gradient", False),
    "gpg_qwen2_7b": ("gpg_advantages", "policy_gradient", False),
    "rloo": ("rloo_advantages", "policy_gradient", False),
    "remax": ("greedy_baseline", "policy_gradient", False),
    "opo": ("opo_advantages", "policy_gradient", False),
    "reinforce_pp": ("discounted_returns", "clipped", True),
    "reinforce_pp_baseline": ("centred_whitened", "clipped", True),
    "gdpo": ("gdpo", "clipped", True),
    "gspo": ("group_normalize", "gspo_loss", False),
    "cispo": ("group_normalize", "cispo_loss", False),
}


@pytest.mark.parametrize("name", sorted(READ))
def test_a_shipped_flow_is_read_by_its_ops(name: str, graph: Any) -> None:
    found = read_algorithm(graph(name))
    assert found is not None
    assert (found.estimator, found.surrogate.op, found.whitened) == READ[name]
    assert found.unsaid == ()


def test_weights_of_terms_are_multiplied_through(graph: Any) -> None:
    found = read_algorithm(graph("grpo", {"policy.update.scale.factor": 0.25}))
    assert found is not None
    assert found.kl_loss is not None
    assert (found.kl_loss.estimator, found.kl_loss.weight, found.entropy_weight) == ("k3", 0.25, 0)


def test_what_shapes_advantages_otherwise_is_named(graph: Any) -> None:
    found = read_algorithm(graph("egpo"))
    assert found is not None
    assert (found.estimator, found.unsaid) == ("group_normalize", ("entropy_shaped",))


def test_a_flow_without_responses_of_its_own_has_no_algorithm(graph: Any) -> None:
    assert read_algorithm(graph("sft")) is None


@node(on_policy=True)
def clipped(new: Annotated[LogProbs, By.TRAINED], advantages: Advantages, mask: Mask) -> Loss:
    """A loss of a user's own, by the name of one of ours."""
    return Loss.of(-new.data, mask)


def test_a_loss_of_a_users_own_is_not_taken_for_ours() -> None:
    @flow
    def own(prompts: Prompts, policy: Policy) -> Policy:
        rollout = generate(policy, prompts, n=4)
        advantages = group_normalize(score(rollout), rollout.group)

        def loss(pi: Policy) -> Loss:
            return clipped(logprobs(pi, rollout), advantages, rollout.mask)

        return update(policy, loss)

    assert read_algorithm(named(own.graph())) is None


@pytest.mark.parametrize(
    ("text", "most"),
    [("512", 512), ("2k", 2000), ("mean=2k,p99=16k,max=20k", 20000), ("mean=1k,sigma=9", 1000), ("x", None)],
)
def test_the_most_tokens_are_read_from_a_text_of_lengths(text: str, most: int | None) -> None:
    assert most_tokens(text) == most


def test_adapters_are_read_from_a_models_name() -> None:
    assert ExportModel.read("a/b+lora=8,alpha=32") == ExportModel("a/b", 8, 32)
    with pytest.raises(Exception, match="adapters of no rank"):
        ExportModel.read("a/b+lora=many")
