"""Conversations: exact tokens and masks, stops, tools that fail, random numbers of turns, and the law of masks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import torch

from examples.environments.guessing_game import GuessingGame, guess
from flowgraph import Loss, flow, node
from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import EnvironmentFailure, LawError, SettingError
from flowgraph.language import Key
from flowgraph.language.hand_out import HandingOut, HandOut
from flowgraph.language.handle import Completion, SampleRequest
from flowgraph.language.values import Lengths, Mask
from nodes import (
    Episodes,
    Policy,
    Prompts,
    Rollout,
    group_normalize,
    interact,
    logprobs,
    policy_gradient,
    update,
)
from nodes.data.source import prompts_at
from tests.unit.nodes.environments.chats import Scripted, by_turn
from tests.unit.nodes.environments.games import (
    Broken,
    Counter,
    Digits,
    Echo,
    NoReset,
    Unrewarded,
    failing_calls,
    plus_calls,
)

Tiny = Callable[..., LocalModel]
KEY = Key(3, 1, "policy.interact")
HERMES = '<tool_call>{"name": "add", "arguments": {"number": %d}}</tool_call>'


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    prompts = [[{"role": "user", "content": text}] for text in ("7", "12+3=", "0 0", "=?")]
    return pa.table({"prompt": prompts, "ground_truth": ["1", "2", "3", "4"]})


def played(handle: Any, rows: pa.Table, env: Any, places: range | None = None, **settings: Any) -> Episodes:
    prompts = prompts_at(rows, range(rows.num_rows) if places is None else places)
    return interact(Policy(handle), prompts, env=env, **({"n": 1, "key": KEY} | settings))


def scripted(rows: pa.Table, env: Any, texts: list[str], template: str = "chatml", **settings: Any) -> tuple[Any, Any]:
    """Play one conversation in which the policy says `texts`, and return it and what is recorded of it."""
    handle = Scripted(template, by_turn(texts))
    episodes = played(handle, rows, env, range(1), **({"max_tokens": 2_000} | settings))
    return episodes, json.loads(episodes.text.extras[0])


class Recording(LocalModel):
    """The tiny model, with all requests and completions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.turns = dict[tuple[int, ...], tuple[SampleRequest, Completion]]()

    async def sample(self, request: SampleRequest) -> Completion:
        completion = await super().sample(request)
        self.turns[request.prompt, request.sample, request.turn] = request, completion
        return completion


def assert_same(one: Episodes, two: Episodes) -> None:
    for name in ("tokens", "mask", "logprobs", "turns", "turn_scores", "versions", "lengths"):
        assert torch.equal(one.parts[name].data, two.parts[name].data), name
    assert one.text.extras == two.text.extras


# ------------------------------------------------------------------------------------------- tokens and masks

ECHO: dict[str, Any] = {"n": 3, "max_turns": 4, "max_tokens": 40, "turn_tokens": 6, "stop": (10,)}


def test_what_is_trained_on_is_what_the_engine_read_and_wrote(tiny_parts: tuple[Any, Any], rows: pa.Table) -> None:
    handle = Recording(*tiny_parts)
    episodes = played(handle, rows, Echo, **ECHO)
    several = 0
    for row in range(12):
        prompt, sample, length = row // 3, row % 3, int(episodes.lengths.data[row])
        tokens, mask = episodes.tokens.data[row, :length].tolist(), episodes.mask.data[row].tolist()
        context = tuple(episodes.context.data[row].as_py())
        turns = sorted(key[2] for key in handle.turns if key[:2] == (prompt, sample))
        assert turns == list(range(len(turns)))
        written = [0.0] * len(mask)
        for turn in turns:
            request, completion = handle.turns[prompt, sample, turn]
            start = len(request.context) - len(context)
            assert request.context == (*context, *tokens[:start])
            assert completion.tokens == tuple(tokens[start : start + len(completion.tokens)])
            written[start : start + len(completion.tokens)] = [1.0] * len(completion.tokens)
            assert set(episodes.turns.data[row, start : start + len(completion.tokens)].tolist()) == {turn}
        assert mask == written
        several += len(turns) > 1
    assert several > 3, "few of these conversations have several turns"
    assert not episodes.logprobs.data[episodes.mask.data == 0].any()


def test_log_probs_of_what_was_written_are_those_of_a_forward_pass(tiny: Tiny, rows: pa.Table) -> None:
    handle = tiny()
    episodes = played(handle, rows, Echo, **ECHO)
    again, kept = logprobs(Policy(handle), episodes).data, episodes.mask.data != 0
    assert torch.allclose(again[kept], episodes.logprobs.data[kept], atol=1e-4)
    assert (again[~kept][again[~kept] != 0]).numel() > 10  # of other voices: they must not count


