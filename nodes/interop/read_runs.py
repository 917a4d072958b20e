"""Runs of other systems, read from a launch script of verl or OpenRLHF, or a configuration of verl. Nothing is run."""

from __future__ import annotations

from typing import Any

from flowgraph.errors import UsageError
from nodes.interop.commands import CommandKey, StartedCommand, started
from nodes.interop.config import Config
from nodes.interop.imported import Imported
from nodes.interop.openrlhf.read import read_openrlhf
from nodes.interop.verl.read import read_verl

MAX_CHARACTERS = 200_000  # verl's whole configuration has 40,000
MAX_DEPTH = 50


def read_command(text: str) -> Imported:
    """Return the run that a launch script of verl or OpenRLHF starts; nothing is run.

    Variables, defaults, arrays and arithmetic are substituted; keys that need a running shell are among `ignored`.
    Raises UsageError for text that is not a script or starts no training, and for a run that names no model or whose
    numbers are invalid or contradict each other; the error has the line if a line is at fault.
    """
    run = started(text)
    return read_verl(Config.of(run)) if run.system == "verl" else read_openrlhf(Config.of(run))


def read_yaml(text: str) -> Imported:
    """Return the run of a verl configuration in YAML: a whole one, or only the keys that differ from the defaults.

    Raises UsageError, with the line, for text that is not YAML, and for a run that names no model or whose numbers are
    invalid or contradict each other.
    """
    keys = keys_of_yaml(text)
    inherited = tuple(
        CommandKey("--config-name", name.strip(" '\""), key.line, key.unset)
        for key in keys
        if key.key == "defaults"
        for name in key.text.strip("[]").split(",")
        if name.strip(" '\"") not in ("", "_self_", "{…}")
    )
    overrides = tuple(key for key in keys if key.key.split(".")[0] not in ("defaults", "hydra"))
    return read_verl(Config.of(StartedCommand("verl", "a configuration", 1, overrides, inherited)))


def keys_of_yaml(text: str) -> tuple[CommandKey, ...]:
    """Return the leaf keys of a YAML text, in the order of their lines, including Hydra's own (`defaults`, `hydra`).

    Of a list, the first 1,000 items are kept. Raises UsageError with the line for text of over 200,000 characters, that
    nests over 50 deep or is not a mapping, for repeated keys, keys that are not text, and an alias.
    """
    import yaml  # type: ignore[import-untyped, unused-ignore]

    if len(text) > MAX_CHARACTERS:
        raise _error(f"more than {MAX_CHARACTERS:,} characters are not a configuration", 0)
    depth = 0
    for line, content in enumerate(text.split("\n")):
        for letter in content:
            depth += (letter in "[{") - (letter in "]}")
            if depth > MAX_DEPTH:  # the library would take minutes to read it
                raise _error("nests too deep", line)
    try:
        aliases = [event for event in yaml.parse(text, Loader=yaml.SafeLoader) if isinstance(event, yaml.AliasEvent)]
        root = yaml.compose(text, Loader=yaml.SafeLoader) if not aliases else None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "it nests too deep, or holds what YAML does not allow"
        raise _error(f"is not YAML: {problem}", getattr(mark, "line", 0)) from None
    if aliases:
        raise _error("an alias stands for another part; write it out", aliases[0].start_mark.line)
    if not isinstance(root, yaml.MappingNode):
        raise _error("has no keys", 0)
    return _leaves(root)


def _leaves(root: Any) -> tuple[CommandKey, ...]:
    keys, inner = dict[str, CommandKey](), set[str]()
    mappings = [("", root, 0)]
    for prefix, mapping, depth in mappings:
        for key, value in mapping.value:
            line = key.start_mark.line
            if not isinstance(key.value, str) or depth > MAX_DEPTH:
                raise _error("is not a key of a configuration", line)
            name = f"{prefix}{key.value}"
            if name in keys:
                raise _error(f"`{name}` is repeated; it is first on line {keys[name].line}", line)
            keys[name] = CommandKey(name, _text(value), line + 1)
            if value.id == "mapping" and value.value:
                mappings.append((f"{name}.", value, depth + 1))
            inner.add(name.rpartition(".")[0])
    return tuple(sorted((key for name, key in keys.items() if name not in inner), key=lambda key: key.line))


def _text(node: Any) -> str:
    if node.id == "sequence":
        return f"[{','.join(_text(item) if item.id != 'mapping' else '{…}' for item in node.value[:1000])}]"
    if node.id == "mapping":
        return "{}"
    quoted = node.style in ("'", '"') and not node.value.startswith("${")
    return f"'{node.value}'" if quoted else str(node.value)


def _error(what: str, line: int) -> UsageError:
    return UsageError(what, where=f"line {line + 1}")
