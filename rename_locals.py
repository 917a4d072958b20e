"""Rename the local variables `each` and `found` by what they hold: python rename_locals.py ROOT [--dry]"""
import ast, builtins, collections, keyword, pathlib, re, sys
from mypy import build
from mypy.options import Options
from mypy.find_sources import create_source_list
import mypy.nodes as mn, mypy.types as mt

ROOT = pathlib.Path(sys.argv[1]); DRY = "--dry" in sys.argv
WORDS = set("each found told made kept held done taken given asked wanted known drawn shown sought posed said near late apart beside there here".split())
PACK = ["flowgraph", "nodes", "placements"]
FILL = set("each found told there here own made said kept held done taken given most least more other others one both beside apart late whole asked wanted known deep near far alone drawn shown sought posed lent all".split())
BAD = FILL | set(keyword.kwlist) | set(dir(builtins)) | {"self", "cls"}
IRREG = {"indices": "index", "children": "child", "classes": "device_class", "rows": "row", "axes": "axis", "boxes": "box", "columns": "column", "processes": "process", "addresses":"address", "losses":"loss","passes":"step","caches":"cache","leaves":"leaf","halves":"half","matches":"match","searches":"search","branches":"branch","switches":"switch","batches":"batch","syncs":"sync","data":None,"status":None,"axis":None,"bytes":None,"seconds":None,"tokens":"token","ports":"port","args":"arg","kwargs":None,"flops":None,"gpus":"gpu","cpus":"cpu","is":None,"this":None,"less":None,"has":None,"as":None,"us":None,"plus":None,"cross":None,"loss":None,"class":None,"process":None,"address":None,"access":None,"pass":None,"was":None,"does":None,"goes":None,"ids":"identity","boss":None,"news":None,"always":None,"besides":None,"across":None,"basis":None,"radius":None,"values":"value","items":"item","keys":"key","means":None,"always":None,"its":None,"fromkeys":None,"things":None,"shorts":None,"boxes":"box","gives":None,"ways":"way","seats":"seat","nears":None,"makes":None,"kinds":"kind","lens":None}

def singular(w):
    last = w.rsplit("_", 1)[-1]
    if last in IRREG: s = IRREG[last]
    elif last.endswith("ies") and len(last) > 4: s = last[:-3] + "y"
    elif last.endswith(("sses", "xes", "ches", "shes")): s = last[:-2]
    elif last.endswith("s") and not last.endswith(("ss", "us", "is")) and len(last) > 3: s = last[:-1]
    else: s = None
    return s

def snake(c): return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", c).lower().strip("_")

def of_iter(e):
    """name for one element of an iterable expression"""
    if isinstance(e, ast.Name): return singular(e.id)
    if isinstance(e, ast.Attribute): return singular(e.attr)
    if isinstance(e, ast.Subscript) and isinstance(e.slice, ast.Slice): return of_iter(e.value)
    if isinstance(e, ast.Subscript): return of_iter(e.value) if False else None
    if isinstance(e, ast.Call):
        f = e.func
        if isinstance(f, ast.Name):
            if f.id in ("sorted","reversed","list","tuple","set","frozenset","iter") and e.args: return of_iter(e.args[0])
            if f.id == "range": return "i"
            return singular(f.id)
        if isinstance(f, ast.Attribute):
            if f.attr == "values": 
                return of_iter(f.value)
            if f.attr in ("keys",): return None
            if f.attr == "splitlines": return "line"
            if f.attr == "split": return "part"
            if f.attr in ("glob","rglob","iterdir"): return "path"
            if f.attr in ("to_pylist","tolist"): return of_iter(f.value)
            return singular(f.attr)
    if isinstance(e, ast.BoolOp): return of_iter(e.values[0])
    if isinstance(e, (ast.GeneratorExp, ast.ListComp, ast.SetComp)):
        g = e.elt
        if isinstance(g, ast.Attribute): return g.attr if g.attr not in FILL and g.attr.isidentifier() else None
        if isinstance(g, ast.Name): return g.id if g.id not in FILL else None
    if isinstance(e, ast.BinOp): return of_iter(e.left)
    if isinstance(e, (ast.Tuple, ast.List)) and e.elts and isinstance(e.elts[0], ast.Starred): return of_iter(e.elts[0].value)
    return None

