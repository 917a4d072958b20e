"""Environments apart from ours: each made once in a folder, from exact pins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

STAMP = "made-from.txt"


def ensure(folder: Path, of: str, *options: str) -> Path:
    """Return the Python of the environment of `of` (trl, verl) in `folder`; made where it is not, or from other pins.

    The pins are in `requirements-OF.txt`; `options` go to pip. Raises `subprocess.CalledProcessError` where a package
    cannot be installed.
    """
    listed = Path(__file__).with_name(f"requirements-{of}.txt")
    python, stamp, pins = folder / "bin" / "python", folder / STAMP, listed.read_text("utf-8")
    if stamp.is_file() and stamp.read_text("utf-8") == pins:
        return python
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "pyvenv.cfg").is_file():
        sys.exit(f"{folder} holds something else than an environment; name another folder with --env")
    print(f"making an environment for {of} in {folder}, once; with torch this takes minutes", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], check=True)
    for packages in (*torch_of(pins), ["-r", str(listed)]):
        install = ["-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check", *options]
        subprocess.run([sys.executable, *install, *packages], check=True)
    stamp.write_text(pins, "utf-8")
    return python


def torch_of(pins: str) -> list[list[str]]:
    r"""Return the pin of torch, if any: it is installed first, because resolved with the rest it may come with CUDA.

    >>> torch_of("numpy==2.4.6\ntorch==2.13.0\n"), torch_of("numpy==2.4.6\n")
    ([['torch==2.13.0']], [])
    """
    return [[line] for line in pins.splitlines() if line.startswith("torch==")]
