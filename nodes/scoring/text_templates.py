"""Templates that make a text of a row, in Jinja2's sandbox; the row holds what a model wrote, so it is only data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowgraph.errors import RuleError, nearest

if TYPE_CHECKING:
    from jinja2 import Template


def compiled(text: str) -> Template:
    """Return `text` as a Jinja2 template that can neither read Python attributes nor change the values that it gets.

    Rendering raises UndefinedError for a missing name, and for printing None. Raises ValueError for a syntax error.
    """
    from jinja2 import StrictUndefined, TemplateSyntaxError, UndefinedError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def not_none(value: object) -> object:
        if value is None:
            raise UndefinedError("a value that it prints is null")
        return value

    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, finalize=not_none, keep_trailing_newline=True, extensions=["jinja2.ext.loopcontrols"]
    )
    try:
        return environment.from_string(text)
    except TemplateSyntaxError as error:
        raise ValueError(f"is not a Jinja2 template: line {error.lineno}: {error.message}") from None


def texts_of(template: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the text that a Jinja2 template makes of each row; texts in a row are never read as templates.

    Raises RuleError for a name that no column has, with the nearest column as a hint, and for a template that fails on
    a row, for example because a value that it prints is None. Raises ValueError for a syntax error.

    >>> texts_of("{{ response }}!", [{"response": "{{ 1 + 1 }}"}])
    ['{{ 1 + 1 }}!']
    """
    from jinja2 import TemplateError, meta

    ready = compiled(template)
    names = meta.find_undeclared_variables(ready.environment.parse(template)) - ready.environment.globals.keys()
    unknown = sorted(names - rows[0].keys()) if rows else []
    if unknown:
        what = f"the template uses `{unknown[0]}`, but no column has that name"
        raise RuleError(what, hint=nearest(unknown[0], rows[0]))
    texts = list[str]()
    for index, row in enumerate(rows):
        try:
            texts.append(ready.render(row))
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
            raise RuleError(f"the template fails on row {index} (from 0): {type(error).__name__}: {error}") from None
    return texts
