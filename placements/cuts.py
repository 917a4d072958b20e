"""How a step's prompts are drawn to, shared out and cut, as data and as text. What of it is refused: `batch_sizes`."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

from flowgraph.diagrams.model.quantities import many as many

DATA = "data"
"""The setting of roles that says how many data ranks they have."""


@dataclass(frozen=True)
class Size:
    """One number that can be changed: `--batch` (no owner), a node's setting, or the data ranks of roles."""

    owner: str
    setting: str
    value: int
    origin: str = ""

    def __str__(self) -> str:
        if not self.owner:
            return f"--{self.setting} {self.value}"
        said = f"{self.setting}={self.value}"
        return f"{said} of {self.owner}" if self.setting == DATA else f"{self.owner}.{said}"


@dataclass(frozen=True)
class Fault:
    """Sizes that disagree: what comes of it, why, which they are, and the nearest values of each that go."""

    what: str
    why: str
    sizes: tuple[Size, ...]
    nearest: tuple[Size, ...]


@dataclass(frozen=True)
class Drawn:
    """What a sampler draws: `n` responses to each of `prompts`, of at most `tokens` each, None if that is not known.

    One that drops groups keeps at most `kept`, and draws in `rounds`, 0 if it has none.
    """

    node: str
    prompts: int
    n: int
    tokens: int | None
    kept: Size | None
    rounds: int

    @property
    def rows(self) -> int:
        """Return the responses that are drawn."""
        return self.prompts * self.n

    @property
    def most_rounds(self) -> int:
        """Return the most rounds that it draws in, one after another, where it keeps groups: each draws to a prompt."""
        return 1 if self.kept is None else max(1, min(self.rounds, self.prompts))

    def tried(self, rounds: int) -> int:
        """Return the prompts of so many rounds: all are shared as evenly as they divide, the first have one more."""
        each, over = divmod(self.prompts, self.most_rounds)
        return rounds * each + min(rounds, over)

    @property
    def least_rounds(self) -> int:
        """Return the fewest rounds that it can end after: those that have as many prompts as it keeps groups.

        >>> drawn = Drawn("policy.refill", 10, 4, None, Size("policy.refill", "groups", 5), 3)
        >>> drawn.most_rounds, [drawn.tried(rounds) for rounds in (1, 2, 3)], drawn.least_rounds
        (3, [4, 7, 10], 2)
        """
        wanted = self.prompts if self.kept is None else self.kept.value
        counts = range(1, self.most_rounds)
        return next((rounds for rounds in counts if self.tried(rounds) >= wanted), self.most_rounds)


