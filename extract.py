#!/usr/bin/env python3
"""Move top-level definitions to another module, and rewrite who imports them: extract.py OLD NEW DOCSTRING NAME ..."""
import ast, subprocess, sys
from pathlib import Path
old, new, doc, names = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
f = Path(old.replace(".", "/") + ".py")
f = f if f.exists() else Path(old.replace(".", "/")) / "__init__.py"
g = Path(new.replace(".", "/") + ".py")
text = f.read_text(); tree = ast.parse(text); lines = text.splitlines(keepends=True)
def what(n):
    if isinstance(n, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)): return {n.name}
    if isinstance(n, ast.Assign): return {t.id for t in n.targets if isinstance(t, ast.Name)}
    if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name): return {n.target.id}
    return set()
gone, body = set(), []
spans = []
for i, n in enumerate(tree.body):
    if what(n) & set(names):
        start = min([n.lineno] + [d.lineno for d in getattr(n, "decorator_list", [])]) - 1
        while start and lines[start - 1].startswith("#"): start -= 1
        end = n.end_lineno
        nxt = tree.body[i + 1] if i + 1 < len(tree.body) else None
        if isinstance(nxt, ast.Expr) and isinstance(nxt.value, ast.Constant) and isinstance(n, (ast.Assign, ast.AnnAssign)): end = nxt.end_lineno
        spans.append((start, end)); gone |= what(n) & set(names)
assert gone == set(names), set(names) - gone
head = []
for n in tree.body:
    if isinstance(n, (ast.Import, ast.ImportFrom)) and getattr(n, "module", "") != "__future__" or isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test):
        head.append("".join(lines[n.lineno - 1 : n.end_lineno]))
moved = "\n\n".join("".join(lines[a:b]) for a, b in spans)
if g.exists():
    s = g.read_text()
    t = ast.parse(s); at = t.body[1].end_lineno if len(t.body) > 1 else 1
    ls = s.splitlines(keepends=True)
    g.write_text("".join(ls[:at]) + "".join(head) + "".join(ls[at:]) + "\n\n" + moved)
else:
    g.write_text(f'"""{doc}"""\n\nfrom __future__ import annotations\n\n' + "".join(head) + "\n\n" + moved)
keep = [l for i, l in enumerate(lines) if not any(a <= i < b for a, b in spans)]
s = "".join(keep)
used = {n.id for n in ast.walk(ast.parse(s)) if isinstance(n, ast.Name)} | {w for n in ast.walk(ast.parse(s)) if isinstance(n, ast.Constant) and isinstance(n.value, str) for w in [n.value]}
back = sorted(used & set(names))
if back:
    t = ast.parse(s); first = next(n for n in t.body if isinstance(n, ast.ImportFrom) and n.module == "__future__")
    ls = s.splitlines(keepends=True)
    s = "".join(ls[: first.end_lineno]) + f"from {new} import {', '.join(back)}\n" + "".join(ls[first.end_lineno :])
f.write_text(s)
subprocess.run([sys.executable, str(Path(__file__).with_name("move_names.py")), old, new, *names], check=True)
subprocess.run(["ruff", "check", "-q", "--fix", "--select", "I,F401", str(f), str(g)]); subprocess.run(["ruff", "format", "-q", str(f), str(g)])
