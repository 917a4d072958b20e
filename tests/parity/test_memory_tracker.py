"""Footprints of FSDP2 against torch's own accounting, which runs the real modules on tensors without memory.

Attention is replaced by one that keeps what flash attention keeps, which no CPU kernel does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
import torch.distributed
import torch.nn.functional as F
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from flowgraph.cluster.plan import Layout
from flowgraph.models.sizes import ModelShape, shape_of
from placements.footprint import MemoryConstants
from placements.footprint_serving import inference_bytes
from placements.footprint_training import Training, training_bytes

pytestmark = pytest.mark.slow

# Depths are cut, so that a case takes seconds; each layer is of its true size.
MODELS: dict[str, dict[str, Any]] = {
    "Qwen3-0.6B": {
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "tie_word_embeddings": True,
    },
    "Qwen3-1.7B": {
        "model_type": "qwen3",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "tie_word_embeddings": True,
    },
    "Qwen3-8B": {
        "model_type": "qwen3",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 6,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
    },
    "Qwen3-30B-A3B": {
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 4,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "tie_word_embeddings": False,
        "experts_implementation": "grouped_mm",
    },
}
COMMON = {"head_dim": 128, "vocab_size": 151_936}
CLASSES = {
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "qwen3_moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
}

# Nothing of a process, nothing that an allocator keeps, and of each logit what the tracker counts.
COUNTED = MemoryConstants(context_bytes=0, communicator_bytes=0, unused_share=0, logit_bytes=12)

Loss = Literal["naive", "none"]


class Fused(torch.autograd.Function):
    """Attention that keeps queries, keys, values, its result and a sum for each head and token."""

    @staticmethod
    def forward(ctx: Any, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(queries.transpose(1, 2))
        ctx.save_for_backward(queries, keys, values, out, torch.empty(queries.shape[:3], dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.empty_like(each) for each in ctx.saved_tensors[:3])


transformers.AttentionInterface.register(
    "counted", lambda module, queries, keys, values, mask, **_: (Fused.apply(queries, keys, values), None)
)
transformers.AttentionMaskInterface.register("counted", lambda *_, **__: None)


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def built(name: str) -> Any:
    sizes = {key: value for key, value in (MODELS[name] | COMMON).items() if key != "model_type"}
    config_of, model_of = CLASSES[MODELS[name]["model_type"]]
    return model_of(config_of(**sizes, use_cache=False, attn_implementation="counted", max_position_embeddings=2**17))


def sharded(name: str, mesh: DeviceMesh, *, checkpointing: bool) -> Any:
    model = built(name).train()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    layers = model.model.layers
    for place in range(len(layers)):
        if checkpointing:
            layers[place] = checkpoint_wrapper(layers[place], preserve_rng_state=False)
        fully_shard(layers[place], mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def total_bytes(tracker: MemTracker) -> int:
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    return next(count for kind, count in peak.items() if str(kind).endswith("Total"))


def counted_bytes(name: str, tokens: int, ranks: int, loss: Loss, *, checkpointing: bool) -> int:
    """Give the peak of two micro-batches of one row, so that gradients are there in the second."""
    torch.distributed.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    mesh = init_device_mesh("cpu", (ranks,))
    with FakeTensorMode():
        model = sharded(name, mesh, checkpointing=checkpointing)
        tracker, ids = FSDPMemTracker(model), torch.zeros(1, tokens, dtype=torch.long)
        with tracker:
            for _ in range(2):
                if loss == "naive":
                    logits = model(ids).logits.float().view(tokens, -1)
                    result = F.cross_entropy(logits, ids.view(-1))
                    del logits
                else:
                    result = model(ids, logits_to_keep=1).logits.float().mean()
                result.backward()
                del result
                tracker.reset_mod_stats()
    return total_bytes(tracker)


def shape(name: str) -> ModelShape:
    return shape_of(MODELS[name] | COMMON, name)


CASES: list[tuple[str, int, int, Loss, bool]] = [
    ("Qwen3-0.6B", 8192, 8, "none", True),
    ("Qwen3-0.6B", 16384, 1, "none", True),
    ("Qwen3-0.6B", 16384, 1, "naive", True),
    ("Qwen3-1.7B", 8192, 8, "none", False),
    ("Qwen3-1.7B", 16384, 1, "none", False),
    ("Qwen3-8B", 1024, 8, "none", True),
    ("Qwen3-8B", 8192, 8, "none", True),
    ("Qwen3-8B", 16384, 8, "naive", True),
    ("Qwen3-8B", 8192, 8, "none", False),
    ("Qwen3-30B-A3B", 8192, 8, "none", True),
    ("Qwen3-30B-A3B", 16384, 8, "none", False),
    ("Qwen3-30B-A3B", 65536, 8, "none", True),
]


@pytest.mark.parametrize(("name", "tokens", "ranks", "loss", "checkpointing"), CASES)
def test_a_footprint_is_what_torch_counts(name: str, tokens: int, ranks: int, loss: Loss, checkpointing: bool) -> None:
    training = Training(
        layout=Layout(data=ranks, sharding="full"),
        checkpointing="full" if checkpointing else "none",
        micro_batch_tokens=tokens,
        logits=loss,
        optimizer="sgd",
        offload=frozenset({"optimizer"}),  # the tracker runs no step
    )
    found = training_bytes(shape(name), training, constants=COUNTED).peak_bytes
    assert counted_bytes(name, tokens, ranks, loss, checkpointing=checkpointing) == pytest.approx(found, rel=0.08)


@pytest.mark.parametrize("name", MODELS)
def test_a_pass_without_gradients_is_what_torch_counts(name: str) -> None:
    tokens = 32768
    with FakeTensorMode():
        torch.set_default_dtype(torch.bfloat16)
        try:
            model = built(name).eval()
        finally:
            torch.set_default_dtype(torch.float32)
        tracker, ids = MemTracker(), torch.zeros(1, tokens, dtype=torch.long)
        tracker.track_external(model)
        with torch.no_grad(), tracker:
            model(ids, logits_to_keep=1)
    found = inference_bytes(shape(name), Layout(), tokens, logits="none", constants=COUNTED).peak_bytes
    assert total_bytes(tracker) == pytest.approx(found, rel=0.05)


def test_the_optimizer_takes_two_numbers_of_each_parameter() -> None:
    sgd = Training(layout=Layout(data=8, sharding="full"), optimizer="sgd")
    one, both = (training_bytes(shape("Qwen3-8B"), each) for each in (sgd, replace(sgd, optimizer="adamw")))
    assert both.resident["optimizer"] == pytest.approx(2 * one.resident["weights"], rel=1e-6)
