"""A text that is read once from its start to its end, letter by letter, with the line it stands on.

Not here: what words and commands of a shell are (`shell`).
"""

from __future__ import annotations

from flowgraph.errors import UsageError

_NAME = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
NAME_TOO = _NAME + "0123456789"


def broken(what: str, line: int, near: str = "") -> UsageError:
    """Say what in a shell text cannot be read, at which line, near which word."""
    return UsageError(f"`{near}`: {what}" if near else what, where=f"line {line}")


class CharReader:
    """A place in a text, which only moves on."""

    def __init__(self, text: str, line: int) -> None:
        self.text, self.at, self.line = text, 0, line

    def peek(self) -> str:
        """Give the next letter, "" at the end."""
        return self.text[self.at : self.at + 1]

    def next(self) -> str:
        """Go over the next letter, and give it."""
        letter = self.peek()
        self.line += letter == "\n"
        self.at += 1
        return letter

    def go(self, to: int) -> str:
        """Go to a place further on, and give what lies between."""
        found = self.text[self.at : to]
        self.line += found.count("\n")
        self.at = to
        return found

    def name(self) -> str:
        """Go over the name of a variable; "" if none stands here."""
        start = self.at
        if self.peek() and self.peek() in _NAME:
            while self.peek() and self.peek() in NAME_TOO:
                self.at += 1
        return self.text[start : self.at]

    def blanks(self, lines: bool = False) -> None:
        """Go over spaces, continued lines and comments; over ends of lines too where a word may stand on the next."""
        while True:
            if self.peek() and self.peek() in (" \t\n" if lines else " \t"):
                self.next()
            elif self.text.startswith("\\\n", self.at):
                self.go(self.at + 2)
            elif self.peek() == "#" and (self.at == 0 or self.text[self.at - 1] in " \t\n;("):
                while self.peek() not in ("", "\n"):
                    self.next()
            else:
                return

    def until(self, mark: str, line: int) -> str:
        """Give what stands before a mark, and go behind it; `line` is where what it closes was opened."""
        end = self.text.find(mark, self.at)
        if end < 0:
            raise broken("is never closed", line, mark)
        found = self.go(end)
        self.at = end + 1
        return found

    def balanced(self, opens: str, closes: str, line: int) -> str:
        """Give what stands between a bracket and the one that closes it; those in quotes do not count."""
        depth, start, quote = 0, self.at, ""
        while letter := self.next():
            if quote:
                quote = "" if letter == quote else quote
            elif letter in "'\"":
                quote = letter
            elif letter == "\\":
                self.next()
            elif letter == opens:
                depth += 1
            elif letter == closes:
                depth -= 1
                if not depth:
                    return self.text[start + 1 : self.at - 1]
        raise broken("is never closed", line, f"${opens}")

    def line_of(self, mark: str, indented: bool) -> tuple[int, int] | None:
        """Give where the next line that is just a mark starts and ends; None if there is none."""
        at = self.at
        while at < len(self.text):
            end = self.text.find("\n", at)
            end = len(self.text) if end < 0 else end
            found = self.text[at:end]
            if (found.lstrip("\t") if indented else found) == mark:
                return at, min(end + 1, len(self.text))
            at = end + 1
        return None
