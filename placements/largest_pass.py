"""The rows that go through a model at once, of a load whose rows are all at their longest.

All counts are of one device: of the data rank that has the most. Not here: the bytes they take (`footprint_process`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placements.loads import Load


@dataclass(frozen=True)
class Pass:
    """Rows side by side: each a context and a response of these many tokens; `contexts` distinct ones are read once."""

    rows: int
    contexts: int
    prompt_tokens: int
    response_tokens: int

    @property
    def width(self) -> int:
        """Return the tokens of one row, its context included."""
        return self.prompt_tokens + self.response_tokens

    @property
    def read_out(self) -> int:
        """Return the tokens of the responses, each of which has logits."""
        return self.rows * self.response_tokens

    @property
    def context_tokens(self) -> int:
        """Return the tokens of the distinct contexts."""
        return self.contexts * self.prompt_tokens

    @property
    def tokens(self) -> int:
        """Return the tokens that are read."""
        return self.context_tokens + self.read_out


def sampled_pass(load: Load, ranks: int, sample_rows: int) -> Pass:
    """Return the rows that one of `ranks` decodes side by side: at most `sample_rows`, in the order of prompts."""
    rows = min(_share(load.round_prompts, ranks) * load.samples, sample_rows)
    return Pass(rows, -(-rows // load.samples), int(load.prompt.most), int(load.response.most))


def packed_pass(load: Load, ranks: int, budget_tokens: int) -> Pass:
    """Return the largest pass of packed rows within a budget; a context counts once for the rows that share it.

    A row is never cut, so a pass has at least one.

    >>> from flowgraph.analysis.roles import Role
    >>> from placements.lengths import Lengths
    >>> from placements.loads import Load
    >>> role, six, four = Role("m.train", "m", "train", ("m.update",)), Lengths.fixed(6), Lengths.fixed(4)
    >>> packed_pass(Load("m.update", role, "update", 0, 4, 4, six, four), ranks=2, budget_tokens=36)
    Pass(rows=6, contexts=2, prompt_tokens=6, response_tokens=4)
    """
    prompt, response = int(load.prompt.most), int(load.response.most)
    groups = _prompts(load, ranks)
    most, left = divmod(budget_tokens, prompt + load.samples * response)
    if most >= groups:
        return Pass(groups * load.samples, groups, prompt, response)
    more = min(load.samples, max(0, left - prompt) // response) if response else 0
    rows = max(1, most * load.samples + more)
    return Pass(rows, -(-rows // load.samples), prompt, response)


def padded_pass(load: Load, ranks: int, budget_tokens: int) -> Pass:
    """Return the largest pass of whole texts within a budget, each padded to the longest and none of them shared."""
    prompt, response = int(load.prompt.most), int(load.response.most)
    rows = min(_prompts(load, ranks) * load.samples, max(1, budget_tokens // max(1, prompt + response)))
    return Pass(rows, rows, prompt, response)


def _share(prompts: int, ranks: int) -> int:
    """Return the prompts of the rank that has the most; the group of a prompt stays whole."""
    return -(-prompts // ranks)


def _prompts(load: Load, ranks: int) -> int:
    """Return the prompts that one rank may read between two steps of the optimizer.

    A minibatch is taken from the prompts of all ranks, and may lie on one of them.
    """
    share = _share(load.prompts, ranks)
    return min(load.minibatch or share, share)
