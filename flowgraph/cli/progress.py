"""How far `eval` and `generate` are, on stderr."""

from __future__ import annotations

import sys
import time

from flowgraph.cli.output import say, say_over

LINE_EVERY_S = 5.0


class Progress:
    """Show on stderr how far it is: a line that is written anew on a terminal, else one now and then."""

    def __init__(self, verb: str, count: int, what: str) -> None:
        self.verb, self.count, self.what, self.done = verb, count, what, 0
        self._live, self._printed_s = sys.stderr.isatty(), 0.0
        self._first: tuple[int, float] | None = None  # what the first batch did, with all that is loaded, and when

    def __call__(self, done: int, detail: str) -> None:
        """Count what was done, and print the line; the time left once a batch has been timed by itself."""
        self.done += done
        now_s, last = time.monotonic(), self.done >= self.count
        if self._live or last or now_s - self._printed_s > LINE_EVERY_S:
            self._printed_s, left = now_s, ""
            if self._first is not None and not last:
                first, then_s = self._first
                left_s = (now_s - then_s) / (self.done - first) * (self.count - self.done)
                left = f"  about {left_s:.0f} s left"
            line = f"{self.verb} {self.done}/{self.count} {self.what}{detail}{left}"
            say_over(line, last=last) if self._live else say(line, file=sys.stderr)
        self._first = self._first or (self.done, now_s)
