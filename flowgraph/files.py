"""Flows in files: `file.py:name` names one of a user's, a bare name a shipped one.

A file gets one stable module name, so that its types are one class wherever it is read.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from flowgraph.dsl import Flow, _line_of
from flowgraph.errors import FlowError, UnknownNameError, UserCodeError
from flowgraph.shipped import flows_folder

OURS = ("flowgraph", "nodes", "placements")


@dataclass(frozen=True)
class FlowFile:
    """A flow and the file it is in."""

    flow: Flow[..., Any]
    path: Path

    @property
    def source(self) -> str:
        """Give the file's text."""
        return self.path.read_text(encoding="utf-8")


def find_flow(text: str) -> FlowFile:
    """Find the flow that a text names: `grpo`, `my.py` (its only flow), or `my.py:name`.

    Raises `UnknownNameError` for a file or name that is not there, `UserCodeError` for a file that does not import.
    """
    file, colon, name = text.rpartition(":") if ":" in text else (text, "", "")
    if not file.endswith(".py"):
        return _shipped(text)
    path = Path(file).expanduser()
    if not path.is_file():
        raise UnknownNameError(f"there is no file {path.absolute()}", hint="a shipped flow has no .py: `grpo`")
    flows = flows_in(path)
    if not colon and len(flows) == 1:
        return FlowFile(next(iter(flows.values())), path)
    if name not in flows:
        hint = "" if flows else "a flow is a function under @flow"
        if not name:
            raise UnknownNameError(f"{path} holds {len(flows)} flows", hint=hint or f"name one: {path}:{next(iter(flows))}")
        raise UnknownNameError.of("flow", name, flows, str(path)) if flows else UnknownNameError("no flow", where=str(path), hint=hint)
    return FlowFile(flows[name], path)


def _shipped(name: str) -> FlowFile:
    files = {path.stem: path for path in shipped_files()}
    if name not in files:
        raise UnknownNameError.of("shipped flow", name, files)
    return FlowFile(flows_in(files[name])[name], files[name])


def shipped_files() -> Iterator[Path]:
    """Give the files of the shipped flows, in order of name."""
    return (path for path in sorted(flows_folder().glob("*.py")) if not path.stem.startswith("_"))


def flows_in(path: Path) -> dict[str, Flow[..., Any]]:
    """Import a file and give the flows it defines, by name."""
    module = import_file(path)
    found = {name: each for name, each in vars(module).items() if isinstance(each, Flow)}
    return {name: each for name, each in found.items() if each.fn.__module__ == module.__name__}


def import_file(path: Path) -> ModuleType:
    """Import a user's file under its one name, `flowgraph_flow.<stem>`; modules beside it can be imported by it.

    Raises `UserCodeError` with the line at fault, or when a file beside it has the name of one of our packages.
    """
    path = path.resolve()
    _refuse_shadow(path.parent)
    name = f"flowgraph_flow.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except FlowError:
        raise
    except SyntaxError as error:
        raise UserCodeError(f"does not parse: {error.msg}", where=f"{Path(error.filename or path).name}:{error.lineno}") from error
    except Exception as error:
        raise UserCodeError.raised("importing it", error, _line_of(error, str(path))) from error
    return module


def _refuse_shadow(folder: Path) -> None:
    """Say plainly when a file beside the flow has the name of one of our packages."""
    for name in OURS:
        for path in (folder / f"{name}.py", folder / name / "__init__.py"):
            ours = Path(__file__).resolve().parent.parent / name
            if path.exists() and not path.resolve().is_relative_to(ours):
                raise UserCodeError.shadows(str(path), name)


def refuse_shadowed_packages() -> None:
    """Say plainly when Python finds something else under the name of one of our packages."""
    home = Path(__file__).resolve().parent.parent
    for name in OURS:
        spec = importlib.util.find_spec(name)
        found = Path(spec.origin) if spec is not None and spec.origin else None
        if found is not None and not found.resolve().is_relative_to(home):
            raise UserCodeError.shadows(str(found), name)
