"""The vocabulary of reinforcement learning on language models: typed values, and nodes with torch bodies."""

from nodes.advantages import gpg_advantages, group_normalize
from nodes.evaluation import accuracy, evaluate
from nodes.likelihood import entropy, logprobs
from nodes.losses import clipped, entropy_bonus, kl_k3, policy_gradient
from nodes.refill import ScoredRollout, refill
from nodes.sampling import generate
from nodes.scoring import score
from nodes.training import update
from nodes.values import (
    Accuracy,
    Advantages,
    Columns,
    Entropy,
    LanguageModel,
    LogProbs,
    Policy,
    Prompts,
    Reference,
    Rollout,
    Scores,
    TokenAdvantages,
)

__all__ = [
    "Accuracy",
    "Advantages",
    "Columns",
    "Entropy",
    "LanguageModel",
    "LogProbs",
    "Policy",
    "Prompts",
    "Reference",
    "Rollout",
    "ScoredRollout",
    "Scores",
    "TokenAdvantages",
    "accuracy",
    "clipped",
    "entropy",
    "entropy_bonus",
    "evaluate",
    "generate",
    "gpg_advantages",
    "group_normalize",
    "kl_k3",
    "logprobs",
    "policy_gradient",
    "refill",
    "score",
    "update",
]