@dataclass(frozen=True)
class Share:
    """How many of `prompts` each of `ranks` data ranks has: even to within one, and all rows of a prompt on one."""

    roles: tuple[str, ...]
    ranks: int
    prompts: Size

    @property
    def most(self) -> int:
        """Return the prompts of the rank with the most."""
        return -(-self.prompts.value // self.ranks)

    @property
    def least(self) -> int:
        """Return the prompts of the rank with the fewest."""
        return self.prompts.value // self.ranks


@dataclass(frozen=True)
class Cut:
    """How an update cuts `prompts`: into minibatches, and a rank's rows of one into micro-batches, at most.

    `minibatch` 0 takes all at once. `row_tokens` is the longest row, None if not known; `budget_tokens` bounds a
    micro-batch, None if the node has no such setting.
    """

    node: str
    role: str
    ranks: int
    prompts: Size
    epochs: int
    minibatch: Size
    n: int
    row_tokens: int | None
    budget_tokens: int | None

    @property
    def minibatches(self) -> int:
        """Return the minibatches of an epoch: as few as hold all prompts."""
        prompts = self.prompts.value
        return max(1, -(-prompts // max(1, min(self.minibatch.value or prompts, prompts))))

    @property
    def optimizer_steps(self) -> int:
        """Return the optimizer steps of one update."""
        return self.epochs * self.minibatches

    @property
    def most(self) -> int:
        """Return the prompts of the largest minibatch."""
        return -(-self.prompts.value // self.minibatches)

    @property
    def least(self) -> int:
        """Return the prompts of the smallest minibatch."""
        return self.prompts.value // self.minibatches

    @property
    def rank_rows(self) -> int:
        """Return the most rows of a minibatch that one rank can have: it is drawn from the prompts of all ranks."""
        return self.n * min(self.most, -(-self.prompts.value // self.ranks))

    @property
    def micro_batches(self) -> int | None:
        """Return the most micro-batches of a minibatch, the same on each rank; None if rows or budget are not known."""
        if self.row_tokens is None or self.budget_tokens is None:
            return None
        return -(-self.rank_rows // max(1, self.budget_tokens // self.row_tokens))

    @property
    def idle_share(self) -> float:
        """Return the share of minibatches in which the rank with the fewest prompts has no row, by chance."""
        prompts, rank = self.prompts.value, self.prompts.value // self.ranks
        return comb(prompts - rank, self.least) / comb(prompts, self.least)


@dataclass(frozen=True)
class BatchSizes:
    """What a step reads and how it is cut. `told` are sentences about what is legal, but may not be meant."""

    batch: Size
    data_rows: int | None
    prompt_tokens: int | None
    drawn: tuple[Drawn, ...]
    shares: tuple[Share, ...]
    cuts: tuple[Cut, ...]
    told: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Return the responses that all samplers draw."""
        return sum(each.rows for each in self.drawn)

    @property
    def tokens(self) -> int | None:
        """Return the most tokens that samplers read and draw, a prompt's once for each; None if not known."""
        if self.prompt_tokens is None or any(each.tokens is None for each in self.drawn):
            return None
        return sum(each.prompts * self.prompt_tokens + each.rows * (each.tokens or 0) for each in self.drawn)


def batch_text(sizes: BatchSizes) -> str:
    """Print batch sizes in a few lines: what is drawn, what ranks have, how each update cuts it, and what is told."""
    lines = [_drawn_line(sizes, each) for each in sizes.drawn] or [f"{many(sizes.batch.value, 'prompt')} a step"]
    shared = [each for each in sizes.shares if each.ranks > 1]
    lines += [
        f"{each.ranks} ranks of {', '.join(each.roles)}: {span(each.least, each.most, 'prompt')} each"
        for each in shared
    ]
    lines += [_cut_line(each) for each in sizes.cuts]
    return "\n".join([*lines, *(f"note: {each}" for each in sizes.told)])


def _drawn_line(sizes: BatchSizes, drawn: Drawn) -> str:
    rows = f"{drawn.node}: {many(drawn.prompts, 'prompt')} × {drawn.n} = {many(drawn.rows, 'row')}"
    if drawn.most_rounds > 1:
        rows += f" in at most {drawn.most_rounds} rounds"
    if drawn.tokens is None or sizes.prompt_tokens is None:
        return rows
    tokens = drawn.prompts * sizes.prompt_tokens + drawn.rows * drawn.tokens
    return f"{rows}, of at most {sizes.prompt_tokens:,} + {drawn.tokens:,} tokens, {tokens:,} in all"


def _cut_line(cut: Cut) -> str:
    epochs = f"{many(cut.epochs, 'epoch')} of {many(cut.minibatches, 'minibatch', 'minibatches')}"
    steps = (
        f"{cut.node}: {epochs} of {span(cut.least, cut.most, 'prompt')}, {many(cut.optimizer_steps, 'optimizer step')}"
    )
    if cut.micro_batches is None:
        return steps
    most = f"at most {many(cut.micro_batches, 'micro-batch', 'micro-batches')}"
    return f"{steps}, each of {most} on a rank" if cut.ranks > 1 else f"{steps}, each of {most}"


def span(least: int, most: int, one: str) -> str:
    """Say from how many to how many of something there are.

    >>> span(2, 3, "prompt"), span(1, 1, "prompt")
    ('2 to 3 prompts', '1 prompt')
    """
    return many(most, one) if least == most else f"{least:,} to {many(most, one)}"
