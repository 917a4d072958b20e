"""How the prompts of a step are sampled, shared out and cut, as data and as text. Checks are in `batch_sizes`."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

from flowgraph.diagrams.model.quantities import many as many

DATA = "data"
"""The setting of roles for the number of their data ranks."""


@dataclass(frozen=True)
class AdjustableSize:
    """One number that can be changed: `--batch` (no owner), a node's setting, or the data ranks of roles.

    `origin` is the place where the number was set, as text; "" if it is not known.
    """

    owner: str
    setting: str
    value: int
    origin: str = ""

    def __str__(self) -> str:
        if not self.owner:
            return f"--{self.setting} {self.value}"
        value = f"{self.setting}={self.value}"
        return f"{value} of {self.owner}" if self.setting == DATA else f"{self.owner}.{value}"


@dataclass(frozen=True)
class SizeConflict:
    """Sizes that contradict each other: the consequence, the reason, the sizes, and the nearest values that work."""

    what: str
    why: str
    sizes: tuple[AdjustableSize, ...]
    nearest: tuple[AdjustableSize, ...]


@dataclass(frozen=True)
class SamplerBatch:
    """The output of a sampler: `n` responses to each of `prompts` prompts, of at most `tokens` tokens each.

    `tokens` is None if not known. A sampler that drops groups keeps at most `groups` of them, and samples in up to
    `rounds` rounds (0: a single one).
    """

    node: str
    prompts: int
    n: int
    tokens: int | None
    groups: AdjustableSize | None
    rounds: int

    @property
    def rows(self) -> int:
        """Return the number of responses in a step, over all rounds."""
        return self.prompts * self.n

    @property
    def max_rounds(self) -> int:
        """Return the maximum number of rounds; each samples at least one prompt. It is 1 without `groups`."""
        return 1 if self.groups is None else max(1, min(self.rounds, self.prompts))

    def prompts_in(self, rounds: int) -> int:
        """Return the number of prompts in the first `rounds` rounds; if rounds are uneven, the first have one more."""
        share, over = divmod(self.prompts, self.max_rounds)
        return rounds * share + min(rounds, over)

    @property
    def min_rounds(self) -> int:
        """Return the minimum number of rounds: the fewest with at least as many prompts as there are groups to keep.

        Without `groups` it is 1.
        """
        groups = self.prompts if self.groups is None else self.groups.value
        counts = range(1, self.max_rounds)
        return next((rounds for rounds in counts if self.prompts_in(rounds) >= groups), self.max_rounds)


@dataclass(frozen=True)
class RankShare:
    """The even division of `prompts` among `ranks` data ranks, to within one; a prompt's rows stay on one rank."""

    roles: tuple[str, ...]
    ranks: int
    prompts: AdjustableSize


@dataclass(frozen=True)
class UpdatePartition:
    """How an update cuts `prompts`, of `n` rows each, into minibatches, and the rows of a rank into micro-batches.

    A `minibatch` of 0 takes all prompts at once. `row_tokens` is the length of the longest row, None if not known;
    `budget_tokens` is the maximum of a micro-batch, None if the node has no such setting.
    """

    node: str
    role: str
    ranks: int
    prompts: AdjustableSize
    epochs: int
    minibatch: AdjustableSize
    n: int
    row_tokens: int | None
    budget_tokens: int | None

    @property
    def minibatches(self) -> int:
        """Return the number of minibatches of an epoch: the fewest that hold all prompts."""
        prompts = self.prompts.value
        return max(1, -(-prompts // max(1, min(self.minibatch.value or prompts, prompts))))

    @property
    def optimizer_steps(self) -> int:
        """Return the number of optimizer steps of one update."""
        return self.epochs * self.minibatches

    @property
    def largest(self) -> int:
        """Return the number of prompts in the largest minibatch; minibatches differ by at most one prompt."""
        return -(-self.prompts.value // self.minibatches)

    @property
    def smallest(self) -> int:
        """Return the number of prompts in the smallest minibatch."""
        return self.prompts.value // self.minibatches

    @property
    def rank_rows(self) -> int:
        """Return the maximum number of rows of one minibatch that a rank can have.

        A rank's prompts may all fall into one minibatch, so these are the rows of all prompts of the rank with the
        most, or of the largest minibatch if that has fewer.
        """
        return self.n * min(self.largest, -(-self.prompts.value // self.ranks))

    @property
    def micro_batches(self) -> int | None:
        """Return the maximum number of micro-batches of a minibatch, the same on each rank; None if not known."""
        if self.row_tokens is None or self.budget_tokens is None:
            return None
        return -(-self.rank_rows // max(1, self.budget_tokens // self.row_tokens))

    @property
    def idle_share(self) -> float:
        """Return the expected share (0 to 1) of minibatches in which the rank with the fewest prompts has no row."""
        prompts, rank = self.prompts.value, self.prompts.value // self.ranks
        return comb(prompts - rank, self.smallest) / comb(prompts, self.smallest)


@dataclass(frozen=True)
class BatchSizes:
    """The batch sizes of a step. `notes` are about sizes that are valid but may not be intended."""

    batch: AdjustableSize
    data_rows: int | None
    prompt_tokens: int | None
    samplers: tuple[SamplerBatch, ...]
    shares: tuple[RankShare, ...]
    updates: tuple[UpdatePartition, ...]
    notes: tuple[str, ...] = ()


def batch_text(sizes: BatchSizes) -> str:
    """Return batch sizes as lines of text: samplers, prompts of each rank, minibatches of each update, and notes.

    Without samplers, the first line has the number of prompts of a step. A single rank has no line.
    """
    lines = [] if sizes.samplers else [f"{many(sizes.batch.value, 'prompt')} a step"]
    for sampler in sizes.samplers:
        line = f"{sampler.node}: {many(sampler.prompts, 'prompt')} × {sampler.n} = {many(sampler.rows, 'row')}"
        if sampler.max_rounds > 1:
            line += f" in at most {sampler.max_rounds} rounds"
        if sampler.tokens is not None and sizes.prompt_tokens is not None:
            tokens = sampler.prompts * sizes.prompt_tokens + sampler.rows * sampler.tokens
            line += f", of at most {sizes.prompt_tokens:,} + {sampler.tokens:,} tokens, {tokens:,} in all"
        lines.append(line)
    for share in sizes.shares:
        if share.ranks > 1:
            prompts = span(share.prompts.value, share.ranks)
            lines.append(f"{share.ranks} ranks of {', '.join(share.roles)}: {prompts} each")
    for update in sizes.updates:
        epochs = f"{many(update.epochs, 'epoch')} of {many(update.minibatches, 'minibatch', 'minibatches')}"
        prompts = span(update.prompts.value, update.minibatches)
        line = f"{update.node}: {epochs} of {prompts}, {many(update.optimizer_steps, 'optimizer step')}"
        if update.micro_batches is not None:
            line += f", each of at most {many(update.micro_batches, 'micro-batch', 'micro-batches')}"
            line += " on a rank" if update.ranks > 1 else ""
        lines.append(line)
    return "\n".join([*lines, *(f"note: {note}" for note in sizes.notes)])


def span(prompts: int, parts: int) -> str:
    """Return how many prompts each of `parts` even parts has, as text: one number or a range.

    >>> span(5, 2), span(2, 2)
    ('2 to 3 prompts', '1 prompt')
    """
    smallest, over = divmod(prompts, parts)
    return f"{smallest:,} to {many(smallest + 1, 'prompt')}" if over else many(smallest, "prompt")