TYPES = {"pathlib.Path": "path", "builtins.str": None, "re.Match": "match", "torch._tensor.Tensor": "tensor", "builtins.BaseException":"error"}
def of_type(t, plural=False):
    t = mt.get_proper_type(t) if t is not None else None
    if isinstance(t, mt.UnionType):
        items = [x for x in t.items if not isinstance(mt.get_proper_type(x), mt.NoneType)]
        if len(items) == 1: return of_type(items[0])
        return None
    if isinstance(t, mt.Instance):
        fn = t.type.fullname
        if fn in TYPES: return TYPES[fn]
        if fn in ("builtins.list", "typing.Sequence", "builtins.set", "builtins.frozenset", "typing.Iterator","typing.Iterable") and t.args:
            one = of_type(t.args[0])
            if one: return one + ("es" if one.endswith(("s", "x", "ch")) else "s") if not one.endswith("y") else one[:-1] + "ies"
            return None
        if fn.startswith("builtins.") or fn.startswith("typing."): 
            return None
        n = snake(t.type.name)
        if n in ("any", "ndarray", "counter", "defaultdict", "namespace", "ordered_dict", "dataframe"): return None
        return n
    return None

def main():
    o = Options(); o.export_types = True; o.preserve_asts = True; o.incremental = False; o.python_version = (3, 11)
    o.ignore_missing_imports = True; o.check_untyped_defs = True; o.mypy_path = [str(ROOT)]; o.explicit_package_bases = True
    o.ignore_errors = True
    o.follow_imports = "skip"
    paths = [str(ROOT / p) for p in PACK]
    res = build.build(create_source_list(paths, o), o)
    by_file = collections.defaultdict(dict)
    files = {id_: st for id_, st in res.graph.items() if st.path and any(f"/{p}/" in st.path for p in PACK)}
    for id_, st in files.items(): by_file[pathlib.Path(st.path).resolve()]
    pos = collections.defaultdict(set)
    for e, ty in res.types.items():
        if isinstance(e, mn.NameExpr) and e.name in WORDS:
            n = of_type(ty)
            pos[(e.line, e.column, e.name)].add(n)
    total = collections.Counter(); left = collections.Counter()
    for path, types in sorted(by_file.items()):
        if any(s_ in str(path) for s_ in ("/flowgraph/app/", "/flowgraph/cli/")): continue
        text = path.read_text(); tree = ast.parse(text)
        edits = {}
        chosen = collections.defaultdict(set); chosen_all = collections.defaultdict(set); inner_chosen = collections.defaultdict(set)
        parents = {}
        for n in ast.walk(tree):
            for c in ast.iter_child_nodes(n): parents[c] = n
        def names_in(scope): return {n.id for n in ast.walk(scope) if isinstance(n, ast.Name)} | {a.arg for n in ast.walk(scope) if isinstance(n, ast.arguments) for a in n.args + n.kwonlyargs + n.posonlyargs}
        modnames = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(parents.get(n), ast.Assign) and isinstance(parents.get(parents[n]), ast.Module)}
        modnames |= {a.asname or a.name.split(".")[0] for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom)) for a in n.names}
        modnames |= {n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef))}
        def outer(n):
            while n in parents and not isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)): n = parents[n]
            return n
        def pick(cands, scope, used):
            for c in cands:
                if c and c not in BAD and c not in ("by", "bies", "secondses", "factses", "ndarrays", "anys") and c.isidentifier() and not c.startswith("_") and len(c) > 1 and c not in used and c not in modnames: return c
            return None
        scopes = []
        for n in ast.walk(tree):
            if isinstance(n, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
                for g in n.generators:
                    for t in ast.walk(g.target):
                        if isinstance(t, ast.Name) and t.id in WORDS: scopes.append((n, t, g.iter if t is g.target else None, g))
            elif isinstance(n, (ast.For, ast.AsyncFor)):
                for t in ast.walk(n.target):
                    if isinstance(t, ast.Name) and t.id in WORDS: scopes.append((outer(n), t, n.iter if t is n.target else None, n))
            elif isinstance(n, ast.Assign):
                for tt in n.targets:
                    for t in ast.walk(tt):
                        if isinstance(t, ast.Name) and t.id in WORDS: scopes.append((outer(n), t, None, n))
            elif isinstance(n, (ast.AnnAssign, ast.NamedExpr)) and isinstance(n.target, ast.Name) and n.target.id in WORDS: scopes.append((outer(n), n.target, None, n))
            elif isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for a in n.args.args + n.args.kwonlyargs + n.args.posonlyargs:
                    if a.arg in WORDS: scopes.append((n, a, None, n))
            elif isinstance(n, ast.Lambda):
                for a in n.args.args:
                    if a.arg in WORDS: scopes.append((n, a, None, n))
        done = set()
        for scope, t, it, where in scopes:
            word = t.id if isinstance(t, ast.Name) else t.arg
            key = (id(scope), word)
            if key in done: continue
            done.add(key)
            same = [s for s in scopes if s[0] is scope and (s[1].id if isinstance(s[1], ast.Name) else s[1].arg) == word]
            if isinstance(scope, ast.Module): left["module"] += 1; continue
            fn = outer(scope) if not isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)) else scope
            # uses within the scope, nested rebinding scopes excluded
            uses = []
            def visit(n, top):
                if n is not top and isinstance(n, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)) and any(isinstance(x, ast.Name) and x.id == word for g in n.generators for x in ast.walk(g.target)):
                    visit(n.generators[0].iter, top); return
                if n is not top and isinstance(n, ast.Lambda) and any(a.arg == word for a in n.args.args): return
                if n is not top and isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    bound = any(a.arg == word for a in n.args.args + n.args.kwonlyargs) or any(isinstance(x, ast.Name) and x.id == word and isinstance(x.ctx, ast.Store) for x in ast.walk(n))
                    nonl = any(isinstance(x, ast.Nonlocal) and word in x.names for x in ast.walk(n))
                    if bound and not nonl: return
                if isinstance(n, ast.Name) and n.id == word: uses.append(n)
                if isinstance(n, ast.arg) and n.arg == word and n is not None and isinstance(top, ast.Lambda): uses.append(n)
                for c in ast.iter_child_nodes(n):
                    if isinstance(top, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)) and n is top and isinstance(c, ast.comprehension) and c is top.generators[0]:
                        visit(c.target, top)
                        for i_ in c.ifs: visit(i_, top)
                        continue
                    visit(c, top)
            visit(scope, scope)
            if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
                ar = scope.args
                pa = [a for a in ar.args + ar.kwonlyargs + ar.posonlyargs if a.arg == word]
                if pa or (ar.vararg and ar.vararg.arg == word) or (ar.kwarg and ar.kwarg.arg == word):
                    inclass = isinstance(parents.get(scope), ast.ClassDef)
                    kw = any(isinstance(c, ast.Call) and any(k.arg == word for k in c.keywords) for c in ast.walk(tree))
                    if not pa or kw or not scope.name.startswith("_") or scope.name.startswith("__"): left["param"] += 1; continue
                    uses.append(pa[0])
                    ann = ast.unparse(pa[0].annotation) if pa[0].annotation else ""
                    ann = ann.removesuffix(" | None")
                    m_ = re.fullmatch(r"(?:Sequence|list|tuple|Iterable|Iterator|set|frozenset|Collection)\[([A-Z]\w+)(?:, \.\.\.)?\]", ann)
                    if m_: 
                        s_ = snake(m_[1]).rsplit("_", 1)[-1]; annotated = [s_ + "s" if not s_.endswith("s") else None]
                    elif re.fullmatch(r"[A-Z][A-Za-z]+", ann) and ann not in ("Any", "Mapping", "Callable", "Sequence", "Tensor", "Array", "Self"):
                        s_ = snake(ann); annotated = [s_.rsplit("_", 1)[-1], s_]
                    elif ann == "Path": annotated = ["path"]
                    elif ann == "Tensor": annotated = ["tensor"]
                    else: annotated = []
            if any(isinstance(x, (ast.Nonlocal, ast.Global)) and word in x.names for x in ast.walk(fn)): left["nonlocal"] += 1; continue
            cands = list(annotated) if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)) and pa else []
            sets = [pos[(u.lineno, u.col_offset, word)] for u in uses if isinstance(u, ast.Name) and (u.lineno, u.col_offset, word) in pos]
            common = set.intersection(*sets) if sets else set()
            common.discard(None) if len(common) > 1 else None
            typed = common.pop() if len(common) == 1 else None
            for s in same:
                if s[2] is not None: cands.append(of_iter(s[2]))
                par = parents.get(s[1])
                if isinstance(par, ast.Tuple) and isinstance(s[3], (ast.For, ast.comprehension)):
                    i_ = s[3].iter; k = [x for x in par.elts].index(s[1])
                    if isinstance(i_, ast.Call) and isinstance(i_.func, ast.Name) and i_.func.id == "zip" and k < len(i_.args): cands.append(of_iter(i_.args[k]))
                    if isinstance(i_, ast.Call) and isinstance(i_.func, ast.Name) and i_.func.id == "enumerate" and k == 1: cands.append(of_iter(i_.args[0]))
                    if isinstance(i_, ast.Call) and isinstance(i_.func, ast.Attribute) and i_.func.attr == "items" and k == 1: cands.append(of_iter(i_.func.value))
                if isinstance(s[3], ast.Assign) and isinstance(s[3].value, ast.Call) and word == "found":
                    f = s[3].value.func
                    nm = f.attr if isinstance(f, ast.Attribute) else getattr(f, "id", "")
                    if nm in ("match", "fullmatch", "search") and "re" in ast.unparse(f): cands.append("match")
            cands += [typed.rsplit("_", 1)[-1], typed] if typed else []
            if word == "found" and True and isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
                rets = [x for x in ast.walk(scope) if isinstance(x, ast.Return) and isinstance(x.value, ast.Name) and x.value.id == "found"]
                if rets:
                    f = scope.name.lstrip("_")
                    if f.isidentifier() and "_" not in f and f.endswith("s") and singular(f) and f not in FILL: cands.append(f)
                    cands.append("result")
            used = names_in(scope if not isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)) else fn)
            # keyword uses and nested function arg names count as used; a collision only matters in this function
            chain, up = [], scope
            while up in parents:
                up = parents[up]
                chain.append(id(up))
                if isinstance(up, (ast.FunctionDef, ast.AsyncFunctionDef)) and not isinstance(parents.get(up), (ast.FunctionDef, ast.AsyncFunctionDef)): break
            clash = set(chosen[id(scope)])
            for a_ in chain: clash |= chosen[a_]
            clash |= inner_chosen[id(scope)]
            if scope is fn: clash |= chosen_all[id(fn)]
            new = pick(cands, scope, (used - {word}) | clash)
            if new is None:
                left[word] += 1
                if "--left" in sys.argv: print("left", path.relative_to(ROOT.resolve()), t.lineno, word, cands, text.splitlines()[t.lineno-1].strip()[:110])
                continue
            total[word + " scopes"] += 1
            chosen[id(scope)].add(new); chosen_all[id(fn)].add(new)
            for a_ in chain: inner_chosen[a_].add(new)
            for u in uses:
                edits[(u.lineno, u.col_offset)] = (word, new)
        lines = text.split("\n")
        for (ln, col), (old, new) in sorted(edits.items(), reverse=True):
            raw = lines[ln-1].encode(); 
            assert raw[col:col+len(old)].decode() == old, (path, ln, col, lines[ln-1])
            lines[ln-1] = (raw[:col] + new.encode() + raw[col+len(old):]).decode()
            total[old] += 1
            if "--show" in sys.argv: print(path.relative_to(ROOT.resolve()), ln, old, "->", new)
        new_text = "\n".join(lines)
        ast.parse(new_text)
        if not DRY: path.write_text(new_text)
    print(total, left)
main()
