"""The shipped scoring rules, and references by which another process can load a rule.

A rule is a plain function that scores one response. Its parameters name what it needs: `response`, `ground_truth`,
`finished`, `prompt`, or any column of the data set. `nodes.scoring.graders` calls rules.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import re
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

from flowgraph.errors import RuleError
from flowgraph.flows.entry_points import find, names, target
from nodes.scoring.answer_text import Unreadable
from nodes.scoring.grader_process import columns_of, described, is_missing
from nodes.scoring.gym import extract_answer, score_answer
from nodes.scoring.math_rules import (
    geo3k,
    gsm8k,
    gsm8k_flexible,
    gsm8k_value,
    math_dapo,
    math_reward,
    math_verify,
    prime_math,
)
from nodes.scoring.program_tests import prime_code, prime_code_all, tests_of
from nodes.scoring.question_rules import search_r1, search_r1_inside


def exact(response: str, ground_truth: str, finished: bool) -> float:
    r"""Score 1 for a finished response that equals the truth, ignoring surrounding spaces, else 0.

    >>> exact(" 42\n", "42", True), exact("42", "42", False)
    (1.0, 0.0)
    """
    return float(finished and response.strip() == str(ground_truth).strip())


def partial(response: str, ground_truth: str, finished: bool) -> float:
    """Score the fraction of positions at which the response has the truth's character; nothing is stripped.

    The end counts as one more position: it is correct if the response is finished and has the truth's length. A
    character of the tiny model is one token, so this gives credit per token.

    >>> partial("123", "123", True), partial("123", "123", False), partial("1x3", "123", True)
    (1.0, 0.75, 0.75)
    """
    truth = str(ground_truth)
    right = sum(character == expected for character, expected in zip(response, truth, strict=False))
    ended = finished and len(response) == len(truth)
    return (right + ended) / (len(truth) + 1)


def number(response: str, ground_truth: str) -> float:
    """Score 0.5 if the response contains the number `ground_truth`, plus 0.5 if it contains nothing else but spaces.

    The number does not count inside a longer number: neither next to digits, nor with a decimal part or a minus sign.

    >>> number("57", "57"), number("It is 57.", "57"), number("It is 157 or 5.7", "57")
    (1.0, 0.5, 0.0)
    """
    truth = str(ground_truth).strip()
    pattern = rf"(?<![0-9])(?<![0-9][.,])(?<!-){re.escape(truth)}(?![0-9])(?![.,][0-9])"
    return 0.5 * (re.search(pattern, response) is not None) + 0.5 * (response.strip() == truth)


def reasoning_gym(response: str, extra_info: Mapping[str, str]) -> float:
    """Score the answer inside `<answer>…</answer>`, or else the whole response, with its task's scorer, from 0 to 1.

    `extra_info` contains the task's name under `dataset` and the entry, as JSON text, under `entry`. An answer on which
    the scorer raises, or returns no number, scores 0 and is `Unreadable`; if the scorer raises on the entry's own
    answer too, its error is raised.

    Source: reasoning-gym 0.1.25, `get_score_answer_fn`.
    Deviation: an answer is never run, so an answer that is not a literal or an expression is wrong where the scorer
    would evaluate it. JSON has no tuples, so `arc_agi` and `rearc`, which compare with a tuple, never give full marks.
    """
    score = score_answer(extra_info["dataset"], extract_answer(response), json.loads(extra_info["entry"]))
    return Unreadable(0.0) if score is None else score


RULES: dict[str, Callable[..., object]] = {
    function.__name__: function
    for function in (
        *(gsm8k, gsm8k_flexible, gsm8k_value, math_reward, math_dapo, math_verify, prime_math, geo3k),
        *(search_r1, search_r1_inside, exact, partial, number, reasoning_gym, prime_code, prime_code_all),
    )
}

PROGRAM_RULES = frozenset({"prime_code", "prime_code_all"})
"""Shipped rules that run programs which a model wrote: always confined, or in a remote sandbox."""

COMPARING_RULES = frozenset(RULES) - PROGRAM_RULES - {"math_verify", "prime_math", "geo3k", "reasoning_gym"}
"""Shipped rules that only compare text, so they may run on a machine that cannot confine a process."""

ISOLATED_RULES = frozenset({"math_verify"})
"""Shipped rules that let a library evaluate what a model wrote: each response gets a process of its own."""

_EXPRESSIONS = (("sympy", "sympy"), ("pylatexenc", "pylatexenc"))
RULE_PACKAGES: dict[str, tuple[tuple[str, str], ...]] = {
    "reasoning_gym": (("reasoning_gym", "reasoning-gym"),),
    "math_verify": (("math_verify", "math-verify"),),
    "prime_math": _EXPRESSIONS,
    "geo3k": _EXPRESSIONS,
}
"""Packages that shipped rules need in addition to the standard library: rule → (module, package to install)."""

DATA_SOURCES: dict[str, str] = {
    "openai/gsm8k": "gsm8k",
    **dict.fromkeys(("lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500"), "math_reward"),
    **dict.fromkeys(("math", "math_dapo", "math_dapo_reasoning", "aime*", "*/aime*", "*/AIME*"), "math_dapo"),
    **dict.fromkeys(("numina_aops_forum", "numina_synthetic_math", "numina_amc_aime"), "prime_math"),
    **dict.fromkeys(("numina_synthetic_amc", "numina_cn_k12", "numina_olympiads"), "prime_math"),
    "hiyouga/geometry3k": "geo3k",
    **dict.fromkeys(("searchR1_nq", "searchR1_triviaqa", "searchR1_popqa", "searchR1_hotpotqa"), "search_r1"),
    **dict.fromkeys(("searchR1_2wikimultihopqa", "searchR1_musique", "searchR1_bamboogle"), "search_r1"),
    "digits": "partial",
    "addition": "number",
    "reasoning_gym/*": "reasoning_gym",
    **dict.fromkeys(("codecontests", "apps", "codeforces", "taco"), "prime_code"),
}
"""The rule of each data source; `*` stands for any text."""


def rule_for(data_source: str) -> str:
    """Return the name of the shipped rule for rows of a data source. Raises RuleError if there is none.

    >>> rule_for("openai/gsm8k"), rule_for("aime_2025"), rule_for("reasoning_gym/chain_sum")
    ('gsm8k', 'math_dapo', 'reasoning_gym')
    """
    for pattern, rule in DATA_SOURCES.items():
        if fnmatchcase(data_source, pattern):
            return rule
    raise RuleError.no_source(data_source, DATA_SOURCES)


def is_for_a_model(row: Mapping[str, Any]) -> bool:
    """Return whether a row of data must be scored by a model: verl's `reward_model.style` is "model".

    >>> is_for_a_model({"reward_model": {"style": "model", "ground_truth": ""}}), is_for_a_model({"prompt": []})
    (True, False)
    """
    verl = row.get("reward_model")
    return isinstance(verl, dict) and verl.get("style") == "model"


def refuse_unscorable(by: str, table: Any, name: str, hint_for_models: str = "") -> None:
    """Raise RuleError for the first row of a table that its shipped rule cannot score.

    `by` is a rule's name, or "data" for the rule of each row's `data_source`; `name` is the data set's name, for the
    error. A row cannot be scored if its ground truth is missing, if the ground truth has no tests that a rule for
    programs can read, or, with "data", if its `reward_model.style` is "model"; `hint_for_models` then replaces the
    hint. If no row has a ground truth, none is required here. Rows of your own rules are checked when they are scored.
    """
    columns = [column for column in ("ground_truth", "reward_model", "data_source") if column in table.column_names]
    rows = [columns_of(row) for row in table.select(columns).to_pylist()]
    for index, row in enumerate(rows if by == "data" else ()):
        if is_for_a_model(row):
            raise RuleError.for_a_model(f"row {index} (from 0) of {name}", hint_for_models)
    if not any("ground_truth" in row for row in rows):
        return
    for index, row in enumerate(rows):
        truth, where = row.get("ground_truth"), f"row {index} (from 0) of {name}"
        rule = _comparing_rule(by, str(row.get("data_source", "")))
        if rule and is_missing(truth, shipped=True):
            raise RuleError.lacks_truth(rule, described(truth), where)
        if rule in PROGRAM_RULES:
            try:
                deque(tests_of(truth), maxlen=0)
            except ValueError as error:
                hint = 'tests are {"inputs": […], "outputs": […]}, as many of each; leave rows without tests out'
                raise RuleError(f"rule `{rule}`: {error}", where=where, hint=hint) from None


def refuse_unknown_sources(by: str, table: Any, name: str) -> None:
    """Raise RuleError for the first row of a table whose `data_source` has no shipped rule, if `by` is "data".

    `name` is the data set's name, for the error.
    """
    if by != "data":
        return
    names = table.column("data_source").to_pylist() if "data_source" in table.column_names else [""]
    for source in dict.fromkeys(names):
        try:
            rule_for(str(source))
        except RuleError as error:
            where = f"row {names.index(source)} (from 0) of {name}"
            what = error.what if source else "has no `data_source`, which chooses its rule"
            raise RuleError(what, where=where, notes=error.notes, hint=error.hint) from None


@functools.lru_cache(1024)
def _comparing_rule(by: str, source: str) -> str:
    """Name the shipped rule of a row if it requires a ground truth, else ""."""
    try:
        rule = by if by != "data" else rule_for(source)
    except RuleError:
        return ""  # scoring refuses it
    truth = inspect.signature(RULES[rule]).parameters.get("ground_truth") if rule in RULES else None
    return rule if truth is not None and truth.default is truth.empty else ""


@dataclass(frozen=True)
class RuleRef:
    """A reference to a rule: its text as written, its file (absolute path of a `.py`) or module, and its name there."""

    text: str
    source: str
    name: str

    @property
    def shipped(self) -> bool:
        """Return whether the rule is one of the shipped rules, `RULES`."""
        return self.source == __name__

    @property
    def isolated(self) -> bool:
        """Return whether each response needs a process of its own: your own rules, and those in `ISOLATED_RULES`."""
        return not self.shipped or self.name in ISOLATED_RULES

    @property
    def runs_programs(self) -> bool:
        """Return whether the rule is a shipped one that runs programs which a model wrote."""
        return self.shipped and self.name in PROGRAM_RULES


def resolve(by: str) -> RuleRef:
    """Return a reference to the rule `by`, without importing anything.

    `by` is `path.py:name`, `package.module:name`, or the name of a shipped rule or of an entry point `flowgraph.rules`
    of an installed package. Raises RuleError for an unknown name, a text of another form or a missing file, and
    UnknownNameError if two packages have a rule of this name.

    >>> resolve("gsm8k")
    RuleRef(text='gsm8k', source='nodes.scoring.rules', name='gsm8k')
    """
    source, colon, name = by.rpartition(":")
    if not colon and not by.endswith(".py"):
        if (entry := find("flowgraph.rules", by, RULES)) is not None:
            return RuleRef(by, *target(entry))
        if by not in RULES:
            raise RuleError.unknown(by, [*RULES, *names("flowgraph.rules")])
        return RuleRef(by, __name__, by)
    if not source or (not name.isidentifier() and not name.replace(".", "_").isidentifier()):
        raise RuleError.unnamed(by)
    if getattr(RULES.get(name), "__module__", None) == source:
        return RuleRef(by, __name__, name)
    if not source.endswith(".py"):
        if not all(part.isidentifier() for part in source.split(".")):
            raise RuleError.unnamed(by)
        return RuleRef(by, source, name)
    path = Path(source).expanduser().absolute()
    if not path.is_file():
        raise RuleError.no_file(by, str(path))
    return RuleRef(by, str(path), name)


def refuse_missing(rule: RuleRef) -> None:
    """Raise RuleError if the source text of a rule's file shows that it does not define the rule at its top level.

    The file is not run. No error is raised for a rule in a module, a dotted name, or a file that may define the name in
    another way, for example under an `if` or by `import *`, or that cannot be parsed.
    """
    by, name, path = rule.text, rule.name, Path(rule.source)
    try:
        body = ast.parse(path.read_bytes()).body if path.suffix == ".py" else []
    except (SyntaxError, ValueError):
        return  # loading it reports the line
    if not body or "." in name or any(not isinstance(statement, _PLAIN) for statement in body):
        return
    defined = [statement.name for statement in body if isinstance(statement, _DEFINITIONS)]
    imported = [alias.asname or alias.name for item in body if isinstance(item, _IMPORTS) for alias in item.names]
    used = [node.id for statement in body for node in ast.walk(statement) if isinstance(node, ast.Name)]
    if "*" not in imported and name not in {*defined, *imported, *used}:
        raise RuleError.lacks_name(by, name, defined)


_IMPORTS = (ast.Import, ast.ImportFrom)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_PLAIN = (*_DEFINITIONS, ast.Assign, ast.AnnAssign, ast.Expr, *_IMPORTS)


def reference_of(function: Callable[..., object]) -> str:
    """Return a reference to a function at a module's top level: `package.module:name` or `path.py:name`.

    It is a path if the module cannot be imported by its name, such as a user's flow file. Raises RuleError for a
    lambda, a nested function, a bound method, and a function whose name now refers to another object.
    """
    name = getattr(function, "__qualname__", "")
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    named = functools.reduce(lambda owner, part: getattr(owner, part, None), name.split("."), cast("object", module))
    if module is None or inspect.ismethod(function) or named is not function:
        raise RuleError.not_top_level(_described(function))
    file = getattr(module, "__file__", None)
    if _importable(module.__name__, file):
        return f"{module.__name__}:{name}"
    if file is None:
        raise RuleError.not_top_level(_described(function))
    return f"{_shown(Path(file))}:{name}"


def _described(function: Callable[..., object]) -> str:
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", None) or repr(function)
    return f"`{name}`" + (f" at {_shown(Path(code.co_filename))}:{code.co_firstlineno}" if code else "")


def _shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _importable(module: str, file: str | None) -> bool:
    """Return whether a new process with our import path finds this very module by its name."""
    top, *rest = module.split(".")
    if top == "__main__":
        return False
    specs = (finder.find_spec(top, None) for finder in sys.meta_path)
    spec = next((spec for spec in specs if spec), None)
    if spec is None or file is None:
        return spec is not None
    if not rest:
        return spec.origin is not None and Path(spec.origin).resolve() == Path(file).resolve()
    stems = [Path(folder, *rest) for folder in spec.submodule_search_locations or ()]
    candidates = [path for stem in stems for path in (stem.with_suffix(".py"), stem / "__init__.py")]
    return Path(file).resolve() in [path.resolve() for path in candidates]
