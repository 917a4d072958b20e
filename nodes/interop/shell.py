"""Shell text as the words of its commands, with variables put in; nothing is ever run, and no environment is read.

The part of bash that launch scripts are written in: quotes, continued lines, comments, variables with defaults, arrays,
whole-number arithmetic. What only a running shell knows (a command's output, an unset variable) is named in the word.
What stands under a condition sets nothing. Not here: which of the commands starts a training.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from flowgraph.errors import UsageError
from nodes.interop.whole_numbers import Unknown, evaluated

MOST_TEXT = 1_000_000  # characters of a launch script
MOST_PUT_IN = 300_000  # characters that variables put in: a text that grows beyond it was written to
DEEPEST = 40  # references within defaults of references

_OPENS = {"if", "case", "for", "while", "until", "select"}
_CLOSES = {"fi", "esac", "done"}
_NAME = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
_NAME_TOO = _NAME + "0123456789"
_ENDS = "\n;&|()"
_SPACES_TO_THE_END = re.compile(r"[ \t]+(?=\n|\Z)")


@dataclass(frozen=True)
class Word:
    """A word with its variables put in, its line, and what in it only a running shell knows."""

    text: str
    line: int
    unset: tuple[str, ...] = ()


Command = tuple[Word, ...]


@dataclass
class _Field:
    """A word as it is read: pieces, and whether anything of it was quoted, so that it stands even if empty."""

    line: int
    text: str = ""
    unset: list[str] = field(default_factory=list[str])
    stands: bool = False

    def word(self) -> Word:
        return Word(self.text, self.line, tuple(dict.fromkeys(self.unset)))


@dataclass
class _Budget:
    """The characters that variables may still put in, of all words together."""

    left: int = MOST_PUT_IN

    def take(self, text: str, line: int) -> str:
        self.left -= len(text) + 1
        if self.left < 0:
            raise broken("its variables grow without end", line)
        return text


def broken(what: str, line: int, near: str = "") -> UsageError:
    """Say what in a shell text cannot be read, at which line, near which word."""
    return UsageError(f"`{near}`: {what}" if near else what, where=f"line {line}")


def commands(text: str) -> list[Command]:
    """Give the commands of a shell text in order, those under conditions too.

    >>> [word.text for word in commands("N=2; run -n $((N * 4)) 'a b'  # twice")[0]]
    ['run', '-n', '8', 'a b']

    Raises UsageError with the line for text that no shell reads: a quote or bracket that is never closed.
    """
    if len(text) > MOST_TEXT:
        raise broken(f"more than {MOST_TEXT:,} characters are no launch script", 1)
    return _Shell(text.replace("\r\n", "\n")).commands()


class _Shell:
    """Reads a text from its start to its end, once."""

    def __init__(self, text: str, line: int = 1, inside: _Shell | None = None) -> None:
        self.text, self.at, self.line = text, 0, line
        self.deep: int = 0 if inside is None else inside.deep + 1
        self.values: dict[str, Sequence[Word]] = {} if inside is None else inside.values
        self.budget: _Budget = _Budget() if inside is None else inside.budget
        self.under = 0  # conditions that are open

    # ---------------------------------------------------------------------------------------- commands

    def commands(self) -> list[Command]:
        found, words = list[Command](), list[Word]()
        while self.at < len(self.text):
            self._blanks()
            letter = self._peek()
            if letter == "" or letter in _ENDS:
                words = self._end(words, found)
                self._next()
            elif letter in "<>":
                if words and words[-1].text.isdigit() and self.text[self.at - 1].isdigit():
                    words.pop()  # the number of what is redirected: 2>&1
                self._redirection()
            elif not words and (name := self._assigned()) is not None:
                self._assign(name)
            else:
                words += self.word()
        self._end(words, found)
        return found

    def _end(self, words: list[Word], found: list[Command]) -> list[Word]:
        """Close a command, and count the conditions that its first words open or close."""
        for word in words:
            if word.text in _OPENS | _CLOSES:
                self.under = max(0, self.under + (1 if word.text in _OPENS else -1))
            if word.text not in _OPENS | _CLOSES | {"then", "else", "elif", "do", "in", "{", "}", "!"}:
                break
        if words:
            found.append(tuple(words))
        return []

    def _assigned(self) -> str | None:
        """Give the name that is set here (`NAME=`, `export NAME=`), and go to its value; None if nothing is."""
        start = self.at
        for keyword in ("export ", "declare ", "local ", "readonly "):
            if self.text.startswith(keyword, self.at):
                self.at += len(keyword)
        name = self._name()
        if name and self.text.startswith(("=", "+="), self.at):
            return name
        self.at = start
        return None

    def _assign(self, name: str) -> None:
        more = self._next() == "+"
        if more:
            self._next()
        if self._peek() == "(":
            value: list[Word] = self._array()
        elif self._peek() == "" or self._peek() in _ENDS + " \t":
            value = [Word("", self.line)]
        else:
            words = self.word(splits=False)
            value = words or [Word("", self.line)]
        if self.under:
            return  # which branch runs is not known: what was set before stands
        self.values[name] = [*self.values.get(name, ()), *value] if more else value

    def _array(self) -> list[Word]:
        line, found = self.line, list[Word]()
        self._next()
        while True:
            self._blanks(lines=True)
            if self._peek() == ")":
                self._next()
                return found
            if self._peek() == "":
                raise broken("this array is never closed", line, "(")
            if self._peek() in ";&|(<>":
                raise broken("is no word of an array", self.line, self._peek())
            found += self.word()

    def _redirection(self) -> None:
        while self._peek() and self._peek() in "<>&-":
            self._next()
        self._blanks()
        if self._peek() and self._peek() not in _ENDS:
            self.word()

    # ---------------------------------------------------------------------------------------- words

    def word(self, splits: bool = True) -> list[Word]:
        """Read one word; a variable without quotes may make it several, or none."""
        fields = [_Field(self.line)]
        while (letter := self._peek()) and letter not in " \t<>" + _ENDS:
            if letter == "'":
                self._single(fields[-1])
            elif letter == '"':
                self._double(fields)
            elif letter == "\\":
                self._escape(fields[-1])
            elif letter == "`" or letter == "$":
                self._reference(fields, quoted=not splits)
            else:
                fields[-1].text += self._next()
        return [each.word() for each in fields if each.text or each.stands or each.unset]

    def _single(self, into: _Field) -> None:
        line, start = self.line, self.at + 1
        end = self.text.find("'", start)
        if end < 0:
            raise broken("this quote is never closed", line, self.text[self.at : self.at + 12].strip())
        into.text += self.text[start:end]
        into.stands = True
        self.line += self.text.count("\n", start, end)
        self.at = end + 1

    def _double(self, fields: list[_Field]) -> None:
        line, near = self.line, self.text[self.at : self.at + 12].strip()
        fields[-1].stands = True
        self._next()
        while (letter := self._peek()) != '"':
            if letter == "":
                raise broken("this quote is never closed", line, near)
            if letter == "\\" and self.text[self.at + 1 : self.at + 2] in ("$", '"', "\\", "`", "\n"):
                self._next()
                fields[-1].text += "" if self._peek() == "\n" else self._peek()
                self._next()
            elif letter in "$`":
                self._reference(fields, quoted=True)
            else:
                fields[-1].text += self._next()
        self._next()

    def _escape(self, into: _Field) -> None:
        line = self.line
        self._next()
        if self._peek() == "\n":
            self._next()
            return
        if _SPACES_TO_THE_END.match(self.text, self.at):
            raise broken("spaces follow it, so it does not continue the line", line, "\\")
        into.text += self._next()
        into.stands = True

    # ---------------------------------------------------------------------------------------- references

    def _reference(self, fields: list[_Field], quoted: bool) -> None:
        line = self.line
        if self._next() == "`":
            self._until("`", line)
            fields[-1].unset.append("a command's output")
        elif self.text.startswith("((", self.at):
            self._arithmetic(fields[-1])
        elif self._peek() == "(":
            self._balanced("(", ")", line)
            fields[-1].unset.append("a command's output")
        elif self._peek() == "{":
            self._braced(fields, quoted)
        elif self._peek() == "'" and not quoted:
            self._single(fields[-1])
        elif name := self._name():
            self._put(fields, self._value(name), quoted)
        elif self._peek() and self._peek() in "@*#?!0123456789":
            self._next()  # what a script is called with: nothing
        else:
            fields[-1].text += "$"

    def _braced(self, fields: list[_Field], quoted: bool) -> None:
        line = self.line
        inner = self._balanced("{", "}", line)
        end = next((place for place, letter in enumerate(inner) if letter not in _NAME_TOO), len(inner))
        name, rest = inner[:end], inner[end:]
        many = rest.startswith(("[@]", "[*]"))
        rest = rest[3:] if many else rest
        found = self.values.get(name)
        if not rest and name:
            self._put(fields, found if many and found is not None else self._value(name), quoted, many)
        elif name and rest.lstrip(":")[:1] in ("-", "=", "?", "+") and len(rest) - len(rest.lstrip(":")) < 2:
            self._put(fields, self._default(name, rest, line), quoted)
        elif not name and inner in ("@", "*"):
            return
        else:
            fields[-1].unset.append(f"${{{inner[:40]}}}")

    def _default(self, name: str, rest: str, line: int) -> Sequence[Word]:
        """Give `${NAME:-default}`; an empty value counts as none where a colon says so."""
        mark, word = rest.lstrip(":")[0], rest.lstrip(":")[1:]
        found = self.values.get(name)
        there = found is not None and not (rest.startswith(":") and not "".join(each.text for each in found))
        if mark == "+":
            return self._inner(word, line) if there else ()
        if there:
            assert found is not None, "it was found"
            return found
        if mark == "?":
            return (Word("", line, (name,)),)
        if name == "HOME":
            return self._value(name)
        return self._inner(word, line)

    def _inner(self, text: str, line: int) -> Sequence[Word]:
        if self.deep >= DEEPEST:
            raise broken("defaults within defaults go too deep", line, text[:40])
        shell = _Shell(text, line, self)
        fields = [_Field(line)]
        while shell.at < len(shell.text):
            letter = shell._peek()
            if letter == "'":
                shell._single(fields[-1])
            elif letter == '"':
                shell._double(fields)
            elif letter in "$`":
                shell._reference(fields, quoted=True)
            elif letter == "\\":
                shell._escape(fields[-1])
            else:
                fields[-1].text += shell._next()
        return [each.word() for each in fields]

    def _value(self, name: str) -> Sequence[Word]:
        """Give what a variable holds; the user's home stays as `~`, and what is not set is named."""
        found = self.values.get(name)
        if found is not None:
            return found[:1]
        return (Word("~", self.line),) if name == "HOME" else (Word("", self.line, (name,)),)

    def _put(self, fields: list[_Field], words: Sequence[Word], quoted: bool, many: bool = False) -> None:
        """Add words to what is read: one after the other, and split at spaces where nothing quotes them."""
        for place, word in enumerate(words):
            if many and place:
                fields.append(_Field(self.line))
            last = fields[-1]
            last.unset += word.unset
            last.stands = last.stands or (many and quoted)
            pieces = [word.text] if quoted else word.text.split()
            for further, piece in enumerate(pieces):
                if further:
                    fields.append(_Field(self.line))
                fields[-1].text += self.budget.take(piece, self.line)
            if many:
                last.line = word.line

    def _arithmetic(self, into: _Field) -> None:
        line = self.line
        inner = self._balanced("(", ")", line)[1:-1]
        try:
            into.text += str(evaluated(inner, self._number))
        except Unknown as unknown:
            into.unset.append(unknown.name)

    def _number(self, name: str) -> str:
        words = self._value(name)
        if words[0].unset:
            raise Unknown(words[0].unset[0])
        return words[0].text

    # ---------------------------------------------------------------------------------------- letters

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _next(self) -> str:
        letter = self._peek()
        self.line += letter == "\n"
        self.at += 1
        return letter

    def _name(self) -> str:
        start = self.at
        if self._peek() and self._peek() in _NAME:
            while self._peek() and self._peek() in _NAME_TOO:
                self.at += 1
        return self.text[start : self.at]

    def _blanks(self, lines: bool = False) -> None:
        """Go over spaces, continued lines and comments; over ends of lines too where a word may stand on the next."""
        while True:
            if self._peek() and self._peek() in (" \t\n" if lines else " \t"):
                self._next()
            elif self.text.startswith("\\\n", self.at):
                self._next()
                self._next()
            elif self._peek() == "#" and (self.at == 0 or self.text[self.at - 1] in " \t\n;("):
                while self._peek() not in ("", "\n"):
                    self._next()
            else:
                return

    def _until(self, mark: str, line: int) -> str:
        end = self.text.find(mark, self.at)
        if end < 0:
            raise broken("is never closed", line, mark)
        found = self.text[self.at : end]
        self.line += found.count("\n")
        self.at = end + 1
        return found

    def _balanced(self, opens: str, closes: str, line: int) -> str:
        """Give what stands between a bracket and the one that closes it; those in quotes do not count."""
        depth, start, quote = 0, self.at, ""
        while letter := self._next():
            if quote:
                quote = "" if letter == quote else quote
            elif letter in "'\"":
                quote = letter
            elif letter == "\\":
                self._next()
            elif letter == opens:
                depth += 1
            elif letter == closes:
                depth -= 1
                if not depth:
                    return self.text[start + 1 : self.at - 1]
        raise broken("is never closed", line, f"${opens}")
