"""YAML text as dotted keys with their values and lines; nothing but scalars, mappings and lists is built.

Not here: what the keys mean.
"""

from __future__ import annotations

from typing import Any

from flowgraph.errors import UsageError
from nodes.interop.commands import CommandKey

MOST_TEXT = 200_000  # characters; verl's whole configuration has 40,000
DEEPEST = 50


def told_by(text: str) -> tuple[CommandKey, ...]:
    """Give the keys of a YAML text, those of Hydra itself (`defaults`, `hydra`) too, each with its line.

    Raises UsageError with the line for text that is no YAML mapping, a key that stands twice, and aliases.
    """
    import yaml  # type: ignore[import-untyped, unused-ignore]

    if len(text) > MOST_TEXT:
        raise _broken(f"more than {MOST_TEXT:,} characters are no configuration", 0)
    if (line := _too_deep(text)) is not None:
        raise _broken("nests too deep", line)
    try:
        events = list(yaml.parse(text, Loader=yaml.SafeLoader))
        aliases = [event for event in events if isinstance(event, yaml.AliasEvent)]
        root = yaml.compose(text, Loader=yaml.SafeLoader) if not aliases else None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "nests too deep, or holds what YAML does not"
        raise _broken(f"is no YAML: {problem}", getattr(mark, "line", 0)) from None
    if aliases:
        raise _broken("an alias stands for another part; write it out", aliases[0].start_mark.line)
    if root is None or not isinstance(root, yaml.MappingNode):
        raise _broken("holds no keys", 0)
    return tuple(_flat(root))


def _too_deep(text: str) -> int | None:
    """Give the line on which brackets nest deeper than any configuration, which takes the library minutes to read."""
    depth = 0
    for number, line in enumerate(text.split("\n")):
        for letter in line:
            depth += (letter in "[{") - (letter in "]}")
            if depth > DEEPEST:
                return number
    return None


def _flat(root: Any) -> list[CommandKey]:
    found = dict[str, CommandKey]()
    todo = [("", root, 0)]
    while todo:
        above, node, deep = todo.pop(0)
        for key, value in node.value:
            line = key.start_mark.line
            if not isinstance(key.value, str) or deep > DEEPEST:
                raise _broken("is no key of a configuration", line)
            name = f"{above}{key.value}"
            if name in found:
                raise _broken(f"`{name}` stands twice, first on line {found[name].line}", line)
            found[name] = CommandKey(name, _text(value), line + 1)
            if value.id == "mapping" and value.value:
                found[name] = CommandKey(name, "", line + 1)
                todo.append((f"{name}.", value, deep + 1))
    inner = {name.rpartition(".")[0] for name in found}
    return sorted((told for name, told in found.items() if name not in inner), key=lambda told: told.line)


def _text(node: Any) -> str:
    """Give a scalar's text, in quotes where those say that it is a text; a list as Hydra writes one."""
    if node.id == "sequence":
        return f"[{','.join(_text(each) if each.id != 'mapping' else '{…}' for each in node.value[:1000])}]"
    if node.id == "mapping":
        return "{}"
    quoted = node.style in ("'", '"') and not node.value.startswith("${")
    return f"'{node.value}'" if quoted else str(node.value)


def _broken(what: str, line: int) -> UsageError:
    return UsageError(what, where=f"line {line + 1}")
