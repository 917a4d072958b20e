"""What is refused while a flow is written: each program below, with its whole error in tests/golden/errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from flowgraph.errors import FlowError
from flowgraph.flows.flow_files import find_flow
from tests.looped import looped

Golden = Callable[[str, str], None]

# Line 10 is the first of a program's own; a flow's body begins at line 12.
HEAD = """\
from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import Field

from flowgraph import *; from flowgraph.language import *
from nodes import *
"""

ROLLOUT = """\
rollout = generate(policy, prompts, n=8)
advantages = group_normalize(score(rollout), rollout.group)
"""

LOSS = """\
def loss(pi: Policy) -> Loss:
    return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)
"""


def flow_of(body: str, parameters: str = "prompts: Prompts, policy: Policy", returns: str = "Policy") -> str:
    """Write a flow with this body."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"@flow\ndef mine({parameters}) -> {returns}:\n{lines}"


def training(lines: str, **more: str) -> str:
    """Write a flow that samples, runs `lines`, and updates the policy."""
    return flow_of(f"{ROLLOUT}{lines}\n{LOSS}return update(policy, loss)", **more)


def losing(loss: str, before: str = "") -> str:
    """Write a flow with this body of its loss."""
    inside = "".join(f"    {line}\n" for line in loss.splitlines())
    return flow_of(f"{ROLLOUT}{before}def loss(pi: Policy) -> Loss:\n{inside}return update(policy, loss)")


def updating(call: str) -> str:
    """Write a flow that ends with this call of `update`."""
    return flow_of(f"{ROLLOUT}{LOSS}return {call}")


CRITIC = """\
class Critic(Trainable):
    pass


@node
def fit(model: Critic, mask: Mask) -> Loss:
    ...


@node
def judge(model: Critic) -> Scores:
    ...


"""

COOLER = """\
@node(kind="logprob")
def cooler(model: LanguageModel, rollout: Rollout, *, temperature: float = 0.5) -> LogProbs:
    ...


@node(separable=False)
def whitened(new: LogProbs) -> LogProbs:
    ...


@node
def mixed(new: LogProbs, *, cool: LogProbs) -> LogProbs:
    ...


"""

WEIGHTS = """\
@node
def nameless(told: LogProbs, mask: Mask) -> ImportanceWeights:
    ...


"""

LEVEL = """\
class Level(State):
    pass


@node
def fresh(prompts: Prompts) -> Level:
    ...


"""

INNER = """\
@flow
def inner(prompts: Prompts, *, rounds: int = 1) -> Prompts:
    return prompts


"""

NODES = """\
class Rows(Value):
    kind = Kind.ROW


class MoreRows(Rows):
    pass


class Pair(Record):
    mask: Mask


@node
def relabel(new: LogProbs) -> Mask:
    ...


@node
def per_row(new: LogProbs) -> Scores:
    ...


@node
def weigh(loss: Loss, *, by: LogProbs) -> Loss:
    return loss


@node
def probe(model: Policy, loss: Callable[[Policy], Loss]) -> Advantages:
    ...


"""

CARRYING = """\
@flow
def inner(prompts: Prompts, policy: Policy, beta: KLWeight = KLWeight(0.05)) -> tuple[Policy, KLWeight]:
    return policy, beta


"""


def correcting(before: str, old: str, **more: str) -> str:
    """Write a flow whose loss takes `weights`, which `before` makes, beside this `old`."""
    text = f"""\
{ROLLOUT}proximal = logprobs(policy, rollout)
weights = {before}
def loss(pi: Policy) -> Loss:
    return clipped(logprobs(pi, rollout), advantages, rollout.mask, old={old}, weights=weights)
return update(policy, loss)"""
    return flow_of(text, **more)


