"""Two processes that share a sequence tell and train as one does; as a script, what one of them makes of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from flowgraph.engines.forward_pass.forward import forward_stats
from flowgraph.engines.forward_pass.packed import Packing
from flowgraph.engines.forward_pass.packing_probe import choose_packing
from flowgraph.engines.fsdp.ranks import ProcessRanks
from flowgraph.errors import LawError
from flowgraph.language.handle import ResponseRows
from flowgraph.models.heads import with_head
from tests.rank_processes import RankProcesses

pytestmark = pytest.mark.processes

LIMIT, LIMIT_S, PEERS = 1e-5, 300.0, 2
WANTED = {"tokens": ("logprobs", "entropy", "square_probs"), "values": ("values",)}
HEADS = {"as many": (4, 4), "two share": (4, 2), "all share": (4, 1), "three pairs": (6, 3)}
"""Heads of queries, and of keys and values: those that two peers cannot share are repeated."""
ROWS = {
    "uneven": ([[5, 6, 7, 8, 9, 10, 11, 12]] * 3 + [[4]] * 2, (6, 1, 12, 3, 0)),
    "one row": ([[3, 4, 5]], (2,)),
    "nothing read by the first": ([[7] * 20], (3,)),
    "no rows": ([], ()),
}


def made(heads: str, *, values: bool = False, window: int | None = None) -> Any:
    """Make a small Qwen2 or, with a window, Mistral."""
    import transformers

    kind: Any = transformers.Qwen2Config if window is None else transformers.MistralConfig
    many, shared = HEADS[heads]
    sizes: dict[str, Any] = {"hidden_size": 8 * many, "intermediate_size": 40, "num_hidden_layers": 2, "vocab_size": 30}
    more: dict[str, Any] = {} if window is None else {"sliding_window": window}
    config = kind(**sizes, num_attention_heads=many, num_key_value_heads=shared, head_dim=8, **more)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model = (with_head(model, "values", "small", 0)[0] if values else model).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def rows_of(name: str) -> ResponseRows:
    contexts, lengths = ROWS[name]
    tokens = torch.randint(0, 30, (len(lengths), 12), generator=torch.Generator().manual_seed(0))
    return ResponseRows(pa.array(contexts, pa.list_(pa.int64())), tokens, torch.tensor(lengths, dtype=torch.int64), 0.7)


def told(
    model: Any, rows: ResponseRows, sequence: ProcessRanks | None, packing: Packing | None
) -> dict[str, np.ndarray]:
    """Return the statistics, and the gradient of a sum of them, which weighs each token differently."""
    wanted = WANTED["values" if type(model).__name__.endswith("TokenClassification") else "tokens"]
    stats = forward_stats(model, rows, wanted, sequence=sequence, packing=packing)
    given = {name: getattr(stats, name) for name in wanted}
    weights = torch.linspace(-1, 2, rows.tokens.numel()).reshape(rows.tokens.shape)
    total = torch.stack([(each * weights).sum() for each in given.values()]).sum()
    gradient = torch.autograd.grad(total, list(model.parameters()))
    flat = torch.cat([each.flatten() for each in gradient])
    return {name: each.detach().numpy() for name, each in given.items()} | {"gradient": flat.numpy()}


def every(sequence: ProcessRanks | None) -> dict[str, np.ndarray]:
    """Return what is told of each model and rows."""
    models = {heads: made(heads) for heads in HEADS}
    models |= {"values": made("two share", values=True), "a window": made("two share", window=4)}
    found = dict[str, np.ndarray]()
    for name, model in models.items():
        packing = choose_packing(model)
        assert packing is not None
        for rows in ROWS:
            one = told(model, rows_of(rows), sequence, packing)
            found |= {f"{name}, {rows}: {key}": each for key, each in one.items()}
    one = told(models["as many"], rows_of("uneven"), sequence, Packing(chunk_tokens=2))
    return found | {f"chunks of two: {key}": each for key, each in one.items()}


def run(rank: int, count: int, folder: Path) -> dict[str, Any]:
    """Return what one peer is told, and what it refuses."""
    from flowgraph.engines.fsdp.ranks import join

    sequence = join(rank, count, folder / "meeting", limit_s=50)
    found: dict[str, Any] = every(sequence)
    HEADS["odd"] = (3, 3)
    for name, packing in (("odd", Packing()), ("as many", None)):
        with pytest.raises(LawError) as caught:
            forward_stats(made(name), rows_of("uneven"), ("logprobs",), sequence=sequence, packing=packing)
        found[f"refused {name}"] = np.array(str(caught.value))
    with torch.no_grad():
        same = forward_stats(made("as many"), rows_of("uneven"), ("entropy",), sequence=sequence).entropy
    assert same is not None
    found["without gradients"] = same.numpy()
    sequence.leave()
    return found


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, np.ndarray]]:
    """Return what each of two processes was told."""
    folder = tmp_path_factory.mktemp("peers")
    RankProcesses(__file__, PEERS, folder).wait(LIMIT_S)
    return [dict(np.load(folder / f"{rank}.npz")) for rank in range(PEERS)]


def test_peers_of_a_sequence_tell_what_one_process_does_and_their_gradients_add_up_to_its(
    peers: list[dict[str, np.ndarray]],
) -> None:
    alone = every(None)
    assert sum(name.endswith("gradient") for name in alone) == 6 * len(ROWS) + 1
    far = dict[str, float]()
    for name, wanted in alone.items():
        found = [peer[name] for peer in peers]
        given = [sum(found)] if name.endswith("gradient") else found
        scale = max(1.0, float(np.abs(wanted).max(initial=0)))
        far |= {name: max(float(np.abs(each - wanted).max(initial=0)) / scale for each in given)}
    assert {name: each for name, each in far.items() if not each < LIMIT} == {}


def test_each_peer_has_a_share_of_the_gradient(peers: list[dict[str, np.ndarray]]) -> None:
    shares = [np.abs(peer["as many, uneven: gradient"]).max() for peer in peers]
    assert min(shares) > 0.01
    unread = [np.abs(peer["as many, nothing read by the first: gradient"]).max() for peer in peers]
    assert min(unread) > 0.01, "keys and values of a slice in which nothing is read are read by the other"
    assert all(not peer["as many, no rows: gradient"].any() for peer in peers)


def test_statistics_without_gradients_are_the_same_on_each_peer(peers: list[dict[str, np.ndarray]]) -> None:
    for peer in peers:
        assert peer["without gradients"] == pytest.approx(peer["as many, uneven: entropy"], abs=LIMIT)


def test_what_peers_cannot_share_is_refused(peers: list[dict[str, np.ndarray]]) -> None:
    for peer in peers:
        assert str(peer["refused odd"]) == (
            "2 ranks cannot share the 3 attention heads of a sequence\n"
            "  hint: the number of sequence ranks must divide the number of heads"
        )
        assert str(peer["refused as many"]).startswith("2 ranks cannot share a sequence: padded rows were requested\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    _rank, _count, _folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    np.savez(_folder / f"{_rank}.npz", **run(_rank, _count, _folder))
