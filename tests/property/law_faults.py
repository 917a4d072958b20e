"""Ways to break a law of the whole graph: rows of two rollouts, weights of another model, versions, state, losses.

What breaks one call is in `flow_faults`, whose table these join.
"""

from __future__ import annotations

import random

from flowgraph.errors import FlowTypeError, LawError, SettingError
from tests.property.flow_faults import FAULTS, Broken, fault
from tests.property.random_flows import Call, Line, LossFn, Program, Rows

Values = list[tuple[str | None, str]]


def pairs(program: Program) -> list[tuple[Rows, Rows]]:
    """Return pairs of rollouts of different rows."""
    origin = {rows.var: _origin(program, rows.var) for rows in program.rows}
    return [(a, b) for a in program.rows for b in program.rows if origin[a.var] != origin[b.var]]


def _origin(program: Program, var: str) -> str:
    for stmt in program.body:
        if isinstance(stmt, Call) and stmt.target == var and stmt.op == "turned" and stmt.given:
            return _origin(program, stmt.given[0][1])
    return var


@fault
def other_rows(rng: random.Random, program: Program) -> Broken | None:
    """A node reads rows of two rollouts."""
    found = [(a, b) for a, b in pairs(program) if a.scores]
    if not found:
        return None
    a, b = rng.choice(found)
    call = Call("mixed", "group_normalize", [(None, a.scores), (None, f"{b.var}.group")])
    program.body.append(call)
    program.back.append(("mixed", "Advantages"))
    return Broken(call, ("group_normalize(group=) has the rows of",), LawError)


def add_update(
    program: Program, rows: Rows, body: list[Call | Line], back: str, *, model: str = "", **settings: str
) -> LossFn:
    """Write one more update, of the policy that drew these rows."""
    loss = LossFn("last", "pi", ": Policy", body, Line(f"return {back}"), rows)
    version = model or program.newest[rows.policy]
    program.body += [loss, Call("trained_last", "update", [(None, version), (None, "last")], settings)]
    program.back = [each for each in program.back if each[0] != program.newest[rows.policy]]
    program.back.append(("trained_last", "Policy"))
    program.newest[rows.policy] = "trained_last"
    return loss


def new_of(rows: Rows, model: str = "pi") -> Call:
    """Write the log-probs of a loss."""
    return Call("new", "logprobs", [(None, model), (None, rows.var)])


def likely(rows: Rows, new: str = "new") -> Call:
    """Write a plain term."""
    return Call("t", "likely", [(None, new), (None, f"{rows.var}.mask")])


@fault
def other_rows_in_loss(rng: random.Random, program: Program) -> Broken | None:
    """A loss has terms on two rollouts."""
    found = [(a, b) for a, b in pairs(program) if not a.lags and not b.lags]
    if not found:
        return None
    a, b = rng.choice(found)
    second = Call("two", "logprobs", [(None, "pi"), (None, b.var)])
    u = Call("u", "likely", [(None, "two"), (None, f"{b.var}.mask")])
    loss = add_update(program, a, [new_of(a), likely(a), second, u], "t + u")
    return Broken(loss, ("`last` reads rows of",), LawError)


@fault
def wrong_model(rng: random.Random, program: Program) -> Broken | None:
    """Log-probs of the wrong model on `new`, `old` or `ref`."""
    rows = rng.choice([each for each in program.rows if not each.lags] or program.rows)
    if rows.lags or not rows.advantages:
        return None
    version, wrong, call = program.newest[rows.policy], rng.choice(["new", "old", "ref", "other", "entropy"]), None
    program.body.append(Call("fixed", "logprobs", [(None, version), (None, rows.var)]))
    program.body.append(Call("spread_out", "entropy", [(None, version), (None, rows.var)]))
    mask = f"{rows.var}.mask"
    clip: Values = [
        (None, "new"),
        (None, rows.advantages),
        (None, mask),
        ("old", f"{rows.var}.logprobs"),
    ]
    call = Call("u", "clipped", clip)
    if wrong == "new":
        clip[0] = (None, "fixed")
    elif wrong == "old":
        clip[3] = ("old", "new")
    elif wrong == "other":
        if "ref" not in program.types:
            return None
        program.body.append(Call("held", "logprobs", [(None, "ref"), (None, rows.var)]))
        clip[3] = ("old", "held")
    elif wrong == "ref":
        call = Call("u", "kl_k3", [(None, "new"), (None, mask), ("ref", "new")])
    else:
        call = Call("u", "entropy_bonus", [(None, "spread_out"), (None, mask)])
    add_update(program, rows, [new_of(rows), likely(rows), call], "t + u")
    if wrong in ("new", "entropy"):  # nothing in such a term moves with what is trained
        return Broken(call, ("a term of the loss `last` does not depend on `pi`",), LawError)
    port = {"old": "old", "other": "old", "ref": "ref"}[wrong]
    return Broken(call, (f"{call.op}({port}=) needs values of",), LawError)


