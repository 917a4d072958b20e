"""The footprint of roles that our own executors run, all those of a CPU device in one process.

What lies in blocks of the C library that it keeps when they are freed is told apart from what goes back to the system:
at any time a process has the most that it ever had of the one, and what is there now of the other. Counted for packed
rows, and for padded ones where a model scores whole texts. Not here: how many rows go through at once
(`largest_pass`), several roles in one process (`pool_peaks`), and engines with processes of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from placements.activations import forward_numbers
from placements.footprint import Bytes, Footprint, MemoryConstants, Part, added, total_bytes, whole
from placements.largest_pass import Pass, packed_pass, padded_pass, sampled_pass

if TYPE_CHECKING:
    from flowgraph.cluster.plan import Layout, RoleSettings
    from flowgraph.models import ModelShape
    from placements.loads import Load

Block = tuple[Part, float, float]
"""What a tensor is for, its bytes, and how many of them there are."""

LOGITS_BACKWARD, LOGITS_READ, LOGITS_DRAWN = 5, 2, 5
"""Copies of the logits at their most.

Backward: themselves, the gradient of the token read out, and three in that of logsumexp; entropy and a temperature have
gone by then. Read: themselves and what logsumexp makes; entropy adds one. Drawn: of two steps, scaled, and two of
noise. Derived from torch's autograd, and equal to its profiler's allocations to 1% (torch 2.13).
"""
CHUNK_LOGITS = 2**24
"""Of a chunk of the head that is there at once: `flowgraph.engines.forward_pass.chunked_head`."""


@dataclass(frozen=True)
class Moment:
    """What a role has beside what it always holds: bytes by part, and how much of it the C library keeps when freed."""

    parts: Mapping[Part, float]
    kept_bytes: float

    @classmethod
    def of(cls, blocks: Iterable[Block], constants: MemoryConstants) -> Moment:
        """Return the sum of blocks."""
        parts, kept = dict[Part, float](), 0.0
        for part, size, count in blocks:
            parts[part] = parts.get(part, 0.0) + size * count
            kept += size * count * (size <= constants.kept_block_bytes)
        return cls(parts, kept)

    @property
    def returned_bytes(self) -> float:
        """Return what goes back to the system when it is freed."""
        return sum(self.parts.values()) - self.kept_bytes


@dataclass(frozen=True)
class Hosted(Footprint):
    """What a role in a process of ours holds; `phases` has by part what comes on top at the worst moment of each."""

    phases: Mapping[str, Bytes] = field(default_factory=dict[str, Bytes])

    def at(self, phase: str) -> Bytes:
        """Return what it holds in a phase, by part."""
        return added((self.resident, self.phases.get(phase, {})))


@dataclass(frozen=True)
class _Case:
    """A model in a layout, the bytes of a number, and the constants of its process."""

    shape: ModelShape
    layout: Layout
    running: RoleSettings
    constants: MemoryConstants

    @property
    def each_bytes(self) -> int:
        """Return the bytes of a number that is computed with."""
        return 2 if self.running.precision == "bfloat16" else 4

    @property
    def inner(self) -> int:
        """Return the inner width that a token passes in a layer's MLP, experts included."""
        shape = self.shape
        sparse = shape.experts_per_token * shape.expert_intermediate + shape.shared_intermediate
        return max(shape.intermediate if not shape.experts or shape.dense_layers else 0, sparse)

    @property
    def table_bytes(self) -> float:
        """Return the bytes of one matrix [vocabulary, hidden]."""
        return float(self.each_bytes * self.shape.vocabulary * self.shape.hidden)


def process_footprint(
    shape: ModelShape,
    loads: Sequence[Load],
    layout: Layout,
    running: RoleSettings,
    *,
    sample_rows: int,
    forward_tokens: int,
    trains: bool,
    context_bytes: float,
    constants: MemoryConstants | None = None,
) -> Hosted:
    """Return what a role holds on each of its CPU devices: of its own, and of a process with so many bytes besides.

    A pass without gradients reads `forward_tokens`, an update what the plan says or else the node; a row is never cut.
    """
    constants = constants or MemoryConstants()
    case = _Case(shape, layout, running, constants)
    resident = whole(_resident(case, loads, trains=trains, context_bytes=context_bytes))
    moments = dict[str, list[Moment]]()
    for load in loads:
        if load.rows:
            found = _blocks(case, load, sample_rows, forward_tokens)
            moments.setdefault(load.phase, []).extend(Moment.of(blocks, constants) for blocks in found)
    most = max((moment.kept_bytes for each in moments.values() for moment in each), default=0.0)
    kept = int(most * (1 + constants.fragmented_share))
    phases = {phase: _at_worst(found, kept) for phase, found in moments.items()}
    working: Bytes = max(phases.values(), key=total_bytes, default={})
    return Hosted(resident, working, {}, resident, {}, kept, phases)


def _at_worst(moments: Sequence[Moment], kept: int) -> Bytes:
    """Return the moment at which a process has most: that with most that goes back, and the rest of a heap."""
    worst = max(moments, key=lambda each: each.returned_bytes)
    return whole({**worst.parts, "heap": max(0.0, kept - worst.kept_bytes)})


