#!/usr/bin/env python3
"""Bring late imports to the top of their files, where neither a circle, a clash of names nor a slow start comes of it.

Run at the root: hoist.py. Of ours: everywhere but in what every command loads. Of torch and the like: where KEEP allows.
"""
import ast, re, subprocess, sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).parent))
import move_flowgraph as base
sys.setrecursionlimit(10000)
files = {".".join(p.with_suffix("").parts).removesuffix(".__init__"): p for pkg in ("flowgraph", "nodes", "placements") for p in sorted(Path(pkg).rglob("*.py"))}
ENTRY = {"flowgraph", "flowgraph.cli", "flowgraph.__main__", "flowgraph.cli.commands", "flowgraph.cli.eval_commands", "flowgraph.cli.plan_commands", "flowgraph.cli.draw_commands", "flowgraph.cli.engines"}
LIGHT = {f"flowgraph.cli.{n}" for n in "show draw diff draw_target pictures page check report listings doctor data flow_request described written_files passes facts".split()} | {m for m in files if m.startswith(("flowgraph.diagrams", "flowgraph.language", "flowgraph.cluster", "flowgraph.analysis", "flowgraph.passes", "flowgraph.checks", "flowgraph.lowering", "flowgraph.serialize", "flowgraph.flows"))}
TORCH_TOP = ("flowgraph.engines.local.", "flowgraph.engines.fsdp.", "flowgraph.engines.forward_pass.", "flowgraph.engines.model_state.", "flowgraph.engines.weight_sync.", "flowgraph.runtime.ray.places", "flowgraph.runtime.ray.device", "flowgraph.runtime.ray.supervision")
HEAVY = {"torch", "safetensors", "numpy", "pyarrow", "psutil"}  # Ray reads its token when it is imported: always late
SLOW = {"placements", "numpy", "networkx", "scipy", "torch", "ray", "pyarrow", "rich", "pygraphviz", "jinja2", "resvg_py", "psutil", "httpx", "transformers", "safetensors"}

def targets(n):
    if isinstance(n, ast.ImportFrom):
        return [f"{n.module}.{a.name}" if f"{n.module}.{a.name}" in files else n.module for a in n.names]
    return [a.name for a in n.names]

def scan(m):
    top, late = [], []
    def visit(node, inside):
        for c in ast.iter_child_nodes(node):
            if isinstance(c, ast.If) and "TYPE_CHECKING" in ast.unparse(c.test): continue
            if isinstance(c, (ast.Import, ast.ImportFrom)): (late if inside else top).append(c)
            visit(c, inside or isinstance(c, (ast.FunctionDef, ast.AsyncFunctionDef)))
    visit(ast.parse(files[m].read_text()), False)
    return top, late

eager = {m: {t for n in scan(m)[0] for t in targets(n)} for m in files}
def closure(starts):
    seen, wait = set(), list(starts)
    while wait:
        m = wait.pop()
        for part in [m, *(".".join(m.split(".")[:i]) for i in range(1, m.count(".") + 1))]:
            if part in seen: continue
            seen.add(part)
            wait += eager.get(part, ())
    return seen
light = closure(LIGHT)
def libs(names): return {n.split(".")[0] for n in closure(names)}
moved = 0
for m, p in files.items():
    if not m.startswith("flowgraph.") or m in ENTRY or m.endswith(("launch", "vllm_worker", "template_probe")): continue
    text = p.read_text(); tree = ast.parse(text); source = base.Source(text)
    _, late = scan(m)
    top_names = {}
    for n in tree.body:
        if isinstance(n, (ast.Import, ast.ImportFrom)):
            for a in n.names: top_names[a.asname or a.name] = ast.unparse(n)
    bound = {x.id for x in ast.walk(tree) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)} | {x.arg for x in ast.walk(tree) if isinstance(x, ast.arg)} | {x.name for x in ast.walk(tree) if isinstance(x, (ast.FunctionDef, ast.ClassDef))}
    add = []
    for n in late:
        ts = targets(n); head = ts[0].split(".")[0]
        mine = head in ("flowgraph", "placements", "nodes")
        if not mine and not (head in HEAVY and (m + ".").startswith(TORCH_TOP) and m not in light): continue
        if mine:
            new = libs(ts) - libs([m])
            if m in light and new & SLOW: continue
            if not m.startswith("flowgraph.cli") and new & {"torch", "ray", "transformers"}: continue
            if new & {"torch", "ray", "transformers", "rich", "pygraphviz", "jinja2", "resvg_py"}: continue
            if m in closure(ts): continue
        if any((a.asname or a.name.split(".")[0]) in bound for a in n.names): continue
        if "monkeypatch" in text: continue
        start, end = source.span(n)
        line_start = source.starts[n.lineno - 1]
        tail = source.text[end : source.starts[n.end_lineno]]
        if source.text[line_start:start].strip() or tail.strip(): continue
        # the body must not become empty
        parents = [b for f in ast.walk(tree) for b in (getattr(f, "body", []), getattr(f, "orelse", []), getattr(f, "finalbody", [])) if isinstance(b, list) and n in b]
        if parents and len(parents[0]) == 1: continue
        source.put((line_start, source.starts[n.end_lineno]), "")
        add.append(ast.unparse(n)); eager[m] |= set(ts); moved += 1
    if not add: continue
    done = source.done()
    t = ast.parse(done); f = next(x for x in t.body if isinstance(x, ast.ImportFrom) and x.module == "__future__")
    ls = done.splitlines(keepends=True)
    done = "".join(ls[: f.end_lineno]) + "\n" + "\n".join(dict.fromkeys(add)) + "\n" + "".join(ls[f.end_lineno :])
    p.write_text(done)
for p in Path("flowgraph").rglob("*.py"):  # a name that is imported at the top needs no second import for types
    text = p.read_text(); tree = ast.parse(text); source = base.Source(text)
    top = {a.asname or a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names}
    for block in (n for n in tree.body if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)):
        left = 0
        for n in block.body:
            keep = [a for a in n.names if (a.asname or a.name) not in top] if isinstance(n, ast.ImportFrom) else [None]
            left += bool(keep)
            if isinstance(n, ast.ImportFrom) and len(keep) < len(n.names):
                said = f"from {n.module} import {', '.join(ast.unparse(a) for a in keep)}"
                source.put(source.span(n), said if keep else "")
        if not left: source.put(source.span(block), "")
    if (done := source.done()) != text: p.write_text(done)
print(moved, "imports stand at the top now")
subprocess.run(["ruff", "check", "-q", "--fix", "--select", "I,F401,F811,D202", "flowgraph"], check=False)
subprocess.run(["ruff", "check", "-q", "--fix", "flowgraph"], check=False); subprocess.run(["ruff", "format", "-q", "flowgraph"], check=False)