IN_A_FLOW = {
    # The known bug: `[batch, tokens]` where `[batch, tokens]` of another meaning belongs.
    "advantages_for_the_mask": losing("""\
new = logprobs(pi, rollout)
return clipped(new, advantages, advantages, old=rollout.logprobs, eps=0.2)"""),
    # Models and their losses.
    "update_of_a_reference": flow_of(
        f"{ROLLOUT}{LOSS}return update(ref, loss)", "prompts: Prompts, policy: Policy, ref: Reference"
    ),
    "update_with_another_models_loss": CRITIC
    + flow_of(
        f"{ROLLOUT}{LOSS}return update(policy, loss), update(critic, loss)",
        "prompts: Prompts, policy: Policy, critic: Critic",
        "tuple[Policy, Critic]",
    ),
    # An edge is no data.
    "if": training("if rollout.finished:\n    pass"),
    "comparison": training("high = score(rollout) > 0.5"),
    "equality": training("same = rollout.mask == rollout.mask"),
    "len": training("count = len(rollout)"),
    "iteration": training("for row in rollout:\n    pass"),
    "float": training("mean = float(score(rollout))"),
    "index": training("first = rollout.tokens[0]"),
    "data": training("column = rollout.mask.data"),
    "handle": training("tokenizer = policy.handle.tokenizer"),
    "setting_a_part": training("rollout.mask = advantages"),
    "a_record_of_edges": training("pair = Prompts(group=rollout.group, columns=rollout.columns)"),
    "unknown_part": training("mask = rollout.maks"),
    "sum_of_two_types": training(
        "total = score(rollout) + policy_gradient(rollout.logprobs, advantages, rollout.mask)"
    ),
    "sum_with_a_number": training("total = score(rollout) + 1"),
    "product_of_edges": training("total = score(rollout) * score(rollout)"),
    # Whose value it is.
    "result_of_another_flow": """\
kept = []


@flow
def first(prompts: Prompts, policy: Policy) -> Rollout:
    kept.append(generate(policy, prompts))
    return kept[0]


first.graph()


"""
    + flow_of(f"rollout = kept[0]\n{ROLLOUT.splitlines()[1]}\n{LOSS}return update(policy, loss)"),
    "parameter_of_another_flow_returned": """\
kept = []


@flow
def first(prompts: Prompts, policy: Policy) -> Prompts:
    kept.append(prompts)
    return prompts


first.graph()


"""
    + flow_of("return kept[0]", returns="Prompts"),
    "loss_value_returned": flow_of(
        f"""\
{ROLLOUT}leaked = []
def loss(pi: Policy) -> Loss:
    leaked.append(logprobs(pi, rollout))
    return policy_gradient(leaked[0], advantages, rollout.mask)
return update(policy, loss), leaked[0]""",
        returns="tuple[Policy, LogProbs]",
    ),
    "loss_parameter_returned": flow_of(f"""\
{ROLLOUT}leaked = []
def loss(pi: Policy) -> Loss:
    leaked.append(pi)
    return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)
update(policy, loss)
return leaked[0]"""),
    "loss_value_in_another_loss": flow_of(f"""\
{ROLLOUT}leaked = []
def loss(pi: Policy) -> Loss:
    leaked.append(logprobs(pi, rollout))
    return policy_gradient(leaked[0], advantages, rollout.mask)
once = update(policy, loss)
def again(pi: Policy) -> Loss:
    return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=leaked[0])
return update(once, again)"""),
    "real_data": "import torch\n\n\n" + training("mask = Mask(torch.ones(1, 1))").replace("rollout.mask)", "mask)"),
    # Losses.
    "generate_in_a_loss": losing("""\
again = generate(policy, prompts)
return policy_gradient(logprobs(pi, rollout), advantages, again.mask)"""),
    "generate_from_pi_in_a_loss": losing("""\
again = generate(pi, prompts)
return policy_gradient(logprobs(pi, again), advantages, again.mask)"""),
    "score_in_a_loss": losing("""\
now = group_normalize(score(rollout), rollout.group)
return policy_gradient(logprobs(pi, rollout), now, rollout.mask)"""),
    "update_in_a_loss": losing(
        "return policy_gradient(logprobs(update(pi, inner), rollout), advantages, rollout.mask)",
        before=LOSS.replace("loss(", "inner("),
    ),
    "region_in_a_loss": NODES
    + losing(
        "return policy_gradient(logprobs(pi, rollout), probe(pi, inner), rollout.mask)",
        before=LOSS.replace("loss(", "inner("),
    ),
    "loss_that_trains_nothing": losing("return policy_gradient(logprobs(policy, rollout), advantages, rollout.mask)"),
    "term_that_trains_nothing": losing("""\
old = logprobs(policy, rollout)
return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask) + 0.1 * kl_k3(old, rollout.mask, ref=old)"""),
    "mask_that_is_trained": NODES
    + losing("""\
new = logprobs(pi, rollout)
return policy_gradient(new, advantages, relabel(new))"""),
    "weight_of_a_loss_that_is_trained": NODES
    + losing("""\
new = logprobs(pi, rollout)
return weigh(policy_gradient(new, advantages, rollout.mask), by=new)"""),
    "loss_of_two_models": flow_of(
        f"{ROLLOUT}def loss(pi: Policy, old: Policy) -> Loss:\n    ...\nreturn update(policy, loss)"
    ),
    "loss_that_returns_something_else": losing("return logprobs(pi, rollout)"),
    "loss_that_is_called": updating("update(policy, loss(policy))"),
    "loss_with_an_unknown_type": flow_of(f"{ROLLOUT}{LOSS.replace('Policy', 'Polcy')}return update(policy, loss)"),
    # Versions.
    "two_updates_of_one_version": flow_of(
        f"{ROLLOUT}{LOSS}return update(policy, loss), update(policy, loss)", returns="tuple[Policy, Policy]"
    ),
    "reader_of_replaced_weights": flow_of(f"""\
{ROLLOUT}{LOSS}once = update(policy, loss)
later = generate(once, prompts)
late = logprobs(policy, later)
def again(pi: Policy) -> Loss:
    return clipped(logprobs(pi, later), advantages, later.mask, old=late)
return update(once, again)"""),
    "replaced_weights_returned": flow_of(
        f"{ROLLOUT}{LOSS}update(policy, loss)\nreturn update(policy, loss), policy", returns="tuple[Policy, Policy]"
    ),
    "updated_state_not_returned": NODES
    + CRITIC
    + flow_of(
        f"""\
{ROLLOUT}{LOSS}def value_loss(critic: Critic) -> Loss:
    return fit(critic, rollout.mask)
better = update(critic, value_loss)
return update(policy, loss), judge(better)""",
        "prompts: Prompts, policy: Policy, critic: Critic",
        "tuple[Policy, Scores]",
    ),
    "stale_read_that_does_not_sample": training("late = logprobs(stale(policy, at_most=2), rollout)"),
    "stale_update": updating("update(stale(policy, at_most=1), loss)"),
    "stale_by_less_than_nothing": training("late = generate(stale(policy, at_most=-1), prompts)"),
    "stale_by_a_fraction": training("late = generate(stale(policy, at_most=0.5), prompts)"),
    "stale_prompts": training("late = generate(policy, stale(prompts, at_most=1))"),
    "stale_result": updating("stale(update(policy, loss), at_most=1)"),
    # Whose rows, and which weights.
    "rows_of_two_rollouts": training(
        "other = generate(policy, prompts, n=8)\nadvantages = group_normalize(score(rollout), other.group)"
    ),
    "rows_of_two_rollouts_in_a_loss": losing(
        "new = logprobs(pi, rollout)\nother = logprobs(pi, second)\n"
        "first = policy_gradient(new, advantages, rollout.mask)\n"
        "return first + kl_k3(other, second.mask, ref=second.logprobs)",
        before="second = generate(policy, prompts)\n",
    ),
    "prompts_group_for_the_rollouts": training("advantages = group_normalize(score(rollout), prompts.group)"),
    "old_by_the_reference": flow_of(
        f"""\
{ROLLOUT}late = logprobs(ref, rollout)
def loss(pi: Policy) -> Loss:
    return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=late)
return update(policy, loss)""",
        "prompts: Prompts, policy: Policy, ref: Reference",
    ),
    "old_by_a_later_version": flow_of(
        f"""\
{ROLLOUT}{LOSS}once = update(policy, loss)
late = logprobs(once, rollout)
def again(pi: Policy) -> Loss:
    return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=late)
return update(once, again)"""
    ),
    "old_by_what_is_trained": losing(
        "new = logprobs(pi, rollout)\nreturn clipped(new, advantages, rollout.mask, old=new)"
    ),
    "new_by_the_reference": flow_of(
        f"""\
{ROLLOUT}def loss(pi: Policy) -> Loss:
    plain = policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)
    return plain + kl_k3(logprobs(ref, rollout), rollout.mask, ref=logprobs(pi, rollout))
return update(policy, loss)""",
        "prompts: Prompts, policy: Policy, ref: Reference",
    ),
    "stale_rows_without_a_correction": flow_of(
        f"rollout = generate(stale(policy, at_most=4), prompts, n=8)\n{ROLLOUT.splitlines()[1]}\n{LOSS}"
        "return update(policy, loss)"
    ),
    "stale_rows_corrected_by_the_newest_weights": flow_of(
        f"""\
rollout = generate(stale(policy, at_most=1), prompts, n=8)
{ROLLOUT.splitlines()[1]}
late = logprobs(policy, rollout)
def loss(pi: Policy) -> Loss:
    return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=late)
return update(policy, loss)"""
    ),
    "weights_that_apply_the_ratio_twice": correcting(
        "importance_weights(proximal, rollout.mask, behaviour=rollout.logprobs)", "rollout.logprobs"
    ),
    "weights_of_other_values_than_old": correcting(
        "importance_weights(logprobs(ref, rollout), rollout.mask, behaviour=rollout.logprobs)",
        "proximal",
        parameters="prompts: Prompts, policy: Policy, ref: Reference",
    ),
    "weights_of_one_value_twice": correcting(
        "importance_weights(rollout.logprobs, rollout.mask, behaviour=rollout.logprobs)", "proximal"
    ),
    "weights_that_do_not_say_of_what": WEIGHTS + correcting("nameless(proximal, rollout.mask)", "proximal"),
    "weights_beside_old_that_is_trained": correcting(
        "importance_weights(proximal, rollout.mask, behaviour=rollout.logprobs)", "logprobs(pi, rollout)"
    ),
    "ratio_of_greedy_rows": losing(
        "return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)"
    ).replace("n=8", "temperature=0.0"),
    "weights_of_greedy_rows": correcting(
        "importance_weights(proximal, rollout.mask, behaviour=rollout.logprobs)", "proximal"
    ).replace("n=8", "temperature=0.0"),
    "two_temperatures": COOLER
    + flow_of(
        f"{ROLLOUT}late = mixed(rollout.logprobs, cool=cooler(policy, rollout))\n{LOSS}"
        "return update(policy, loss), late",
        returns="tuple[Policy, LogProbs]",
    ),
    "tokens_where_rows_are_wanted": training("late = group_normalize(rollout.logprobs, rollout.group)"),
    "rows_where_tokens_are_wanted": losing(
        "return policy_gradient(score(rollout), advantages, rollout.mask) + kl_k3(1, rollout.mask, ref=2)"
    ),
    "all_rows_together_in_a_loss": COOLER
    + losing("return policy_gradient(whitened(logprobs(pi, rollout)), advantages, rollout.mask)"),
    "dropped_update": flow_of(f"{ROLLOUT}{LOSS}update(policy, loss)\nreturn policy"),
    # Calls.
    "unknown_setting": updating("update(policy, loss, lrr=1e-6)"),
    "setting_out_of_range": updating("update(policy, loss, lr=-1e-6)"),
    "setting_of_another_type": updating("update(policy, loss, optimizer='adam')"),
    "aggregation_that_is_none": losing(
        "return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask, aggregation='mean')"
    ),
    "state_for_a_factor": flow_of(
        f"""\
{ROLLOUT}def loss(pi: Policy) -> Loss:
    new = logprobs(pi, rollout)
    return policy_gradient(new, advantages, rollout.mask) + beta * kl_k3(new, rollout.mask, ref=rollout.logprobs)
return update(policy, loss), beta""",
        "prompts: Prompts, policy: Policy, beta: KLWeight = KLWeight(0.05)",
        "tuple[Policy, KLWeight]",
    ),
    "setting_by_position": updating("update(policy, loss, 1e-6)"),
    "setting_that_is_an_edge": updating("update(policy, loss, lr=rollout.mask)"),
    "missing_port": flow_of("return generate(policy)", returns="Rollout"),
    "missing_region": updating("update(policy)"),
    "port_given_twice": updating("update(policy, loss, model=policy)"),
    "none_for_a_value": flow_of("return generate(policy, None)", returns="Rollout"),
    "number_for_a_value": flow_of("return generate(policy, 3)", returns="Rollout"),
    "method_for_a_region": updating("update(policy, 'loss')"),
    "key_in_a_flow": flow_of("return generate(policy, prompts, key=Key(1))", returns="Rollout"),
    # What a flow returns, and its own lines.
    "flow_that_returns_another_type": flow_of("return generate(policy, prompts)"),
    "flow_that_returns_one_more": flow_of("return policy, prompts"),
    "flow_that_returns_nothing": flow_of("generate(policy, prompts)"),
    "flow_that_returns_real_data": flow_of("import torch\nreturn Scores(torch.ones(1))", returns="Scores"),
    "flow_that_returns_new_state": LEVEL + flow_of("return fresh(prompts)", returns="Level"),
    "flow_that_raises": flow_of("ratio = 1 / 0\nreturn policy"),
    "flow_called_with_another_type": INNER + flow_of("inner(policy)\nreturn policy"),
    "flow_called_with_an_unknown_setting": INNER + flow_of("inner(prompts, round=2)\nreturn policy"),
    "flow_called_without_its_state": CARRYING + flow_of("better, beta = inner(prompts, policy)\nreturn better"),
    "flow_called_with_a_number_for_its_state": CARRYING + flow_of("return inner(prompts, policy, beta=0.05)[0]"),
}

