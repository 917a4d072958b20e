"""Ways to break a right random flow, each with what its error must say and at which line."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import nodes
from flowgraph.errors import FlowError, FlowTypeError, SettingError, UserCodeError
from flowgraph.language import op_of
from flowgraph.language.graph import Op
from flowgraph.language.values import Value
from tests.property import fuzz_nodes
from tests.property.random_flows import PARTS, Call, Line, LossFn, Program, Stmt

At = Stmt | str  # a statement, or "flow": the line of `@flow`


@dataclass(frozen=True)
class Broken:
    """What a fault must give: its line, words in its text, and its class."""

    at: At
    words: tuple[str, ...]
    kind: type[FlowError]
    settings: Mapping[str, object] | None = None
    imports: bool = False  # the error is met when the file is imported


Fault = Callable[[random.Random, Program], Broken | None]
FAULTS: dict[str, Fault] = {}


def fault(fn: Fault) -> Fault:
    """List a fault by the name of its function."""
    FAULTS[fn.__name__] = fn
    return fn


def op_named(name: str) -> Op | None:
    """Return the op that a random flow calls by this name."""
    return op_of(getattr(fuzz_nodes, name, None) or getattr(nodes, name, None) or (lambda: None))


def kind_named(name: str) -> Any:
    """Return the type that a random flow calls by this name."""
    import flowgraph.language.values
    import nodes.values

    return (
        getattr(nodes.values, name, None) or getattr(fuzz_nodes, name, None) or getattr(flowgraph.language.values, name)
    )


def some_call(rng: random.Random, program: Program, want: Callable[[Call], bool] = lambda call: True) -> Call | None:
    """Choose one of the calls of nodes."""
    found = [call for call, _ in program.calls() if op_named(call.op) is not None and want(call)]
    return rng.choice(found) if found else None


def place_of(program: Program, call: Stmt) -> int:
    """Return where a statement stands in the flow's body; of one in a loss, where the loss does."""
    for i, stmt in enumerate(program.body):
        if stmt is call or (isinstance(stmt, LossFn) and call in stmt.body):
            return i
    return len(program.body)


def exprs(program: Program, place: int) -> dict[str, str]:
    """Return what can be read before a place in the flow's body, with the names of the types."""
    found = {name: kind for name, kind in program.params if kind != "Coef"}
    for stmt in program.body[:place]:
        if isinstance(stmt, Call) and program.types.get(stmt.target) not in (None, "Judged"):
            found[stmt.target] = program.types[stmt.target]
    for name, kind in list(found.items()):
        if kind == "Rollout":
            found |= {f"{name}.{part}": each for part, each in PARTS.items()}
    return found


def ports_of(call: Call) -> list[tuple[int, Any]]:
    """Pair each value that a call is given with its port."""
    op = op_named(call.op)
    assert op is not None
    ports = {port.name: port for port in op.ports}
    order = iter(op.ports)
    found = [(i, next(order, None) if name is None else ports.get(name)) for i, (name, _) in enumerate(call.given)]
    return [(i, port) for i, port in found if port is not None]


def other_kind(rng: random.Random, program: Program, call: Call, want: Any) -> str | None:
    """Return an expression of a type that a port does not take."""
    found = [
        text
        for text, kind in exprs(program, place_of(program, call)).items()
        if not issubclass(kind_named(kind), want) and issubclass(kind_named(kind), Value)
    ]
    return rng.choice(sorted(found)) if found else None


def break_type(rng: random.Random, program: Program, call: Call) -> Broken | None:
    """Return one port of a call a value of another type."""
    places = [(i, port) for i, port in ports_of(call) if not port.region]
    if not places:
        return None
    i, port = rng.choice(places)
    text = other_kind(rng, program, call, port.value_type)
    if text is None:
        return None
    call.given[i] = (call.given[i][0], text)
    return Broken(call, (f"{call.op}({port.name}=) takes {port.value_type.__name__}",), FlowTypeError)


@fault
def wrong_type(rng: random.Random, program: Program) -> Broken | None:
    """Any port, any other type."""
    call = some_call(rng, program, lambda each: bool(each.given))
    return break_type(rng, program, call) if call else None


