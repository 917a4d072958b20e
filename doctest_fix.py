import sys,re,ast; sys.path.insert(0,'WORK/rooms')
from pathlib import Path
import class_table, move_flowgraph as base
for p in [*Path("flowgraph").rglob("*.py"),*Path("nodes").rglob("*.py")]:
    t=p.read_text()
    if ">>> " not in t: continue
    names={n.id for n in ast.walk(ast.parse(t)) if isinstance(n,ast.Name)}|{n.name for n in ast.walk(ast.parse(t)) if isinstance(n,(ast.ClassDef,ast.alias))}
    loc={o:n for d in class_table.CLASSES.values() for o,n in d.items() if n in names and o not in names}
    if not loc: continue
    src=base.Source(t); rx=re.compile(r"(?<![\w.`])("+"|".join(loc)+r")(?=[(.])")
    base.rewrite_strings(src, lambda s: rx.sub(lambda m: loc[m[1]],s) if ">>> " in s else s)
    d=src.done()
    if d!=t: p.write_text(d); print(p)
