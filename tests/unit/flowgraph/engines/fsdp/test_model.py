"""A sharded model on several ranks, each with rows of its own, against `LocalModel` on all rows."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from flowgraph.engines.fsdp.model import FsdpModel
from flowgraph.engines.fsdp.ranks import ProcessRanks, join
from flowgraph.engines.fsdp.sharding import decoder_layers
from flowgraph.engines.local.model import LocalModel
from flowgraph.engines.model_state.optimizers import run_backward
from flowgraph.errors import FlowError
from flowgraph.language.handle import Optimizer, ResponseRows, SampleRequest, StepReport
from flowgraph.language.keys import Key

pytestmark = pytest.mark.processes  # its processes are started once

Told = list[dict[str, Any]]
LIMIT = 1e-5
KINDS = ("tiny", "gpt2", "qwen2")

CONTEXTS, LENGTHS = [2, 9, 1, 4, 30, 3, 1], [3, 1, 7, 5, 2, 7, 4]
ALL = list(range(len(LENGTHS)))
# The rows of each micro-batch of each rank, by the number of ranks: all rows once, as many micro-batches on each rank.
UNEVEN = {
    1: [[[0, 2, 1], [3, 4, 5, 6]]],
    2: [[[0, 2], [1]], [[4, 3, 5, 6], []]],
    3: [[[0, 2], [1]], [[], []], [[4, 3, 5, 6], []]],
}
ONE_HAS_ALL = {count: [[ALL[:5], ALL[5:]], *[[[], []]] * (count - 1)] for count in (1, 2, 3)}


@pytest.fixture(scope="module")
def told(run_ranks: Callable[..., Told], tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Return what each of three processes told: all of them on three ranks, the first two on two ranks as well."""
    return run_ranks(__file__, tmp_path_factory.mktemp("fsdp"), 3)


@pytest.fixture(scope="module")
def two(told: Told) -> Told:
    """Return what each of two ranks told."""
    return [each["two"] for each in told[:2]]


@pytest.fixture(scope="module")
def every(told: Told, two: Told) -> Told:
    """Return what each rank told, of two and of three."""
    return [*two, *(each["three"] for each in told)]


# ------------------------------------------------------------------------------------------- the step


def test_five_steps_of_descent_on_shards_are_those_of_one_process_on_all_rows(every: Told) -> None:
    for rank in every:
        for steps in rank["descent"].values():
            assert len(steps) == 5
            assert all(step["loss"] < LIMIT and step["norm"] < LIMIT and step["weights"] < LIMIT for step in steps)
            assert all(step["moved"] > 1e-3 for step in steps), "nothing is trained, so nothing is compared"


def test_gradients_are_the_sum_over_ranks_and_micro_batches(every: Told) -> None:
    for rank in every:
        assert rank["descent"].keys() == rank["gradients"].keys()
        for difference, norm in rank["gradients"].values():
            assert difference < LIMIT < norm


def test_adamw_with_clipping_on_shards_tells_the_losses_and_norms_of_one_process(every: Told) -> None:
    for rank in every:
        assert len(rank["adamw"]) == 5
        assert all(step["loss"] < LIMIT and step["norm"] < LIMIT for step in rank["adamw"])


def test_a_loss_may_read_two_batches(two: Told) -> None:
    assert all(rank["two_batches"]["weights"] < LIMIT for rank in two)


def test_contexts_of_one_token_train_as_well(two: Told) -> None:
    assert all(rank["one_token"]["weights"] < LIMIT for rank in two)


def test_a_gradient_that_one_rank_makes_infinite_is_refused_by_all_and_changes_nothing(two: Told) -> None:
    for rank in two:
        text, moved = rank["not_finite"]
        assert text == (
            "the gradient is not finite (norm nan, loss nan); this step did not change the weights\n"
            "    by row 0 of micro-batch 1 on rank 1\n"
            "    by row 1 of micro-batch 1 on rank 1\n"
            "  hint: a log-prob of -inf, a learning rate too high, or an advantage that is not finite"
        )
        assert moved == 0.0


def test_ranks_that_come_with_different_many_micro_batches_are_refused_on_all(two: Told) -> None:
    for rank in two:
        assert rank["different_many"] == (
            "the ranks have different numbers of micro-batches: 1, 2\n"
            "  hint: give every rank as many as the rank with the most; they may be empty"
        )


def test_after_a_refused_step_and_an_exception_on_all_ranks_the_next_step_is_right(two: Told) -> None:
    assert all(rank["after_errors"]["weights"] < LIMIT for rank in two)