@fault
def wrong_order(rng: random.Random, program: Program) -> Broken | None:
    """Two values by position change places."""

    def positional(each: Call) -> bool:
        return len(each.given) > 1 and each.given[0][0] is None and each.given[1][0] is None

    call = some_call(rng, program, positional)
    if call is None:
        return None
    call.given[0], call.given[1] = call.given[1], call.given[0]
    return Broken(call, (call.op, "takes"), FlowTypeError)


@fault
def missing_port(rng: random.Random, program: Program) -> Broken | None:
    """The last value that there has to be is left out."""
    call = some_call(rng, program, lambda each: bool(each.given))
    if call is None:
        return None
    i, port = [(i, port) for i, port in ports_of(call) if not port.optional][-1]
    call.given.pop(i)
    return Broken(call, (call.op, f"lacks `{port.name}`"), FlowTypeError)


@fault
def extra_port(rng: random.Random, program: Program) -> Broken | None:
    """A port that is not there, or one value too many by position."""
    call = some_call(rng, program)
    if call is None:
        return None
    if rng.random() < 0.5:
        call.given.append(("maskk", "prompts"))
        return Broken(call, (call.op, "`maskk`"), SettingError)
    op = op_named(call.op)
    assert op is not None
    call.given = [(None, text) for _, text in call.given] + [(None, "prompts")] * 5
    return Broken(call, (call.op, "values in order"), FlowTypeError)


@fault
def given_twice(rng: random.Random, program: Program) -> Broken | None:
    """A port is given by position and by name."""
    call = some_call(rng, program, lambda each: bool(each.given) and each.given[0][0] is None)
    if call is None:
        return None
    _, port = ports_of(call)[0]
    call.given.append((port.name, call.given[0][1]))
    return Broken(call, (call.op, f"got `{port.name}` twice"), FlowTypeError)


@fault
def unknown_setting(rng: random.Random, program: Program) -> Broken | None:
    """A setting that is not there, its name hostile at times."""
    call = some_call(rng, program)
    if call is None:
        return None
    name = rng.choice(["temprature", "learning_rate", "ünï", "x" * 5000, "__class__", "model_config", "self", "key_"])
    call.settings[name] = rng.choice(["1", "None", "'a'", "float('nan')", "10**400", "[]", "object()"])
    return Broken(call, (call.op, f"`{name}`"), SettingError)


BAD: dict[str, dict[str, list[str]]] = {
    "generate": {
        "n": ["0", "-1", "1.5", "'many'", "None", "float('nan')", "-10**300", "[]", "prompts"],
        "temperature": ["-0.1", "float('nan')", "float('inf')", "'hot'", "10**400", "None"],
        "max_tokens": ["0", "'x'", "-(2**70)", "1e400"],
    },
    "group_normalize": {"eps": ["0", "-1e-9", "float('nan')", "'\\ud800'"], "deviation": ["'perhaps'", "2", "None"]},
    "clipped": {
        "eps": ["0", "-0.2", "float('nan')", "float('inf')", "'\\x00'"],
        "eps_high": ["0.0", "-1", "float('inf')", "'x' * 5000"],
        "aggregation": ["'mean'", "0", "-1", "None", "True", "'inf'", "float('inf')", "float('nan')", "10**400"],
    },
    "update": {
        "lr": ["-1e-9", "float('nan')", "float('inf')", "'fast'", "None"],
        "optimizer": ["'adam'", "None", "0"],
        "epochs": ["0", "0.5", "-10**30"],
        "minibatch": ["-1", "'all'"],
        "micro_batch_tokens": ["0", "-1"],
        "weight_decay": ["-0.1", "float('nan')"],
    },
    "score": {
        "workers": ["0", "257", "10**100"],
        "limit_s": ["0", "float('nan')", "-1"],
        "by": ["3", "None", "prompts"],
    },
    "damp": {"by": ["0", "-1", "float('nan')"]},
    "finished_only": {"least": ["-1", "'a'"]},
}


@fault
def bad_setting(rng: random.Random, program: Program) -> Broken | None:
    """A setting out of its range or type."""
    call = some_call(rng, program, lambda each: each.op in BAD)
    if call is None:
        return None
    name = rng.choice(sorted(BAD[call.op]))
    call.settings[name] = rng.choice(BAD[call.op][name])
    return Broken(call, (f"{call.op}.{name}",), SettingError)


