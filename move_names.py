#!/usr/bin/env python3
"""Rewrite imports of names that have moved to another module: move_names.py OLD NEW NAME[=NEWNAME] ... (run at the root)."""
import ast, re, subprocess, sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).parent))
import move_flowgraph as base
old, new, names = sys.argv[1], sys.argv[2], dict((n.split("=") + n.split("="))[:2] for n in sys.argv[3:])
for name in base.git("ls-files", "-co", "--exclude-standard", "-z").split("\0"):
    if not name.endswith(".py") or not Path(name).is_file():
        continue
    text = Path(name).read_text(encoding="utf-8")
    if old not in text and old.rpartition(".")[2] not in text:
        continue
    here = name[:-3].replace("/", ".").removesuffix(".__init__")
    tree = ast.parse(text)
    source, renamed = base.Source(text), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == old and not node.level and any(a.name in names for a in node.names):
            show = lambda a, to=None: (to or a.name) + (f" as {a.asname}" if a.asname else "")
            stay = [show(a) for a in node.names if a.name not in names]
            go = [show(a, names[a.name]) for a in node.names if a.name in names]
            renamed.update({a.name: names[a.name] for a in node.names if a.name in names and not a.asname and names[a.name] != a.name})
            indent = "\n" + " " * node.col_offset
            lines = ([f"from {old} import {', '.join(stay)}"] if stay else []) + ([f"from {new} import {', '.join(go)}"] if here != new else [])
            source.put(source.span(node), indent.join(lines) or "pass")
    for each in base.free_names(tree, set(renamed)):
        source.put(source.span(each), renamed[each.id])
    full = re.compile(rf"\b{re.escape(old)}([.:])({'|'.join(names)})\b")
    base.rewrite_strings(source, lambda said: full.sub(lambda m: f"{new}{m[1]}{names[m[2]]}", said))
    done = source.done()
    if done != text:
        Path(name).write_text(done, encoding="utf-8")