@fault
def smoothed_fixed(rng: random.Random, program: Program) -> Broken | None:
    """A term mixes what is trained with `new` of other weights, which only the trait of the port tells."""
    rows = rng.choice([each for each in program.rows if not each.lags] or program.rows)
    if rows.lags or not rows.advantages:
        return None
    program.body.append(Call("fixed", "logprobs", [(None, program.newest[rows.policy]), (None, rows.var)]))
    call = Call("u", "kl_k3", [(None, "fixed"), (None, f"{rows.var}.mask"), ("ref", "smooth(new)")])
    add_update(program, rows, [new_of(rows), likely(rows), call], "t + u")
    return Broken(call, ("kl_k3(new=) needs values of the model that `last` trains",), LawError)


@fault
def stale_uncorrected(rng: random.Random, program: Program) -> Broken | None:
    """A loss on rows of stale weights that corrects nothing."""
    lag = rng.randint(1, 9)
    policy = rng.choice([each for each in program.newest if each != "coef"])
    program.body.append(
        Call("late", "generate", [(None, f"stale({program.newest[policy]}, at_most={lag})"), (None, "prompts")])
    )
    program.body.append(Call("held", "length_score", [(None, "late")]))
    program.body.append(Call("worth", "group_normalize", [(None, "held"), (None, "late.group")]))
    rows = Rows("late", policy, program.newest[policy], 1.0, lag)
    if rng.random() < 0.5:
        loss = add_update(program, rows, [new_of(rows), likely(rows)], "t")
        return Broken(loss, ("`last` corrects nothing", f"up to {lag} update"), LawError)
    if rng.random() < 0.5:  # the trainer's log-probs stand for the sampler's only where weights correct the rest
        program.body.append(Call("fixed", "logprobs", [(None, rows.version), (None, "late")]))
        call = Call("t", "by_ratio", [(None, "new"), (None, "late.mask"), ("old", "fixed")])
        add_update(program, rows, [new_of(rows), call], "t")
        return Broken(call, ("by_ratio(old=) needs values of the weights", f"up to {lag} update"), LawError)
    call = Call("t", "policy_gradient", [(None, "new"), (None, "worth"), (None, "late.mask")])
    add_update(program, rows, [new_of(rows), call], "t")
    return Broken(call, ("policy_gradient needs rows of the newest weights", f"up to {lag} update"), LawError)


@fault
def miscorrected(rng: random.Random, program: Program) -> Broken | None:
    """Weights beside an `old` that they do not correct: the ratio twice, other values, or nobody knows which."""
    rows = rng.choice([each for each in program.rows if not each.lags] or program.rows)
    if rows.lags or not rows.advantages:
        return None
    mask, drawn, how = f"{rows.var}.mask", f"{rows.var}.logprobs", rng.choice(["twice", "other", "unnamed"])
    program.body.append(Call("fixed", "logprobs", [(None, program.newest[rows.policy]), (None, rows.var)]))
    program.body.append(Call("apart", "smooth", [(None, "fixed")]))
    if how == "unnamed":
        program.body.append(Call("odd", "unnamed", [(None, "fixed"), (None, mask)]))
    else:
        program.body.append(Call("odd", "importance_weights", [(None, "fixed"), (None, mask), ("behaviour", drawn)]))
    if rng.random() < 0.5:
        program.body.append(Call("odd", "halved", [(None, "odd")]))
    old = {"twice": drawn, "other": "apart", "unnamed": "fixed"}[how]
    by_ratio: Values = [(None, "new"), (None, mask), ("old", old), ("weights", "odd")]
    clip: Values = [(None, "new"), (None, rows.advantages), *by_ratio[1:]]
    call = rng.choice([Call("u", "by_ratio", by_ratio), Call("u", "clipped", clip)])
    add_update(program, rows, [new_of(rows), likely(rows), call], "t + u")
    words = {
        "twice": "the ratio would be applied twice",
        "other": "the ratio in use would stay uncorrected",
        "unnamed": "unnamed takes no `old`",
    }
    return Broken(call, (f"{call.op}(weights=) corrects", words[how]), LawError)


