"""Weights between processes: the same to the last bit, of every type and shape, and readable from read-only memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from flowgraph.engines.local.model import LocalModel
from flowgraph.runtime.hosting import Wire, from_wire, to_wire
from tests.looped import looped

Tensors = dict[str, torch.Tensor]

TENSORS: Tensors = {
    "float32": torch.tensor([[1.5, -0.0, float("inf")], [float("nan"), 1e-45, -3.0]]),
    "float64": torch.randn(2, 3, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
    "bfloat16": torch.tensor([1.0, -2.5, 3.0e38, 1e-40]).to(torch.bfloat16),
    "float16": torch.tensor([[0.1], [65504.0]]).half(),
    "int64": torch.tensor([-(2**62), 7]),
    "int32": torch.tensor([1, 2], dtype=torch.int32),
    "uint8": torch.tensor([0, 255], dtype=torch.uint8),
    "bool": torch.tensor([True, False, True]),
    "scalar": torch.tensor(2.25),
    "no rows": torch.zeros(0, 4),
    "turned": torch.arange(12.0).reshape(3, 4).T,
    "part": torch.arange(12.0)[1::2],
}


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same(one: Tensors, two: Tensors) -> bool:
    """Return whether two sets of weights are the same to the last bit, in type and shape too."""
    pairs = [(one[name], two[name]) for name in one]
    return list(one) == list(two) and all(
        a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b) for a, b in pairs
    )


def read_only(wire: Wire) -> Wire:
    """Return what an object store gives: arrays in memory that nobody may write."""
    frozen: Wire = {}
    for name, (dtype, shape, data) in wire.items():
        kept = np.frombuffer(data.tobytes(), dtype=np.uint8)
        assert not kept.flags.writeable
        frozen[name] = dtype, shape, kept
    return frozen


@looped("name", TENSORS)
def test_a_tensor_comes_back_to_the_last_bit(name: str) -> None:
    tensors = {name: TENSORS[name]}
    assert same(from_wire(read_only(to_wire(tensors))), tensors)


def test_what_comes_back_can_be_written_and_is_nobody_elses() -> None:
    wire = to_wire({"a": torch.ones(3)})
    one, two = from_wire(wire), from_wire(wire)
    one["a"][0] = 9.0
    assert (two["a"][0], from_wire(wire)["a"][0]) == (1.0, 1.0)


def test_laying_out_copies_nothing_that_lies_on_the_cpu_in_order() -> None:
    tensor = torch.zeros(4)
    _, _, data = to_wire({"a": tensor})["a"]
    tensor[0] = 1.0
    assert data.view(np.float32).tolist() == [1.0, 0.0, 0.0, 0.0]


def test_weights_that_are_trained_travel_without_what_made_them() -> None:
    wire = to_wire({"a": torch.ones(2, requires_grad=True) * 2})
    assert wire["a"][:2] == ("float32", (2,))
    assert not from_wire(wire)["a"].requires_grad


def test_a_model_takes_what_another_gave(tiny: Callable[..., LocalModel]) -> None:
    one, other = tiny(), tiny()
    with torch.no_grad():
        for parameter in one.model.parameters():
            parameter.add_(0.5)
    assert not same(other.weights(), one.weights())
    other.load(from_wire(read_only(to_wire(one.weights()))))
    assert same(other.weights(), one.weights())
