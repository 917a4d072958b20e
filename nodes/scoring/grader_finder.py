"""How a confined grader process imports from a folder whose files it may read, but not list."""

from __future__ import annotations

import importlib.util
import os
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec


class UnlistedFinder:
    """Finds modules in a folder whose files can be read but not listed."""

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
        """Return the spec of the module or package of this name in the folder; None if it is not there."""
        stem = os.path.join(self.folder, fullname.rpartition(".")[2])
        package = os.path.join(stem, "__init__.py")
        if os.path.isfile(package):
            return importlib.util.spec_from_file_location(fullname, package, submodule_search_locations=[stem])
        for suffix in (*EXTENSION_SUFFIXES, ".py"):
            if os.path.isfile(stem + suffix):
                return importlib.util.spec_from_file_location(fullname, stem + suffix)
        if not os.path.isdir(stem):
            return None
        spec = ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = [stem]
        return spec