@fault
def corrects_nothing(rng: random.Random, program: Program) -> Broken | None:
    """Weights that compare what the sampler told with itself."""
    rows = rng.choice(program.rows)
    drawn = f"{rows.var}.logprobs"
    call = Call("odd", "importance_weights", [(None, drawn), (None, f"{rows.var}.mask"), ("behaviour", drawn)])
    program.body.append(call)
    term = Call("t", "corrected", [(None, "new"), (None, f"{rows.var}.mask"), ("weights", "odd")])
    add_update(program, rows, [new_of(rows), term], "t")
    return Broken(call, ("importance_weights(old=) and importance_weights(behaviour=) read the same",), LawError)


@fault
def greedy_corrected(rng: random.Random, program: Program) -> Broken | None:
    """A ratio, or weights, on rows that nothing was drawn for."""
    policy = rng.choice([each for each in program.newest if each != "coef"])
    version, settings = program.newest[policy], {"temperature": "0.0", "max_tokens": "3"}
    program.body.append(Call("sure", "generate", [(None, version), (None, "prompts")], settings))
    rows = Rows("sure", policy, version, 0.0)
    if rng.random() < 0.5:
        call = Call("t", "by_ratio", [(None, "new"), (None, "sure.mask"), ("old", "sure.logprobs")])
        add_update(program, rows, [new_of(rows), call], "t")
        return Broken(call, ("by_ratio(old=) corrects by how likely", "are greedy"), LawError)
    program.body.append(Call("fixed", "logprobs", [(None, version), (None, "sure")]))
    drawn: Values = [(None, "fixed"), (None, "sure.mask"), ("behaviour", "sure.logprobs")]
    weigh = Call("odd", "importance_weights", drawn)
    program.body.append(weigh)
    term = Call("t", "corrected", [(None, "new"), (None, "sure.mask"), ("weights", "odd")])
    add_update(program, rows, [new_of(rows), term], "t")
    return Broken(weigh, ("importance_weights(behaviour=) corrects by how likely", "are greedy"), LawError)


@fault
def stale_read(rng: random.Random, program: Program) -> Broken | None:
    """Something else than sampling reads stale weights."""
    rows, version = program.rows[0], program.newest[program.rows[0].policy]
    call = Call("x", "logprobs", [(None, f"stale({version}, at_most=2)"), (None, rows.var)])
    program.body.append(call)
    return Broken(call, ("logprobs reads", "2 updates late"), LawError)


@fault
def bad_stale(rng: random.Random, program: Program) -> Broken | None:
    """A bound that is none, or what is no model."""
    text = rng.choice(
        ["policy, at_most=-1", "policy, at_most=1.5", "policy, at_most='2'", "prompts, at_most=1", "None, at_most=1"]
    )
    line = Line(f"lag = stale({text})")
    program.body.append(line)
    return Broken(line, ("stale",), SettingError if text.startswith("policy") else FlowTypeError)