@fault
def flow_setting(rng: random.Random, program: Program) -> Broken | None:
    """A setting of the flow itself, from outside."""
    program.settings = ["samples: Annotated[int, Field(ge=1)] = 2", "weight: float = 0.1"]
    name, value = rng.choice([("samples", 0), ("samples", "x"), ("weight", None), ("samplez", 2), ("ü" * 3000, 1)])
    return Broken("set", (program.name,), SettingError, settings={name: value})


@fault
def token_for_row(rng: random.Random, program: Program) -> Broken | None:
    """A number for each token where one a row is wanted, or the reverse."""
    rows = rng.choice([each for each in program.rows if each.advantages] or program.rows)
    if not rows.advantages:
        return None
    op = "damp" if not rows.token_level else "spread"
    given: list[tuple[str | None, str]] = [(None, rows.advantages)]
    call = Call("level", op, given if op == "damp" else [*given, (None, f"{rows.var}.mask")])
    program.body.append(call)
    return Broken(call, (f"{op}(advantages=) takes",), FlowTypeError)


@fault
def filter_without_ids(rng: random.Random, program: Program) -> Broken | None:
    """A node that drops rows gives numbers only."""
    rows = rng.choice(["new", "reordered"])
    given = rng.choice(["Scores", "LogProbs", "Temperature", "tuple[Scores, Mask]"])
    program.extra.append(Line(f'@node(rows="{rows}")\ndef keep(rollout: Rollout) -> {given}: ...'))
    return Broken(program.extra[-1], ("keep", "identify its rows"), FlowTypeError, imports=True)


BAD_NODES = (
    ("@node\ndef bad(a: LogProbs, b: LogProbs) -> Mask: ...", "by position"),
    ("@node\ndef bad(a: LogProbs, *b: Mask) -> Mask: ...", "any number"),
    ("@node\ndef bad(a: LogProbs) -> int: ...", "no value"),
    ("@node\ndef bad(a) -> Mask: ...", "no type"),
    ("@node\ndef bad(a: Nope) -> Mask: ...", "not defined"),
    ("@node\ndef bad(a: Mask, b: int) -> Mask: ...", "no value"),
    ("@node\ndef bad(a: Mask, *, b: int = 'x') -> Mask: ...", "default"),
    ("@node\ndef bad(a: Annotated[Rollout, Parts('toks')]) -> Mask: ...", "toks"),
    ("@node\ndef bad(a: Annotated[Mask, Parts('toks')]) -> Mask: ...", "toks"),
    ("@node(kind='scores')\ndef bad(a: Mask) -> Mask: ...", "scores"),
    ("@node(rows='moved')\ndef bad(a: Mask) -> Mask: ...", "moved"),
    ("@node(carries='b')\ndef bad(a: Mask) -> Mask: ...", "not a port"),
    ("@node(carries='a')\ndef bad(a: Mask) -> Mask: ...", "no State"),
    ("@node(carries='a')\ndef bad(a: Coef) -> Mask: ...", "does not return a Coef first"),
    ("@node\ndef bad(a: Scores) -> Loss: ...", "takes 0 masks"),
    ("@node\ndef bad(a: Scores, *, m: Mask, n: Mask) -> Loss: ...", "takes 2 masks"),
    ("@node\ndef bad(a: Scores, m: Mask) -> tuple[Loss, Scores]: ...", "and other values"),
    ("@node\ndef bad(a: list[Mask]) -> Mask: ...", "one value"),
    ("@node\ndef bad(a: Mask | Scores) -> Mask: ...", "one type"),
    ("@node\nclass bad: ...", "no plain function"),
    ("@node\nasync def bad(a: Mask) -> Mask: ...", "no plain function"),
    ("@node\ndef bad(a: Mask, *, copy: int = 1) -> Mask: ...", "named `copy`"),
    ("@node\ndef bad(a: Annotated[Mask, Corrects('b')]) -> Mask: ...", "no other port of that name"),
    ("@node\ndef bad(a: Annotated[Mask, Corrects('a')]) -> Mask: ...", "no other port of that name"),
    ("@node\ndef bad(a: Annotated[Mask, Corrects('n')], *, n: int = 1) -> Mask: ...", "no other port of that name"),
    ("@node\ndef bad(a: Annotated[Mask, Corrects]) -> Mask: ...", "declares Corrects"),
    ("@node\ndef bad(a: Annotated[Mask, Corrects(), Kind.TOKEN, Corrects()]) -> Mask: ...", "Corrects twice"),
    ("@node\ndef bad(a: Coef = Coef(0.5)) -> Mask: ...", "cannot have a default"),
    ("@node\ndef bad(a: Coef | None = Coef(0.5)) -> Mask: ...", "default None"),
    ("class Odd(Model): head = 'tail'\n@node\ndef bad(a: Odd) -> Mask: ...", "head is 'tail'"),
)


