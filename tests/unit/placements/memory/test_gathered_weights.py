"""What sharding gathers, as torch's own tracker counts it without computing anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from flowgraph.cluster.plan import Layout
from flowgraph.models.sizes import shape_of
from placements.memory.process import gathered_bytes, shard_bytes

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}


@pytest.fixture
def ranks() -> Iterator[int]:
    """Four ranks, of which only this one is there."""
    torch.distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield 4
    torch.distributed.destroy_process_group()


def counted(config: dict[str, Any], ranks: int, *, backward: bool) -> int:
    """Return the bytes at the peak of one pass over two tokens."""
    mesh = init_device_mesh("cpu", (ranks,))
    with FakeTensorMode():
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config, use_cache=False))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        tracker, tokens = FSDPMemTracker(model), torch.zeros(1, 2, dtype=torch.long)
        with tracker, torch.set_grad_enabled(backward):
            logits = model(tokens).logits
            if backward:
                logits.sum().backward()
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    return next(count for kind, count in peak.items() if str(kind).endswith("Total"))


@pytest.mark.slow(group="planner")
@pytest.mark.parametrize(("vocabulary", "tied"), [(100, True), (100, False), (8000, False)])
def test_what_is_whole_at_once_is_what_torch_gathers(ranks: int, vocabulary: int, tied: bool) -> None:
    config = CONFIG | {"vocab_size": vocabulary, "tie_word_embeddings": tied}
    shape, layout = shape_of(config, "config.json"), Layout(data=ranks, sharding="full")
    held = shard_bytes(shape.parameters, layout)
    reading, training = (counted(config, ranks, backward=backward) for backward in (False, True))
    assert held + gathered_bytes(shape, layout, backward=False) == pytest.approx(reading, rel=0.01)
    needed = 2 * held + gathered_bytes(shape, layout, backward=True)  # weights and gradients
    assert training <= needed <= 1.3 * training
