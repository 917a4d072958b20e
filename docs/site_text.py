"""Turn the pages of this folder into pages of the site: links, anchors, formulas and notebooks.

The functions here are pure and need no MkDocs. Not here: what MkDocs calls (`site_hook.py`).
"""

from __future__ import annotations

import html
import json
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# Pages at the root of the repository, and where the site has them.
ROOT_PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}

_LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)")
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*:|#|/")
_FENCE = re.compile(r"^(?P<mark>`{3,}).*?^(?P=mark)[ \t]*$", re.MULTILINE | re.DOTALL)
_FORMULA = re.compile(r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<formula>.*?)\\[)\]]</(?P=tag)>', re.DOTALL)
_LOADED = re.compile(
    r'<(?:script|img|iframe|source|video|audio)\b[^>]*?\bsrc="((?:https?:)?//[^"]+)"'
    r'|<link\b(?=[^>]*?rel="(?:stylesheet|preconnect|preload|icon)")[^>]*?\bhref="((?:https?:)?//[^"]+)"'
)


def github_slug(heading: str, separator: str) -> str:
    """Return the anchor that GitHub gives a heading, so that one link is right in both places.

    >>> github_slug("What a step costs: `plan` & run", "-")
    'what-a-step-costs-plan--run'
    """
    return re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", separator)


def page_address(path: str) -> str | None:
    """Return the source address in the site of a file of the repository, or None if the site does not have it.

    >>> page_address("README.md"), page_address("docs/adr/0001-x.md"), page_address("nodes/kl.py")
    ('index.md', 'adr/0001-x.md', None)
    >>> page_address("docs/notebooks/train.ipynb")
    'notebooks/train.md'
    """
    if path in ROOT_PAGES:
        return ROOT_PAGES[path]
    inside = path.removeprefix("docs/")
    if inside == path:
        return None
    return re.sub(r"\.ipynb$", ".md", inside)


def with_site_links(markdown: str, path: str, source_url: str | None = None) -> str:
    """Return a page with the links that its place in the site needs.

    `path` is the page's file in the repository. A link to a source file leads to `source_url`; without one it becomes
    plain text. Fenced blocks stay as they are.

    >>> with_site_links("[Plans](docs/plans.md#pools) and [`kl`](nodes/kl.py)", "README.md")
    '[Plans](plans.md#pools) and `kl`'
    >>> with_site_links("[`kl`](../nodes/kl.py)", "docs/how.md", "https://host/tree")
    '[`kl`](https://host/tree/nodes/kl.py)'
    """
    here = page_address(path)
    assert here is not None

    def moved(link: re.Match[str]) -> str:
        return _moved_link(link, path, here, source_url)

    return _outside_fences(markdown, lambda text: _LINK.sub(moved, text))


def _moved_link(link: re.Match[str], path: str, here: str, source_url: str | None) -> str:
    address, mark, anchor = link["target"].partition("#")
    if _ADDRESS.match(link["target"]):
        return link[0]
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), address))
    there = page_address(target)
    if there is None and source_url is None:
        return link["text"]
    if there is None:
        return f"{link['image']}[{link['text']}]({source_url}/{target}{mark}{anchor})"
    relative = posixpath.relpath(there, posixpath.dirname(here) or ".")
    return f"{link['image']}[{link['text']}]({relative}{mark}{anchor})"


def _outside_fences(markdown: str, change: Callable[[str], str]) -> str:
    parts, end = list[str](), 0
    for fence in _FENCE.finditer(markdown):
        parts += [change(markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(markdown[end:])])


def with_plain_pipes(markdown: str) -> str:
    r"""Return a page whose tables have `|` in code as Python's Markdown reads it; GitHub wants it escaped there.

    >>> print(with_plain_pipes(r"| `a \| b` | c \| d |"))
    | `a | b` | c \| d |
    """
    rows = re.compile(r"^\|.*$", re.MULTILINE)
    code = re.compile(r"`[^`]*`")
    return rows.sub(lambda row: code.sub(lambda each: each[0].replace(r"\|", "|"), row[0]), markdown)


def with_mathml(page: str, convert: Callable[..., str]) -> str:
    r"""Return a page's HTML with its formulas as MathML, which browsers draw by themselves.

    `convert(formula, display=…)` turns LaTeX into MathML; `display` is "block" or "inline".

    >>> with_mathml('<span class="arithmatex">\\(a &lt; b\\)</span>', lambda formula, display: f"<{display} {formula}>")
    '<inline a < b>'
    """

    def drawn(found: re.Match[str]) -> str:
        display = "block" if found["tag"] == "div" else "inline"
        return convert(html.unescape(found["formula"]).strip(), display=display)

    return _FORMULA.sub(drawn, page)


def notebook_page(text: str) -> str:
    """Return a notebook as Markdown: its texts, its code, and the outputs that it holds.

    Pictures are SVG, inline; a cell tagged `hidden` is left out.
    """
    cells = [cell for cell in json.loads(text)["cells"] if "hidden" not in cell["metadata"].get("tags", ())]
    return "\n\n".join(part for cell in cells for part in _cell_parts(cell)) + "\n"


def _cell_parts(cell: Mapping[str, Any]) -> list[str]:
    source = _joined(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    language = "bash" if source.startswith("%%bash") else "python"
    code = source.removeprefix("%%bash\n")
    return [f"```{language}\n{code}\n```", *(_output(output) for output in cell["outputs"])]


def _output(output: Mapping[str, Any]) -> str:
    shown = output.get("data", {})
    if "image/svg+xml" in shown:
        # Markdown reads a block of HTML up to the first empty line.
        picture = re.sub(r"\n\s*\n", "\n", _joined(shown["image/svg+xml"]))
        return f'<div class="picture">\n{picture}\n</div>'
    return f"```text\n{output_text(output).rstrip()}\n```"


def output_text(output: Mapping[str, Any]) -> str:
    """Return the text of one output of a cell: what it printed, or the text of its result.

    >>> output_text({"output_type": "stream", "text": ["a ", "b"]})
    'a b'
    """
    return _joined(output["text"] if output["output_type"] == "stream" else output["data"].get("text/plain", ""))


def _joined(text: str | Sequence[str]) -> str:
    return text if isinstance(text, str) else "".join(text)


def foreign_assets(page: str) -> list[str]:
    """Return the addresses on other hosts that a page of HTML would load by itself. Links do not count.

    >>> foreign_assets('<a href="https://a.org">a</a><script src="https://b.org/x.js"></script>')
    ['https://b.org/x.js']
    """
    return [script or link for script, link in _LOADED.findall(page)]
