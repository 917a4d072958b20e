"""What one of four ranks makes of the settings and layouts of a sharded model: as a script, `python file rank folder`.

All four hold a model together, in several layouts; the first two another. Each tells how far it is from `LocalModel`
on all rows.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flowgraph.cluster.plan import RoleSettings
from flowgraph.engines.fsdp.model import FsdpModel
from flowgraph.engines.fsdp.ranks import ProcessRanks, join
from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import FlowError
from flowgraph.language.handle import Optimizer, ResponseRows

COUNT = 4
CONTEXTS, LENGTHS = [2, 9, 1, 4, 12, 3, 1], [3, 1, 7, 5, 2, 7, 4]
ALL = tuple(range(len(LENGTHS)))
# The rows of each micro-batch of each data rank, by how many of these there are.
PARTS = {
    1: [[[0, 2, 1], [3, 4], [5, 6]]],
    2: [[[0, 2], [1], []], [[4, 3], [5], [6]]],
    4: [[[0], [2], []], [[1], [], []], [[4, 3], [5], []], [[], [], [6]]],
}
ADAMW, SGD = Optimizer("adamw", 1e-2, 0.01, max_grad_norm=0.3), Optimizer("sgd", 0.1, max_grad_norm=0)
LAYOUTS: dict[str, dict[str, int]] = {
    "shards=4": {},
    "replicas=2": {"replicas": 2},
    "sequence=2": {"sequence": 2},
    "replicas=2 sequence=2": {"replicas": 2, "sequence": 2},
    "replicas=4": {"replicas": 4},
}
SOME_MOVES = {("one", "two"), ("two", "four"), ("four", "one")}  # of models that are no Llama: each way of reading
SETTINGS: dict[str, RoleSettings] = {
    "plain": RoleSettings(),
    "selective": RoleSettings(checkpointing="selective"),
    "full": RoleSettings(checkpointing="full"),
    "optimizer": RoleSettings(offload=("optimizer",)),
    "everything": RoleSettings(offload=("parameters", "gradients", "optimizer")),
    "bfloat16": RoleSettings(precision="bfloat16"),
    "bfloat16 full": RoleSettings(precision="bfloat16", checkpointing="full"),
}

# ------------------------------------------------------------------------------------------- models and rows


def make_model(kind: str = "tiny") -> tuple[Any, Any]:
    """Make a small model: Llama of two layers, GPT-2 of two with tied weights, or the Llama with adapters."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from flowgraph.models import tiny
    from flowgraph.models.lora import add_adapters
    from flowgraph.models.sources import resolve

    model, tokenizer = tiny.build(0, tiny.TinySize(hidden=16, layers=2, heads=2, intermediate=32))
    torch.manual_seed(0)
    if kind == "gpt2":
        sizes = {"vocab_size": 20, "n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2}
        model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=2))
    if kind == "lora":
        model = add_adapters(model, resolve("tiny+lora=3", cache=Path()), 0)
    return model, tokenizer


def make_rows(seed: int = 1) -> ResponseRows:
    """Draw the rows that every rank knows."""
    torch.manual_seed(seed)
    heads = pa.array([torch.randint(3, 20, (size,)).tolist() for size in CONTEXTS], pa.list_(pa.int32()))
    return ResponseRows(heads, torch.randint(3, 20, (len(LENGTHS), max(LENGTHS))), torch.tensor(LENGTHS))


def share(handle: Any, which: Sequence[int], weight: float = 1.0) -> Callable[[], torch.Tensor]:
    """Return the share of some rows of a loss over all: what each token adds is divided by the tokens of all."""
    rows = make_rows()
    part = ResponseRows(rows.context.take(pa.array(which, pa.int64())), rows.tokens[[*which]], rows.lengths[[*which]])
    weights = weight * torch.linspace(-1.0, 1.0, len(LENGTHS))[[*which], None]

    def loss() -> torch.Tensor:
        stats = handle.token_stats(part, ("logprobs", "entropy"))
        return (weights * stats.logprobs - 0.1 * stats.entropy).sum() / sum(LENGTHS)

    return loss