def test_the_same_run_twice_has_the_same_bits(tiny: Tiny, rows: pa.Table) -> None:
    assert_same(*(played(tiny(), rows, Echo, **ECHO, workers=workers) for workers in (1, 2)))


def test_a_conversation_does_not_depend_on_its_batch_but_on_its_turn(tiny: Tiny, rows: pa.Table) -> None:
    everything, some = played(tiny(), rows, Echo, **ECHO), played(tiny(sample_rows=2), rows, Echo, range(1, 3), **ECHO)
    assert everything.text.data[3:9].to_pylist() == some.text.data.to_pylist()
    request = SampleRequest((1,), 4, 2, 8, 1.0, KEY)
    streams = [SampleRequest((1,), 4, 2, 8, 1.0, KEY, turn=turn).stream for turn in range(3)]
    assert streams[0] == request.stream == (4, 2)
    assert len({KEY.bits(*stream) for stream in streams}) == 3


def test_one_turn_without_an_answer_is_what_generate_samples(tiny: Tiny, rows: pa.Table) -> None:
    from nodes import generate

    alone: Rollout = generate(Policy(tiny()), prompts_at(rows, range(4)), n=3, max_tokens=8, key=KEY)
    episodes = played(tiny(), rows, Echo, n=3, max_turns=1, max_tokens=8)
    for name in ("tokens", "mask", "logprobs", "versions", "lengths"):
        assert torch.equal(alone.parts[name].data, episodes.parts[name].data), name


def test_groups_are_handed_out_as_their_conversations_end(tiny: Tiny, rows: pa.Table) -> None:
    given: list[Episodes] = []
    handle = HandingOut(tiny(sample_rows=4), HandOut(None, lambda index, value: given.append(value)))  # type: ignore[arg-type]
    everything = played(handle, rows, Echo, **ECHO)
    assert sorted(part.group.data[0].item() for part in given) == [0, 1, 2, 3]
    for part in given:
        at = slice(3 * int(part.group.data[0]), 3 * int(part.group.data[0]) + 3)
        assert part.text.data.to_pylist() == everything.text.data[at].to_pylist()


# ------------------------------------------------------------------------------------------- stops and rewards


def test_rewards_stand_where_the_policy_wrote_last(rows: pa.Table) -> None:
    episodes, facts = scripted(rows, Echo, ["1", "2", "3"], max_turns=3)
    last = [
        turn.nonzero()[-1].item()
        for turn in ((episodes.turns.data[0] == t) & (episodes.mask.data[0] != 0) for t in range(3))
    ]
    assert episodes.turn_scores.data[0].nonzero()[:, 0].tolist() == last
    assert episodes.turn_scores.data[0, last].tolist() == [0.5, 0.5, 1.5]
    assert (episodes.scores.data.tolist(), facts["end"]) == ([2.5], "turns")
    assert [message["content"] for message in json.loads(facts["messages"])] == ["7", "1", "11", "2", "22", "3"]
    assert episodes.text.data.to_pylist() == ["1\n2\n3"]


@pytest.mark.parametrize(
    ("texts", "settings", "end", "turns"),
    [
        ([HERMES % 1, "2"], {}, "answered", 2),
        ([HERMES % 1, HERMES % 900, "2"], {}, "environment", 2),
        ([HERMES % 1] * 9, {"max_turns": 3}, "turns", 3),
        ([HERMES % 500, "2"], {"stop_on_error": True}, "error", 1),
        ([HERMES % 500, "2"], {}, "answered", 2),
        ([HERMES % 1] * 9, {"max_tokens": 100}, "length", 1),
        (["1" * 50], {"turn_tokens": 10}, "length", 1),
    ],
)
def test_how_a_conversation_ends(
    rows: pa.Table, texts: list[str], settings: dict[str, Any], end: str, turns: int
) -> None:
    episodes, facts = scripted(rows, Counter, texts, **settings)
    assert (facts["end"], int(episodes.turns.data.max()) + 1) == (end, turns)
    assert episodes.finished.data.tolist() == [end != "length"]
    assert int(episodes.lengths.data[0]) <= settings.get("max_tokens", 2_000)


def test_calls_of_the_last_turn_run_though_nobody_reads_their_results(rows: pa.Table) -> None:
    episodes, facts = scripted(rows, Counter, [HERMES % 3], max_turns=1)
    assert (episodes.scores.data.tolist(), facts["calls"]) == ([3.0], 1)
    assert bool(episodes.mask.data.all())


def test_without_rewards_scores_are_not_numbers(rows: pa.Table) -> None:
    episodes, _ = scripted(rows, Unrewarded, ["1"])
    assert episodes.scores.data.isnan().all()
    assert not [measure for measure in episodes.measures if measure.name == "reward"]


# ------------------------------------------------------------------------------------------- tools