@fault
def two_temperatures(rng: random.Random, program: Program) -> Broken | None:
    """A ratio of log-probs at two temperatures."""
    rows = rng.choice([each for each in program.rows if not each.at_most and each.advantages] or [program.rows[0]])
    if rows.at_most or not rows.advantages or program.newest[rows.policy] != rows.version:
        return None
    given: Values = [(None, rows.version), (None, rows.var)]
    program.body.append(Call("hot", "logprobs_at", given, {"temperature": "0.31"}))
    mask = f"{rows.var}.mask"
    call = Call("t", "clipped", [(None, "new"), (None, rows.advantages), (None, mask), ("old", "hot")])
    add_update(program, rows, [new_of(rows), call], "t")
    return Broken(call, ("clipped(old=) is at temperature 0.31", str(rows.temperature)), LawError)


@fault
def forked(rng: random.Random, program: Program) -> Broken | None:
    """Two updates consume one version."""
    updates = [each for each, _ in program.calls() if each.op == "update"]
    if not updates:
        return None
    first = rng.choice(updates)
    second = Call("fork", "update", list(first.given), dict(first.settings))
    program.body.append(second)
    program.back.append(("fork", "Policy"))
    return Broken(second, ("update consumes a version of",), LawError)


@fault
def read_too_late(rng: random.Random, program: Program) -> Broken | None:
    """A reader of the old weights needs what their update gave."""
    version = program.newest["policy"]
    rows = rng.choice([each for each in program.rows if each.policy == "policy" and not each.lags] or program.rows)
    if rows.policy != "policy" or rows.lags:
        return None
    add_update(program, rows, [new_of(rows), likely(rows)], "t")
    program.body.append(Call("after", "generate", [(None, "trained_last"), (None, "prompts")]))
    call = Call("too_late", "logprobs", [(None, version), (None, "after")])
    program.body.append(call)
    program.back.append(("too_late", "LogProbs"))
    return Broken(call, ("logprobs reads weights that update at", "replaced"), LawError)


@fault
def dropped_update(rng: random.Random, program: Program) -> Broken | None:
    """Nothing reads what an update gives."""
    rows = rng.choice(program.rows)
    if rows.lags:
        return None
    back = list(program.back)
    add_update(program, rows, [new_of(rows), likely(rows)], "t")
    program.back = back
    call = program.body[-1]
    return Broken(call, ("the result of update is dropped",), LawError)


@fault
def state_not_returned(rng: random.Random, program: Program) -> Broken | None:
    """A policy is updated and its next version is not returned."""
    rows = rng.choice(program.rows)
    if rows.lags:
        return None
    add_update(program, rows, [new_of(rows), likely(rows)], "t")
    program.body.append(Call("seen", "generate", [(None, "trained_last"), (None, "prompts")]))
    program.back = [each for each in program.back if each[0] != "trained_last"] + [("seen", "Rollout")]
    return Broken("flow", (f"does not return `{rows.policy}`", "update at"), LawError)


@fault
def old_state_returned(rng: random.Random, program: Program) -> Broken | None:
    """The version before the update is returned."""
    rows = rng.choice(program.rows)
    if rows.lags:
        return None
    before = program.newest[rows.policy]
    add_update(program, rows, [new_of(rows), likely(rows)], "t")
    program.back = [each for each in program.back if each[0] != "trained_last"]
    program.back += [(before, "Policy"), ("trained_last", "Policy")]
    return Broken("flow", ("returns", "update at", "replaced"), LawError)


@fault
def leaks_out_of_loss(rng: random.Random, program: Program) -> Broken | None:
    """A value of a loss is used outside."""
    losses = program.losses()
    if not losses:
        return None
    loss = rng.choice(losses)
    loss.body.append(Line(f"LEAK.append({rng.choice(['new', 't0' if loss.name != 'last' else 't'])})"))
    if rng.random() < 0.5 and loss.body[-1].text.endswith("(new)"):
        call = Call("leaked", "smooth", [(None, "LEAK[-1]")])
        program.body.append(call)
        program.back.append(("leaked", "LogProbs"))
        return Broken(call, ("smooth uses", "exists only in a loss"), LawError)
    kind = "LogProbs" if loss.body[-1].text.endswith("(new)") else "Loss"
    program.back.append(("LEAK[-1]", kind))
    return Broken("flow", ("returns", "exists only in a loss"), LawError)


