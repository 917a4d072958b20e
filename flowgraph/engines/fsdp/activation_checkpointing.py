"""Activation checkpointing: a decoder layer keeps less of its forward pass, and computes the rest again.

Source: Chen et al. 2016, arXiv 1604.06174; by operation, as torchtitan does it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from flowgraph.models.libraries import transformers

if TYPE_CHECKING:
    from flowgraph.cluster.plan import Checkpointing

_PRODUCTS = ("mm", "addmm")
_ATTENTION = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)


def recompute(layers: Iterable[Any], how: Checkpointing) -> None:
    """Let these layers keep less of a pass with gradients, in place.

    "full" keeps a layer's input alone. "selective" keeps what is dear as well: the results of attention, and of every
    second product. A pass that fills a cache of keys and values keeps all: computed again, it would fill it twice.
    """
    if how == "none":
        return
    for layer in layers:
        layer.forward = _checkpointed(layer.forward, how)


def _checkpointed(plain: Callable[..., Any], how: Checkpointing) -> Callable[..., Any]:

    more: dict[str, Any] = {"context_fn": _selecting} if how == "selective" else {}

    @functools.wraps(plain)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or _has_cache([*args, *kwargs.values()]):
            return plain(*args, **kwargs)
        # No layer draws random numbers: models are trained in evaluation mode, without dropout.
        call = functools.partial(plain, **kwargs)
        return checkpoint(call, *args, use_reentrant=False, preserve_rng_state=False, **more)

    return forward


def _has_cache(values: Iterable[Any]) -> bool:
    kind = transformers().Cache
    return any(isinstance(value, kind) for value in values)


def _selecting() -> Any:
    """Make the two contexts of one checkpoint: of its forward pass, and of computing again what that did not keep."""
    aten: Any = torch.ops.aten
    products = {getattr(aten, name).default for name in _PRODUCTS}
    attention = {getattr(aten, name).default for name in _ATTENTION if hasattr(aten, name)}
    flex = getattr(torch.ops.higher_order, "flex_attention", None)
    seen = {False: 0, True: 0}  # products so far, in the forward pass and in the second one

    def policy(context: Any, op: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        if op in products:
            seen[context.is_recompute] += 1
        odd = op in products and seen[context.is_recompute] % 2 == 1
        kept = odd or op in attention or (flex is not None and op is flex)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    untyped: Any = create_selective_checkpoint_contexts
    return untyped(policy)
