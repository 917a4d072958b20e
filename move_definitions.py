#!/usr/bin/env python3
"""Move definitions between modules of `placements`, so that no room imports a later one; run after move_placements.py.

`python ROOMS/move_definitions.py [ROOT]`. What is not in its old module is left; ends with ruff.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()

# (from, to, names in the order in which they are to stand)
MOVES = [
    ("time.decode", "hardware.engine_constants", ["ServingConstants"]),
    ("time.training_passes", "hardware.engine_constants", ["TrainingConstants"]),
    ("step.tasks", "hardware.engine_constants", ["HOST", "HostConstants", "host_constants"]),
    ("time.training", "workload.node_workload", ["PassTokens"]),
    ("search.named_placements", "workload.graph_workload", ["read_together"]),
    ("search.pool_options", "time.transitions", ["tensors"]),
    ("workload.lengths", "workload.length_fits", ["POINTS"]),
    (
        "step.role_placements",
        "search.block_placements",
        ["Block", "ALL", "homes_of", "_in_place", "_names", "_homes", "_key"],
    ),
    ("search.staleness", "report.staleness_report", ["staleness_text", "_ratio"]),
]
NEW = {
    "search.block_placements": "Where each role lives by blocks of roles that share a pool, as a search finds them.",
    "report.staleness_report": "What each staleness buys, as text.",
}
FIRST = {"HOST", "POINTS", "Block", "ALL", "PassTokens"}  # stand below the imports, since what follows needs them


def path_of(module: str) -> Path:
    return ROOT / "placements" / (module.replace(".", "/") + ".py")


def segment(tree: ast.Module, lines: list[str], name: str) -> tuple[int, int] | None:
    """Return the lines of a definition, from 0, its comments above and its docstring below included."""
    for place, node in enumerate(tree.body):
        names = set[str]()
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = {node.name}
        elif isinstance(node, ast.Assign):
            names = {each.id for each in node.targets if isinstance(each, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = {node.target.id}
        if name not in names:
            continue
        begin = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))]) - 1
        while begin and lines[begin - 1].startswith("#") and not lines[begin - 1].startswith("# ---"):
            begin -= 1
        end = node.end_lineno or node.lineno
        after = tree.body[place + 1] if place + 1 < len(tree.body) else None
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Expr):
            end = after.end_lineno or end
        return begin, end
    return None


def imports_of(tree: ast.Module) -> dict[str, tuple[str, bool]]:
    """Return each imported name with a statement that imports it, and whether it is for types only."""
    found: dict[str, tuple[str, bool]] = {}
    for node in tree.body:
        typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for each in node.body if isinstance(node, ast.If) else [node]:
            if isinstance(each, ast.ImportFrom | ast.Import):
                for alias in each.names:
                    one = ast.alias(alias.name, alias.asname)
                    text = ast.unparse(
                        ast.ImportFrom(each.module, [one], 0) if isinstance(each, ast.ImportFrom) else ast.Import([one])
                    )
                    found[(alias.asname or alias.name).split(".")[0]] = text, typing
    return found


def add_imports(text: str, statements: list[tuple[str, bool]]) -> str:
    """Add imports below `from __future__`; those for types in a block of their own, which ruff leaves as it is."""
    for statement, typing in statements:
        tree = ast.parse(text)
        have = {key for key, _ in imports_of(tree).items()}
        name = statement.split(" import ")[-1].split(" as ")[-1].removeprefix("import ")
        if name in have:
            continue
        lines = text.splitlines()
        blocks = [n for n in tree.body if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)]
        if typing and blocks:
            lines.insert(blocks[0].body[0].lineno - 1, "    " + statement)
        else:
            place = next(n.end_lineno or 0 for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__")
            lines.insert(place, statement)
        text = "\n".join(lines) + "\n"
    return text


def used(text: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


def move(source: str, target: str, names: list[str]) -> set[str]:
    origin, goal = path_of(source), path_of(target)
    text = origin.read_text(encoding="utf-8")
    taken: list[tuple[str, str]] = []
    known = imports_of(ast.parse(text))
    for name in names:
        lines = text.splitlines()
        place = segment(ast.parse(text), lines, name)
        if place is None:
            if not goal.is_file() or segment(ast.parse(goal.read_text("utf-8")), goal.read_text("utf-8").splitlines(), name) is None:
                print(f"warning: {source} has no {name}")
            continue
        begin, end = place
        taken.append((name, "\n".join(lines[begin:end])))
        text = "\n".join([*lines[:begin], *lines[end:]]) + "\n"
    moved = {name for name, _ in taken}
    if not moved:
        return set(names)
    if not goal.exists():
        goal.write_text(f'"""{NEW[target]}"""\n\nfrom __future__ import annotations\n', encoding="utf-8")
    # what the moved text needs
    whole = "\n\n\n".join(part for _, part in taken)
    into = goal.read_text(encoding="utf-8")
    own = {n.name for n in ast.parse(into).body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    top = {n.name for n in ast.parse(text).body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    top |= {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)} - used(whole)
    needs = used(whole) - moved - own
    statements = [known[name] for name in sorted(needs) if name in known and f"placements.{target} " not in known[name][0]]
    statements += [(f"from placements.{source} import {name}", False) for name in sorted((needs & top) - known.keys())]
    into = add_imports(into, statements)
    # a name that the target imported from the source is now its own
    first = "\n\n\n".join(part for name, part in taken if name in FIRST)
    rest = "\n\n\n".join(part for name, part in taken if name not in FIRST)
    if first:
        tree, lines = ast.parse(into), into.splitlines()
        last = max(
            (n.end_lineno or 0 for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom) or (isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test))),
            default=0,
        )
        into = "\n".join([*lines[:last], "", first, "", *lines[last:]]) + "\n"
    if rest:
        into = into.rstrip("\n") + "\n\n\n" + rest + "\n"
    goal.write_text(into, encoding="utf-8")
    remaining = used(text) & moved
    text = add_imports(text, [(f"from placements.{target} import {name}", False) for name in sorted(remaining)])
    origin.write_text(text, encoding="utf-8")
    return set(names)


def redirect(source: str, target: str, names: set[str]) -> None:
    """Let every import of the moved names name their new module."""
    old, new = f"placements.{source}", f"placements.{target}"
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.py"], cwd=ROOT, capture_output=True, text=True).stdout
    for file in (ROOT / name for name in listed.splitlines()):
        if not file.is_file():
            continue
        text = file.read_text(encoding="utf-8")
        if old not in text:
            continue
        lines = text.splitlines()
        nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom) and n.module == old]
        for node in sorted(nodes, key=lambda n: -n.lineno):
            moved = [a for a in node.names if a.name in names]
            if not moved:
                continue
            rest = [a for a in node.names if a.name not in names]
            indent = " " * node.col_offset
            fresh = [indent + ast.unparse(ast.ImportFrom(old, rest, 0))] if rest else []
            if file != path_of(target):
                fresh.append(indent + ast.unparse(ast.ImportFrom(new, moved, 0)))
            lines[node.lineno - 1 : node.end_lineno] = fresh
        changed = "\n".join(lines) + "\n"
        for name in names:
            changed = changed.replace(f"{old}.{name}", f"{new}.{name}")
        if changed != text:
            file.write_text(changed, encoding="utf-8")


# Literal texts, each replaced where its old form stands; and lines that each file's imports gain with that.
EDITS = [
    (
        "placements/step/role_placements.py",
        '"""Where each role lives: from blocks of roles that share a pool, or from a plan that was read."""',
        '"""Where each role lives, as data, and read from a plan. From what a search found: `search.block_placements`."""',
    ),
    ("placements/search/block_placements.py", 'Option]\n\n\nALL', 'Option]\n\nALL'),
    ("placements/workload/lengths.py", "        from placements.workload.length_fits import fitted, quantities\n\n", ""),
    ("placements/workload/lengths.py", "        from placements.workload.length_fits import fitted, quantity, stretched\n\n", ""),
    ("placements/workload/lengths.py", "\n        from placements.workload.length_fits import refuse_lengths\n", ""),
    (
        "placements/workload/lengths.py",
        "from placements.workload.length_fits import POINTS\n",
        "from placements.workload.length_fits import POINTS, fitted, quantities, quantity, refuse_lengths, stretched\n",
    ),
    (
        "placements/workload/planning_problem.py",
        """
    @cached_property
    def host_work(self) -> HostWork:
        \"""Return what is done beside models in a step.\"""
        rows = max((load.rows for load in self.loads), default=self.prompts)
        response = self.response or max((load.response for load in self.loads), key=lambda each: each.mean)
        return host_work(self.running, self.prompts, self.prompt, response, rows)
""",
        "",
    ),
    (
        "placements/time/host_work.py",
        "@lru_cache(maxsize=64)\ndef host_work(",
        """@lru_cache(maxsize=16)
def host_work_of(problem: PlanningProblem) -> HostWork:
    \"""Return what the host works on in a step of a planning problem.\"""
    rows = max((load.rows for load in problem.loads), default=problem.prompts)
    response = problem.response or max((load.response for load in problem.loads), key=lambda each: each.mean)
    return host_work(problem.running, problem.prompts, problem.prompt, response, rows)


@lru_cache(maxsize=64)
def host_work(""",
    ),
]