@fault
def of_another_flow(rng: random.Random, program: Program) -> Broken | None:
    """A value of another flow is used."""
    text = (
        "@flow\ndef another(prompts: Prompts, policy: Policy) -> Rollout:\n    LEAK.append(generate(policy, prompts))\n"
    )
    program.extra.append(Line(text + "    return LEAK[-1]\nanother.graph()"))
    call = Call("taken", "length_score", [(None, "LEAK[0]")])
    program.body.append(call)
    program.back.append(("taken", "Scores"))
    return Broken(call, ("length_score uses generate", "belongs to another flow"), LawError)


@fault
def impure_in_loss(rng: random.Random, program: Program) -> Broken | None:
    """A loss samples, scores by a rule, or updates."""
    rows = rng.choice(program.rows)
    if rows.lags or not rows.scores:
        return None
    inner = {
        "generate": Call("x", "generate", [(None, "pi"), (None, "prompts")]),
        "adapt": Call("x", "adapt", [(None, "coef"), ("scores", rows.scores)]),
        "score": Call("x", "score", [(None, rows.var)]),
    }
    kinds = ["generate", "score"] + ["adapt"] * ("coef" in program.types and "coef" not in program.newest)
    op = rng.choice(kinds)
    term = {
        "generate": Call("t", "likely", [(None, "logprobs(pi, x)"), (None, "x.mask")]),
        "score": Call(
            "t", "clipped", [(None, "new"), (None, f"group_normalize(x, {rows.var}.group)"), (None, f"{rows.var}.mask")]
        ),
        "adapt": Call("t", "weighed", [(None, "u"), ("coef", "x")]),
    }[op]
    if op == "score":
        term.given.append(("old", f"{rows.var}.logprobs"))
    before = [Call("u", "likely", [(None, "new"), (None, f"{rows.var}.mask")])] if op == "adapt" else []
    add_update(program, rows, [new_of(rows), *before, inner[op], term], "t")
    return Broken(inner[op], (op, "cannot be used in the loss `last`"), LawError)


@fault
def loss_in_loss(rng: random.Random, program: Program) -> Broken | None:
    """An update stands in a loss."""
    rows = rng.choice(program.rows)
    losses = [each for each in program.losses() if not each.rollout.lags]
    if rows.lags or not losses:
        return None
    inside = Call("x", "update", [(None, "pi"), (None, losses[0].name)])
    term = Call("t", "likely", [(None, f"logprobs(x, {rows.var})"), (None, f"{rows.var}.mask")])
    add_update(program, rows, [inside, term], "t")
    return Broken(inside, ("update", "cannot be used in the loss `last`"), LawError)


@fault
def all_rows_in_loss(rng: random.Random, program: Program) -> Broken | None:
    """A loss has a node that reads all rows together."""
    rows = rng.choice(program.rows)
    if rows.lags:
        return None
    text = "@node(separable=False)\ndef whole(new: LogProbs) -> LogProbs: ..."
    program.extra.append(Line(text))
    call = Call("x", "whole", [(None, "new")])
    add_update(program, rows, [new_of(rows), call, likely(rows, "x")], "t")
    return Broken(call, ("whole reads all rows together", "`last`"), LawError)


@fault
def trained_mask(rng: random.Random, program: Program) -> Broken | None:
    """A mask depends on what is trained."""
    rows = rng.choice(program.rows)
    if rows.lags:
        return None
    mask = Call("m", "mask_of", [(None, "new"), (None, f"{rows.var}.mask")])
    call = Call("t", "likely", [(None, "new"), (None, "m")])
    add_update(program, rows, [new_of(rows), mask, call], "t")
    return Broken(call, ("likely(mask=) depends on `pi`",), LawError)


@fault
def real_data(rng: random.Random, program: Program) -> Broken | None:
    """A real value where an edge must be."""
    rows = program.rows[0]
    call = Call("x", "group_normalize", [(None, "Scores(None)"), (None, f"{rows.var}.group")])
    program.body.append(call)
    program.back.append(("x", "Advantages"))
    return Broken(call, ("group_normalize uses", "is real data"), LawError)


ALL_FAULTS = FAULTS
"""Every way to break a flow, those of one call included."""
