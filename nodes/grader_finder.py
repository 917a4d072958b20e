"""How a confined grader process imports from a folder that it may read files of, but not list."""

from __future__ import annotations

import importlib.util
import os
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec


class UnlistedFinder:
    """Finds modules in a folder whose files can be read but whose names cannot be listed, as a confined one is."""

    def __init__(self, folder: str) -> None:
        try:
            os.listdir(folder)
        except PermissionError:
            self.folder = folder
        except OSError as error:
            raise ImportError(folder) from error
        else:
            raise ImportError(f"{folder} can be listed")  # so the next path hook is asked

    def find_spec(self, fullname: str, target: object = None) -> ModuleSpec | None:
        """Return where a module or a package of this name is in the folder; None if it is not there."""
        stem = os.path.join(self.folder, fullname.rpartition(".")[2])
        package = os.path.join(stem, "__init__.py")
        if os.path.isfile(package):
            return importlib.util.spec_from_file_location(fullname, package, submodule_search_locations=[stem])
        for suffix in (*EXTENSION_SUFFIXES, ".py"):
            if os.path.isfile(stem + suffix):
                return importlib.util.spec_from_file_location(fullname, stem + suffix)
        spec = ModuleSpec(fullname, None, is_package=True) if os.path.isdir(stem) else None
        if spec is not None:
            spec.submodule_search_locations = [stem]
        return spec