def edit() -> None:
    for name, old, new in EDITS:
        file = ROOT / name
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        if new and old in new and new in text:
            continue  # done already
        if old in text:
            file.write_text(text.replace(old, new), encoding="utf-8")
        elif new not in text or not new:
            print(f"note: {name} has not (or no longer) {old.strip().splitlines()[0]!r}")


def host_work() -> None:
    """Ask `host_work_of` what a planning problem knew itself."""
    call = re.compile(r"\b((?:\w+\.)*?\w*setting)\.host_work\b")
    for folder in ("placements", "tests", "benchmarks", "flowgraph"):
        for file in (ROOT / folder).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            changed = call.sub(r"host_work_of(\1)", text)
            if changed != text:
                file.write_text(add_imports(changed, [("from placements.time.host_work import host_work_of", False)]), "utf-8")
    file = path_of("time.host_work")
    text = file.read_text(encoding="utf-8")
    file.write_text(
        add_imports(text, [("from placements.workload.planning_problem import PlanningProblem", False)]), encoding="utf-8"
    )


def main() -> int:
    for source, target, names in MOVES:
        found = move(source, target, names)
        redirect(source, target, found)
    host_work()
    edit()
    folders = [name for name in ("flowgraph", "nodes", "placements", "examples", "benchmarks", "tests") if (ROOT / name).exists()]
    subprocess.run(["ruff", "check", "--quiet", "--fix", "--select", "I,F401,RUF022", *folders], cwd=ROOT, check=False)
    subprocess.run(["ruff", "format", "--quiet", *folders], cwd=ROOT, check=False)
    subprocess.run(["ruff", "check", "--output-format", "concise"], cwd=ROOT, check=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