def losses_of(handle: Any) -> list[Callable[[], torch.Tensor]]:
    """Return the losses of the micro-batches of this handle's data rank."""
    return [share(handle, part) for part in PARTS[handle.ranks.count][handle.ranks.rank]]


def sharded(ranks: ProcessRanks, kind: str = "tiny", **fields: Any) -> FsdpModel:
    """Shard a model; unless told otherwise, it can be trained."""
    return FsdpModel(*make_model(kind), **({"trainable": True} | fields), ranks=ranks)


def local(kind: str = "tiny", **fields: Any) -> LocalModel:
    """Hold a model whole."""
    return LocalModel(*make_model(kind), **({"trainable": True} | fields))


def far(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return the largest difference of two sets of weights."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def stepped(handle: Any, rule: Optimizer = ADAMW, steps: int = 3) -> list[tuple[float, float]]:
    """Take some steps; give the loss and the norm of each."""
    told = [handle.step(losses_of(handle), rule) for _ in range(steps)]
    handle.version += steps
    return [(each.loss, each.grad_norm) for each in told]


def apart(one: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]]) -> float:
    """Return the largest difference of what two runs of steps told."""
    return max(abs(a - b) for pair in zip(one, other, strict=True) for a, b in zip(*pair, strict=True))


def error_of(call: Callable[[], object]) -> str:
    """Return the text of the error that a call raises."""
    try:
        call()
    except FlowError as error:
        return str(error)
    return "no error"


