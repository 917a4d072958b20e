"""The flows that are shipped, as far as runs of other systems are read into them: their models, and where settings are.

A table of names that a test holds against the flows themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nodes.interop.imported import SharedDevices


@dataclass(frozen=True)
class ShippedFlow:
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


FLOWS: Mapping[str, ShippedFlow] = {
    flow.name: flow
    for flow in (
        ShippedFlow("ppo", ("policy", "critic", "ref"), entropy="", kl="kl_penalized.weight"),
        ShippedFlow("grpo", ("policy", "ref"), entropy="", kl="policy.update.scale.factor"),
        ShippedFlow("reinforce_pp", ("policy", "ref"), entropy="", kl="kl_penalized.weight"),
        ShippedFlow("reinforce_pp_baseline"),
        ShippedFlow("dr_grpo"),
        ShippedFlow("decoupled_ppo"),
        ShippedFlow("dapo", sampler="policy.refill"),
        ShippedFlow("gdpo"),
        ShippedFlow("gpg", surrogate="policy_gradient"),
        ShippedFlow("rloo", surrogate="policy_gradient"),
        ShippedFlow("remax", surrogate="policy_gradient"),
        ShippedFlow("opo", surrogate="policy_gradient"),
        ShippedFlow("cispo", surrogate="cispo_loss"),
        ShippedFlow("gspo", surrogate="gspo_loss"),
        ShippedFlow("gmpo", surrogate="gmpo_loss"),
        ShippedFlow("sapo", surrogate="sapo_loss"),
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


def placement_of(flow: ShippedFlow, parts: Sequence[SharedDevices]) -> str:
    """Give the first named placement that has these parts, "" if none has.

    >>> placement_of(FLOWS["gpg"], [SharedDevices(("policy.train", "policy.sample"), 8, 8)])
    'hybrid:verl'
    """
    there = {frozenset(part.roles) for part in parts}
    for name, groups in PLACEMENTS.items():
        kept = {frozenset(role for role in group if role in flow.roles) for group in groups}
        if kept - {frozenset()} == there:
            return name
    return ""
