"""Permissions of the process of one rule, and which rules are refused where no process can be confined."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from flowgraph.errors import RuleError
from nodes.scoring.confinement import (
    FULL_LANDLOCK_ABI,
    NETWORK_PATHS,
    Allowed,
    allowed,
    existing,
    lacks,
    python_folders,
    system_paths,
)
from nodes.scoring.rules import COMPARING_RULES, RuleRef
from nodes.scoring.sandbox_fusion import endpoint

_CODE = (".py", ".pyc", ".so", ".pyd")


def refuse_unheld(rule: RuleRef, words: Sequence[str], *, confined: bool = False, sandbox: str = "") -> Allowed:
    """Return the permissions of a rule on this machine. Raises RuleError if the rule must not run here.

    `words` are those of the setting `allow`; an unknown word is an error. On a machine that cannot confine a process,
    only shipped rules that compare text run, unconfined; other rules need "unconfined" in `words`. With `confined`, no
    rule may run unconfined. A rule that runs programs which a model wrote needs a machine that can confine them,
    whatever `words` are, or the URL of a `sandbox`: with a sandbox, the rule only compares text, and may reach that
    server.
    """
    may = allowed(words)
    if confined and may.unconfined:
        raise RuleError.confined_and_not(rule.text)
    if rule.runs_programs and sandbox:
        may = replace(may, endpoints=may.endpoints or (endpoint(sandbox),))
    why = lacks()
    if rule.runs_programs and why and not sandbox:
        raise RuleError.no_sandbox(why)
    if may.unconfined or not why:
        return may
    if rule.shipped and (rule.name in COMPARING_RULES or rule.runs_programs) and not confined:
        return replace(may, unconfined=True)
    raise RuleError.unconfinable(rule.text, why)


def readable(rule: RuleRef, import_path: Sequence[str], may: Allowed) -> list[str]:
    """Return the existing paths that a rule's process may read, given its permissions `may`.

    These are files of the system, Python's folders, packages on `import_path`, the modules and packages next to the
    rule, and the paths that the setting `allow` adds. In folders that are not Python's, such as the working folder,
    only modules and packages can be read.
    """
    python = python_folders()
    is_file = rule.source.endswith(".py")
    folders = (*import_path, os.path.dirname(rule.source)) if is_file else import_path
    outside = [folder for folder in folders if not f"{folder}{os.sep}".startswith(tuple(f + os.sep for f in python))]
    names = [] if is_file else rule.source.split(".")[:-1]
    on_the_way = [os.path.join(folder, *names[:depth]) for folder in outside for depth in range(1, len(names) + 1)]
    # A folder without `__init__.py` on the way to a rule's module is searched as the folders of the import path are.
    outside += [path for path in on_the_way if os.path.isdir(path) and not _is_package(path)]
    code = [path for folder in dict.fromkeys(outside) for path in _code_in(folder)]
    return [*system_paths(), *existing((*(NETWORK_PATHS if may.endpoints else ()), *code, *may.reads))]


def _is_package(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, "__init__.py"))


def _code_in(folder: str) -> list[str]:
    try:
        paths = [os.path.join(folder, name) for name in os.listdir(folder)]
    except OSError:
        return [folder] if folder.endswith(".zip") else []
    return [path for path in paths if path.endswith(_CODE)] + [path for path in paths if _is_package(path)]


def confinement_summary() -> str:
    """Return a description of how this machine confines rules, or why it cannot, in one or two lines."""
    if why := lacks():
        rules = ", ".join(sorted(COMPARING_RULES))
        return f'not confined: {why}\nonly {rules} run; others need allow=["unconfined"]'
    import sandlock

    abi = sandlock.landlock_abi_version()
    weaker = "" if abi >= FULL_LANDLOCK_ABI else f" ({FULL_LANDLOCK_ABI} is the full set)"
    return f"confined by Landlock {abi}{weaker} and seccomp: no network, no files but their code and a scratch folder"