class Counted(TorchDispatchMode):
    """Counts products of matrices, those of a backward pass too, and how often ranks add up gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.products = self.sums = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.products += func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        self.sums += "reduce_scatter" in func.name()
        return func(*args, **(kwargs or {}))


# ------------------------------------------------------------------------------------------- what is told


def tell_layouts(four: ProcessRanks) -> dict[str, Any]:
    """Return how far each layout of four ranks is from one process, and how each rank sees it."""
    whole = local()
    steps, told = stepped(whole), dict[str, Any]()
    for name, degrees in LAYOUTS.items():
        handle = sharded(four, **degrees)
        mine = stepped(handle)
        own = [each.to_local() for each in handle.model.parameters()]
        full = sum(each.numel() for each in handle.model.parameters())
        told[name] = {
            "steps": apart(mine, steps),
            "weights": far(handle.weights(), whole.weights()),
            "ranks": [handle.ranks.rank, handle.ranks.count],
            "total": handle.ranks.total(torch.ones(1)).tolist(),
            "share": sum(each.numel() for each in own) / full,
            "sum": float(torch.cat([each.detach().flatten().double() for each in own]).abs().sum()),
        }
    return told


def tell_settings(two: ProcessRanks) -> dict[str, Any]:
    """Return how far each setting is from the plain one, in which types, and with how many products of matrices."""
    told, plain = dict[str, Any](), dict[str, torch.Tensor]()
    for name, running in SETTINGS.items():
        handle = sharded(two, running=running)
        with Counted() as counted:
            first = handle.step(losses_of(handle), SGD)
        steps = [(first.loss, first.grad_norm), *stepped(handle, steps=2)]
        weights = handle.weights()
        plain = plain or weights
        kept = [tensor for states in handle._optimizers.states()["adamw"] for tensor in states.values()]
        told[name] = {
            "steps": steps,
            "apart": far(weights, plain),
            "products": counted.products,
            "types": sorted({str(each.dtype) for each in [*weights.values(), *kept]}),
            "devices": sorted({each.device.type for each in kept}),
        }
    return told


def tell_refusals(two: ProcessRanks) -> dict[str, str]:
    """Return what settings and layouts are refused with."""
    refused: dict[str, Callable[[], object]] = {
        "fp8": lambda: sharded(two, running=RoleSettings(precision="fp8")),
        "cache": lambda: sharded(two, running=RoleSettings(cache_share=0.5)),
        "gradients": lambda: sharded(two, running=RoleSettings(offload=("gradients",))),
        "replicas": lambda: sharded(two, replicas=3),
        "sequence": lambda: sharded(two, sequence=0),
        "local": lambda: local(running=RoleSettings(precision="bfloat16")),
    }
    return {name: error_of(call) for name, call in refused.items()}


def tell_sums(two: ProcessRanks) -> dict[str, Any]:
    """Return how often ranks add up gradients, and how far that is apart: once a step, and once a micro-batch."""
    told, weights = dict[str, Any](), list[dict[str, torch.Tensor]]()
    for once in (True, False):
        handle = sharded(two)
        handle._sums_once = once
        with Counted() as counted:
            stepped(handle, SGD, 1)
        told[str(once)] = counted.sums
        weights.append(handle.weights())
    tight = RoleSettings(offload=("parameters", "gradients", "optimizer"))
    chosen = [sharded(two)._sums_once, sharded(two, running=tight)._sums_once]
    return told | {"apart": far(*weights), "chosen": chosen}


def tell_rows_at_fault(two: ProcessRanks) -> dict[str, Any]:
    """Return what a step says of rows that are not finite, on one of two ranks, and whether it left all as it was."""
    from flowgraph.language.handle import NotFinite

    handle = sharded(two)
    stepped(handle, steps=1)
    before, told = handle.weights(), dict[str, Any]()
    weights = torch.tensor([1.0, float("nan")])[:, None]
    good, rows = share(handle, [0, 1]), make_rows()
    part = ResponseRows(rows.context.slice(2, 2), rows.tokens[2:4], rows.lengths[2:4])

    def bad() -> torch.Tensor:
        return (weights * handle.token_stats(part, ("logprobs",)).logprobs).sum()

    last = bad if two.rank else share(handle, [2, 3])
    for name, losses in {
        "advantage": [good, last],
        "loss": [good, lambda: good() + (torch.inf if two.rank else 0)],
    }.items():
        try:
            handle.step(losses, ADAMW)
        except NotFinite as error:
            told[name] = [[*each] for each in error.rows]
            told[f"{name} text"] = str(error)
    told["moved"] = far(handle.weights(), before)
    try:
        sharded(two).step([lambda: torch.ones(()) / (1 // 0)], ADAMW)
    except ZeroDivisionError as error:
        told["of the user"] = type(error).__name__
    other = local()
    stepped(other, steps=1)
    told["after"] = apart(stepped(handle), stepped(other))
    return told


def tell_stream(two: ProcessRanks) -> dict[str, Any]:
    """Return whether weights leave one after another, as they are."""
    told = dict[str, Any]()
    for kind in ("tiny", "gpt2", "lora"):
        handle, whole = sharded(two, kind), local(kind)
        pairs = list(handle.stream())
        told[kind] = [far(dict(pairs), whole.weights()), [name for name, _ in pairs] == [*whole.weights()]]
        told[f"{kind} whole"] = far(handle.whole(), dict(whole.model.state_dict()))
    return told


def tell_sleep(two: ProcessRanks) -> dict[str, Any]:
    """Return what a sleeping model refuses, and whether memory that moved is trained on as if it had not."""
    handle, other = sharded(two, "lora"), sharded(two, "lora")
    for each in (handle, other):
        stepped(each, steps=2)
    under = handle.without_adapters()
    handle.sleep()
    calls: dict[str, Callable[[], object]] = {
        "stats": lambda: handle.token_stats(make_rows(), ("logprobs",)),
        "step": lambda: handle.step(losses_of(handle), ADAMW),
        "weights": handle.weights,
        "stream": handle.stream,
        "load": lambda: handle.load({}),
        "state": lambda: handle.save_state(Path()),
        "under": lambda: under.token_stats(make_rows(), ("logprobs",)),
    }
    told: dict[str, Any] = {"refused": sorted({error_of(call) for call in calls.values()})}
    told["asleep"] = [handle.asleep, under.asleep, other.asleep]
    handle.wake()
    told["awake"] = [handle.asleep, under.asleep]
    handle.model._apply(torch.clone)  # as moving to another device does
    handle._optimizers.rebind(handle._shards())
    told["apart"] = apart(stepped(handle), stepped(other))
    told["weights"] = far(handle.weights(), other.weights())
    return told


@dataclass(frozen=True)
class Places:
    """The ranks that this process is of: all four, and the first two if it is of those."""

    four: ProcessRanks
    two: ProcessRanks | None
    folder: Path


def tell_states(places: Places) -> dict[str, Any]:
    """Return how what was saved in one layout goes on in others; every state is of two steps of training."""
    told = dict[str, Any]()
    for kind in ("tiny", "gpt2", "lora"):
        goes_on = local(kind)
        stepped(goes_on, steps=2)
        saved = dict[str, Path]()
        for name, make in makers(places, kind).items():
            handle = make()
            if handle is not None:
                stepped(handle, steps=2)
                handle.save_state(places.folder / kind / name)
            saved[name] = places.folder / kind / name
        places.four.total(torch.zeros(1))  # then all is written
        steps = stepped(goes_on)
        for name, path in saved.items():
            for to, make in makers(places, kind).items():
                handle = make() if kind == "tiny" or (name, to) in SOME_MOVES else None
                if handle is None:
                    continue
                handle.load_state(path)
                version = handle.version
                told[f"{kind}: {name} to {to}"] = [version, apart(stepped(handle), steps)]
        places.four.total(torch.zeros(1))
    return told


def makers(places: Places, kind: str) -> dict[str, Callable[[], Any]]:
    """Return the layouts between which states are moved; a process has none of those that it is not of."""
    first = places.four.rank == 0
    two = places.two
    return {
        "one": lambda: local(kind) if first else None,
        "two": lambda: sharded(two, kind) if two else None,
        "four": lambda: sharded(places.four, kind, replicas=2),
    }


def tell_bits(places: Places) -> dict[str, Any]:
    """Return whether what is loaded in the same layout is the same to the last bit, and so is the next step."""
    told = dict[str, Any]()
    for name, make in makers(places, "tiny").items():
        handle, other = make(), make()
        if handle is None or other is None:
            continue
        stepped(handle, steps=2)
        handle.save_state(places.folder / "bits" / name)
        other.load_state(places.folder / "bits" / name)
        pairs = [(handle.weights(), other.weights())]
        pairs += [(mine, its) for mine, its in zip(kept(handle), kept(other), strict=True)]
        stepped(handle, steps=1)
        stepped(other, steps=1)
        pairs.append((handle.weights(), other.weights()))
        told[name] = [len(pairs), all(same(*pair) for pair in pairs)]
    return told


def kept(handle: Any) -> list[dict[str, torch.Tensor]]:
    """Return what an optimizer keeps of each tensor."""
    states: list[dict[str, torch.Tensor]] = handle._optimizers.states()["adamw"]
    return states


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Return whether two sets of tensors have the same names, types and bits."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def run(rank: int, folder: Path) -> dict[str, Any]:
    """Tell all that one rank tells."""
    four = join(rank, COUNT, folder / "meeting", limit_s=200)
    two = four.part(2)
    places = Places(four, two, folder)
    told: dict[str, Any] = {"layouts": tell_layouts(four)}
    if two:
        told |= {
            "settings": tell_settings(two),
            "refusals": tell_refusals(two),
            "sums": tell_sums(two),
            "fault": tell_rows_at_fault(two),
            "stream": tell_stream(two),
            "sleep": tell_sleep(two),
        }
    told |= {"states": tell_states(places), "bits": tell_bits(places)}
    four.leave()
    return told


if __name__ == "__main__":
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    place = Path(sys.argv[3])
    answer = run(int(sys.argv[1]), place)
    (place / f"{sys.argv[1]}.json").write_text(json.dumps(answer))
