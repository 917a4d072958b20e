"""Build the site from the files of this folder: what MkDocs calls on its way (`hooks` in mkdocs.yml).

The pages are the same files that GitHub shows. The README, the changelog and the guide for contributors join them; API
pages and notebooks are made here. Nothing in the site is loaded from another host: a page that would is an error.
Not here: how a page's text is changed (`site_text.py`).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(DOCS))

import site_text  # noqa: E402 - a script of this folder, which is no package

# Scripts that pages need: Mermaid draws diagrams; the shim lets search work in pages opened as files.
SCRIPTS = {
    "assets/mermaid.min.js": "mermaid/dist/mermaid.min.js",
    "assets/iframe-worker.js": "iframe-worker/shim/index.js",
}
MODULES = ROOT / ".venv-site" / "npm" / "node_modules"
API = {
    "flowgraph": "The language and its values: what a flow's file imports.",
    "nodes": "The vocabulary. [Nodes](../reference/nodes.md) lists the ports, settings and sources of each node.",
    "placements": "The planner. [Plans](../plans.md) and [Placement](../placement.md) show what it answers.",
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set GitHub's anchors, and replace each `folder/*.md` of the navigation by the folder's pages."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = site_text.github_slug
    config.nav = _expanded(config.nav)
    return config


def _expanded(entry: Any) -> Any:
    if isinstance(entry, dict):
        return {title: _expanded(inside) for title, inside in entry.items()}
    if not isinstance(entry, list):
        return entry
    return [each for one in entry for each in (_pages_of(one) if _is_pattern(one) else [_expanded(one)])]


def _is_pattern(entry: Any) -> bool:
    return isinstance(entry, str) and "*" in entry


def _pages_of(pattern: str) -> list[str]:
    found = [site_text.page_address(path.relative_to(ROOT).as_posix()) for path in sorted(DOCS.glob(pattern))]
    return [address for address in found if address is not None and not address.endswith("/README.md")]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the repository's root, the API pages, the notebooks and the scripts."""
    _move_index(files, config)
    for path, address in site_text.ROOT_PAGES.items():
        files.append(File.generated(config, address, content=(ROOT / path).read_text(encoding="utf-8")))
    for package, about in API.items():
        files.append(File.generated(config, f"api/{package}.md", content=_api_page(package, about)))
    for notebook in sorted((DOCS / "notebooks").glob("*.ipynb")):
        text = site_text.notebook_page(notebook.read_text(encoding="utf-8"))
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=text))
    for address, module in SCRIPTS.items():
        if not (MODULES / module).is_file():
            raise PluginError(f"{module} is not in {MODULES.relative_to(ROOT)}: `make site` puts it there")
        files.append(File.generated(config, address, abs_src_path=str(MODULES / module)))
    return files


def _move_index(files: Files, config: MkDocsConfig) -> None:
    """Make room for the README at the site's root: the index of this folder is a page beside it."""
    index = files.get_file_from_path("README.md")
    assert index is not None
    files.remove(index)
    moved = File(
        "README.md", config.docs_dir, config.site_dir, config.use_directory_urls, dest_uri="documentation.html"
    )
    files.append(moved)


def _api_page(package: str, about: str) -> str:
    return f"# `{package}`\n\n{about}\n\n::: {package}\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead a page's links to their places, mend its tables, and leave out the note above a generated page's title."""
    markdown = re.sub(r"\A<!--.*?-->\s*", "", markdown)  # a page that opens with its title is named by it
    places = {address: path for path, address in site_text.ROOT_PAGES.items()}
    path = places.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    source = f"{config.repo_url.rstrip('/')}/blob/main" if config.repo_url else None
    return site_text.with_plain_pipes(site_text.with_site_links(markdown, path, source))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Draw a page's formulas."""
    from latex2mathml.converter import convert

    return site_text.with_mathml(html, convert)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Load Mermaid where there is a diagram, and refuse a page that loads anything from another host."""
    if 'class="mermaid"' in output:
        up = "../" * page.file.dest_uri.count("/")
        output = output.replace("</head>", f'<script src="{up}assets/mermaid.min.js"></script></head>')
    if foreign := site_text.foreign_assets(output):
        raise PluginError(f"{page.file.src_uri} loads from another host: {', '.join(foreign)}")
    return output