@fault
def bad_node(rng: random.Random, program: Program) -> Broken | None:
    """A node that no graph can hold."""
    text, words = rng.choice(BAD_NODES)
    program.extra.append(Line(text))
    return Broken(program.extra[-1], ("bad", words), FlowTypeError, imports=True)


BAD_STARTS = (
    ("Coef", "Coef(None)", "has no initial value"),
    ("Coef", "Coef(float('inf'))", "cannot hold inf"),
    ("Coef", "Coef((1, 2))", "cannot hold a tuple"),
    ("Coef", "Coef([1, {'a': object()}])", "cannot hold an object"),
    ("Coef", "Coef({1: 2})", "must be strings"),
    ("Coef", "Coef(2**70)", "64 bits"),
    ("Coef", "Coef('\\ud800')", "UTF-8"),
    ("Coef", "0.5", "its default is a float"),
    ("Coef", "None", "its default is None"),
    ("Coef | None", "Coef(0.5)", "the default None"),
    ("Policy", "Policy(None)", "cannot have a default"),
    ("Scores", "Scores(0.5)", "cannot have a default"),
    ("Annotated[Coef, By.FIXED]", "Coef(0.5)", "says By"),
)


@fault
def bad_start(rng: random.Random, program: Program) -> Broken | None:
    """Something else than a value of plain state for a flow's parameter to start from."""
    kind, text, words = rng.choice(BAD_STARTS)
    program.params.append(("start", kind))
    program.starts["start"] = text
    return Broken("flow", (f"@flow {program.name}", "`start`", words), FlowTypeError, imports=True)


BAD_LOSSES = (
    ("def last(pi: Policy) -> Loss: return None", ("update(loss=)", "NoneType")),
    ("def last(pi: Policy): return 3", ("update(loss=)", "int")),
    ("def last(pi: Policy): return {mask}", ("update(loss=)", "Mask")),
    ("def last(): return None", ("last", "takes 0")),
    ("def last(pi, more): return None", ("last", "takes 2")),
    ("def last(pi: Reference): return likely(logprobs(pi, {rows}), {mask})", ("update(loss=)", "Reference")),
    ("def last(pi: Mask): return likely(logprobs(pi, {rows}), {mask})", ("update(loss=)", "Mask")),
    ("def last(pi: Nowhere): return None", ("last", "Nowhere")),
    ("def last(pi: Any): return None", ("update(loss=)", "loss")),
    ("last = 3", ("update(loss=)", "int")),
    ("last = None", ("update(loss=)", "NoneType")),
    ("last = (i for i in ())", ("update(loss=)", "generator")),
    ("last = Loss([])", ("update(loss=)", "Loss")),
    ("def last(pi): return Loss([])", ("update(loss=)", "real value")),
    ("def last(pi): yield 1", ("update(loss=)", "generator")),
)


@fault
def bad_loss(rng: random.Random, program: Program) -> Broken | None:
    """What is given as a loss is none."""
    rows = program.rows[0]
    text, words = rng.choice(BAD_LOSSES)
    line = Line(text.format(rows=rows.var, mask=f"{rows.var}.mask"))
    call = Call("x", "update", [(None, program.newest[rows.policy]), (None, "last")])
    program.body += [line, call]
    at = line if words[0] == "last" else call
    return Broken(at, words, FlowTypeError)