def test_a_result_is_what_the_policy_reads_next(rows: pa.Table) -> None:
    handle = Scripted("chatml", by_turn([HERMES % 3 + HERMES % 4, "7"]))
    episodes = played(handle, rows, Counter, range(1), max_tokens=2_000)
    read = handle.tokenizer.decode(handle.requests[1].context, special=True)
    assert read.endswith(
        "<|im_end|>\n<|im_start|>user<tool_response>\n3\n</tool_response><tool_response>\n7\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert episodes.scores.data.tolist() == [7.0]


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (HERMES % 500, "ValueError: no five hundred"),
        (HERMES % 600, "it took over 1 s"),
        (HERMES % 700, "its process ended: exit code 3"),
        (
            '<tool_call>{"name": "add", "arguments": {"number": "x"}}</tool_call>',
            "number: Input should be a valid integer",
        ),
        (
            '<tool_call>{"name": "reward", "arguments": {}}</tool_call>',
            "there is no tool `reward`; the tools are add, draw",
        ),
        ('<tool_call>{"name": "__init__"}</tool_call>', "there is no tool"),
        ("<tool_call>{]</tool_call>", "not valid JSON"),
    ],
)
def test_a_call_that_fails_is_text_for_the_policy_and_changes_nothing(rows: pa.Table, call: str, why: str) -> None:
    episodes, facts = scripted(rows, Counter, [HERMES % 2, call, HERMES % 3, "5"], limit_s=1.0)
    texts = [message["content"] for message in json.loads(facts["messages"]) if message["role"] == "tool"]
    assert texts[0] == "2" and texts[2] == "5"
    assert texts[1].startswith("Error: ") and why in texts[1]
    assert (episodes.scores.data.tolist(), facts["call_errors"], facts["calls"]) == ([5.0], 1, 3)
    errors = next(measure for measure in episodes.measures if measure.name == "tool_errors")
    assert (errors.total, errors.count) == (1, 3)


def test_a_flood_is_cut(rows: pa.Table) -> None:
    _, facts = scripted(rows, Counter, [HERMES % 800, "5"], tool_characters=100)
    text = json.loads(facts["messages"])[2]["content"]
    assert text == "8" * 100 + "… (99900 more characters)"


def test_random_numbers_of_a_tool_repeat(rows: pa.Table) -> None:
    draw = '<tool_call>{"name": "draw"}</tool_call>'
    texts = [json.loads(scripted(rows, Counter, [draw, draw, "5"])[1]["messages"]) for _ in range(2)]
    assert texts[0] == texts[1] and texts[0][2]["content"] != texts[0][4]["content"]


def test_a_reader_of_ones_own_is_one_function(rows: pa.Table) -> None:
    episodes, facts = scripted(rows, Counter, ["+3+4", "7"], calls=plus_calls)
    assert (episodes.scores.data.tolist(), facts["calls"]) == ([7.0], 2)
    _, facts = scripted(rows, Counter, ["+3+4"], calls=failing_calls)
    assert (facts["end"], facts["calls"]) == ("answered", 0)


def test_a_whole_turn_can_be_a_call(tiny: Tiny, rows: pa.Table) -> None:
    episodes, facts = scripted(rows, Digits, ["3", "x", "4"], calls="whole", max_turns=3)
    assert (facts["calls"], facts["call_errors"], episodes.scores.data.tolist()) == (3, 1, [2.0])


def test_a_column_names_the_environment_of_its_row(rows: pa.Table) -> None:
    file = re.sub(r"test_interaction\.py$", "environments/games.py", __file__)
    named = rows.append_column("agent_name", pa.array(["Digits", "Counter", "Digits", "_Hidden"]))
    handle = Scripted("chatml", lambda request: "3" if request.prompt != 1 else HERMES % 9)
    episodes = played(
        handle, named, f"{file}:column:agent_name", range(3), max_turns=1, max_tokens=2_000, calls="hermes"
    )
    assert episodes.scores.data.tolist() == [0.0, 9.0, 0.0]
    with pytest.raises(EnvironmentFailure, match="'_Hidden' in the column `agent_name`"):
        played(handle, named, f"{file}:column:agent_name", range(4))


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ("nofile.py:Game", "no file"),
        ("Game", "does not name a file"),
        ("tests.unit.nodes.environments.games:Gam", "it has no `Gam`"),
    ],
)
def test_an_environment_that_cannot_be_found_is_an_error_with_its_name(rows: pa.Table, env: str, why: str) -> None:
    with pytest.raises(EnvironmentFailure, match=re.escape(env)) as caught:
        scripted(rows, env, ["1"])
    assert why in str(caught.value)


def test_an_environment_whose_own_methods_fail_ends_the_run(rows: pa.Table) -> None:
    with pytest.raises(
        EnvironmentFailure, match="reset failed for sample 0 of prompt 0: KeyError: 'no such column'"
    ) as caught:
        scripted(rows, Broken, ["1"])
    assert "games.py:" in str(caught.value)