def test_an_exception_in_one_ranks_loss_is_raised_there_and_the_other_does_not_wait_once_it_is_gone(two: Told) -> None:
    assert [rank["lone_exception"] for rank in two] == ["ZeroDivisionError", "RuntimeError"]


def test_a_frozen_model_offers_no_step_and_refuses_one(two: Told) -> None:
    for rank in two:
        assert rank["frozen"] == [["token_stats", "weights"], "this model is frozen: nothing can update it", True]


# ------------------------------------------------------------------------------------------- the forward pass


def test_statistics_without_gradients_are_those_of_one_process_whatever_each_rank_has_to_read(every: Told) -> None:
    for rank in every:
        assert all(each < LIMIT for each in rank["statistics"])


def test_every_rank_calls_the_model_as_often_as_the_one_with_the_most_rows(two: Told) -> None:
    assert [rank["calls"] for rank in two] == [len(ALL)] * 2


def test_statistics_are_read_with_the_weights_after_the_last_step(two: Told) -> None:
    assert all(rank["after_step"] < LIMIT for rank in two)


def test_nothing_is_sampled_from_shards(two: Told) -> None:
    for rank in two:
        assert rank["verbs"] == ["step", "token_stats", "weights"]
        assert rank["sample"] == (
            "a model sharded over 2 ranks cannot generate samples\n"
            "  hint: place the sampling role on an engine that can generate; its weights are synced"
        )


# ------------------------------------------------------------------------------------------- weights


def test_weights_are_gathered_whole_under_the_names_of_the_plain_model_without_a_step_before(every: Told) -> None:
    assert [rank["gathered"] for rank in every] == [[True, 0.0]] * len(every)


def test_gathered_weights_are_a_copy(two: Told) -> None:
    assert [rank["copy"] for rank in two] == [True] * 2


def test_tied_weights_share_one_tensor(two: Told) -> None:
    assert [rank["tied"] for rank in two] == [True] * 2


def test_whole_weights_are_loaded_into_the_shards(every: Told) -> None:
    assert [rank["loaded"] for rank in every] == [0.0] * len(every)


def test_weights_that_do_not_fit_are_refused(two: Told) -> None:
    for rank in two:
        assert rank["misfit"] == "the weights do not fit the model: extra, lm_head.weight, model.norm.weight"


def test_a_saved_model_loads_with_the_same_weights_tied_ones_too(two: Told) -> None:
    assert [rank["saved"] for rank in two] == [[["LlamaForCausalLM", 0.0], ["GPT2LMHeadModel", 0.0]]] * 2


def test_between_calls_each_rank_holds_its_share_only(two: Told) -> None:
    for rank in two:
        assert rank["sharded"] == {"made": True, "token_stats": True, "step": True, "weights": True}
        assert 0.4 < rank["share"] < 0.6


def test_a_part_of_the_ranks_can_hold_a_model(two: Told) -> None:
    assert [rank["part"] for rank in two] == [True, None]


def test_a_models_layers_are_found_even_where_each_holds_a_longer_list() -> None:
    from torch import nn

    def layer() -> nn.Module:
        return nn.ModuleDict({"experts": nn.ModuleList(nn.Linear(2, 2) for _ in range(9))})

    layers = nn.ModuleList(layer() for _ in range(3))
    model = nn.ModuleDict({"embed": nn.Embedding(4, 2), "layers": layers})
    assert decoder_layers(model) == list(layers)
    assert decoder_layers(nn.Linear(2, 2)) == []


# ------------------------------------------------------------------------------------------- on a GPU


@pytest.mark.gpu
def test_one_rank_over_nccl_is_one_process_on_that_device(run_ranks: Callable[..., Told], tmp_path: Path) -> None:
    rank = run_ranks(__file__, tmp_path, 1)[0]
    assert rank["device"] == "cuda"
    assert rank["gathered"] == [True, 0.0]
    assert rank["loaded"] == 0.0
    assert all(each < 1e-4 for each in rank["statistics"])
    for steps in [*rank["descent"].values(), rank["adamw"]]:
        assert all(step["loss"] < 1e-4 and step["norm"] < 1e-3 for step in steps)
    for difference, norm in rank["gradients"].values():
        assert difference < 1e-4 < norm


# ------------------------------------------------------------------------------------------- what each rank does


