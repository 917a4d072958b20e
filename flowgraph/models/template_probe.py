"""Render a chat template once with limits on memory and time; run as a script, without importing flowgraph.

A template comes with a model's folder. jinja2's sandbox isolates it, but limits neither memory nor time.
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
CHARACTERS = 2**20  # of the text rendered from a chat of two dozen
TOO_LARGE = 3  # exit code for memory or characters; the system kills a process that takes too much time

CHATS: tuple[list[dict[str, str]], ...] = (
    [{"role": "user", "content": "7 + 5?"}],
    [{"role": "user", "content": "7 + 5?"}, {"role": "assistant", "content": "12"}],
)


def main() -> int:
    """Render two short chats with the template on the standard input, and return an exit code: 3 or 0.

    The input is JSON: `{"template": …, "tokens": {…}}`. The code is 3 (`TOO_LARGE`) if the template takes more than 1
    GiB of memory or gives more than 2**20 characters, and 0 otherwise, also if the template raises an error. Memory and
    time of this process are limited: the system kills it after 2 seconds of CPU time or 30 seconds in all.
    """
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(15 * SECONDS)  # for a template that sleeps; one that computes gets less
    job: dict[str, Any] = json.load(sys.stdin)
    try:
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        source = re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", job["template"])  # a tag of transformers'
        extensions = ["jinja2.ext.loopcontrols"]
        sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        template = sandbox.from_string(source)
        for chat in CHATS:
            length = 0
            for part in template.generate(messages=chat, add_generation_prompt=len(chat) == 1, **job["tokens"]):
                length += len(part)
                if length > CHARACTERS:
                    return TOO_LARGE
    except MemoryError:
        return TOO_LARGE
    except Exception:  # noqa: BLE001 - whatever jinja2 and a template raise
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
