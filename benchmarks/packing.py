"""Time training passes on packed tokens against padded batches, on lengths drawn from a long-tailed distribution.

python benchmarks/packing.py [--rounds 5] [--budget 4096] [--hidden 256] [--json FILE]

Padded is what a trainer without packing does: rows of prompt and response in the order of arrival, equally many in each
micro-batch, padded to its longest. Packed is what ours does: rows in whole groups, cut by a budget of packed tokens.
Both take the same rows, in as many micro-batches, forward and backward, in turns, on one thread.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # a script's own folder is on the path, the checkout is not

WANTED = ("logprobs", "entropy")
VOCABULARY = 20


@dataclass(frozen=True)
class Setting:
    """What is run: `budget` packed tokens a micro-batch; a response's length is log-normal, of this median and spread.

    `spread` is the standard deviation of the length's logarithm: at 1, one length in a hundred is ten medians.
    """

    prompts: int
    samples: int
    prompt_tokens: int
    median_tokens: int
    spread: float
    longest_tokens: int
    budget: int
    hidden: int
    layers: int
    rounds: int


@dataclass(frozen=True)
class Told:
    """Seconds of processor time, by round, and the tokens that each way reads."""

    packed_s: list[float]
    padded_s: list[float]
    response_tokens: int
    packed_tokens: int
    padded_tokens: int
    micro_batches: int

    @property
    def ratio(self) -> float:
        """Give by how much packed tokens are read faster: the median over rounds."""
        return median(b / a for a, b in zip(self.packed_s, self.padded_s, strict=True))


def main() -> int:
    """Measure, print, and write the figures where `--json` says."""
    import torch

    torch.set_num_threads(1)
    options = _options()
    given = vars(options)
    setting = Setting(**{name: given[name] for name in Setting.__dataclass_fields__})
    told = measure(setting)
    print(report(setting, told))
    if options.json:
        figures = {"setting": asdict(setting), "told": asdict(told), "ratio": told.ratio}
        options.json.write_text(json.dumps(figures, indent=1), "utf-8")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time packed tokens against padded batches.")
    for name, default in (
        ("prompts", 8),
        ("samples", 8),
        ("prompt-tokens", 48),
        ("median-tokens", 64),
        ("longest-tokens", 640),
        ("budget", 2048),
        ("hidden", 256),
        ("layers", 4),
        ("rounds", 5),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--spread", type=float, default=1.0, help="of the logarithm of a length")
    parser.add_argument("--json", type=Path, help="write all figures here")
    return parser.parse_args()


def measure(setting: Setting) -> Told:
    """Run both ways in turns; the first round of each is not counted."""
    from flowgraph.executors.forward import cut
    from flowgraph.executors.packing import pack
    from flowgraph.models import tiny

    size = tiny.TinySize(setting.hidden, setting.layers, 8, 3 * setting.hidden, 2048)
    model, _ = tiny.build(0, size)
    rows = drawn(setting)
    parts = cut(rows, setting.budget)
    batches = arrived(rows, len(parts))
    ways: dict[str, Callable[[], list[None]]] = {
        "packed": lambda: [packed_pass(model, part) for part in parts],
        "padded": lambda: [padded_pass(model, batch) for batch in batches],
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(setting.rounds + 1):
        for name in sorted(ways, reverse=bool(turn % 2)):
            model.zero_grad()
            start = time.process_time()
            ways[name]()
            seconds[name].append(time.process_time() - start)
    return Told(
        seconds["packed"][1:],
        seconds["padded"][1:],
        int(rows.lengths.sum()),
        sum(len(pack(part).ids) for part in parts),
        sum(len(ids) * max(map(len, ids)) for ids, _ in batches),
        len(parts),
    )


def drawn(setting: Setting) -> Any:
    """Draw the rows: groups of samples of a prompt, side by side, each response of a length of its own."""
    import numpy as np
    import pyarrow as pa
    import torch

    from flowgraph.executors.base import Rows

    random = np.random.default_rng(0)
    count = setting.prompts * setting.samples
    long = random.lognormal(np.log(setting.median_tokens), setting.spread, count)
    lengths = np.clip(long, 1, setting.longest_tokens).astype(np.int64)
    prompts = random.integers(5, VOCABULARY, (setting.prompts, setting.prompt_tokens))
    contexts = pa.array(np.repeat(prompts, setting.samples, 0).tolist(), pa.list_(pa.int64()))
    tokens = random.integers(5, VOCABULARY, (count, int(lengths.max())))
    return Rows(contexts, torch.from_numpy(tokens), torch.from_numpy(lengths))


Batch = tuple[list[list[int]], list[int]]


def arrived(rows: Any, parts: int) -> list[Batch]:
    """Cut rows into as many micro-batches, of equally many in order of arrival: texts, and where responses start."""
    contexts, lengths = rows.context.to_pylist(), rows.lengths.tolist()
    texts = [[*c, *t[:n]] for c, t, n in zip(contexts, rows.tokens.tolist(), lengths, strict=True)]
    starts = [len(context) for context in contexts]
    size = -(-len(texts) // parts)
    return [(texts[at : at + size], starts[at : at + size]) for at in range(0, len(texts), size)]


def packed_pass(model: Any, rows: Any) -> None:
    """Run packed tokens forward and backward."""
    from flowgraph.executors.forward import forward_stats

    stats = forward_stats(model, rows, WANTED)
    assert stats.logprobs is not None and stats.entropy is not None
    (stats.logprobs.sum() + stats.entropy.sum()).backward()


def padded_pass(model: Any, batch: Batch) -> None:
    """Run a padded batch of whole texts forward and backward, log-probs and entropies from full logits."""
    import torch

    texts, starts = batch
    wide, first = max(map(len, texts)), min(starts)
    ids = torch.tensor([[*text, *[0] * (wide - len(text))] for text in texts])
    place = torch.arange(wide)[None]
    lengths, begins = torch.tensor([[len(text)] for text in texts]), torch.tensor(starts)[:, None]
    logits = model(input_ids=ids, attention_mask=(place < lengths).long(), logits_to_keep=wide - first + 1).logits
    likely = logits[:, :-1].log_softmax(-1)
    answered = ((place >= begins) & (place < lengths))[:, first:]
    chosen = likely.gather(-1, ids[:, first:, None])[..., 0]
    entropy = -(likely.exp() * likely).sum(-1)
    ((chosen + entropy) * answered).sum().backward()


def report(setting: Setting, told: Told) -> str:
    """Say what was measured, in lines."""
    rows = setting.prompts * setting.samples
    speeds = [told.response_tokens / median(each) for each in (told.packed_s, told.padded_s)]
    lines: Sequence[str] = (
        f"{rows} rows of {told.response_tokens} response tokens, {told.micro_batches} micro-batches",
        f"packed: {told.packed_tokens} tokens read, {speeds[0]:.0f} response tokens a second",
        f"padded: {told.padded_tokens} tokens read, {speeds[1]:.0f} response tokens a second",
        f"packed against padded: {told.ratio:.2f} times as fast (median of {setting.rounds} rounds)",
    )
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