@dataclass
class Pair:
    """One model twice: sharded over the ranks, and whole in each of them."""

    sharded: FsdpModel
    whole: LocalModel
    ranks: ProcessRanks

    def step(self, parts: dict[int, list[list[list[int]]]], rule: Optimizer, contexts: Sequence[int] = CONTEXTS) -> Any:
        """Step both on the same rows; give how far they are apart after it."""
        before = self.whole.weights()
        rows = make_rows(contexts)
        one = self.whole.step([share(self.whole, rows, ALL)], rule)
        other = self.sharded.step([share(self.sharded, rows, part) for part in self.mine(parts)], rule)
        return apart(one, other) | {
            "weights": far(self.whole.weights(), self.sharded.weights()),
            "moved": far(self.whole.weights(), before),
        }

    def mine(self, parts: dict[int, list[list[list[int]]]]) -> list[list[int]]:
        return parts[self.ranks.count][self.ranks.rank]


def make_pair(ranks: ProcessRanks, kind: str = "tiny", device: str = "cpu", **fields: Any) -> Pair:
    model, tokenizer = make_model(kind)
    model = model.to(device)
    whole = LocalModel(copy.deepcopy(model), tokenizer, **({"trainable": True} | fields))
    return Pair(FsdpModel(model, tokenizer, **({"trainable": True} | fields), ranks=ranks), whole, ranks)


