"""Scoring by a model behind a URL: a judge that writes a verdict, or a reward model that returns a number."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, cast
from urllib.parse import SplitResult

from pydantic import Field

from flowgraph import Metric, node
from flowgraph.errors import RuleError
from flowgraph.language import Measure, NodeName, Parts
from nodes.scoring import OF_SCORES, measures_of, rows_of
from nodes.scoring.grader_process import columns_of
from nodes.scoring.http_post import split_url
from nodes.scoring.model_server import Body, ModelServer, NoScoreError, Scored, key_in, number_in, only_item
from nodes.scoring.remote_settings import (
    PATTERN,
    PATTERN_LIMIT_S,
    TEMPLATE,
    JinjaText,
    OnError,
    Pattern,
    Scale,
    Seconds,
    Url,
    Variable,
    Workers,
    groups_of_matches,
)
from nodes.scoring.text_templates import texts_of
from nodes.values import Rollout, Scores

VERDICT_CHARACTERS = 20_000  # the end of a verdict that is searched for a score
SHOWN_CHARACTERS = 300
UNSCORED = Metric("unscored", about="share of responses to which the server gave no valid score, scored `on_error`")


@node(kind="score", pure=False, metrics=(*OF_SCORES, UNSCORED))
def remote_judge(
    rollout: Annotated[Rollout, Parts("group", "sample", "finished", "text", "columns")],
    *,
    url: Url,
    model: Annotated[str, Field(min_length=1)],
    template: Annotated[JinjaText, Field(min_length=1)] = TEMPLATE,
    pattern: Pattern = PATTERN,
    scale: Scale = (0.0, 10.0),
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0,
    max_tokens: Annotated[int, Field(ge=1)] = 512,
    api_key_env: Variable = "",
    workers: Workers = 8,
    limit_s: Seconds = 120.0,
    call_limit_s: Seconds | None = None,
    on_error: OnError = "fail",
    name: NodeName = "",
) -> Scores:
    """Return the score of each response by a judge behind an OpenAI-compatible URL, from 0 to 1: [B].

    The judge gets one message, which `template` (Jinja2, sandboxed) makes from `prompt` (the prompt's last message),
    `messages` (all messages of the prompt), `response`, `ground_truth`, and any column of the data set. The last match
    of `pattern` in the verdict's last 20,000 characters is the score, which `scale`, the lowest and the highest score,
    maps to 0 and 1; the search has 5 seconds, and a longer one gives no score. Requests go to `/v1/chat/completions`,
    or `/chat/completions` below the path of `url`: up to `workers` at a time, each within `limit_s` seconds, and up to
    five times if the server is busy or fails. A verdict without a number within the scale, or an answer that is late,
    too long or of another form, scores `on_error`, or raises RuleError if that is "fail". All responses together may
    take `call_limit_s` seconds, by default as in `score`. `api_key_env` names the environment variable that has the
    server's key; the key itself is not recorded. In the query of `url`, an environment variable in braces is replaced
    by its value, as in `?key={JUDGE_API_KEY}`. RuleError is always raised if the template fails, the server cannot be
    reached, or it refuses the key, the path or the model.

    Source: Zheng et al. 2023 (LLM as a judge), arXiv 2306.05685, section 3.1, single-answer grading.
    """
    rows = [_with_messages(columns_of(row)) for row in rows_of(rollout)]
    prompts = texts_of(template, rows)
    bodies: list[Body] = [
        {
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "temperature": temperature,
            "max_tokens": max_tokens,
        }
        for text in prompts
    ]
    server = ModelServer(
        parts=chat_endpoint(url), workers=workers, limit_s=limit_s, call_limit_s=call_limit_s, key=key_in(api_key_env)
    )
    read = partial(read_verdict, pattern=pattern, scale=scale)
    return _scores(server.score(bodies, read, rows, on_error), rollout, on_error)


@node(kind="score", pure=False, metrics=(*OF_SCORES, UNSCORED))
def remote_reward(
    rollout: Annotated[Rollout, Parts("group", "sample", "finished", "text", "columns")],
    *,
    url: Url,
    model: str = "",
    api: Literal["vllm/classify", "vllm/pooling", "sglang/classify"] = "vllm/classify",
    template: JinjaText = "",
    api_key_env: Variable = "",
    workers: Workers = 8,
    limit_s: Seconds = 60.0,
    call_limit_s: Seconds | None = None,
    on_error: OnError = "fail",
    name: NodeName = "",
) -> Scores:
    """Return the score of each response by a reward model that vLLM or SGLang serves: [B].

    The score is the model's only label without an activation; of a model that labels each token, that of the last
    token. The server applies the model's chat template to the prompt and the response, unless `template` (Jinja2,
    sandboxed) makes the text from `messages` (the prompt and the response as messages), `prompt`, `response`, and
    columns. SGLang applies no chat template, so it needs a `template`. `model` is the model's name on the server.
    Requests go to `/classify` or `/pooling` below the path of `url`. Failures, limits and `api_key_env` are treated as
    in `remote_judge`. Raises RuleError also for SGLang without a template.

    Source: vLLM 0.13, classification and pooling APIs, with `use_activation`; SGLang, native API, `/classify`.
    """
    if api == "sglang/classify" and not template:
        what = "SGLang's /classify applies no chat template, so the model would read texts of another form"
        raise RuleError(what, hint="set template= to the model's chat template, or to text that uses {{ messages }}")
    rows = [_with_messages(columns_of(row), answered=True) for row in rows_of(rollout)]
    texts = texts_of(template, rows) if template else []
    named: Body = {"model": model} if model else {}
    bodies = list[Body]()
    for index, row in enumerate(rows):
        if api == "sglang/classify":
            bodies.append({**named, "text": [texts[index]]})
        else:
            text: Body = {"input": [texts[index]], "add_special_tokens": False} if texts else {}
            bodies.append({**named, **(text or {"messages": row["messages"]}), "use_activation": False})
    parts = below(split_url(url), f"/{api.partition('/')[2]}")
    server = ModelServer(
        parts=parts, workers=workers, limit_s=limit_s, call_limit_s=call_limit_s, key=key_in(api_key_env)
    )
    return _scores(server.score(bodies, _REWARDS[api], rows, on_error), rollout, on_error)


SERVED = (remote_judge.__name__, remote_reward.__name__)
"""Nodes that score by the server of a model."""


def below(parts: SplitResult, path: str) -> SplitResult:
    """Return the parts of a URL with `path` appended, unless its path already ends with it; a fragment is dropped.

    >>> below(split_url("http://localhost:8000/"), "/classify").geturl()
    'http://localhost:8000/classify'
    """
    start = parts.path.rstrip("/")
    return parts._replace(path=start if start.endswith(path) else f"{start}{path}", fragment="")


def chat_endpoint(url: str) -> SplitResult:
    """Return the parts of the chat-completions URL of a server. Raises ValueError if `url` is not a server's URL.

    `url` may have the path of the server's API; if it has no path, `/v1` is used.

    >>> chat_endpoint("http://localhost:8000").path, chat_endpoint("https://api.example.org/openai/v2/").path
    ('/v1/chat/completions', '/openai/v2/chat/completions')
    """
    parts = split_url(url)
    return below(parts if parts.path.strip("/") else parts._replace(path="/v1"), "/chat/completions")


def read_verdict(answer: object, *, pattern: str, scale: tuple[float, float]) -> Scored:
    """Return the score, from 0 to 1, and the last 300 characters of a judge's verdict in a chat-completions answer.

    The first group of the last match of `pattern` in the verdict is the score; `scale` is the lowest and the highest
    score. Raises NoScoreError for an answer of another form, a verdict that was cut at its token limit, and a verdict
    without a match, whose search takes too long, or whose score is not a number within the scale.
    """
    choice = only_item(answer, "choices")
    message = choice.get("message")
    verdict = message.get("content") if isinstance(message, dict) else None
    if not isinstance(verdict, str):
        raise NoScoreError("its answer has no text")
    if choice.get("finish_reason") == "length":  # a score that it quoted so far is not its own
        raise NoScoreError(f"the verdict was cut at max_tokens, before its end: {verdict[-SHOWN_CHARACTERS:]!r}")
    try:
        matches = groups_of_matches(pattern, verdict[-VERDICT_CHARACTERS:])
    except TimeoutError:
        why = f"the pattern takes over {PATTERN_LIMIT_S:g} s on the verdict: {verdict[-SHOWN_CHARACTERS:]!r}"
        raise NoScoreError(why) from None
    if not matches:
        raise NoScoreError(f"no match of the pattern in the verdict: {verdict[-SHOWN_CHARACTERS:]!r}")
    low, high = scale
    try:
        number = float(matches[-1])
    except ValueError:
        raise NoScoreError(f"the verdict's score {matches[-1][:SHOWN_CHARACTERS]!r} is not a number") from None
    if not low <= number <= high:
        raise NoScoreError(f"the verdict's score {number:g} is not from {low:g} to {high:g}")
    return Scored(score=(number - low) / (high - low), verdict=verdict[-SHOWN_CHARACTERS:])


def read_classified(answer: object) -> Scored:
    """Return the score in an answer of vLLM's `/classify`. Raises NoScoreError unless it has one finite number."""
    return Scored(number_in(only_item(answer, "data").get("probs")))


