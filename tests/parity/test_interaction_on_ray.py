"""Conversations on Ray: two ranks that sample, with processes of environments of their own, play as one process does."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

import flowgraph

pytestmark = pytest.mark.processes

GAME = Path(__file__).parents[2] / "examples" / "environments" / "guessing_game.py"
