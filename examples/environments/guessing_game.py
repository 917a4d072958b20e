"""A guessing game of three turns, and GRPO on it: the policy learns to halve what is left.

The game hides a number from 1 to 7. After a wrong guess it says `+` if its number is larger, and `-` if it is smaller.
Who guesses the middle of what is left always wins in three turns; who does not look at the answers wins 3 games of 7.
Run it with `flowgraph run examples/environments/guessing_game.py --data digits`: the number comes from a row's digits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowgraph import Loss, flow
from nodes import Policy, Prompts, clipped, group_normalize, interact, logprobs, update


class GuessingGame:
    """Hides a number from 1 to 7, and says after each guess whether its number is larger or smaller."""

    def reset(self, row: Mapping[str, Any]) -> str:
        """Hide a number, and return the first message."""
        self.number, self.last = 1 + int(row["ground_truth"]) % 7, ""
        return "?"

    def reply(self, messages: Sequence[Mapping[str, str]]) -> str | None:
        """Answer a guess: `+`, `-`, or None if it is right, which ends the game. What is no number is too small."""
        self.last = messages[-1]["content"].strip()
        guess = int(self.last) if self.last.isdecimal() else 0
        return None if guess == self.number else "+" if guess < self.number else "-"

    def reward(self) -> float:
        """Return 1 if the last guess was right."""
        return float(self.last == str(self.number))


@flow
def guess(prompts: Prompts, policy: Policy) -> Policy:
    """Train on whole games; what the game says is in the context, and not in the loss."""
    games = interact(policy, prompts, env=GuessingGame, n=16, max_turns=3, max_tokens=12, turn_tokens=2)
    advantages = group_normalize(games.scores, games.group)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, games), advantages, games.mask, old=games.logprobs)

    return update(policy, loss)
