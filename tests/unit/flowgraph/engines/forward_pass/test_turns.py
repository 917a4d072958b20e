"""Turns on one model: in the order in which threads ask, and none after the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest
import torch

from flowgraph.engines.forward_pass.decode import decode
from flowgraph.engines.forward_pass.turns import Turns
from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import LawError
from flowgraph.language import Key
from flowgraph.language.handle import SampleRequest

Tiny = Callable[..., LocalModel]


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_thread_that_asks_again_and_again_does_not_keep_others_waiting() -> None:
    turns, order = Turns(), list[str]()

    def many() -> None:
        for _ in range(200):
            with turns:
                order.append("many")
                time.sleep(0.001)

    def once() -> None:
        time.sleep(0.02)
        asked = len(order)
        with turns:
            order.append(f"once, after {len(order) - asked}")

    for thread in [in_thread(many), in_thread(once)]:
        thread.join()
    (said,) = (each for each in order if each.startswith("once"))
    assert int(said.rpartition(" ")[2]) <= 2
    assert len(order) == 201


def test_after_the_end_waiting_threads_and_later_ones_are_refused() -> None:
    turns, refused = Turns(), list[str]()

    def waits() -> None:
        try:
            with turns:
                raise AssertionError("it gets no turn")
        except LawError as error:
            refused.append(error.what)

    with turns:
        waiting = in_thread(waits)
        while len(turns._line) < 2:
            time.sleep(0.001)
        turns.close()
        waiting.join()
    waits()
    assert refused == ["the responses under way were aborted: the run has ended"] * 2


def test_a_turn_that_ends_with_an_error_lets_the_next_begin() -> None:
    turns = Turns()
    with pytest.raises(ValueError, match="no"), turns:
        raise ValueError("no")
    with turns:
        pass


def test_weights_that_come_between_two_tokens_give_a_span_of_each_version(tiny: Tiny) -> None:
    model, other = tiny().model, tiny().model
    torch.manual_seed(0)
    for parameter in other.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    requests = [SampleRequest((5, 6, 7), 0, sample, 8 + sample, 0.7, Key(3)) for sample in range(3)]
    passes = list[int]()

    @contextmanager
    def turn() -> Generator[int]:
        passes.append(1)
        if len(passes) == 4:
            model.load_state_dict(other.state_dict())
        yield 0 if len(passes) < 4 else 1

    done = decode(model, requests, frozenset(), 0, turn=turn)
    before = decode(tiny().model, requests, frozenset(), 0)
    for request, each, old in zip(requests, done, before, strict=True):
        assert each.versions == ((0, 0), (3, 1))
        assert (each.tokens[:3], each.logprobs[:3]) == (old.tokens[:3], old.logprobs[:3])
        rest = SampleRequest((*request.context, *each.tokens[:3]), 0, request.sample, 1, 0.0, Key(3))
        (fresh,) = decode(other, [rest], frozenset(), 1)
        ids = torch.tensor([[*request.context, *each.tokens]])
        logits = other(input_ids=ids).logits[0, 2:-1] / 0.7
        expected = logits.log_softmax(-1)[range(len(each.tokens)), list(each.tokens)]
        assert float((expected[3:] - torch.tensor(each.logprobs[3:])).abs().max()) < 1e-5
        assert fresh.versions == ((0, 1),)
