"""Rewrite the first words of docstrings: Give -> Return / Yield, Say whether -> Return whether. Run in a checkout."""
import ast, pathlib, re, sys
FOLDERS = sys.argv[1:] or ["flowgraph", "nodes", "placements", "tests", "benchmarks", "docs", "examples"]
changed = left = 0
for folder in FOLDERS:
    for path in sorted(pathlib.Path(folder).rglob("*.py")):
        text = path.read_text("utf-8"); lines = text.split("\n")
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or not ast.get_docstring(node): continue
            first = node.body[0]; row = first.lineno - 1
            returns = ast.unparse(node.returns) if node.returns else ""
            head, quote, rest = lines[row].partition('"""')
            if not quote:
                continue
            verb = "Yield" if re.match(r"(Iterator|Generator|AsyncIterator|AsyncGenerator|Iterable)\b", returns) and any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in ast.walk(node)) else "Return"
            if "contextmanager" in " ".join(ast.unparse(d) for d in node.decorator_list): verb = "Yield"
            new = rest
            if rest.startswith("Give ") and returns != "None": new = verb + rest[4:]
            elif re.match(r"Say (whether|what|how|which|where|why|if|when|who|in|of|that)\b", rest) and returns not in ("None", ""):
                new = verb + rest[3:]
            elif rest.startswith("Name ") and returns not in ("None", ""): new = rest
            if rest.startswith("Say ") and new == rest or rest.startswith("Give ") and new == rest:
                left += 1; print(f"left {path}:{row+1} {rest[:90]} -> {returns}")
            if new != rest:
                add = len(new) - len(rest); full = head + quote + new
                changed += 1
                if len(full) > 120:
                    print(f"long {path}:{row+1}")
                lines[row] = full
        path.write_text("\n".join(lines), "utf-8")
print(changed, "changed", left, "left")