def _resident(case: _Case, loads: Sequence[Load], *, trains: bool, context_bytes: float) -> dict[Part, float]:
    """Return what is there throughout: weights, what the optimizer keeps, and the responses of a step.

    AdamW keeps two moments of each parameter, plain SGD nothing.
    Source: Kingma and Ba 2015 (Adam), arXiv 1412.6980, algorithm 1.
    """
    shape, layout = case.shape, case.layout
    updates = [load for load in loads if load.phase == "update"]
    moments = any(load.optimizer != "sgd" for load in updates) if updates else trains
    most = dict[str, int]()
    for load in loads:
        for sampler, tokens in load.responses:
            most[sampler] = max(most.get(sampler, 0), -(-tokens // layout.data))
    return {
        "context": context_bytes,
        "weights": shard_bytes(shape.parameters - shape.adapters, layout),
        "adapters": shard_bytes(shape.adapters, layout),
        "optimizer": 2 * shard_bytes(shape.trained, layout) * (moments and trains),
        "rollout": case.constants.rollout_token_bytes * sum(most.values()),
    }


def shard_bytes(parameters: int, layout: Layout) -> int:
    """Return the bytes of one float32 for each of so many parameters that a device holds: all, or a shard of them.

    Source: Rajbhandari et al. 2020 (ZeRO), arXiv 1910.02054, section 5.3.
    """
    return 4 * -(-parameters // layout.shards)


def gathered_bytes(shape: ModelShape, layout: Layout, *, backward: bool, each_bytes: int = 4) -> int:
    """Return the most of a sharded model that is whole at once: embeddings and head throughout, and layers in turn.

    Forward: a layer, the buffer that it came in and that of the next one, or that of the root if larger. Backward: of
    all that is whole the gradients too, and of a layer the buffers of the next one and of gradients that leave.
    Derived from torch's FSDP2 with each layer sharded by itself and the rest as the root; its own FSDPMemTracker counts
    the same forward, and up to a quarter less in all backward.
    """
    if layout.sharding == "none":
        return 0
    root = shape.hidden * (1 + shape.vocabulary * shape.tables)
    layer = -(-max(0, shape.parameters - root) // shape.layers)
    return each_bytes * (2 * root + 4 * layer if backward else root + 2 * layer + max(root, layer))


def _blocks(case: _Case, load: Load, sample_rows: int, forward_tokens: int) -> Iterator[list[Block]]:
    ranks, padded = case.layout.data, case.shape.head == "score"
    if load.phase == "generate":
        yield from _generating(case, sampled_pass(load, ranks, sample_rows))
        return
    budget = forward_tokens
    if load.phase == "update":
        budget = case.running.micro_batch_tokens or load.micro_batch_tokens or int(load.rows * load.longest_tokens)
    once = (padded_pass if padded else packed_pass)(load, ranks, budget)
    if load.phase == "update":
        every = (padded_pass if padded else packed_pass)(load, ranks, int(load.rows * load.longest_tokens))
        yield from _updating(case, once, load, accumulates=once.rows < every.rows)
    else:
        yield from _reading(case, once, entropy="entropy" in load.stats)


def kept_blocks(shape: ModelShape, once: Pass, *, each_bytes: int = 4, inner: int | None = None) -> Iterator[Block]:
    """List what one layer keeps of a pass for its backward pass.

    With h the hidden width, of each token read: of both norms the input, the normalised and the scaled (6 h); queries,
    attention's result, and the same in the order of rows (3 H·d); of the MLP the gate, its activation, the other branch
    and their product (4 f). Of each token attended to, key and value, of contexts repeated for each head; and the mask
    of each row, which rows of unequal lengths have.
    Derived from the autograd graph of transformers' Llama with our packed attention; equal to what torch's profiler
    counts within 2% on three sizes. As in Korthikanti et al. 2022, arXiv 2205.05198, section 4.1, here for a gated MLP,
    RMSNorm and no dropout.
    """
    heads, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    f, tokens = shape.intermediate if inner is None else inner, once.tokens
    groups = shape.heads // max(1, shape.kv_heads)
    yield "activations", each_bytes * tokens * shape.hidden, 6
    yield "activations", each_bytes * tokens * heads, 3
    yield "activations", each_bytes * tokens * f, 4
    yield "activations", each_bytes * once.context_tokens * heads, 2
    yield "activations", each_bytes * once.rows * once.width * keys, 2
    yield "activations", each_bytes * groups * once.rows * once.response_tokens * once.width, 1


def _waiting(case: _Case, once: Pass) -> list[Block]:
    """List what waits for the backward pass: of all layers, or their inputs and one of them where it is made again."""
    layer = list(kept_blocks(case.shape, once, each_bytes=case.each_bytes, inner=case.inner))
    layers, hidden = case.shape.layers, case.each_bytes * once.tokens * case.shape.hidden
    last: list[Block] = [("activations", hidden, 3)]
    if case.running.checkpointing == "full":
        return [*layer, *last, ("activations", hidden, layers)]
    return [*((part, size, count * layers) for part, size, count in layer), *last]


def _updating(case: _Case, once: Pass, load: Load, *, accumulates: bool) -> Iterator[list[Block]]:
    """List what comes and goes when a backward pass begins, in its first layer, at its end, and in an optimizer's step.

    Gradients are there from the start where micro-batches before have left theirs. AdamW's step makes two numbers for
    each of the largest tensor: on a CPU torch goes through tensors one by one.
    """
    shape, each = case.shape, case.each_bytes
    waiting, gradients = _waiting(case, once), list(_gradients(case))
    gathered = _gathered(case, backward=True)
    before = gradients if accumulates else []
    entries = once.read_out * shape.outputs
    head: list[Block] = []
    if shape.outputs > 1:
        head = [("gradients", case.table_bytes, 1)] if not shape.adapters else []
        chunk = each * min(entries, CHUNK_LOGITS)
        between = head if entries > CHUNK_LOGITS else []
        yield [*waiting, ("logits", chunk, LOGITS_BACKWARD), *between, *before, *gathered]
    back = each * once.tokens
    yield [
        *waiting,
        ("activations", back * shape.hidden, 1),
        ("activations", back * case.inner, 2),
        *(before or head),
        *gathered,
    ]
    yield [*gradients, *gathered]
    largest = 4 * max(1.0, shape.vocabulary * shape.hidden / case.layout.shards)
    stepping = 0.0 if shape.adapters else largest
    yield [*gradients, ("working", stepping, 2 if load.optimizer != "sgd" else 1)]


def _gradients(case: _Case) -> Iterator[Block]:
    """List the gradients that a device keeps: of tables, which are large, and of the rest."""
    shape, shards = case.shape, case.layout.shards
    if shape.adapters:
        yield "gradients", 4.0 * shape.hidden, shape.trained / shape.hidden / shards
        return
    table = shape.vocabulary * shape.hidden
    yield "gradients", 4.0 * table / shards, shape.tables
    matrix = shape.hidden * max(1, case.inner)
    yield "gradients", 4.0 * matrix / shards, max(0, shape.parameters - shape.tables * table) / matrix


def _gathered(case: _Case, *, backward: bool) -> list[Block]:
    """List what is whole of a sharded model, as blocks of its tables."""
    size = gathered_bytes(case.shape, case.layout, backward=backward, each_bytes=case.each_bytes)
    return [("gathered", case.table_bytes, size / case.table_bytes)] if size else []


def _reading(case: _Case, once: Pass, *, entropy: bool) -> Iterator[list[Block]]:
    """List what a pass without gradients has in a layer, and when it reads the logits."""
    shape, each = case.shape, case.each_bytes
    gathered = _gathered(case, backward=False)
    yield [*_layer(case, once), *gathered]
    if shape.outputs > 1:
        chunk = each * min(once.read_out * shape.outputs, CHUNK_LOGITS)
        hidden: Block = ("activations", each * once.tokens * shape.hidden, 2)
        yield [("logits", chunk, LOGITS_READ + entropy), hidden, *gathered]


def _layer(case: _Case, once: Pass) -> Iterator[Block]:
    """List what one layer has while tokens pass it without gradients: keys, masks, and numbers of each token."""
    from flowgraph.cluster.plan import Layout

    each, shape = case.each_bytes, case.shape
    numbers, widest = forward_numbers(shape, Layout()), max(shape.hidden, case.inner)
    yield "activations", each * once.tokens * widest, numbers / widest
    yield "activations", each * once.rows * once.width * shape.kv_heads * shape.head_dim, 2
    groups = shape.heads // max(1, shape.kv_heads)
    yield "activations", each * groups * once.rows * once.response_tokens * once.width, 2


def _generating(case: _Case, once: Pass) -> Iterator[list[Block]]:
    """List what reading the distinct contexts has, and then decoding at full length, on plain whole weights.

    The cache of a layer grows by copying keys, then values. Where heads share these and contexts differ in length they
    are repeated for each head. The cache of contexts is there until each row has a copy of its own.
    """
    shape, each = case.shape, case.each_bytes
    contexts = Pass(once.contexts, once.contexts, once.prompt_tokens, 0)
    numbers = shape.cache_numbers(max(1, once.width)) / (2 * shape.layers)
    read = shape.cache_numbers(max(1, once.prompt_tokens)) / (2 * shape.layers)
    own: Block = ("kv_cache", each * contexts.rows * read, 2 * shape.layers)
    yield [own, *_layer(case, contexts), ("logits", 4 * shape.outputs * contexts.rows, 2)]
    yield [own, ("kv_cache", each * once.rows * read, 2 * shape.layers)]
    keys: Block = ("kv_cache", each * once.rows * numbers, 2 * shape.layers)
    copied: Block = ("working", each * once.rows * numbers, 1)
    if shape.heads > shape.kv_heads:
        copied = ("working", each * once.rows * once.width * shape.heads * shape.head_dim, 2)
    yield [keys, copied, ("logits", 4 * shape.outputs * once.rows, LOGITS_DRAWN)]
