"""Shell text as the words of its commands, with variables substituted. Nothing is run, and no environment is read.

The part of bash that launch scripts use: quotes, continued lines, comments, variables with defaults, arrays, integer
arithmetic, here-documents, and text for another shell. What only a running shell knows (a command's output, an unset
variable) is named in the word. An assignment under a condition has no effect, unless the variable is assigned in
several branches and nowhere else. Not here: which of the commands starts a training.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from flowgraph.errors import UsageError
from nodes.interop.shell_arithmetic import Unknown, evaluate

MAX_CHARACTERS = 1_000_000  # of a launch script
MAX_SUBSTITUTED = 300_000  # characters from variables, in all words together
MAX_DEPTH = 40  # of defaults within defaults, and shells within shells

_OPENING = {"if", "case", "for", "while", "until", "select"}
_CLOSING = {"fi", "esac", "done"}
_KEYWORDS = _OPENING | _CLOSING | {"then", "else", "elif", "do", "in", "{", "}", "!"}
_SHELLS = {"bash", "sh", "zsh", "dash", "ksh"}
_SEPARATORS = "\n;&|()"

_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_COMMENT = r"\\\n|(?<![^ \t\n;(])#[^\n]*"
_BLANKS = re.compile(rf"(?:[ \t]|{_COMMENT})*")
_BLANKS_AND_LINES = re.compile(rf"(?:[ \t\n]|{_COMMENT})*")
_ASSIGNMENT = re.compile(r"(?:(?:export|declare|local|readonly) )*([A-Za-z_][A-Za-z0-9_]*)(\+?=)")
_REDIRECTION = re.compile("[<>&-]+")
_TRAILING_SPACES = re.compile(r"\\[ \t]+(?:\n|\Z)")
_PARAMETER = re.compile(r"([A-Za-z0-9_]*)(\[[@*]\])?(?:(:?)([-=?+])(.*)|)", re.DOTALL)
_UNQUOTED = re.compile(r"""[^ \t<>\n;&|()'"\\$`]+""")
_UNQUOTED_DEFAULT = re.compile(r"""[^'"\\$`]+""")
_IN_DOUBLE_QUOTES = re.compile(r"""(?:[^"\\$`]|\\(?![$"\\`\n]))+""")


def error_at(line: int, what: str, word: str = "") -> UsageError:
    """Return a UsageError for a line of a script. Its text is "`word`: what", or only `what` if `word` is empty."""
    return UsageError(f"`{word}`: {what}" if word else what, where=f"line {line}")


@dataclass
class Word:
    """A word with its variables substituted, its line, and the names of values in it that only a running shell knows.

    `guessed` names variables that are assigned in several branches: the first value is used. `raw` is the text before
    substitution, as another shell reads it. A word with a `quoted` part is a word even if it is empty.
    """

    text: str
    line: int
    unset: tuple[str, ...] = ()
    guessed: tuple[str, ...] = ()
    raw: str = field(default="", compare=False, repr=False)
    quoted: bool = field(default=False, compare=False, repr=False)

    def add(self, text: str) -> None:
        """Append text that substitution does not change, to both `text` and `raw`."""
        self.text += text
        self.raw += text

    def name(self, *, unset: Iterable[str] = (), guessed: Iterable[str] = ()) -> None:
        """Add names of variables to `unset` and `guessed`, without repetition."""
        self.unset = tuple(dict.fromkeys((*self.unset, *unset)))
        self.guessed = tuple(dict.fromkeys((*self.guessed, *guessed)))


Command = tuple[Word, ...]


def commands(text: str) -> list[Command]:
    """Return the commands of a shell text in order, including those under conditions and those for other shells.

    Nothing is run. Raises UsageError with the line for text of over a million characters, for text that is not a
    script, for example because a quote is never closed, and if variables add over 300,000 characters.

    >>> [word.text for word in commands("N=2; run -n $((N * 4)) 'a b'  # twice")[0]]
    ['run', '-n', '8', 'a b']
    """
    if len(text) > MAX_CHARACTERS:
        raise error_at(1, f"more than {MAX_CHARACTERS:,} characters are not a launch script")
    return _Shell(text.replace("\r\n", "\n")).commands()


class _Shell:
    def __init__(self, text: str, line: int = 1, parent: _Shell | None = None) -> None:
        self.text, self.position, self.first_line = text, 0, line
        self.newlines = [match.start() for match in re.finditer("\n", text)]
        self.depth: int = parent.depth + 1 if parent else 0
        self.root: _Shell = parent.root if parent else self
        self.substituted = 0
        self.values: dict[str, Sequence[Word]] = parent.values if parent else {}
        self.conditions = 0  # that are open
        self.branch_values = dict[str, Sequence[Word]]()  # assigned under conditions only: the first
        self.documents = list[tuple[str, bool]]()  # the end marks of here-documents that start on the next line
        if self.depth > MAX_DEPTH:
            raise error_at(line, "defaults within defaults go too deep", text[:40])

    @property
    def line(self) -> int:
        return self.first_line + bisect_left(self.newlines, self.position)

    def peek(self) -> str:
        return self.text[self.position : self.position + 1]

    def take(self, pattern: re.Pattern[str]) -> str:
        """Return the text that the pattern matches at the position, and move past this text; "" if nothing matches."""
        match = pattern.match(self.text, self.position)
        if match is None:
            return ""
        self.position = match.end()
        return match[0]

    def take_until(self, mark: str, what: str, word: str) -> str:
        """Return the text before the next `mark`, and move past the mark. Raises UsageError if there is none."""
        start, end = self.position, self.text.find(mark, self.position)
        if end < 0:
            raise error_at(self.line, what, word)
        self.position = end + len(mark)
        return self.text[start:end]

    def take_balanced(self, opening: str, closing: str) -> str:
        """Return the text between the bracket here and the one that closes it; brackets in quotes do not count."""
        depth, start = 0, self.position
        tokens = re.compile(rf"""\\.|'[^']*(?:'|\Z)|"[^"]*(?:"|\Z)|\{opening}|\{closing}""", re.DOTALL)
        for token in tokens.finditer(self.text, start):
            depth += (token[0] == opening) - (token[0] == closing)
            if not depth and token[0] == closing:
                self.position = token.end()
                return self.text[start + 1 : token.start()]
        raise error_at(self.line, "is never closed", f"${opening}")

    # ---------------------------------------------------------------------------------------- commands

    def commands(self) -> list[Command]:
        commands, words = list[Command](), list[Word]()
        while self.position < len(self.text):
            self.take(_BLANKS)
            letter = self.peek()
            if letter in _SEPARATORS:
                commands += self._command(words)
                words = []
                self.position += 1
                if letter == "\n":
                    commands += self._here_documents()
            elif letter in "<>":
                if words and words[-1].text.isdigit() and self.text[self.position - 1].isdigit():
                    words.pop()  # the number of a file descriptor: 2>&1
                operator = self.take(_REDIRECTION)
                self.take(_BLANKS)
                if self.peek() not in _SEPARATORS and (target := self.word()) and operator in ("<<", "<<-"):
                    self.documents.append((target[0].text, operator == "<<-"))
            elif not words and (assignment := _ASSIGNMENT.match(self.text, self.position)):
                self.position = assignment.end()
                self._assign(assignment[1], appends=assignment[2] == "+=")
            else:
                words += self.word()
        return commands + self._command(words)

    def _command(self, words: Sequence[Word]) -> list[Command]:
        """Return a command and those that it hands to other shells; count the conditions that it opens or closes."""
        for word in words:
            if word.text in _OPENING | _CLOSING:
                self.conditions = max(0, self.conditions + (1 if word.text in _OPENING else -1))
            if word.text not in _KEYWORDS:
                break
        if not words:
            return []
        return [tuple(words), *(inner for text, line in _scripts(words) for inner in self._subshell(text, line))]

    def _subshell(self, text: str, line: int) -> list[Command]:
        shell = _Shell(text, line, self)
        shell.values = dict(self.values)  # what it assigns ends with it
        return shell.commands()

    def _here_documents(self) -> list[Command]:
        """Read the here-documents that the last line has announced: they may be launch scripts."""
        commands = list[Command]()
        for mark, indented in self.documents:
            tabs = r"\t*" if indented else ""
            end = re.compile(rf"^(?!\Z){tabs}{re.escape(mark)}(?:\n|\Z)", re.MULTILINE)
            match = end.search(self.text, self.position)
            if match is None:
                continue  # `<<` was arithmetic
            line, body = self.line, self.text[self.position : match.start()]
            self.position = match.end()
            try:
                commands += self._subshell(body, line)
            except UsageError:
                continue  # the text is in another language
        self.documents.clear()
        return commands

    def _assign(self, name: str, appends: bool) -> None:
        """Assign the value that follows; in a branch, which may not run, only if the variable has no value.

        A variable without one has the first of the values that several branches assign.
        """
        is_array, old = self.peek() == "(", self.values.get(name, ())
        if is_array:
            opened, value = self.line, list[Word]()
            self.position += 1
            self.take(_BLANKS_AND_LINES)
            while self.peek() != ")":
                if not self.peek():
                    raise error_at(opened, "this array is never closed", "(")
                if self.peek() in ";&|(<>":
                    raise error_at(self.line, "cannot be used in an array", self.peek())
                value += self.word()
                self.take(_BLANKS_AND_LINES)
            self.position += 1
        else:
            empty = self.peek() in _SEPARATORS + " \t"
            value = ([] if empty else self.word(splits=False)) or [Word("", self.line)]
        if self.conditions:
            is_known = not any(word.unset for word in value) and any(word.text for word in value)
            if name in self.branch_values and name not in self.values and is_known:
                self.values[name] = [replace(word, guessed=(name,)) for word in self.branch_values[name]]
            elif name not in self.values and is_known:
                self.branch_values[name] = value
        elif appends and old and not is_array:
            text, unset = old[0].text + value[0].text, old[0].unset + value[0].unset
            self.values[name] = [replace(old[0], text=text, unset=unset), *old[1:]]
        else:
            self.values[name] = [*old, *value] if appends else value

    # ---------------------------------------------------------------------------------------- words

    def word(self, splits: bool = True) -> list[Word]:
        """Return the next word; a variable without quotes may make it several words, or none."""
        fields = self._fields(_UNQUOTED, quoted=not splits)
        return [part for part in fields if part.text or part.quoted or part.unset]

    def _fields(self, unquoted: re.Pattern[str], quoted: bool) -> list[Word]:
        fields = [Word("", self.line)]
        while letter := self.peek():
            if letter == "'":
                fields[-1].add(self._single_quotes())
                fields[-1].quoted = True
            elif letter == '"':
                self._double_quotes(fields)
            elif letter == "\\":
                if _TRAILING_SPACES.match(self.text, self.position):
                    raise error_at(self.line, "spaces follow it, so it does not continue the line", "\\")
                escaped = self.text[self.position + 1 : self.position + 2]
                self.position += 2
                if escaped != "\n":
                    fields[-1].add(escaped)
                    fields[-1].quoted = True
            elif letter in "$`":
                self._reference(fields, quoted)
            elif text := self.take(unquoted):
                fields[-1].add(text)
            else:
                break
        return fields

    def _single_quotes(self) -> str:
        word = self.text[self.position : self.position + 12].strip()
        self.position += 1
        return self.take_until("'", "this quote is never closed", word)

    def _double_quotes(self, fields: list[Word]) -> None:
        line, word = self.line, self.text[self.position : self.position + 12].strip()
        fields[-1].quoted = True
        self.position += 1
        while (letter := self.peek()) != '"':
            if not letter:
                raise error_at(line, "this quote is never closed", word)
            if letter == "\\" and (escaped := self.text[self.position + 1 : self.position + 2]) in '$"\\`\n':
                fields[-1].text += escaped.strip("\n")
                fields[-1].raw += "\\\n" if escaped == "\n" else escaped
                self.position += 2
            elif letter in "$`":
                self._reference(fields, quoted=True)
            else:
                fields[-1].add(self.take(_IN_DOUBLE_QUOTES))
        self.position += 1

    # ---------------------------------------------------------------------------------------- references

    def _reference(self, fields: list[Word], quoted: bool) -> None:
        part, letter, start = fields[-1], self.peek(), self.position
        self.position += 1
        if letter == "`":
            self.take_until("`", "is never closed", "`")
            part.name(unset=("a command's output",))
        elif self.text.startswith("((", self.position):
            try:
                part.text += str(evaluate(self.take_balanced("(", ")")[1:-1], self._number))
            except Unknown as unknown:
                part.name(unset=(unknown.name,))
        elif self.peek() == "(":
            self.take_balanced("(", ")")
            part.name(unset=("a command's output",))
        elif self.peek() == "{":
            self._parameter(fields, quoted)
        elif self.peek() == "'" and not quoted:
            part.text += self._single_quotes()
            part.quoted = True
        elif name := self.take(_NAME):
            self._put(fields, self._value(name), quoted)
        elif self.peek() and self.peek() in "@*#?!0123456789":  # the script's own arguments: there are none
            part.quoted = part.quoted and self.peek() != "@"
            self.position += 1
        else:
            part.text += "$"
        part.raw += self.text[start : self.position]

    def _parameter(self, fields: list[Word], quoted: bool) -> None:
        line = self.line
        content = self.take_balanced("{", "}")
        match = _PARAMETER.fullmatch(content)
        name = match[1] if match else ""
        value = self.values.get(name)
        if match and name and match[2] and value is not None and not value:
            fields[-1].quoted = False
        if match and name and not match[4]:
            is_array = bool(match[2])
            self._put(fields, value if is_array and value is not None else self._value(name), quoted, is_array)
        elif match and name:
            self._put(fields, self._default(name, match[3] == ":", match[4], match[5], line), quoted)
        elif content.partition(":")[0] in ("@", "*"):
            fields[-1].quoted = fields[-1].quoted and not content.startswith("@")
        else:
            fields[-1].name(unset=(f"${{{content[:40]}}}",))

    def _default(self, name: str, empty_is_unset: bool, operator: str, default: str, line: int) -> Sequence[Word]:
        value = self.values.get(name)
        if value is not None and empty_is_unset and not any(word.text for word in value):
            value = None
        if operator == "+" and value is None:
            return ()
        if value is not None and operator != "+":
            return value
        if operator == "?":
            return (Word("", line, (name,)),)
        if operator != "+" and name == "HOME":
            return self._value(name)
        inner = _Shell(default, line, self)
        return inner._fields(_UNQUOTED_DEFAULT, quoted=True)

    def _value(self, name: str) -> Sequence[Word]:
        """Return the first word of a variable; the home directory stays `~`, and an unset variable is named."""
        if name in self.values:
            return self.values[name][:1]
        return (Word("~", self.line),) if name == "HOME" else (Word("", self.line, (name,)),)

    def _number(self, name: str) -> str:
        word = self._value(name)[0]
        if word.unset:
            raise Unknown(word.unset[0])
        return word.text

    def _put(self, fields: list[Word], words: Iterable[Word], quoted: bool, is_array: bool = False) -> None:
        """Add words to the last field, split at spaces unless quoted; those of an array become fields."""
        for index, word in enumerate(words):
            if is_array and index:
                fields.append(Word("", self.line))
            last = fields[-1]
            last.name(unset=word.unset, guessed=word.guessed)
            last.quoted = last.quoted or (is_array and quoted)
            for piece_index, piece in enumerate([word.text] if quoted else word.text.split()):
                if piece_index:
                    fields.append(Word("", self.line, guessed=word.guessed))
                self.root.substituted += len(piece) + 1
                if self.root.substituted > MAX_SUBSTITUTED:
                    raise error_at(self.line, "its variables grow without end")
                fields[-1].text += piece
            if is_array:
                last.line = word.line


def _scripts(words: Sequence[Word]) -> Iterator[tuple[str, int]]:
    if words[0].text == "eval":
        yield " ".join(map(_script, words[1:])), words[0].line
        return
    for index, word in enumerate(words):
        if word.text.rpartition("/")[2] in _SHELLS:
            options = iter(words[index + 1 :])
            for option in options:
                if not option.text.startswith("-") or option.text == "--":
                    break
                if "c" in option.text and not option.text.startswith("--"):
                    yield from ((_script(text), text.line) for text in [next(options, None)] if text)
                    return


def _script(word: Word) -> str:
    """Return a text before substitution, so that unset variables are named; the value of a bare variable."""
    return word.raw if any(letter.isspace() for letter in word.raw) else word.text
