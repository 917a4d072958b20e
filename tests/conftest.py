"""What every test shares: one thread, no network, golden files, and hypothesis without a clock."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from pathlib import Path

# Set before anything imports torch or a hub client: they read these once. The suite runs two processes on two cores.
os.environ.update(
    OMP_NUM_THREADS="1",
    MKL_NUM_THREADS="1",
    TOKENIZERS_PARALLELISM="false",
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    TRANSFORMERS_OFFLINE="1",
)

import hypothesis
import pytest

GOLDEN = Path(__file__).parent / "golden"

# No deadline: a shared machine's clock would fail a test that is right. In CI the same examples are drawn every time.
hypothesis.settings.register_profile("here", deadline=None, max_examples=50)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=50, derandomize=True, database=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--update-golden`."""
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden from what is printed now")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave programs under tests/ that are data (wrong on purpose, say) unimported: tests are named test_*.py."""
    if collection_path.suffix == ".py" and not collection_path.name.startswith("test_"):
        return True
    return None


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Give `golden(text, name)`: compare a text with the file tests/golden/<name>, or rewrite that file if asked to."""
    update: bool = request.config.getoption("--update-golden")

    def compare(text: str, name: str) -> None:
        path, text = GOLDEN / name, text if text.endswith("\n") else text + "\n"
        old = path.read_text(encoding="utf-8") if path.is_file() else ""
        if text == old:
            return
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        lines = difflib.unified_diff(
            old.splitlines(keepends=True), text.splitlines(keepends=True), f"tests/golden/{name}", "printed now"
        )
        pytest.fail(f"{''.join(lines)}\nif this is meant: pytest --update-golden", pytrace=False)

    return compare
