"""References that follow the policy: averaged with it after each step, or replaced by it every few steps."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flowgraph import Metric, node
from flowgraph.errors import LawError
from flowgraph.language import Key, Measure, NodeName
from nodes.values import LanguageModel, MovingReference


@node(carries="ref")
def averaged(
    ref: MovingReference,
    *,
    policy: LanguageModel,
    decay: Annotated[float, Field(ge=0, le=1)] = 0.99,
    name: NodeName = "",
) -> MovingReference:
    """Move a reference towards the policy and return its next version: decay · reference + (1 - decay) · policy.

    The reference's weights change in place. Pass the policy that `update` returned; otherwise the reference stays one
    step behind. Both models must be in one pool and layout. Weights that are not floating-point numbers are copied from
    the policy. The two factors of an adapter are averaged separately. Raises LawError if the models have different
    tensors, for example because only one of the two models has adapters.
    Source: Polyak and Juditsky 1992; as a reference of RL on language models: Ramé et al. 2024 (WARP), arXiv
    2406.16768, section 3.1.
    """
    import torch

    reference, new = ref.handle.weights(), policy.handle.weights()
    if reference.keys() != new.keys():
        hint = "give both models adapters, or neither: --model ref=… names the model of the reference"
        raise LawError(f"a reference of {len(reference)} tensors cannot follow a policy of {len(new)}", hint=hint)
    mixed = {
        name: torch.lerp(new[name].to(old), old, decay) if old.is_floating_point() else new[name]
        for name, old in reference.items()
    }
    ref.handle.load(mixed)
    return ref.advanced()


@node(carries="ref", metrics=(Metric("refreshed", about="1 in a step that replaces the reference, else 0"),))
def refreshed(
    ref: MovingReference,
    *,
    policy: LanguageModel,
    every: Annotated[int, Field(ge=1)] = 100,
    key: Key = Key(),
    name: NodeName = "",
) -> MovingReference:
    """Copy the policy's weights to the reference in every `every`-th step; return the reference's next version.

    Steps of the run count from 1 here. In all other steps the reference keeps its weights. Both models must have the
    same tensors.
    Source: Liu et al. 2025 (ProRL), arXiv 2505.24864, section 3.3. Deviation: at fixed steps, and without a reset of
    the optimizer's state.
    """
    due = (key.step + 1) % every == 0
    if due:
        ref.handle.load(policy.handle.weights())
    after = ref.advanced()
    after.measures = (Measure("refreshed", float(due), 1),)
    return after
