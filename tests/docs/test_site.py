"""The site's pages are the pages of the repository, and what is said of a version is said everywhere alike."""

from __future__ import annotations

import doctest
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.test_pages import script

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))

site_text: Any = script("site_text")


def navigation() -> set[str]:
    """Return every page and pattern that the site's navigation names."""
    text = re.sub(r"!!python/\S+", "", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    entries, named = [yaml.safe_load(text)["nav"]], set[str]()
    while entries:
        entry = entries.pop()
        if isinstance(entry, str):
            named.add(entry)
        else:
            entries += entry.values() if isinstance(entry, dict) else entry
    return named


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    named = navigation()
    reached = {path.relative_to(DOCS).as_posix() for name in named for path in DOCS.glob(name)}
    assert sorted({path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} - reached) == []
    made = {*site_text.ROOT_PAGES.values(), "api/flowgraph.md", "api/nodes.md", "api/placements.md"}
    assert sorted(name for name in named - made if not list(DOCS.glob(name))) == []
    assert made <= named


def test_the_functions_that_change_a_page_do_what_their_examples_show() -> None:
    tried = doctest.testmod(site_text)
    assert tried.failed == 0 and tried.attempted


def test_links_in_code_stay_and_pictures_move_with_their_page() -> None:
    page = "![a](docs/pictures/flow.svg)\n\n```python\nf[0](docs/x.md)\n```\n"
    assert site_text.with_site_links(page, "README.md") == page.replace("](docs/pictures", "](pictures")


def test_what_a_page_would_load_from_another_host_is_found() -> None:
    page = '<link rel="stylesheet" href="https://a.org/x.css"><img alt="" src="//b.org/y.png"><img src="own.svg">'
    assert site_text.foreign_assets(page) == ["https://a.org/x.css", "//b.org/y.png"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_has_no_failed_cell_and_links_to_what_is_there(notebook: Path) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    assert notebook.stat().st_size < 60_000
    assert [each for cell in cells for each in cell.get("outputs", ()) if each["output_type"] == "error"] == []
    assert [cell["execution_count"] for cell in cells if cell["cell_type"] == "code" and cell["execution_count"]] == []
    page = site_text.notebook_page(notebook.read_text(encoding="utf-8"))
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", page)
    assert links
    assert [link for link in links if not (notebook.parent / link).exists()] == []


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_it_holds(notebook: Path, tmp_path: Path) -> None:
    held = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    ran = script("run_notebooks").executed(notebook, tmp_path).cells
    assert [printed(each) for each in ran] == [printed(each) for each in held], "python docs/run_notebooks.py"


def printed(cell: Any) -> list[str]:
    """Return the text of a cell's outputs, unless it says that they vary."""
    if "varies" in cell["metadata"].get("tags", ()):
        return []
    return [site_text.output_text(each) for each in cell.get("outputs", ())]


def test_one_version_stands_in_the_package_the_changelog_and_the_citation() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert headings[0] == "[Unreleased]"
    dated = [re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d", each) for each in headings[1:]]
    assert all(dated)
    assert dated[0] is not None and dated[0][1] == project["version"] == cited["version"]
    assert cited["license"] == project["license"]


def test_the_guide_for_contributors_names_targets_that_there_are() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    targets = re.findall(r"^(\w+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    named = set(re.findall(r"\bmake (\w+)\b", guide.replace("`make` alone", "")))
    assert named and named - {"them"} <= set(targets)
    scripts = re.findall(r"\b(?:python|-n 0) ((?:docs|benchmarks|tests)/[\w/.]+)", guide)
    assert scripts
    assert [each for each in scripts if not (ROOT / each).exists()] == []
