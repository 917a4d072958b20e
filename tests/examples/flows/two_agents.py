"""Two policies that both learn: one answers, the other is shown the question with an answer, and tries to do better."""

from __future__ import annotations

from flowgraph import Loss, flow, node
from nodes import Columns, Policy, Prompts, Rollout, clipped, generate, group_normalize, logprobs, score, update


@node(rows="new")
def show_first(rollout: Rollout) -> Prompts:
    """Ask each question again, behind its first response."""
    from flowgraph.language.rows import take

    first = take(rollout, (rollout.sample.data == 0).nonzero()[:, 0])
    asked, columns = first.columns.data["prompt"].to_pylist(), first.columns.data
    told = [
        [{"role": "user", "content": f"{text}{messages[-1]['content']}"}]
        for messages, text in zip(asked, first.text.data.to_pylist(), strict=True)
    ]
    place = columns.column_names.index("prompt")
    return Prompts(
        group=first.group, columns=Columns(columns.set_column(place, columns.schema.field("prompt"), [told]))
    )


@flow
def two_agents(prompts: Prompts, solver: Policy, editor: Policy) -> tuple[Policy, Policy]:
    """Train a solver and an editor of its answers, each on its own scores."""
    drafts = generate(solver, prompts, n=4)
    edits = generate(editor, show_first(drafts), n=4)
    of_drafts = group_normalize(score(drafts), drafts.group)
    of_edits = group_normalize(score(edits), edits.group)

    def solve(pi: Policy) -> Loss:
        return clipped(logprobs(pi, drafts), of_drafts, drafts.mask, old=drafts.logprobs)

    def edit(pi: Policy) -> Loss:
        return clipped(logprobs(pi, edits), of_edits, edits.mask, old=edits.logprobs)

    return update(solver, solve), update(editor, edit)