@fault
def bad_returns(rng: random.Random, program: Program) -> Broken | None:
    """The flow returns something else than it says."""
    program.back_line.text = rng.choice(
        [
            "return None", "pass", "return (prompts,) * 6", "return 3", "return {}",
            "return [prompts]", "return Mask(None)", "return (i for i in ())", "return lambda: prompts", "return Mask",
            "return ()", "return prompts.group", "return object()",
        ]
    )  # fmt: skip
    return Broken("flow", (f"@flow {program.name}: should return",), FlowTypeError)


MISUSES = (
    ("if {r}.mask: pass", "truth"),
    ("len({r}.mask)", "reads"),
    ("{r}.mask.data", "reads the data of"),
    ("float({r}.mask)", "reads"),
    ("{r}.mask == {r}.mask", "compares"),
    ("{r}.mask < 3", "compares"),
    ("list({r}.mask)", "reads"),
    ("{r}.mask[0]", "reads"),
    ("{r}.mask = 1", "sets"),
    ("{r}.data", "reads the data of"),
    ("not {r}", "truth"),
    ("{r}.mask in [{r}]", "compares"),
    ("max({r}.mask, {r}.mask)", "compares"),
    ("Judged(group={r}.group)", "Judged"),
)


@fault
def read_as_data(rng: random.Random, program: Program) -> Broken | None:
    """An edge is used as if it were data."""
    text, words = rng.choice(MISUSES)
    line = Line(text.format(r=program.rows[0].var))
    program.body.append(line)
    return Broken(line, (words,), FlowTypeError)


RAISES = (
    ("{r}.maks", "no part `maks`"),
    ("{r}.mask.nothing", "nothing"),
    ("{r}.mask * 2", "Mask"),
    ("1 / 0", "ZeroDivisionError"),
    ("{{}}['key']", "KeyError"),
    ("raise ValueError()", "ValueError"),
    ("raise StopIteration", "StopIteration"),
    ("assert False, '\\ud800'", "AssertionError"),
    ("nowhere", "NameError"),
    ("later; later = 1", "later"),
    ("import nowhere_at_all", "nowhere_at_all"),
    ("open('/nowhere/at/all')", "FileNotFoundError"),
    ("prompts()", "not callable"),
    ("sum([{r}.mask])", "TypeError"),
    ("(lambda f: f(f))(lambda f: f(f))", "RecursionError"),
    ("raise ExceptionGroup('two', [ValueError('a'), KeyError('b')])", "ExceptionGroup"),
    ("raise MemoryError", "MemoryError"),
    ("exec('1 +')", "SyntaxError"),
    ("eval('1/0')", "ZeroDivisionError"),
)


@fault
def flow_raises(rng: random.Random, program: Program) -> Broken | None:
    """A line of the flow raises, in the flow or in a loss."""
    text, words = rng.choice(RAISES)
    line = Line(text.format(r=program.rows[0].var))
    if program.losses() and rng.random() < 0.5 and "later" not in text:
        rng.choice(program.losses()).body.insert(0, line)
    else:
        program.body.append(line)
    return Broken(line, (words,), UserCodeError)


@fault
def calls_itself(rng: random.Random, program: Program) -> Broken | None:
    """A flow, or a loss, calls itself without an end."""
    if program.name in [loss.name for loss in program.losses()]:
        return None
    line = Line(f"{program.name}({', '.join(name for name, _ in program.params)})")
    program.body.insert(0, line)
    return Broken(line, ("RecursionError",), UserCodeError)


@fault
def bad_part(rng: random.Random, program: Program) -> Broken | None:
    """A flow that is a part is given the wrong value."""
    text = rng.choice(
        ["attempts(policy, prompts)", "attempts(prompts, prompts)", "attempts(prompts, 3)", "attempts(prompts)"]
    )
    text = rng.choice(
        [text, "attempts(prompts, policy, n=0)", "attempts(prompts, policy, m=2)", "attempts(prompts, None)"]
    )
    line = Line(f"x, y = {text}")
    program.body.append(line)
    return Broken(line, ("attempts",), SettingError if "=" in text else FlowTypeError)