WHEN_DEFINED = {
    "filter_without_identity": "@node(rows='new')\ndef f(a: Rows) -> Rows: ...",
    "reorder_without_identity": "@node(rows='reordered')\ndef f(a: Rows, *, b: Mask) -> tuple[Rows, Mask]: ...",
    "unknown_trait_of_rows": "@node(rows='filtered')\ndef f(a: Rows) -> Rows: ...",
    "unknown_trait": "@node(seperable=False)\ndef f(a: Rows) -> Rows: ...",
    "part_that_is_not_there": "@node\ndef f(a: Annotated[Pair, Parts('masks')]) -> Rows: ...",
    "part_said_twice_behind_another_trait": "@node\n"
    "def f(a: Annotated[Pair, By.FIXED, Parts('mask'), Parts()]) -> Rows: ...",
    "correction_said_twice": "@node\ndef f(a: Annotated[Rows, Corrects('b'), Corrects()], *, b: LogProbs) -> Mask: ...",
    "correction_that_is_not_called": "@node\ndef f(a: Annotated[Rows, Corrects], *, b: LogProbs) -> Mask: ...",
    "correction_of_no_port": "@node\ndef f(a: Annotated[Rows, Corrects('odl')], *, old: LogProbs) -> Mask: ...",
    "correction_of_a_setting": "@node\ndef f(a: Annotated[Rows, Corrects('eps')], *, eps: float = 1.0) -> Mask: ...",
    "correction_of_itself": "@node\ndef f(a: Annotated[Rows, Corrects('a')]) -> Mask: ...",
    "model_with_an_unknown_head": "class Grader(Model):\n    head = 'scores'\n\n\n"
    "@node\ndef f(model: Grader) -> Rows: ...",
    "loss_of_a_model_with_an_unknown_head": "class Grader(Trainable):\n    head = None\n\n\n"
    "@node\ndef f(a: Rows, loss: Callable[[Grader], Loss]) -> Rows: ...",
    "two_ports_of_one_type": "@node\ndef f(a: Rows, b: Rows) -> Rows: ...",
    "two_ports_of_a_type_and_its_subclass": "@node\ndef f(a: Rows, b: MoreRows) -> Rows: ...",
    "loss_without_a_mask": "@node\ndef f(new: LogProbs) -> Loss: ...",
    "loss_with_two_masks": "@node\ndef f(new: LogProbs, mask: Mask, *, other: Mask) -> Loss: ...",
    "loss_beside_other_values": "@node\ndef f(mask: Mask) -> tuple[Loss, Rows]: ...",
    "loss_from_a_loss_and_a_mask": "@node\ndef f(loss: Loss, mask: Mask) -> Loss: ...",
    "port_without_a_type": "@node\ndef f(a, b: Rows) -> Rows: ...",
    "port_with_an_unknown_type": "@node\ndef f(a: Row) -> Rows: ...",
    "port_with_an_annotation_that_raises": "@node\ndef f(a: Rows[1 / 0]) -> Rows: ...",
    "port_of_two_types": "@node\ndef f(a: Rows | Mask) -> Rows: ...",
    "port_that_may_be_none_without_a_default": "@node\ndef f(a: Rows | None) -> Rows: ...",
    "port_with_a_default": "@node\ndef f(a: Rows = Rows(1)) -> Rows: ...",
    "port_with_state_for_a_default": "@node\ndef f(beta: KLWeight = KLWeight(0.05)) -> Rows: ...",
    "port_that_may_be_none_with_state_for_a_default": "@node\ndef f(b: KLWeight | None = KLWeight(0.05)) -> Rows: ...",
    "port_of_two_types_with_state_for_a_default": "@node\ndef f(b: KLWeight | Rows = KLWeight(0.05)) -> Rows: ...",
    "list_of_values": "@node\ndef f(a: list[Rows]) -> Rows: ...",
    "any_number_of_values": "@node\ndef f(*rows: Rows) -> Rows: ...",
    "port_by_position_only": "@node\ndef f(a: Rows, /) -> Rows: ...",
    "setting_before_the_star": "@node\ndef f(a: Rows, eps: float) -> Rows: ...",
    "setting_without_a_type": "@node\ndef f(a: Rows, *, eps=1) -> Rows: ...",
    "setting_with_a_wrong_default": "@node\ndef f(a: Rows, *, eps: Annotated[float, Field(gt=0)] = 0.0) -> Rows: ...",
    "setting_with_a_name_of_pydantics": "@node\ndef f(a: Rows, *, copy: bool = False) -> Rows: ...",
    "region_of_no_model": "@node\ndef f(a: Rows, g: Callable[[Rows], Loss]) -> Rows: ...",
    "result_without_a_type": "@node\ndef f(a: Rows): ...",
    "result_that_is_no_value": "@node\ndef f(a: Rows) -> float: ...",
    "result_of_a_tuple_of_one": "@node\ndef f(a: Rows) -> tuple[Rows]: ...",
    "carry_of_no_port": "@node(carries='model')\ndef f(policy: Policy) -> Policy: ...",
    "carry_of_no_state": "@node(carries='a')\ndef f(a: Rows) -> Rows: ...",
    "carry_that_is_not_returned": "@node(carries='policy')\ndef f(policy: Policy) -> Rows: ...",
    "async_node": "@node\nasync def f(a: Rows) -> Rows: ...",
    "class_as_a_node": "@node\nclass F: ...",
    "flow_with_a_number": "@flow\ndef f(prompts: Prompts, count: int) -> Prompts: ...",
    "flow_with_a_key": "@flow\ndef f(prompts: Prompts, *, key: Key = Key()) -> Prompts: ...",
    "flow_with_a_value_that_may_be_none": "@flow\ndef f(ref: Reference | None = None) -> Reference: ...",
    "flow_with_a_trait_of_ports": "@flow\ndef f(a: Annotated[LogProbs, By.FIXED]) -> LogProbs: ...",
    "flow_with_a_correction": "@flow\ndef f(a: Annotated[Rows, Corrects()]) -> Rows: ...",
    "flow_with_state_of_another_type": "class Level(State):\n    pass\n\n\n"
    "@flow\ndef f(beta: KLWeight = Level(0.05)) -> KLWeight: ...",
    "flow_with_a_number_for_its_state": "@flow\ndef f(beta: KLWeight = 0.05) -> KLWeight: ...",
    "flow_with_none_for_its_state": "@flow\ndef f(beta: KLWeight = None) -> KLWeight: ...",
    "flow_with_state_of_nothing": "@flow\ndef f(beta: KLWeight = KLWeight(None)) -> KLWeight: ...",
    "flow_with_state_that_is_a_text": "@flow\ndef f(beta: KLWeight = KLWeight('0.05')) -> KLWeight: ...",
    "flow_with_state_that_is_not_finite": "@flow\ndef f(beta: KLWeight = KLWeight(float('nan'))) -> KLWeight: ...",
    "flow_with_state_that_is_a_tensor": "import torch\n\n\nclass Level(State):\n    pass\n\n\n"
    "@flow\ndef f(level: Level = Level(torch.ones(1))) -> Level: ...",
    "flow_with_state_of_texts_under_numbers": "class Level(State):\n    pass\n\n\n"
    "@flow\ndef f(level: Level = Level({1: 'a'})) -> Level: ...",
    "flow_with_a_model_for_a_default": "@flow\ndef f(policy: Policy = Policy(None)) -> Policy: ...",
    "flow_with_a_rollout_for_a_default": "@flow\ndef f(rollout: Rollout = Rollout.of({})) -> Rollout: ...",
    "flow_with_a_loss": "@flow\ndef f(policy: Policy, loss: Callable[[Policy], Loss]) -> Policy: ...",
    "record_with_a_number": "class Pair(Record):\n    count: int\n\n\nPair(count=1)",
    "record_with_a_part_named_data": "class Pair(Record):\n    data: Mask\n\n\nPair(data=Mask(1))",
    "record_without_a_part": "class Pair(Record):\n    mask: Mask\n\n\nPair()",
    "record_with_another_type": "class Pair(Record):\n    mask: Mask\n\n\nPair(mask=Rows(1))",
    "record_with_an_unknown_part": "class Pair(Record):\n    mask: Mask\n\n\nPair(mask=Mask(1), rows=Rows(1))",
    "setting_out_of_range_on_real_values": "@node\ndef f(a: Rows, *, n: Annotated[int, Field(ge=1)] = 1) -> Rows: ..."
    "\n\n\nf(Rows(1), n=0)",
    "unknown_setting_on_real_values": "@node\ndef f(a: Rows, *, n: int = 1) -> Rows: ...\n\n\nf(Rows(1), m=0)",
    "wrong_type_on_real_values": "@node\ndef f(a: Rows, *, n: int = 1) -> Rows: ...\n\n\nf(Mask(1))",
}


