"""A list of hashes that somebody sent is refused in a line, whatever it names."""

from __future__ import annotations

import os
from pathlib import Path

from flowgraph.files.hashes import SUMS, first_checksum_mismatch, hash_line


def test_a_list_that_names_a_pipe_or_no_path_is_a_fault_and_no_traceback(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, why in (("pipe", "pipe is not a plain file"), ("a\0b", "a\0b cannot be read: embedded null byte")):
        (tmp_path / SUMS).write_text(hash_line(name, "0" * 64))
        assert first_checksum_mismatch(tmp_path) == why
