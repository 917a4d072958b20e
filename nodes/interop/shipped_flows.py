"""The shipped flows that runs of other systems are read into: their models, and the nodes that have their settings.

A table of names; a test compares it with the flows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nodes.interop.imported import SharedDevices


@dataclass(frozen=True)
class ShippedFlow:
    """A shipped flow: its models, its sampler, its loss, and the settings of its entropy bonus and KL ("" if none)."""

    name: str
    params: tuple[str, ...] = ("policy",)
    surrogate: str = "clipped"
    entropy: str = "policy.update.scale.factor"
    kl: str = ""
    sampler: str = "policy.generate"

    @property
    def roles(self) -> tuple[str, ...]:
        """Return the roles of the flow's models, such as `policy.train`, in order."""
        uses = {"policy": ("train", "sample"), "critic": ("train",), "ref": ("infer",)}
        return tuple(f"{param}.{use}" for param in self.params for use in uses[param])

    @property
    def loss(self) -> str:
        """Return the name of the flow's loss node."""
        return f"policy.update.{self.surrogate}"

    @property
    def kl_in_loss(self) -> bool:
        """Return whether the flow adds the KL to the loss; False if it adds the KL to the reward, or has none."""
        return self.kl.startswith("policy.update")


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
GROUP_NORMALIZED = ("grpo", "dr_grpo", "dapo", "decoupled_ppo", "gspo", "cispo", "gmpo", "sapo")
MAX_STALENESS = 4  # updates, in `decoupled_ppo`, the one flow with a lag

# The parts of named placements; a flow's reference is `ref.infer`, its critic `critic.train`. The first match counts.
_POLICY = ("policy.train", "policy.sample")
PLACEMENTS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "hybrid:verl": ((*_POLICY, "critic.train", "ref.infer"),),
    "split:openrlhf": (("policy.train", "ref.infer"), ("policy.sample",), ("critic.train",)),
    "split:nemo-aligner": ((*_POLICY, "ref.infer"), ("critic.train",)),
    "standalone:each-role": (("policy.train",), ("policy.sample",), ("critic.train",), ("ref.infer",)),
    "standalone:hybridflow": (_POLICY, ("critic.train",), ("ref.infer",)),
}


def placement_of(flow: ShippedFlow, parts: Sequence[SharedDevices]) -> str:
    """Return the name of the first named placement that groups the flow's roles as `parts` do; "" if there is none.

    >>> placement_of(FLOWS["gpg"], [SharedDevices(("policy.train", "policy.sample"), 8, 8)])
    'hybrid:verl'
    """
    groups_of_run = {frozenset(part.roles) for part in parts}
    for name, groups in PLACEMENTS.items():
        groups_of_flow = {frozenset(role for role in group if role in flow.roles) for group in groups}
        if groups_of_flow - {frozenset()} == groups_of_run:
            return name
    return ""
