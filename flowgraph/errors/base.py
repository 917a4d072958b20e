"""The base class of errors, with the place, the fault, notes on its context, and a hint where one is certain."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

from flowgraph.errors.exit_codes import ExitCode


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a hint that names the closest of `names`, or lists them if none is close; "" if `names` is empty.

    The list has the first 12 names in sorted order, and the number of all if there are more.

    >>> nearest("epz", ["eps", "mask"])
    'did you mean `eps`?'
    >>> nearest("zzz", ["eps", "mask"])
    'known: eps, mask'
    """
    choices = sorted(names)
    close = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    if close:
        return f"did you mean `{close[0]}`?"
    total = f" … ({len(choices)} in all)" if len(choices) > 12 else ""
    return f"known: {', '.join(choices[:12])}{total}" if choices else ""


def without_keys(text: str) -> str:
    """Return a text in which the user names, passwords and queries of URLs are replaced by `***`.

    >>> without_keys("url='http://me:key@a.org/v1?token=7': no"), without_keys("a.org?")
    ("url='http://***@a.org/v1?***': no", 'a.org?')
    """
    text = re.sub(r"(\w://)[^\s/?#'\"]*@", r"\1***@", text)
    return re.sub(r"(\w://[^\s?#'\"]*\?)[^\s#'\"]+", r"\1***", text)


def with_article(word: str) -> str:
    """Return a word after "an" if its first letter is a, e, i, o or u, in upper or lower case, and otherwise after "a".

    >>> with_article("Mask"), with_article("Advantages")
    ('a Mask', 'an Advantages')
    """
    return f"{'an' if word[:1].lower() in set('aeiou') else 'a'} {word}"


def interrupt_behind(error: BaseException | None) -> KeyboardInterrupt | None:
    """Return the KeyboardInterrupt that `error` is, or that was being handled when it was raised, else None.

    Code that ends early, such as an event loop that is not made yet, may fail while it cleans up after an interrupt.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error


class FlowError(Exception):
    """An error that says where and what is wrong, with notes on its context and a hint what the user can do.

    `where` is a file and line, an option or a name; "" leaves it out. A command that ends with the error has the exit
    code `exit_code`. The error is printed as::

        where: what
            note
          hint: hint
    """

    exit_code: ClassVar[ExitCode] = ExitCode.FAULT

    def __init__(self, what: str, *, where: str = "", notes: Sequence[str] = (), hint: str = "") -> None:
        super().__init__(what)
        self.what, self.where, self.notes, self.hint = what, where, tuple(notes), hint

    def __str__(self) -> str:
        lines = [f"{self.where}: {self.what}" if self.where else self.what]
        lines += [f"    {note}" for note in self.notes]
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), where=self.where, notes=self.notes, hint=self.hint), (self.what,)