def read_pooled(answer: object) -> Scored:
    """Return the score in an answer of vLLM's `/pooling`: the number of the text, or else of its last token.

    Raises NoScoreError if the answer has not exactly one finite number there.
    """
    numbers = only_item(answer, "data").get("data")
    of_tokens = isinstance(numbers, list) and numbers and isinstance(numbers[-1], list)
    return Scored(number_in(cast("list[object]", numbers)[-1] if of_tokens else numbers))


def read_embedded(answer: object) -> Scored:
    """Return the score in an answer of SGLang's `/classify`. Raises NoScoreError unless it has one finite number."""
    return Scored(number_in(only_item(answer, "").get("embedding")))


_REWARDS = {"vllm/classify": read_classified, "vllm/pooling": read_pooled, "sglang/classify": read_embedded}


def _with_messages(row: Mapping[str, Any], *, answered: bool = False) -> dict[str, Any]:
    messages = [{"role": message["role"], "content": message["content"]} for message in row["prompt"]]
    answer = [{"role": "assistant", "content": row["response"]}] if answered else []
    return {**row, "messages": messages + answer, "prompt": messages[-1]["content"] if messages else ""}


def _scores(scored: Sequence[Scored | None], rollout: Rollout, on_error: float | str) -> Scores:
    import torch

    otherwise = Scored(on_error if isinstance(on_error, float) else 0.0)
    scores = torch.tensor([(result or otherwise).score for result in scored], dtype=torch.float32)
    verdicts, missing = [(result or otherwise).verdict for result in scored], scored.count(None)
    result = Scores(
        scores, [*measures_of(scores, rollout.group.data), Measure("unscored", total=missing, count=len(scored))]
    )
    if any(verdicts):
        result.extras = tuple(json.dumps({"verdict": verdict} if verdict else {}) for verdict in verdicts)
    return result
