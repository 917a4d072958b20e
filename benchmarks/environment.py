"""TRL's environment: made once in a folder, from exact pins, apart from ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PINS = Path(__file__).with_name("requirements-trl.txt")
STAMP = "made-from.txt"


def ensure(folder: Path) -> Path:
    """Give the Python of the environment in `folder`; make it there if it is not, or was made from other pins.

    Raises `subprocess.CalledProcessError` where a package cannot be installed.
    """
    python, stamp, pins = folder / "bin" / "python", folder / STAMP, PINS.read_text("utf-8")
    if stamp.is_file() and stamp.read_text("utf-8") == pins:
        return python
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "pyvenv.cfg").is_file():
        sys.exit(f"{folder} holds something else than an environment; name another folder with --env")
    print(f"making TRL's environment in {folder}, once; torch is large, so this takes minutes", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], check=True)
    for packages in ([torch_of(pins)], ["-r", str(PINS)]):
        install = ["-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([sys.executable, *install, *packages], check=True)
    stamp.write_text(pins, "utf-8")
    return python


def torch_of(pins: str) -> str:
    r"""Give the line that pins torch, which is installed first: resolved with the rest it may come with CUDA.

    >>> torch_of("numpy==2.4.6\ntorch==2.13.0\n")
    'torch==2.13.0'
    """
    return next(line for line in pins.splitlines() if line.startswith("torch=="))
