"""The footprint of roles on this project's executors; all roles of a CPU device run in one process.

Freed blocks that the C library keeps are counted separately from those that return to the system: a process holds the
maximum that it ever had of the former, and the current amount of the latter. Passes have packed rows, or padded ones if
a model scores whole texts. Not here: several roles in one process (`pool_peaks`), and engines with separate processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flowgraph.cluster.plan import Layout
from placements.memory.activations import forward_numbers
from placements.memory.footprint import SHIPPED, Bytes, Footprint, MemoryConstants, Part, added, total_bytes, whole

if TYPE_CHECKING:
    from flowgraph.cluster.plan import RoleSettings
    from flowgraph.models import ModelShape
    from placements.workload.node_workload import NodeWorkload

Tensors = tuple[Part, float, float]
"""The part that tensors belong to, the bytes of one of them, and how many there are."""

LOGITS_BACKWARD, LOGITS_READ, LOGITS_SAMPLED = 5, 2, 5
"""How many copies of the logits exist at the peak of an update, of a pass without gradients, and of sampling.

An update has the logits, the gradient of the chosen token's, and three copies in the gradient of logsumexp; those of
entropy and temperature are freed by then. A pass without gradients has the logits and a copy that logsumexp makes;
entropy adds one. Sampling has the logits of two steps, the scaled ones, and two copies for noise. Derived from torch's
autograd, and equal to its profiler's allocations to 1% (torch 2.13).
"""
CHUNK_LOGITS = 2**24
"""Logits of a chunk of the head that exist at once: `flowgraph.engines.forward_pass.chunked_head`."""


@dataclass(frozen=True)
class ProcessFootprint(Footprint):
    """The bytes of a role in a process of this project; `phases` has the bytes added at each phase's peak, by part."""

    phases: Mapping[str, Bytes] = field(default_factory=dict[str, Bytes])

    def at(self, phase: str) -> Bytes:
        """Return the bytes on a device in a phase, by part; an unknown phase adds nothing to `resident`."""
        return added((self.resident, self.phases.get(phase, {})))


