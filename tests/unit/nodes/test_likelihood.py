"""`logprobs` and `entropy` on real values; the forward pass itself is held in flowgraph/test_local.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import LawError
from nodes import Entropy, LogProbs, Policy, Reference, Rollout, entropy, logprobs

Tiny = Callable[..., LocalModel]
Make = Callable[..., Rollout]


def test_they_are_token_values_that_are_zero_beyond_the_lengths(tiny: Tiny, make_rollout: Make) -> None:
    rollout = make_rollout([4, 1, 3])
    for value, kind in ((logprobs(Policy(tiny()), rollout), LogProbs), (entropy(Policy(tiny()), rollout), Entropy)):
        assert type(value) is kind and value.data.shape == (3, 4)
        assert not value.data[rollout.mask.data == 0].any() and (value.data[rollout.mask.data == 1] != 0).all()


def test_the_rollouts_own_temperature_divides_the_logits(tiny: Tiny, make_rollout: Make) -> None:
    model = Reference(tiny())
    entropies = [float(entropy(model, make_rollout([4, 4], temperature=t)).data.mean()) for t in (0.1, 1.0, 100.0)]
    assert entropies == sorted(entropies) and entropies[2] == pytest.approx(float(torch.tensor(20.0).log()), abs=1e-3)


def test_a_token_that_the_mask_leaves_out_has_a_log_prob_too(tiny: Tiny, make_rollout: Make) -> None:
    masked, plain = make_rollout([3], mask=[[1, 0, 1]]), make_rollout([3])
    assert torch.equal(logprobs(Policy(tiny()), masked).data, logprobs(Policy(tiny()), plain).data)


def test_the_weights_of_an_older_version_cannot_be_read(tiny: Tiny, make_rollout: Make) -> None:
    policy = Policy(tiny(trainable=True))
    policy.advanced()
    with pytest.raises(LawError, match="version 0 of these weights was consumed by an update; they are at 1"):
        logprobs(policy, make_rollout([2]))