def refusal_of(tmp_path: Path, program: str) -> str:
    """Describe the flow of a file with this program, and give the text of the error."""
    file = tmp_path / "mine.py"
    file.write_text(f"{HEAD}\n{program}\n", encoding="utf-8")
    with pytest.raises(FlowError) as raised:
        find_flow(f"{file}:mine").flow.graph()
    return str(raised.value)


@looped("name", IN_A_FLOW)
def test_a_wrong_flow_is_refused_with_where_what_and_the_other_side(name: str, tmp_path: Path, golden: Golden) -> None:
    golden(refusal_of(tmp_path, IN_A_FLOW[name]), f"errors/flows/{name}.txt")


@looped("name", WHEN_DEFINED)
def test_a_wrong_definition_is_refused_when_its_file_is_imported(name: str, tmp_path: Path, golden: Golden) -> None:
    golden(refusal_of(tmp_path, NODES.split("@node")[0] + WHEN_DEFINED[name]), f"errors/definitions/{name}.txt")


def test_an_exception_from_deeper_says_where_it_was_raised_beside_the_flows_line(tmp_path: Path) -> None:
    said = refusal_of(tmp_path, flow_of("import json\njson.loads('{')\nreturn policy"))
    assert re.fullmatch(r"mine.py:14: flow mine raised JSONDecodeError: .*\n    at decoder.py:\d+ in raw_decode", said)


def test_a_flow_that_calls_itself_is_told_so(tmp_path: Path) -> None:
    said = refusal_of(tmp_path, flow_of("return mine(prompts, policy)"))
    assert said.startswith("mine.py:13: flow mine raised RecursionError: maximum recursion depth exceeded")


def test_the_known_bug_names_both_lines_and_the_mask(tmp_path: Path) -> None:
    said = refusal_of(tmp_path, IN_A_FLOW["advantages_for_the_mask"]).splitlines()
    program = (tmp_path / "mine.py").read_text(encoding="utf-8").splitlines()
    line = {text.strip().split(" ")[0]: number for number, text in enumerate(program, start=1)}
    assert said == [
        f"mine.py:{line['return'] - 1}: clipped(mask=) takes Mask, but got Advantages",
        f"    from group_normalize at mine.py:{line['advantages']}",
        "  hint: a rollout's mask is `rollout.mask`",
    ]


def test_every_golden_error_belongs_to_a_program() -> None:
    folder = Path(__file__).parents[3] / "golden" / "errors"
    kept = {name: {path.stem for path in (folder / name).glob("*.txt")} for name in ("flows", "definitions")}
    assert kept == {"flows": set(IN_A_FLOW), "definitions": set(WHEN_DEFINED)}
