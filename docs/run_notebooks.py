"""Run the notebooks of this folder, each in an empty folder, and write what their cells print into them.

Run it from anywhere: `python docs/run_notebooks.py [NAME …]`. A test runs the same and compares. A cell tagged `varies`
prints what depends on the machine.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "notebooks"
LIMIT_S = 300  # for each cell


def executed(notebook: Path, folder: Path) -> Any:
    """Return the notebook as it is after all its cells ran in `folder`; raise if one fails.

    What commands say on stderr (progress, times) is left out, and so are the counts of cells.
    """
    import nbformat
    from nbclient import NotebookClient
    from traitlets.config import Config

    cells = nbformat.read(notebook, as_version=4)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with tempfile.TemporaryDirectory() as sockets, mock.patch.dict(os.environ, PATH=path):
        # A kernel that listens on no port. The name of a socket has at most 107 bytes, which `folder` may exceed.
        local = Config({"KernelManager": {"transport": "ipc", "ip": f"{sockets}/kernel"}})
        NotebookClient(
            cells,
            config=local,
            timeout=LIMIT_S,
            coalesce_streams=True,
            store_widget_state=False,
            resources={"metadata": {"path": str(folder)}},
        ).execute()
    _leave_out_counts(cells)
    return cells


def _leave_out_counts(cells: Any) -> None:
    for cell in cells.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
            for output in cell.outputs:
                if output.output_type == "execute_result":
                    output.execution_count = None


def main(names: list[str]) -> None:
    """Run the notebooks of these names, or all of them, and write them anew."""
    import nbformat

    for notebook in [FOLDER / f"{name}.ipynb" for name in names] or sorted(FOLDER.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            cells = executed(notebook, Path(folder))
        nbformat.write(cells, notebook)
        print(f"{notebook.relative_to(ROOT)}: {notebook.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
