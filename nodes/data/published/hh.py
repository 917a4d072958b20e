"""HH-RLHF: dialogues with a chosen and a rejected reply, as chats.

Source: Bai et al. 2022, arXiv 2204.05862. As in verl's preparation, a reward model scores the rows, and their ground
truth is the chosen reply.
"""

from __future__ import annotations

import re

from nodes.data.published.records import Skipped, SourceRecord
from nodes.data.rows import Row

SOURCE = "Anthropic/hh-rlhf"
NOT_A_DIALOGUE = Skipped("that are not a dialogue of a human and an assistant")
_TURN = re.compile(r"(?:^|\n\n)(Human|Assistant): ?")
_ROLES = {"Human": "user", "Assistant": "assistant"}

Message = dict[str, str]


def row_of(record: SourceRecord) -> Row | Skipped:
    """Return the row of a dialogue with two replies, or why it is left out: it is not a dialogue of user and assistant.

    The ground truth is the chosen reply. `chosen` and `rejected` are whole dialogues that end with the reply, or only
    the replies if the record has a `prompt`. Raises DataError if a field is missing or not a text.
    """
    chosen, rejected = record.text("chosen"), record.text("rejected")
    if "prompt" in record.values:
        prompt = _turns(record.text("prompt"))
        if prompt and prompt[-1]["role"] == "assistant" and not prompt[-1]["content"]:
            prompt = prompt[:-1]  # the prompt ends where the reply begins
        replies = chosen.strip(), rejected.strip()
    else:
        dialogue, other = _turns(chosen), _turns(rejected)
        if not dialogue or not other or {dialogue[-1]["role"], other[-1]["role"]} != {"assistant"}:
            return NOT_A_DIALOGUE
        prompt, replies = dialogue[:-1], (dialogue[-1]["content"], other[-1]["content"])
    if not prompt or prompt[0]["role"] != "user" or prompt[-1]["role"] != "user":
        return NOT_A_DIALOGUE
    return {
        "data_source": SOURCE,
        "prompt": prompt,
        "ability": "alignment",
        "reward_model": {"style": "model", "ground_truth": replies[0]},
        "extra_info": {"chosen": replies[0], "rejected": replies[1]},
    }


def _turns(text: str) -> list[Message]:
    r"""Return the messages of a dialogue; turns of one speaker in a row are one message. Empty for another text.

    >>> _turns("\n\nHuman: Hi\n\nAssistant: Hello")
    [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': 'Hello'}]
    """
    before, *parts = _TURN.split(text)
    if before.strip():
        return []
    messages = list[Message]()
    for speaker, turn in zip(parts[::2], parts[1::2], strict=True):
        role, content = _ROLES[speaker], turn.strip()
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += f"\n\n{content}"
        else:
            messages.append({"role": role, "content": content})
    return messages
