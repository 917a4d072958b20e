"""Shell text as the words of its commands, with variables put in; nothing is ever run, and no environment is read.

The part of bash that launch scripts are written in: quotes, continued lines, comments, variables with defaults, arrays,
whole-number arithmetic, here-documents, and text that another shell is handed. What only a running shell knows (a
command's output, an unset variable) is named in the word. What stands under a condition sets nothing, but for what is
set in several branches and nowhere else. Not here: which of the commands starts a training.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from flowgraph.errors import UsageError
from nodes.interop.char_reader import NAME_TOO, CharReader, broken
from nodes.interop.whole_numbers import Unknown, evaluated

MOST_TEXT = 1_000_000  # characters of a launch script
MOST_PUT_IN = 300_000  # characters that variables put in: a text that grows beyond it was written to
DEEPEST = 40  # references within defaults of references, and shells within shells

_OPENS = {"if", "case", "for", "while", "until", "select"}
_CLOSES = {"fi", "esac", "done"}
_KEYWORDS = _OPENS | _CLOSES | {"then", "else", "elif", "do", "in", "{", "}", "!"}
_SHELLS = {"bash", "sh", "zsh", "dash", "ksh"}
_ENDS = "\n;&|()"
_SPACES_TO_THE_END = re.compile(r"[ \t]+(?=\n|\Z)")


@dataclass(frozen=True)
class Word:
    """A word with its variables put in, its line, and what in it only a running shell knows.

    `guessed` names variables that are set in several branches, of which the first is taken. `raw` is the text before
    variables are put in, as another shell that is handed it reads it.
    """

    text: str
    line: int
    unset: tuple[str, ...] = ()
    guessed: tuple[str, ...] = ()
    raw: str = field(default="", compare=False, repr=False)


Command = tuple[Word, ...]


@dataclass
class _Field:
    """A word as it is read: pieces, and whether anything of it was quoted, so that it stands even if empty."""

    line: int
    text: str = ""
    raw: str = ""
    unset: list[str] = field(default_factory=list[str])
    guessed: list[str] = field(default_factory=list[str])
    stands: bool = False

    def add(self, text: str) -> None:
        self.text += text
        self.raw += text

    def word(self) -> Word:
        return Word(self.text, self.line, _once(self.unset), _once(self.guessed), self.raw)


@dataclass
class _Budget:
    """The characters that variables may still put in, of all words together."""

    left: int = MOST_PUT_IN

    def take(self, text: str, line: int) -> str:
        self.left -= len(text) + 1
        if self.left < 0:
            raise broken("its variables grow without end", line)
        return text


def commands(text: str) -> list[Command]:
    """Give the commands of a shell text in order, those under conditions too, and those that other shells are handed.

    >>> [word.text for word in commands("N=2; run -n $((N * 4)) 'a b'  # twice")[0]]
    ['run', '-n', '8', 'a b']

    Raises UsageError with the line for text that no shell reads: a quote or bracket that is never closed.
    """
    if len(text) > MOST_TEXT:
        raise broken(f"more than {MOST_TEXT:,} characters are no launch script", 1)
    return _Shell(text.replace("\r\n", "\n")).commands()


class _Shell(CharReader):
    """Reads a text from its start to its end, once."""

    def __init__(self, text: str, line: int = 1, inside: _Shell | None = None, apart: bool = False) -> None:
        super().__init__(text, line)
        self.deep: int = 0 if inside is None else inside.deep + 1
        shared = {} if inside is None else inside.values
        self.values: dict[str, Sequence[Word]] = dict(shared) if apart else shared
        self.budget: _Budget = _Budget() if inside is None else inside.budget
        self.under = 0  # conditions that are open
        self.branches = dict[str, Sequence[Word]]()  # what is set under conditions only, by the first
        self.documents = list[tuple[str, bool]]()  # what ends each here-document that the next line begins
        if self.deep > DEEPEST:
            raise broken("defaults within defaults go too deep", line, text[:40])

    # ---------------------------------------------------------------------------------------- commands

    def commands(self) -> list[Command]:
        found, words = list[Command](), list[Word]()
        while self.at < len(self.text):
            self.blanks()
            letter = self.peek()
            if letter == "" or letter in _ENDS:
                words = self._end(words, found)
                if self.next() == "\n":
                    found += self._written()
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
            if word.text not in _KEYWORDS:
                break
        if words:
            found.append(tuple(words))
            for text, line in _handed(words):
                found += _Shell(text, line, self, apart=True).commands()
        return []

    def _written(self) -> list[Command]:
        """Read the here-documents that a line has announced: those that hold commands may be launch scripts."""
        found = list[Command]()
        for mark, indented in self.documents:
            place = self.line_of(mark, indented)
            if place is None:
                continue  # no document follows: `<<` was arithmetic
            line, body = self.line, self.go(place[0])
            self.go(place[1])
            try:
                found += _Shell(body, line, self, apart=True).commands()
            except UsageError:
                continue  # the text of another language
        self.documents.clear()
        return found

    def _assigned(self) -> str | None:
        """Give the name that is set here (`NAME=`, `export NAME=`), and go to its value; None if nothing is."""
        start = self.at
        for keyword in ("export ", "declare ", "local ", "readonly "):
            if self.text.startswith(keyword, self.at):
                self.at += len(keyword)
        name = self.name()
        if name and self.text.startswith(("=", "+="), self.at):
            return name
        self.at = start
        return None

    def _assign(self, name: str) -> None:
        more = self.next() == "+"
        if more:
            self.next()
        listed = self.peek() == "("
        if listed:
            value: list[Word] = self._array()
        elif self.peek() == "" or self.peek() in _ENDS + " \t":
            value = [Word("", self.line)]
        else:
            words = self.word(splits=False)
            value = words or [Word("", self.line)]
        if self.under:
            self._branch(name, value)
        elif more:
            self.values[name] = _added(self.values.get(name, ()), value, listed)
        else:
            self.values[name] = value

    def _branch(self, name: str, value: Sequence[Word]) -> None:
        """Keep what was set before, since which branch runs is not known; where nothing was, the first of several."""
        if name in self.values or any(word.unset for word in value) or not any(word.text for word in value):
            return
        if name in self.branches:
            self.values[name] = [replace(word, guessed=(name,)) for word in self.branches[name]]
        else:
            self.branches[name] = value

    def _array(self) -> list[Word]:
        line, found = self.line, list[Word]()
        self.next()
        while True:
            self.blanks(lines=True)
            if self.peek() == ")":
                self.next()
                return found
            if self.peek() == "":
                raise broken("this array is never closed", line, "(")
            if self.peek() in ";&|(<>":
                raise broken("is no word of an array", self.line, self.peek())
            found += self.word()

    def _redirection(self) -> None:
        start = self.at
        while self.peek() and self.peek() in "<>&-":
            self.next()
        mark = self.text[start : self.at]
        self.blanks()
        if self.peek() and self.peek() not in _ENDS:
            words = self.word()
            if mark in ("<<", "<<-") and words:
                self.documents.append((words[0].text, mark == "<<-"))

    # ---------------------------------------------------------------------------------------- words

    def word(self, splits: bool = True) -> list[Word]:
        """Read one word; a variable without quotes may make it several, or none."""
        fields = [_Field(self.line)]
        while (letter := self.peek()) and letter not in " \t<>" + _ENDS:
            if letter == "'":
                self._single(fields[-1])
            elif letter == '"':
                self._double(fields)
            elif letter == "\\":
                self._escape(fields[-1])
            elif letter == "`" or letter == "$":
                self._reference(fields, quoted=not splits)
            else:
                fields[-1].add(self.next())
        return [each.word() for each in fields if each.text or each.stands or each.unset]

    def _single(self, into: _Field) -> None:
        line, start = self.line, self.at + 1
        end = self.text.find("'", start)
        if end < 0:
            raise broken("this quote is never closed", line, self.text[self.at : self.at + 12].strip())
        self.next()
        into.add(self.go(end))
        into.stands = True
        self.at = end + 1

    def _double(self, fields: list[_Field]) -> None:
        line, near = self.line, self.text[self.at : self.at + 12].strip()
        fields[-1].stands = True
        self.next()
        while (letter := self.peek()) != '"':
            if letter == "":
                raise broken("this quote is never closed", line, near)
            if letter == "\\" and self.text[self.at + 1 : self.at + 2] in ("$", '"', "\\", "`", "\n"):
                self.next()
                kept = self.next()
                fields[-1].text += "" if kept == "\n" else kept
                fields[-1].raw += "\\\n" if kept == "\n" else kept
            elif letter in "$`":
                self._reference(fields, quoted=True)
            else:
                fields[-1].add(self.next())
        self.next()

    def _escape(self, into: _Field) -> None:
        line = self.line
        self.next()
        if self.peek() == "\n":
            self.next()
            return
        if _SPACES_TO_THE_END.match(self.text, self.at):
            raise broken("spaces follow it, so it does not continue the line", line, "\\")
        into.add(self.next())
        into.stands = True

    # ---------------------------------------------------------------------------------------- references

    def _reference(self, fields: list[_Field], quoted: bool) -> None:
        start, into = self.at, fields[-1]
        self._put_in(fields, quoted)
        into.raw += self.text[start : self.at]

    def _put_in(self, fields: list[_Field], quoted: bool) -> None:
        line = self.line
        if self.next() == "`":
            self.until("`", line)
            fields[-1].unset.append("a command's output")
        elif self.text.startswith("((", self.at):
            self._arithmetic(fields[-1])
        elif self.peek() == "(":
            self.balanced("(", ")", line)
            fields[-1].unset.append("a command's output")
        elif self.peek() == "{":
            self._braced(fields, quoted)
        elif self.peek() == "'" and not quoted:
            inner = _Field(line)
            self._single(inner)
            fields[-1].text += inner.text
            fields[-1].stands = True
        elif name := self.name():
            self._put(fields, self._value(name), quoted)
        elif self.peek() and self.peek() in "@*#?!0123456789":
            mark = self.next()  # what a script is called with: nothing, and of "$@" not even an empty word
            fields[-1].stands = fields[-1].stands and mark != "@"
        else:
            fields[-1].text += "$"

    def _braced(self, fields: list[_Field], quoted: bool) -> None:
        line = self.line
        inner = self.balanced("{", "}", line)
        end = next((place for place, letter in enumerate(inner) if letter not in NAME_TOO), len(inner))
        name, rest = inner[:end], inner[end:]
        many = rest.startswith(("[@]", "[*]"))
        rest = rest[3:] if many else rest
        found = self.values.get(name)
        if many and not found and found is not None:
            fields[-1].stands = False
        if not rest and name:
            self._put(fields, found if many and found is not None else self._value(name), quoted, many)
        elif name and rest.lstrip(":")[:1] in ("-", "=", "?", "+") and len(rest) - len(rest.lstrip(":")) < 2:
            self._put(fields, self._default(name, rest, line), quoted)
        elif not name and inner.partition(":")[0] in ("@", "*"):
            fields[-1].stands = fields[-1].stands and not inner.startswith("@")
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
        shell = _Shell(text, line, self)
        fields = [_Field(line)]
        while shell.at < len(shell.text):
            letter = shell.peek()
            if letter == "'":
                shell._single(fields[-1])
            elif letter == '"':
                shell._double(fields)
            elif letter in "$`":
                shell._reference(fields, quoted=True)
            elif letter == "\\":
                shell._escape(fields[-1])
            else:
                fields[-1].add(shell.next())
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
            last.guessed += word.guessed
            last.stands = last.stands or (many and quoted)
            pieces = [word.text] if quoted else word.text.split()
            for further, piece in enumerate(pieces):
                if further:
                    fields.append(_Field(self.line, guessed=list(word.guessed)))
                fields[-1].text += self.budget.take(piece, self.line)
            if many:
                last.line = word.line

    def _arithmetic(self, into: _Field) -> None:
        line = self.line
        inner = self.balanced("(", ")", line)[1:-1]
        try:
            into.text += str(evaluated(inner, self._number))
        except Unknown as unknown:
            into.unset.append(unknown.name)

    def _number(self, name: str) -> str:
        words = self._value(name)
        if words[0].unset:
            raise Unknown(words[0].unset[0])
        return words[0].text


def _handed(words: Sequence[Word]) -> Iterator[tuple[str, int]]:
    """Give the text that a command hands to another shell: `bash -c TEXT`, behind other words too, and `eval TEXT`."""
    if words[0].text == "eval":
        yield " ".join(_as_written(word) for word in words[1:]), words[0].line
        return
    for place, word in enumerate(words):
        if word.text.rpartition("/")[2] not in _SHELLS:
            continue
        given = iter(words[place + 1 :])
        for option in given:
            if not option.text.startswith("-") or option.text == "--":
                break
            if "c" in option.text and not option.text.startswith("--"):
                yield from ((_as_written(each), each.line) for each in [next(given, None)] if each is not None)
                return


def _as_written(word: Word) -> str:
    """Give a text as it was written, so that what is not set in it is named; one that a variable holds as it is."""
    return word.raw if any(letter.isspace() for letter in word.raw) else word.text


def _added(old: Sequence[Word], more: Sequence[Word], listed: bool) -> list[Word]:
    """Give what `NAME+=` makes of a value: further words of an array, else text behind its first word."""
    if listed or not old:
        return [*old, *more]
    first, behind = old[0], more[0]
    joined = replace(first, text=first.text + behind.text, unset=first.unset + behind.unset)
    return [joined, *old[1:]]


def _once(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
