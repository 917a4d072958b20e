"""Heads of numbers and adapters on shards of two ranks, against `LocalModel` on all rows."""

from __future__ import annotations

import copy
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from flowgraph.engines.fsdp.model import FsdpModel
from flowgraph.engines.fsdp.ranks import ProcessRanks, join
from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import LawError
from flowgraph.language.handle import Optimizer, ResponseRows
from flowgraph.models import lora, resolve, tiny
from flowgraph.models.heads import head_names, with_head
from tests.looped import looped

pytestmark = [pytest.mark.processes, pytest.mark.slow(group="shards")]

Told = list[dict[str, Any]]
LIMIT = 1e-5
CONTEXTS, LENGTHS = [2, 9, 1, 4, 30, 3, 1], [3, 1, 7, 5, 2, 7, 4]
ALL = list(range(len(LENGTHS)))
UNEVEN = [[[0, 2], [1]], [[4, 3, 5, 6], []]]  # the rows of each micro-batch, by rank
ONE_HAS_ALL = [[ALL[:5], ALL[5:]], [[], []]]
KINDS = [
    ("tiny", "values", ""),
    ("gpt2", "values", ""),
    ("tiny", "tokens", "+lora=3"),
    ("gpt2", "tokens", "+lora=3"),
    ("tiny", "values", "+lora=3"),
]
CASES = [" ".join(each) for each in KINDS]


@pytest.fixture(scope="module")
def told(run_ranks: Callable[..., Told], tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Return what each of two ranks told."""
    return run_ranks(__file__, tmp_path_factory.mktemp("heads"), 2)


@looped("case", CASES)
def test_steps_on_shards_are_those_of_one_process_on_all_rows(told: Told, case: str) -> None:
    for rank in told:
        steps = rank[case]["steps"]
        assert len(steps) == 4
        assert all(step["loss"] < LIMIT and step["norm"] < LIMIT and step["weights"] < LIMIT for step in steps)
        assert all(step["moved"] > 1e-4 for step in steps), "nothing is trained, so nothing is compared"


@looped("case", CASES)
def test_statistics_without_gradients_are_those_of_one_process(told: Told, case: str) -> None:
    assert all(rank[case]["statistics"] < LIMIT for rank in told)


@looped("case", CASES)
def test_weights_have_the_names_of_the_whole_model_and_can_be_loaded(told: Told, case: str) -> None:
    assert all(rank[case]["names"] for rank in told)
    assert all(rank[case]["loaded"] == 0.0 for rank in told)


@looped("case", CASES)
def test_what_is_saved_is_a_plain_folder_that_gives_the_same(told: Told, case: str) -> None:
    assert all(rank[case]["saved"] < LIMIT for rank in told)


@looped("case", CASES)
def test_between_calls_each_rank_holds_its_share_only(told: Told, case: str) -> None:
    assert all(rank[case]["sharded"] for rank in told)


def test_under_adapters_lies_the_base_whatever_updates_change_in_one_memory(told: Told) -> None:
    for rank in told:
        assert rank["under"]["before"] == 0.0
        assert rank["under"]["after"] < LIMIT < 1e-3 < rank["under"]["moved"]
        assert rank["under"]["one_memory"]
        shared = "these weights are shared with another model's adapters, so they are read-only"
        assert rank["under"]["refused"] == shared
        assert rank["under"]["verbs"] == ["token_stats"]


def test_a_loss_that_reads_what_lies_under_in_its_middle_steps_as_one_process_does(told: Told) -> None:
    for rank in told:
        assert all(step < LIMIT for step in rank["beside"]["apart"])
        assert rank["beside"]["moved"] > 1e-4


def test_texts_are_scored_on_shards_as_in_one_process_where_a_rank_has_none(told: Told) -> None:
    assert all(rank["scores"] < LIMIT for rank in told)


# ------------------------------------------------------------------------------------------- what each rank does


def make_model(kind: str, head: Any, suffix: str) -> tuple[Any, Any]:
    """Make a small model: Llama of two layers or GPT-2 of three, under a head that is drawn, with drawn adapters."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model, tokenizer = tiny.build(0)
    torch.manual_seed(0)
    if kind == "gpt2":
        sizes = {"vocab_size": 20, "n_positions": 64, "n_embd": 16, "n_layer": 3, "n_head": 2}
        model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=2))
    if head != "tokens":
        model, _ = with_head(model, head, kind)
    if suffix:
        model = lora.add_adapters(model, resolve(f"tiny{suffix}", cache=Path("none")), 0)
    torch.manual_seed(1)
    with torch.no_grad():
        for name in sorted(head_names(model) | {n for n, _ in model.named_parameters() if ".lora_B." in n}):
            model.get_parameter(name).normal_(std=0.1)
    return model, tokenizer


