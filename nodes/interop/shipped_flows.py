"""The flows that are shipped, as far as runs of other systems are read into them: their models, and where settings are.

A table of names that a test holds against the flows themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nodes.interop.imported import Shared


@dataclass(frozen=True)
class Flow:
    """A shipped flow: its models, the node that samples, that of the loss, and the settings of KL and entropy."""

    name: str
    params: tuple[str, ...] = ("policy",)
    surrogate: str = "clipped"
    entropy: str = "policy.update.scale.factor"
    kl: str = ""
    sampler: str = "policy.generate"

    @property
    def roles(self) -> tuple[str, ...]:
        """Give its roles."""
        uses = {"policy": ("train", "sample"), "critic": ("train",), "ref": ("infer",)}
        return tuple(f"{param}.{use}" for param in self.params for use in uses[param])

    @property
    def loss(self) -> str:
        """Give the node of its loss."""
        return f"policy.update.{self.surrogate}"


FLOWS: Mapping[str, Flow] = {
    flow.name: flow
    for flow in (
        Flow("ppo", ("policy", "critic", "ref"), entropy="", kl="kl_penalized.weight"),
        Flow("grpo", ("policy", "ref"), entropy="", kl="policy.update.scale.factor"),
        Flow("reinforce_pp", ("policy", "ref"), entropy="", kl="kl_penalized.weight"),
        Flow("reinforce_pp_baseline"),
        Flow("dr_grpo"),
        Flow("decoupled_ppo"),
        Flow("dapo", sampler="policy.refill"),
        Flow("gdpo"),
        Flow("gpg", surrogate="policy_gradient"),
        Flow("rloo", surrogate="policy_gradient"),
        Flow("remax", surrogate="policy_gradient"),
        Flow("opo", surrogate="policy_gradient"),
        Flow("cispo", surrogate="cispo_loss"),
        Flow("gspo", surrogate="gspo_loss"),
        Flow("gmpo", surrogate="gmpo_loss"),
        Flow("sapo", surrogate="sapo_loss"),
    )
}
STALE_AT_MOST = 4  # updates, in `decoupled_ppo`, the one flow that is drawn with older weights

ACTOR = ("policy.train", "policy.sample")
# What parts are called; a reference is `ref.infer`, a critic `critic.train`. Of two with the same parts the first.
PLACEMENTS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "hybrid:verl": ((*ACTOR, "critic.train", "ref.infer"),),
    "split:openrlhf": (("policy.train", "ref.infer"), ("policy.sample",), ("critic.train",)),
    "split:nemo-aligner": ((*ACTOR, "ref.infer"), ("critic.train",)),
    "standalone:each-role": (("policy.train",), ("policy.sample",), ("critic.train",), ("ref.infer",)),
    "standalone:hybridflow": (ACTOR, ("critic.train",), ("ref.infer",)),
}


def placement_of(flow: Flow, parts: Sequence[Shared]) -> str:
    """Give the first named placement that has these parts, "" if none has.

    >>> placement_of(FLOWS["gpg"], [Shared(("policy.train", "policy.sample"), 8, 8)])
    'hybrid:verl'
    """
    there = {frozenset(part.roles) for part in parts}
    for name, groups in PLACEMENTS.items():
        kept = {frozenset(role for role in group if role in flow.roles) for group in groups}
        if kept - {frozenset()} == there:
            return name
    return ""