def test_a_class_without_reset_and_an_unknown_format_are_refused(rows: pa.Table) -> None:
    with pytest.raises(SettingError, match="no method `reset"):
        scripted(rows, NoReset, ["1"])
    with pytest.raises(EnvironmentFailure, match="did you mean `hermes`"):
        scripted(rows, Counter, ["1"], calls="hermez")


# ------------------------------------------------------------------------------------------- the law of masks


@node
def all_tokens(lengths: Lengths) -> Mask:
    """Count every token of a response, whoever wrote it."""
    return Mask((torch.arange(int(lengths.data.max()))[None] < lengths.data[:, None]).float())


@node
def widened(mask: Mask) -> Mask:
    return Mask(torch.ones_like(mask.data))


@node
def halved(mask: Mask) -> Mask:
    return Mask(mask.data * (torch.arange(mask.data.shape[1]) % 2))


def written(games: Episodes) -> Mask:
    """Return the mask of written tokens, made from the turns of a real value: it is what the mask must be."""
    return Mask((games.logprobs.data != 0).float())


def trained_with(make_mask: Callable[[Episodes], Mask]) -> Any:
    @flow
    def game(prompts: Prompts, policy: Policy) -> Policy:
        games = interact(policy, prompts, env=Echo)
        advantages, mask = group_normalize(games.scores, games.group), make_mask(games)

        def loss(pi: Policy) -> Loss:
            return policy_gradient(logprobs(pi, games), advantages, mask)

        return update(policy, loss)

    return game


def test_a_loss_over_tokens_that_the_policy_did_not_write_is_refused() -> None:
    from flowgraph.language.laws import check

    def checked(make_mask: Callable[[Episodes], Mask]) -> None:
        check("described", trained_with(make_mask).graph())

    checked(lambda games: games.mask)
    checked(lambda games: halved(games.mask))
    with pytest.raises(LawError, match=r"counts tokens of .* that the policy did not write") as caught:
        checked(lambda games: all_tokens(games.lengths))
    assert "all_tokens at test_interaction.py" in str(caught.value) and "games" not in str(caught.value)


def test_turns_are_no_mask() -> None:
    from flowgraph.errors import FlowTypeError

    with pytest.raises(FlowTypeError, match="takes Mask, but got Turns"):
        trained_with(lambda games: games.turns).graph()  # type: ignore[arg-type, return-value]


def test_a_node_that_widens_a_mask_is_refused_when_it_runs(run_graph: Any, tiny: Tiny, rows: pa.Table) -> None:
    @flow
    def wide(prompts: Prompts, policy: Policy) -> Mask:
        return widened(interact(policy, prompts, env=Echo, max_turns=3, turn_tokens=6, stop=(10,)).mask)

    with pytest.raises(
        LawError, match=r"widened returned a mask with .* tokens that the mask which it read leaves out"
    ):
        run_graph(wide.graph(), {"prompts": prompts_at(rows, range(4)), "policy": Policy(tiny())}, KEY)


def test_without_the_mask_the_gradient_is_another(tiny: Tiny, rows: pa.Table) -> None:
    """The law is needed: a loss over what others wrote trains the policy to write it."""

    def moved(make_mask: Callable[[Episodes], Mask]) -> torch.Tensor:
        handle = tiny(trainable=True)
        games = played(handle, rows, Echo, **ECHO)
        mask, advantages = make_mask(games), group_normalize(games.scores, games.group)

        def loss(pi: Policy) -> Loss:
            return policy_gradient(logprobs(pi, games), advantages, mask)

        before = {name: weight.clone() for name, weight in handle.weights().items()}
        update(Policy(handle), loss, lr=1.0, optimizer="sgd", max_grad_norm=0.0)
        return torch.cat([(handle.weights()[name] - before[name]).flatten() for name in before])

    right, wrong = moved(lambda games: games.mask), moved(lambda games: all_tokens(games.lengths))
    assert torch.equal(right, moved(written))
    assert right.norm() > 0
    assert torch.nn.functional.cosine_similarity(right, wrong, dim=0) < 0.99


# ------------------------------------------------------------------------------------------- the example


def test_the_game_answers_guesses_and_rewards_the_last() -> None:
    game = GuessingGame()
    assert game.reset({"ground_truth": "4"}) == "?"
    said = [game.reply([{"content": text}]) for text in ("2", "x", "7", "5")]
    assert (said, game.reward()) == (["+", "+", "-", None], 1.0)


def test_the_flow_of_the_game_is_short_and_legal() -> None:
    import inspect

    assert len(inspect.getsource(inspect.unwrap(guess.fn if hasattr(guess, "fn") else guess)).splitlines()) <= 20  # type: ignore[attr-defined]
    assert next(each.op.name for each in guess.graph().nodes) == "interact"
