"""Hashes of files: what is not as it was listed is named, and a damaged file is not read to its end."""

from __future__ import annotations

import os
from pathlib import Path

from flowgraph.files.hashes import file_mismatches, sha256


def test_a_recorded_file_that_is_cut_or_made_huge_is_named_without_reading_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "000000.parquet"
    path.write_bytes(b"PAR1 rows PAR1")
    listed = {path.name: sha256(path)}
    assert list(file_mismatches(tmp_path, listed)) == []
    os.truncate(path, 2**40)
    wrong = f"{path.name} has changed since it was written"
    assert list(file_mismatches(tmp_path, listed)) == [f"{wrong}: it does not end as Parquet does"]
    path.write_bytes(b"PAR1 Rows PAR1")
    (fault,) = file_mismatches(tmp_path, listed)
    assert fault.startswith(f"{wrong}: sha256 was ")