def process_footprint(
    shape: ModelShape,
    loads: Sequence[NodeWorkload],
    layout: Layout,
    running: RoleSettings,
    *,
    sample_rows: int,
    forward_tokens: int,
    trains: bool,
    context_bytes: float,
    constants: MemoryConstants = SHIPPED,
) -> ProcessFootprint:
    """Return the bytes of a role on each of its CPU devices, where a process of this project runs the model.

    `loads` are the role's nodes. The process takes `context_bytes` before any tensor. A rank decodes at most
    `sample_rows` rows at a time. A pass without gradients reads `forward_tokens` tokens at a time; an update reads the
    micro-batch of the plan (`running`), else that of its node, else all rows. A row is never split. If the role
    `trains`, it has optimizer states, unless all its updates use plain SGD.
    """
    model = _ProcessModel(shape, layout, running)
    rollout = dict[str, int]()
    moments = dict[str, list[_ProcessPeak]]()
    for load in loads:
        for sampler, tokens in load.responses:
            rollout[sampler] = max(rollout.get(sampler, 0), -(-tokens // layout.data))
        if load.rows:
            tensors = model.moments(load, sample_rows, forward_tokens)
            moments.setdefault(load.phase, []).extend(_ProcessPeak.of(moment, constants) for moment in tensors)
    # AdamW keeps two moments of each parameter, plain SGD nothing.
    # Source: Kingma and Ba 2015 (Adam), arXiv 1412.6980, algorithm 1.
    optimizers = [load.optimizer for load in loads if load.phase == "update"]
    has_moments = trains and (not optimizers or any(optimizer != "sgd" for optimizer in optimizers))
    resident = whole(
        {
            "context": context_bytes,
            "weights": shard_bytes(shape.parameters - shape.adapters, layout),
            "adapters": shard_bytes(shape.adapters, layout),
            "optimizer": 2 * shard_bytes(shape.trained, layout) * has_moments,
            "rollout": constants.rollout_token_bytes * sum(rollout.values()),
        }
    )
    largest = max((moment.kept_bytes for peaks in moments.values() for moment in peaks), default=0.0)
    kept_bytes = int(largest * (1 + constants.fragmented_share))
    phases = dict[str, Bytes]()
    for phase, peaks in moments.items():
        # A process has most when it has most that goes back to the system; beside that is the rest of a heap.
        worst = max(peaks, key=lambda peak: peak.returned_bytes)
        phases[phase] = whole({**worst.parts, "heap": max(0.0, kept_bytes - worst.kept_bytes)})
    working: Bytes = max(phases.values(), key=total_bytes, default={})
    return ProcessFootprint(resident, working, {}, resident, {}, kept_bytes, phases)


def shard_bytes(parameters: int, layout: Layout) -> int:
    """Return the bytes of the parameters that a device holds in float32: all of them, or its shard.

    Source: Rajbhandari et al. 2020 (ZeRO), arXiv 1910.02054, section 5.3.
    """
    return 4 * -(-parameters // layout.shards)


def gathered_bytes(shape: ModelShape, layout: Layout, *, backward: bool, number_bytes: int = 4) -> int:
    """Return the peak bytes of the weights that a sharded model gathers to compute with; 0 without sharding.

    Embedding and head (the root) stay gathered throughout a pass, and layers are gathered in turn. A forward pass has
    the root, a layer, its receive buffer, and the next buffer, of a layer or of the root, if that is larger. A
    `backward` pass has the root and a layer with the gradients of both, and the buffers of the next layer and of the
    gradients that are being reduced. `number_bytes` is the size of a gathered number.

    Derived from torch's FSDP2 with each layer sharded by itself and the rest as the root. Its own FSDPMemTracker counts
    the same for a forward pass, and up to a quarter less for a backward pass.
    """
    if layout.sharding == "none":
        return 0
    root = shape.hidden * (1 + shape.vocabulary * shape.tables)
    layer = -(-max(0, shape.parameters - root) // shape.layers)
    return number_bytes * (2 * root + 4 * layer if backward else root + 2 * layer + max(root, layer))


def kept_blocks(
    shape: ModelShape, rows: RowsPass, *, number_bytes: int = 4, inner: int | None = None
) -> Iterator[Tensors]:
    """Yield the tensors that one layer stores for its backward pass, as (part, bytes of a tensor, number of tensors).

    | number of tensors | numbers in each | tensors |
    |---|---|---|
    | 6 | tokens · h | the input, the normalised and the scaled input of both norms |
    | 3 | tokens · H · d | queries, attention's result, and the result in the order of rows |
    | 4 | tokens · f | of the MLP the gate, its activation, the other branch and their product |
    | 2 | context tokens · H · d | keys and values of the contexts, repeated for each head |
    | 2 | rows · row tokens · K · d | keys and values that the rows attend to |
    | 1 | response tokens · row tokens · H / K | the masks of rows |

    h is the hidden width, H the number of heads, K that of KV heads, d the width of a head, and f the inner width of
    the MLP (`inner`, by default that of `shape`). A number takes `number_bytes` bytes. Derived from the autograd graph
    of transformers' Llama with our packed attention, and equal to what torch's profiler counts within 2% on three
    sizes. As in Korthikanti et al. 2022, arXiv 2205.05198, section 4.1, here for a gated MLP, RMSNorm and no dropout.
    """
    heads, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    f, tokens = shape.intermediate if inner is None else inner, rows.tokens
    groups = shape.heads // max(1, shape.kv_heads)
    yield "activations", number_bytes * tokens * shape.hidden, 6
    yield "activations", number_bytes * tokens * heads, 3
    yield "activations", number_bytes * tokens * f, 4
    yield "activations", number_bytes * rows.context_tokens * heads, 2
    yield "activations", number_bytes * rows.rows * rows.width * keys, 2
    yield "activations", number_bytes * groups * rows.read_out * rows.width, 1


@dataclass(frozen=True)
class _ProcessPeak:
    parts: Mapping[Part, float]
    kept_bytes: float

    @classmethod
    def of(cls, tensors: Sequence[Tensors], constants: MemoryConstants) -> _ProcessPeak:
        parts, kept_bytes = dict[Part, float](), 0.0
        for part, size, count in tensors:
            parts[part] = parts.get(part, 0.0) + size * count
            kept_bytes += size * count * (size <= constants.kept_block_bytes)
        return cls(parts, kept_bytes)

    @property
    def returned_bytes(self) -> float:
        return sum(self.parts.values()) - self.kept_bytes


@dataclass(frozen=True)
class _ProcessModel:
    shape: ModelShape
    layout: Layout
    running: RoleSettings

    @property
    def number_bytes(self) -> int:
        return 2 if self.running.precision == "bfloat16" else 4

    @property
    def inner(self) -> int:
        shape = self.shape
        sparse = shape.experts_per_token * shape.expert_intermediate + shape.shared_intermediate
        return max(shape.intermediate if not shape.experts or shape.dense_layers else 0, sparse)

    @property
    def table_bytes(self) -> float:
        return float(self.number_bytes * self.shape.vocabulary * self.shape.hidden)

    def moments(self, load: NodeWorkload, sample_rows: int, forward_tokens: int) -> Iterator[list[Tensors]]:
        ranks, largest_pass = self.layout.data, padded_pass if self.shape.head == "score" else packed_pass
        if load.phase == "generate":
            yield from self._generating(sampled_pass(load, ranks, sample_rows))
        elif load.phase == "update":
            every_token = int(load.rows * load.longest_tokens)
            budget = self.running.micro_batch_tokens or load.micro_batch_tokens or every_token
            rows = largest_pass(load, ranks, budget)
            accumulates = rows.rows < largest_pass(load, ranks, every_token).rows
            yield from self._updating(rows, load, accumulates=accumulates)
        else:
            yield from self._reading(largest_pass(load, ranks, forward_tokens), entropy="entropy" in load.stats)

    def _waiting(self, rows: RowsPass) -> list[Tensors]:
        """Return what waits for the backward pass: of all layers, or their inputs and the layer in progress."""
        layer = list(kept_blocks(self.shape, rows, number_bytes=self.number_bytes, inner=self.inner))
        layers, hidden = self.shape.layers, self.number_bytes * rows.tokens * self.shape.hidden
        last: list[Tensors] = [("activations", hidden, 3)]
        if self.running.checkpointing == "full":
            return [*layer, *last, ("activations", hidden, layers)]
        return [*((part, size, count * layers) for part, size, count in layer), *last]

    def _updating(self, rows: RowsPass, load: NodeWorkload, *, accumulates: bool) -> Iterator[list[Tensors]]:
        """Yield what comes and goes at the loss, in the first layer's backward pass, at its end, and in the step.

        Gradients are there from the start where earlier micro-batches have left theirs. AdamW's step makes two numbers
        for each of the largest tensor: on a CPU torch goes through tensors one by one.
        """
        shape, number_bytes, shards = self.shape, self.number_bytes, self.layout.shards
        table = shape.vocabulary * shape.hidden
        if shape.adapters:
            gradients: list[Tensors] = [("gradients", 4.0 * shape.hidden, shape.trained / shape.hidden / shards)]
        else:
            matrix = shape.hidden * max(1, self.inner)
            matrices = max(0, shape.parameters - shape.tables * table) / matrix
            gradients = [
                ("gradients", 4.0 * table / shards, shape.tables),
                ("gradients", 4.0 * matrix / shards, matrices),
            ]
        waiting, gathered = self._waiting(rows), self._gathered(backward=True)
        earlier = gradients if accumulates else []
        head: list[Tensors] = []
        if shape.outputs > 1:
            logits = rows.read_out * shape.outputs
            head = [("gradients", self.table_bytes, 1)] if not shape.adapters else []
            chunk: Tensors = ("logits", number_bytes * min(logits, CHUNK_LOGITS), LOGITS_BACKWARD)
            yield [*waiting, chunk, *(head if logits > CHUNK_LOGITS else []), *earlier, *gathered]
        layer: list[Tensors] = [
            ("activations", number_bytes * rows.tokens * shape.hidden, 1),
            ("activations", number_bytes * rows.tokens * self.inner, 2),
        ]
        yield [*waiting, *layer, *(earlier or head), *gathered]
        yield [*gradients, *gathered]
        largest = 0.0 if shape.adapters else 4 * max(1.0, table / shards)
        yield [*gradients, ("working", largest, 2 if load.optimizer != "sgd" else 1)]

    def _gathered(self, *, backward: bool) -> list[Tensors]:
        size = gathered_bytes(self.shape, self.layout, backward=backward, number_bytes=self.number_bytes)
        return [("gathered", self.table_bytes, size / self.table_bytes)] if size else []

    def _reading(self, rows: RowsPass, *, entropy: bool) -> Iterator[list[Tensors]]:
        shape, number_bytes = self.shape, self.number_bytes
        gathered = self._gathered(backward=False)
        yield [*self._layer(rows), *gathered]
        if shape.outputs > 1:
            chunk = number_bytes * min(rows.read_out * shape.outputs, CHUNK_LOGITS)
            hidden: Tensors = ("activations", number_bytes * rows.tokens * shape.hidden, 2)
            yield [("logits", chunk, LOGITS_READ + entropy), hidden, *gathered]

    def _layer(self, rows: RowsPass) -> Iterator[Tensors]:
        number_bytes, shape = self.number_bytes, self.shape
        numbers, widest = forward_numbers(shape, Layout()), max(shape.hidden, self.inner)
        groups = shape.heads // max(1, shape.kv_heads)
        yield "activations", number_bytes * rows.tokens * widest, numbers / widest
        yield "activations", number_bytes * rows.rows * rows.width * shape.kv_heads * shape.head_dim, 2
        yield "activations", number_bytes * groups * rows.read_out * rows.width, 2

    def _generating(self, rows: RowsPass) -> Iterator[list[Tensors]]:
        """Yield what reading the distinct contexts has, and then decoding at full length, on plain whole weights.

        The cache of a layer grows by copying keys, then values. Where heads share these and contexts differ in length
        they are repeated for each head. The cache of contexts is there until each row has a copy of its own.
        """
        shape, number_bytes, tensors = self.shape, self.number_bytes, 2 * self.shape.layers
        contexts = RowsPass(rows.contexts, rows.contexts, rows.prompt_tokens, 0)
        full = shape.cache_numbers(max(1, rows.width)) / tensors
        read = shape.cache_numbers(max(1, rows.prompt_tokens)) / tensors
        context: Tensors = ("kv_cache", number_bytes * contexts.rows * read, tensors)
        yield [context, *self._layer(contexts), ("logits", 4 * shape.outputs * contexts.rows, 2)]
        yield [context, ("kv_cache", number_bytes * rows.rows * read, tensors)]
        keys: Tensors = ("kv_cache", number_bytes * rows.rows * full, tensors)
        copied: Tensors = ("working", number_bytes * rows.rows * full, 1)
        if shape.heads > shape.kv_heads:
            copied = ("working", number_bytes * rows.rows * rows.width * shape.heads * shape.head_dim, 2)
        yield [keys, copied, ("logits", 4 * shape.outputs * rows.rows, LOGITS_SAMPLED)]


# ----------------------------------------------------------------- the rows that go through a model at once


@dataclass(frozen=True)
class RowsPass:
    """Rows that pass through a device together, all of maximum length; `contexts` distinct contexts are read once."""

    rows: int
    contexts: int
    prompt_tokens: int
    response_tokens: int

    @property
    def width(self) -> int:
        """Return the number of tokens of one row, context included."""
        return self.prompt_tokens + self.response_tokens

    @property
    def read_out(self) -> int:
        """Return the number of tokens of all responses; each of these tokens has logits."""
        return self.rows * self.response_tokens

    @property
    def context_tokens(self) -> int:
        """Return the number of tokens of the distinct contexts together."""
        return self.contexts * self.prompt_tokens

    @property
    def tokens(self) -> int:
        """Return the number of tokens that pass through the model: each distinct context once, and all responses."""
        return self.context_tokens + self.read_out


def sampled_pass(load: NodeWorkload, ranks: int, sample_rows: int) -> RowsPass:
    """Return the rows that one of `ranks` data ranks decodes at a time: its rows of a round, at most `sample_rows`.

    A node generates its rows in one or more rounds, one after another; of several rounds, the largest one counts.
    """
    rows = min(-(-load.round_prompts // ranks) * load.samples, sample_rows)
    return RowsPass(rows, -(-rows // load.samples), int(load.prompt.most), int(load.response.most))


def packed_pass(load: NodeWorkload, ranks: int, budget_tokens: int) -> RowsPass:
    """Return the largest pass of packed rows that one of `ranks` data ranks makes within a token budget.

    Rows that share a context count it once. Rows have their maximum length. A row is never cut, so a pass has at least
    one row even if that exceeds the budget.

    >>> from flowgraph.analysis.roles import Role
    >>> from placements.workload.lengths import LengthDistribution
    >>> from placements.workload.node_workload import NodeWorkload
    >>> role = Role("m.train", "m", "train", ("m.update",))
    >>> six, four = LengthDistribution.fixed(6), LengthDistribution.fixed(4)
    >>> packed_pass(NodeWorkload("m.update", role, "update", 0, 4, 4, six, four), ranks=2, budget_tokens=36)
    RowsPass(rows=6, contexts=2, prompt_tokens=6, response_tokens=4)
    """
    prompt, response = int(load.prompt.most), int(load.response.most)
    groups = _prompts(load, ranks)
    whole_groups, left = divmod(budget_tokens, prompt + load.samples * response)
    if whole_groups >= groups:
        return RowsPass(groups * load.samples, groups, prompt, response)
    part = min(load.samples, max(0, left - prompt) // response) if response else 0
    rows = max(1, whole_groups * load.samples + part)
    return RowsPass(rows, -(-rows // load.samples), prompt, response)


def padded_pass(load: NodeWorkload, ranks: int, budget_tokens: int) -> RowsPass:
    """Return the largest pass of padded rows of one of `ranks` data ranks in a token budget, at least one row.

    Every row is padded to the longest one and has its own copy of its context.
    """
    prompt, response = int(load.prompt.most), int(load.response.most)
    rows = min(_prompts(load, ranks) * load.samples, max(1, budget_tokens // max(1, prompt + response)))
    return RowsPass(rows, rows, prompt, response)


def _prompts(load: NodeWorkload, ranks: int) -> int:
    share = -(-load.prompts // ranks)
    return min(load.minibatch or share, share)
