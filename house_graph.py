import ast,sys,pathlib,collections
sys.path.insert(0,'CHECKOUT/tools')
import house
def load():
    files=[p for pkg in ("flowgraph","nodes","placements") for p in sorted(pathlib.Path(pkg).rglob("*.py"))]
    name={p:".".join(p.with_suffix("").parts).removesuffix(".__init__") for p in files}
    mods=set(name.values())
    edges=[]  # (src,dst,late,line,typing)
    for p in files:
        tree=ast.parse(p.read_text())
        def visit(node,late,typ):
            for c in ast.iter_child_nodes(node):
                t=typ or (isinstance(c,ast.If) and "TYPE_CHECKING" in ast.unparse(c.test))
                tg=[]
                if isinstance(c,ast.ImportFrom) and c.module and c.level==0:
                    tg=[f"{c.module}.{a.name}" if f"{c.module}.{a.name}" in mods else c.module for a in c.names]
                elif isinstance(c,ast.Import): tg=[a.name for a in c.names]
                for x in set(tg):
                    if x in mods and x!=name[p]: edges.append((name[p],x,late,c.lineno,t))
                visit(c,late or isinstance(c,(ast.FunctionDef,ast.AsyncFunctionDef)),t)
        visit(tree,False,False)
    return name,mods,edges
if __name__=="__main__":
    name,mods,edges=load()
    if sys.argv[1]=="deps":
        for p,m in name.items():
            if not m.startswith("flowgraph"): continue
            doc=(ast.get_docstring(ast.parse(p.read_text())) or "").split("\n")[0]
            print(f"## {m} ({len(p.read_text().splitlines())}): {doc}")
            d=collections.defaultdict(str)
            for s,t,l,ln,ty in edges:
                if s==m: d[t.removeprefix("flowgraph.")]+= "T" if ty else "L" if l else "."
            print("   "+" ".join(k+("" if "." in v else "~" if "L" in v else "?") for k,v in sorted(d.items())))
    else:
        g={m:set() for m in mods}
        for s,t,l,ln,ty in edges:
            if not ty: g[s].add(t)
        for grp in sorted(house.cycles(g),key=len,reverse=True):
            if len(grp)>1:
                print(len(grp),sorted(grp))
                if sys.argv[1]=="edges":
                    for s,t,l,ln,ty in edges:
                        if s in grp and t in grp and not ty: print("   ","L" if l else " ",s,"->",t,ln)
        print("late own",sum(1 for e in edges if e[2] and not e[4]))