def make_pair(ranks: ProcessRanks, kind: str, head: Any, suffix: str, **fields: Any) -> tuple[FsdpModel, LocalModel]:
    model, tokenizer = make_model(kind, head, suffix)
    fields = {"trainable": True} | fields
    whole = LocalModel(copy.deepcopy(model), tokenizer, **fields)
    return FsdpModel(model, tokenizer, **fields, ranks=ranks), whole


def make_rows(seed: int = 1) -> ResponseRows:
    torch.manual_seed(seed)
    heads = pa.array([torch.randint(3, 20, (size,)).tolist() for size in CONTEXTS], pa.list_(pa.int32()))
    return ResponseRows(heads, torch.randint(3, 20, (len(LENGTHS), max(LENGTHS))), torch.tensor(LENGTHS))


def take(rows: ResponseRows, which: Sequence[int]) -> ResponseRows:
    lengths = rows.lengths[list(which)]
    width = int(lengths.max()) if len(lengths) else 2
    return ResponseRows(rows.context.take(pa.array(which, pa.int64())), rows.tokens[list(which), :width], lengths)


def stat_of(handle: Any, rows: ResponseRows) -> torch.Tensor:
    """Return the one statistic that is compared."""
    name = "values" if head_names(handle.model) else "logprobs"
    found: torch.Tensor = getattr(handle.token_stats(rows, (name,)), name)
    return found


def share(handle: Any, rows: ResponseRows, which: Sequence[int], beside: Any = None) -> Callable[[], torch.Tensor]:
    """Return the share of some rows of a loss over all; `beside` is read in the middle of it."""
    part, weights = take(rows, which), torch.linspace(-1.0, 1.0, len(LENGTHS))[list(which), None]

    def loss() -> torch.Tensor:
        new = stat_of(handle, part)
        if beside is not None:
            new = new + (new - stat_of(beside, part)) ** 2
        return (weights * new).sum() / sum(LENGTHS)

    return loss