def make_model(kind: str) -> tuple[Any, Any]:
    """Make a small model: Llama of two layers, GPT-2 of three with tied weights, Qwen2 of one with grouped heads."""
    from transformers import GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM

    from flowgraph.models import tiny

    model, tokenizer = tiny.build(0)
    torch.manual_seed(0)
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    if kind == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=64, n_embd=16, n_layer=3, n_head=2, **ends))
    if kind == "qwen2":
        sizes = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 24, "max_position_embeddings": 64}
        heads = {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
        model = Qwen2ForCausalLM(Qwen2Config(**sizes, **heads, **ends))
    return model, tokenizer


def make_rows(contexts: Sequence[int] = CONTEXTS, seed: int = 1) -> ResponseRows:
    torch.manual_seed(seed)
    heads = pa.array([torch.randint(3, 20, (size,)).tolist() for size in contexts], pa.list_(pa.int32()))
    return ResponseRows(heads, torch.randint(3, 20, (len(LENGTHS), max(LENGTHS))), torch.tensor(LENGTHS))


def take(rows: ResponseRows, which: Sequence[int]) -> ResponseRows:
    """Return some of the rows, no wider than their longest."""
    lengths = rows.lengths[list(which)]
    width = int(lengths.max()) if len(lengths) else 2
    return ResponseRows(rows.context.take(pa.array(which, pa.int64())), rows.tokens[list(which), :width], lengths)


def share(handle: Any, rows: ResponseRows, which: Sequence[int]) -> Callable[[], torch.Tensor]:
    """Return the share of some rows of a loss over all: what each token adds is divided by the tokens of all."""
    part, weights = take(rows, which), torch.linspace(-1.0, 1.0, len(LENGTHS))[list(which), None]

    def loss() -> torch.Tensor:
        stats = handle.token_stats(part, ("logprobs", "entropy"))
        return (weights * stats.logprobs - 0.1 * stats.entropy).sum() / sum(LENGTHS)

    return loss


def far(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return the largest difference of two sets of weights."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def apart(one: StepReport, other: StepReport) -> dict[str, float]:
    return {"loss": abs(one.loss - other.loss), "norm": abs(one.grad_norm - other.grad_norm)}


def check_descent(pair: Pair) -> list[dict[str, float]]:
    rule = Optimizer("sgd", 0.1, max_grad_norm=0)
    return [pair.step(ONE_HAS_ALL if step == 2 else UNEVEN, rule) for step in range(5)]


def check_adamw(pair: Pair) -> list[dict[str, float]]:
    rule = Optimizer("adamw", 1e-3, 0.01, max_grad_norm=0.5)
    return [pair.step(ONE_HAS_ALL if step == 2 else UNEVEN, rule) for step in range(5)]


def check_gradients(pair: Pair) -> tuple[float, float]:
    """Return the largest difference of the gradients, and the largest gradient."""
    rows = make_rows(seed=2)
    run_backward([share(pair.whole, rows, ALL)])
    run_backward([share(pair.sharded, rows, part) for part in pair.mine(UNEVEN)])
    pair.sharded._reshard()
    want = {name: each.grad for name, each in pair.whole.model.named_parameters()}
    have = {name: each.grad.full_tensor() for name, each in pair.sharded.model.named_parameters()}
    for parameter in [*pair.whole.model.parameters(), *pair.sharded.model.parameters()]:
        parameter.grad = None
    return far(want, have), max(float(each.abs().max()) for each in want.values())


def check_statistics(ranks: ProcessRanks, device: str = "cpu") -> list[float]:
    """Return how far statistics are apart: in one pass, in one pass a row, and frozen; one rank has no rows."""
    rows, found = make_rows(), list[float]()
    for fields in ({}, {"forward_tokens": 1}, {"trainable": False}):
        pair = make_pair(ranks, device=device, **fields)
        for parts in (UNEVEN, ONE_HAS_ALL):
            part = take(rows, pair.mine(parts)[0])
            with torch.no_grad():
                one, other = (each.token_stats(part, ("logprobs",)).logprobs for each in (pair.whole, pair.sharded))
            assert one.shape == other.shape == part.tokens.shape
            found.append(float((one - other).abs().max()) if len(part.tokens) else 0.0)
    return found


def check_loaded(pair: Pair) -> float:
    changed = {name: tensor * 1.5 + 0.25 for name, tensor in pair.whole.weights().items()}
    pair.sharded.load(changed)
    return far(pair.sharded.weights(), changed)


def tell_parity(ranks: ProcessRanks, kinds: Sequence[str], device: str = "cpu") -> dict[str, Any]:
    pairs = {kind: make_pair(ranks, kind, device) for kind in kinds}
    names = [pair.whole.weights().keys() == pair.sharded.weights().keys() for pair in pairs.values()]
    return {
        "gathered": [all(names), max(far(pair.whole.weights(), pair.sharded.weights()) for pair in pairs.values())],
        "descent": {kind: check_descent(pair) for kind, pair in pairs.items()},
        "gradients": {kind: check_gradients(pair) for kind, pair in pairs.items()},
        "adamw": check_adamw(make_pair(ranks, device=device)),
        "statistics": check_statistics(ranks, device),
        "loaded": check_loaded(pairs[kinds[0]]),
        "device": next(pairs[kinds[0]].sharded.model.parameters()).device.type,
    }


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except FlowError as error:
        return str(error)
    return "no error"


def tell_laws(ranks: ProcessRanks, folder: Path, alone: ProcessRanks | None) -> dict[str, Any]:
    told = tell_forward(ranks) | tell_errors(ranks) | tell_weights(ranks, folder)
    rule = Optimizer("sgd", 0.1)
    return told | {
        "sharded": check_sharded(ranks),
        "share": check_share(ranks),
        "part": alone and make_pair(alone).step(UNEVEN, rule)["weights"] < LIMIT,
    }


def tell_forward(ranks: ProcessRanks) -> dict[str, Any]:
    rule = Optimizer("sgd", 0.1, max_grad_norm=0)
    pair, rows = make_pair(ranks, forward_tokens=1), make_rows()
    calls = list[int]()
    pair.sharded.model.register_forward_pre_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        pair.sharded.token_stats(take(rows, ALL if ranks.rank else []), ("logprobs",))
    told: dict[str, Any] = {"calls": len(calls)}
    pair.step(UNEVEN, rule)
    with torch.no_grad():
        one, other = (each.token_stats(rows, ("logprobs",)).logprobs for each in (pair.whole, pair.sharded))
    told["after_step"] = float((one - other).abs().max())
    told["one_token"] = make_pair(ranks).step(UNEVEN, rule, [1] * len(ALL))
    pair = make_pair(ranks, "gpt2")

    def both(handle: Any, which: Sequence[int]) -> Callable[[], torch.Tensor]:
        return lambda: share(handle, rows, which)() + share(handle, make_rows([1] * len(ALL), 3), which)()

    pair.whole.step([both(pair.whole, ALL)], rule)
    pair.sharded.step([both(pair.sharded, part) for part in pair.mine(UNEVEN)], rule)
    told["two_batches"] = {"weights": far(pair.whole.weights(), pair.sharded.weights())}
    return told


def tell_errors(ranks: ProcessRanks) -> dict[str, Any]:
    pair, rows = make_pair(ranks), make_rows()
    rule, before = Optimizer("sgd", 0.1), pair.whole.weights()
    good = share(pair.sharded, rows, [0, 1])
    told: dict[str, Any] = {
        "not_finite": [
            error_of(lambda: pair.sharded.step([good, lambda: good() * (float("nan") if ranks.rank else 1.0)], rule)),
            far(pair.sharded.weights(), before),
        ],
        "different_many": error_of(lambda: pair.sharded.step([good] * (1 + ranks.rank), rule)),
    }
    with pytest.raises(ZeroDivisionError):
        pair.sharded.step([good, lambda: good() / (1 // 0)], rule)
    told["after_errors"] = pair.step(UNEVEN, rule)
    frozen = make_pair(ranks, trainable=False).sharded
    told["frozen"] = [
        sorted(frozen.verbs),
        error_of(lambda: frozen.step([good], rule)),
        not any(each.requires_grad for each in frozen.model.parameters()),
    ]
    asked = SampleRequest((1, 5), 0, 0, 4, 1.0, Key())
    told["verbs"] = sorted(pair.sharded.verbs)
    told["sample"] = error_of(lambda: asyncio.run(pair.sharded.sample(asked)))
    return told


def tell_weights(ranks: ProcessRanks, folder: Path) -> dict[str, Any]:
    tiny, tied = make_pair(ranks).sharded, make_pair(ranks, "gpt2").sharded
    first, misfit = tiny.weights(), tiny.weights()
    misfit["model.norm.weight"], misfit["extra"] = torch.zeros(2), misfit.pop("lm_head.weight")
    told: dict[str, Any] = {"misfit": error_of(lambda: tiny.load(misfit))}
    for tensor in tiny.weights().values():
        tensor.zero_()
    told["copy"] = far(tiny.weights(), first) == 0.0
    full = tied.weights()
    told["tied"] = full["lm_head.weight"] is full["transformer.wte.weight"]
    told["saved"] = [read_back(handle, folder / name) for handle, name in ((tiny, "tiny"), (tied, "tied"))]
    return told


def read_back(handle: FsdpModel, folder: Path) -> list[Any]:
    """Save and load again; give the class that loads, and how far its weights are apart."""
    from transformers import AutoModelForCausalLM

    handle.save(folder)
    handle.ranks.total(torch.zeros(1))  # then rank 0 has written it
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    return [type(loaded).__name__, far(dict(loaded.state_dict()), handle.weights())]


def check_sharded(ranks: ProcessRanks) -> dict[str, bool]:
    from torch.distributed.tensor import DTensor

    pair, rows, told = make_pair(ranks), make_rows(), dict[str, bool]()

    def look(after: str) -> None:
        told[after] = all(isinstance(each, DTensor) for each in pair.sharded.model.parameters())

    look("made")
    with torch.no_grad():
        pair.sharded.token_stats(rows, ("entropy",))
    look("token_stats")
    pair.sharded.step([share(pair.sharded, rows, [0])], Optimizer())
    look("step")
    pair.sharded.weights()
    look("weights")
    return told


def check_share(ranks: ProcessRanks) -> float:
    """Return which part of the weights this rank holds."""
    parameters = list(make_pair(ranks).sharded.model.parameters())
    return sum(each.to_local().numel() for each in parameters) / sum(each.numel() for each in parameters)


def fail_alone(ranks: ProcessRanks) -> str:
    """Raise in the loss of rank 0, which then goes; give what each rank saw raised."""
    pair = make_pair(ranks)
    good = share(pair.sharded, make_rows(), ALL)
    try:
        pair.sharded.step([good, (lambda: good() / 0) if ranks.rank else (lambda: good() / (1 // 0))], Optimizer())
    except Exception as error:  # noqa: BLE001 - which one it is, is what is asked
        return type(error).__name__
    return "no error"


def run(rank: int, count: int, folder: Path) -> dict[str, Any]:
    if count == 1:  # see the test with the mark `gpu`
        return tell_parity(join(rank, count, folder / "meeting", device="cuda", limit_s=50), KINDS, "cuda")
    three = join(rank, count, folder / "meeting", limit_s=50)
    two, alone = three.part(2), three.part(1)
    told: dict[str, Any] = {}
    if two:
        told["two"] = tell_parity(two, KINDS) | tell_laws(two, folder, alone)
    told["three"] = tell_parity(three, KINDS[:1])
    if two:
        told["two"]["lone_exception"] = fail_alone(two)
    return told


if __name__ == "__main__":
    if sys.argv[2] != "1":
        warnings.simplefilter("error")
    torch.set_num_threads(1)
    place = Path(sys.argv[3])
    answer = run(int(sys.argv[1]), int(sys.argv[2]), place)
    (place / f"{sys.argv[1]}.json").write_text(json.dumps(answer))
    os._exit(0)  # a refused step leaves a collective half done: gloo's thread can crash when its group is taken down
