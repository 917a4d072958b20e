import ast,pathlib,collections,sys
ours=("flowgraph","placements","nodes")
rows=collections.defaultdict(collections.Counter); files=collections.defaultdict(collections.Counter)
for p in sorted(pathlib.Path("flowgraph").rglob("*.py")):
    def visit(n,l):
        for ch in ast.iter_child_nodes(n):
            if isinstance(ch,ast.If) and "TYPE_CHECKING" in ast.unparse(ch.test): continue
            if l and isinstance(ch,(ast.Import,ast.ImportFrom)):
                m=(ch.module if isinstance(ch,ast.ImportFrom) else ch.names[0].name).split('.')[0]
                rows[m][p.parts[1]]+=1; files[str(p)][m]+=1
            visit(ch,l or isinstance(ch,(ast.FunctionDef,ast.AsyncFunctionDef)))
    visit(ast.parse(p.read_text()),False)
for m,c in sorted(rows.items(),key=lambda x:-sum(x[1].values())): print(m,sum(c.values()),dict(c))
print("total",sum(sum(c.values()) for c in rows.values()), "ours", sum(sum(rows[o].values()) for o in ours))
if len(sys.argv)>1:
    for f,c in files.items(): print(f,dict(c))