def far(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def tell(ranks: ProcessRanks, kind: tuple[str, str, str], folder: Path) -> dict[str, Any]:
    from torch.distributed.tensor import DTensor

    (sharded, whole), rows = make_pair(ranks, *kind, forward_tokens=40), make_rows()
    told: dict[str, Any] = {"names": sharded.weights().keys() == whole.weights().keys(), "steps": []}
    rate = 0.1 if kind[1] == "tokens" else 0.01  # a loss that has no lower bound is left by steps too long
    for step, rule in enumerate([Optimizer("sgd", rate, max_grad_norm=0)] * 3 + [Optimizer("sgd", rate)]):
        before, parts = whole.weights(), (ONE_HAS_ALL if step == 1 else UNEVEN)[ranks.rank]
        one = whole.step([share(whole, rows, ALL)], rule)
        other = sharded.step([share(sharded, rows, part) for part in parts], rule)
        moved, weights = far(whole.weights(), before), far(whole.weights(), sharded.weights())
        apart = {"loss": abs(one.loss - other.loss), "norm": abs(one.grad_norm - other.grad_norm)}
        told["steps"].append(apart | {"weights": weights, "moved": moved})
    part = take(rows, UNEVEN[ranks.rank][0])
    with torch.no_grad():
        told["statistics"] = float((stat_of(whole, part) - stat_of(sharded, part)).abs().max())
    told["sharded"] = all(isinstance(each, DTensor) for each in sharded.model.parameters())
    told["saved"] = check_saved(sharded, folder / "-".join(kind), rows)
    changed = {name: tensor * 1.5 + 0.25 for name, tensor in whole.weights().items()}
    sharded.load(changed)
    return told | {"loaded": far(sharded.weights(), changed)}


def check_saved(handle: FsdpModel, folder: Path, rows: ResponseRows) -> float:
    """Save and load again; give how far what the model says is apart."""
    import transformers

    handle.save(folder)
    handle.ranks.total(torch.zeros(1))  # then rank 0 has written it
    kind = "TokenClassification" if head_names(handle.model) else "CausalLM"
    back = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(folder)
    with torch.no_grad():
        wanted = stat_of(handle, rows)
        return float((stat_of(LocalModel(back, handle.raw_tokenizer), rows) - wanted).abs().max())


def tell_under(ranks: ProcessRanks) -> dict[str, Any]:
    sharded, _ = make_pair(ranks, "tiny", "tokens", "+lora=3")
    plain, rows = LocalModel(*tiny.build(0)), make_rows()
    under, part = sharded.without_adapters(), take(rows, UNEVEN[ranks.rank][0])
    wanted = stat_of(plain, part)
    with torch.no_grad():
        first = float((stat_of(under, part) - wanted).abs().max())  # the first pass of all
    told: dict[str, Any] = {"before": round(first, 5)}
    for _ in range(3):
        parts = [share(sharded, rows, each) for each in UNEVEN[ranks.rank]]
        sharded.step(parts, Optimizer("adamw", 1e-2))
    with torch.no_grad():
        told["after"] = float((stat_of(under, part) - wanted).abs().max())
        told["moved"] = float((stat_of(sharded, part) - wanted).abs().max())
    mine, theirs = ({each.to_local().data_ptr() for each in handle.model.parameters()} for handle in (under, sharded))
    told |= {"one_memory": mine == theirs, "verbs": sorted(under.verbs)}
    try:
        under.weights()
    except LawError as error:
        told["refused"] = str(error).splitlines()[0]
    return told


def tell_beside(ranks: ProcessRanks) -> dict[str, Any]:
    (sharded, whole), rows = make_pair(ranks, "tiny", "tokens", "+lora=3"), make_rows()
    under, fixed, before = sharded.without_adapters(), LocalModel(*tiny.build(0)), whole.weights()
    told: dict[str, Any] = {"apart": []}
    for _ in range(3):
        rule = Optimizer("sgd", 0.1, max_grad_norm=0)
        whole.step([share(whole, rows, ALL, fixed)], rule)
        sharded.step([share(sharded, rows, part, under) for part in UNEVEN[ranks.rank]], rule)
        told["apart"].append(far(whole.weights(), sharded.weights()))
    return told | {"moved": far(whole.weights(), before)}


def tell_scores(ranks: ProcessRanks) -> float:
    sharded, whole = make_pair(ranks, "tiny", "score", "", trainable=False, forward_tokens=8)
    many = [[], [[1, 5, 6, 2], [0, 2, 2, 2, 2, 2], [2], [7, 0, 0]]][ranks.rank]
    none = torch.zeros(len(many), 0, dtype=torch.int64)
    rows = ResponseRows(pa.array(many, pa.list_(pa.int32())), none, torch.zeros(len(many), dtype=torch.int64))
    with torch.no_grad():
        one, other = (each.token_stats(rows, ("score",)).score for each in (sharded, whole))
    assert one is not None and other is not None
    assert one.shape == other.shape == (len(many),)
    return float((one - other).abs().max()) if len(many) else 0.0


def run(rank: int, count: int, folder: Path) -> dict[str, Any]:
    ranks = join(rank, count, folder / "meeting", limit_s=50)
    told: dict[str, Any] = {case: tell(ranks, kind, folder) for case, kind in zip(CASES, KINDS, strict=True)}
    return told | {"under": tell_under(ranks), "beside": tell_beside(ranks), "scores": tell_scores(ranks)}


if __name__ == "__main__":
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    place = Path(sys.argv[3])
    answer = run(int(sys.argv[1]), int(sys.argv[2]), place)
    (place / f"{sys.argv[1]}.json").write_text(json.dumps(answer))
    torch.distributed.destroy_process_group()
