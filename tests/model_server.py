"""A double of the server of a model: it speaks the APIs of OpenAI, vLLM and SGLang, in threads of the test."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import torch

from flowgraph.language.values import Group, Sample
from nodes import Columns, Finished, Rollout, Text
from tests.json_server import JsonServer, Reply

Answer = Callable[[dict[str, Any]], Reply]


class Double(JsonServer):
    """A server that records what it is asked, and answers as told; a path takes only the fields that it documents."""

    KNOWN = {  # noqa: RUF012
        "/v1/chat/completions": {"model", "messages", "temperature", "max_tokens"},
        "/classify": {"model", "messages", "input", "text", "add_special_tokens", "use_activation"},
        "/pooling": {"model", "messages", "input", "add_special_tokens", "use_activation"},
    }

    def __init__(self) -> None:
        self.asked = list[tuple[str, dict[str, Any], str]]()
        self.reply: Answer = lambda body: verdict("[[7]]")
        self.open, self.most_open = 0, 0
        self.lock = threading.Lock()
        super().__init__()

    def answer(self, path: str, body: dict[str, Any], headers: Mapping[str, str]) -> Reply:
        with self.lock:
            self.asked.append((path, body, headers.get("Authorization", "")))
            self.open += 1
            self.most_open = max(self.most_open, self.open)
        unknown = body.keys() - self.KNOWN.get(path, set())
        reply = (404, b'{"detail": "Not Found"}') if unknown else self.reply(body)
        with self.lock:
            self.open -= 1
        return reply


def ok(answer: object) -> Reply:
    return 200, json.dumps(answer).encode()


def verdict(text: object, **choice: object) -> Reply:
    return ok({"object": "chat.completion", "choices": [{"message": {"content": text}, **choice}]})


def answered(prompts: Sequence[Sequence[Mapping[str, str]]], answers: Sequence[str], styles: Sequence[str]) -> Rollout:
    """Return two responses to each of two prompts, with the parts that a scoring node reads.

    All arguments have an entry for each of the four responses; a style is that of the row's `reward_model`.
    """
    rows = [
        {"data_source": "sums", "prompt": prompt, "reward_model": {"style": style, "ground_truth": str(index)}}
        for index, (prompt, style) in enumerate(zip(prompts, styles, strict=True))
    ]
    parts = {
        "group": Group(torch.tensor([5, 5, 2, 2])),
        "sample": Sample(torch.tensor([0, 1, 0, 1])),
        "finished": Finished(torch.ones(4, dtype=torch.bool)),
        "text": Text(pa.array(answers)),
        "columns": Columns(pa.Table.from_pylist(rows)),
    }
    return Rollout.of(parts)
