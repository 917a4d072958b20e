"""Render a chat template once in a process of bounded memory and time: run as a script, which imports nothing of ours.

A template comes with a model's folder. jinja2's sandbox keeps it from the machine, but not from taking all of it.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import sys
from typing import Any

MEMORY_BYTES = 2**30
SECONDS = 2  # of a core; a chat of one question takes milliseconds
CHARACTERS = 2**20  # of the text that comes of a chat of two dozen
TOO_LARGE = 3  # exit code: memory or characters; the system ends what takes too much time

CHATS: tuple[list[dict[str, str]], ...] = (
    [{"role": "user", "content": "7 + 5?"}],
    [{"role": "user", "content": "7 + 5?"}, {"role": "assistant", "content": "12"}],
)


def main() -> int:
    """Render what the standard input holds: `{"template": …, "tokens": {…}}`; return an exit code.

    A template that fails is none of this script's business: who uses it is told why.
    """
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(15 * SECONDS)  # of one that sleeps; on a busy machine what computes has more time than that
    told: dict[str, Any] = json.load(sys.stdin)
    try:
        return _rendered(told["template"], told["tokens"])
    except MemoryError:
        return TOO_LARGE
    except Exception:  # noqa: BLE001 - whatever jinja2 and a template raise
        return 0


def _rendered(source: str, tokens: dict[str, str]) -> int:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    around = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    template = around.from_string(re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", source))  # a tag of transformers'
    for chat in CHATS:
        length = 0
        for part in template.generate(messages=chat, add_generation_prompt=len(chat) == 1, **tokens):
            length += len(part)
            if length > CHARACTERS:
                return TOO_LARGE
    return 0


if __name__ == "__main__":
    sys.exit(main())
