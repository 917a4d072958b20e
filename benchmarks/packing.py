"""Time training passes on packed tokens against padded batches, on lengths drawn from a long-tailed distribution.

python benchmarks/packing.py [--rounds 5] [--budget 2048] [--hidden 256] [--json FILE]

Padded is what a trainer without packing does: rows of prompt and response in the order of arrival, equally many in each
micro-batch, padded to its longest; sorted is the same on rows in order of their length. Packed is what ours does: rows
in whole groups, cut by a budget of packed tokens. All take the same rows, in as many micro-batches, forward and
backward, in turns, on one thread, and give the same sum. With `--samples 1` no prompt is shared.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # a script's own folder is on the path, the checkout is not

from benchmarks.figures import ratios, table  # noqa: E402
from benchmarks.machine import machine  # noqa: E402

PACKED, PADDED, SORTED = "packed", "padded", "sorted"
WANTED = ("logprobs", "entropy")
SAME = 1e-4  # of the sums of all ways, relative
VOCABULARY = 20

Batch = tuple[list[list[int]], list[int]]
"""A micro-batch: texts, and where in each the response starts."""


@dataclass(frozen=True)
class Setting:
    """What is run: `budget` packed tokens a micro-batch; a response's length is log-normal, of this median and spread.

    `spread` is the standard deviation of the length's logarithm: at 1, one length in a hundred is ten medians. Of its
    square the part `alike` is the prompt's: at 1 all responses to a prompt are of one length.
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
    alike: float = 0.0


@dataclass(frozen=True)
class Told:
    """Seconds of processor time by way and round, and the tokens that each way reads, padding included."""

    seconds: dict[str, list[float]]
    tokens: dict[str, int]
    response_tokens: int
    micro_batches: int

    def faster(self, than: str) -> float:
        """Return by how much packed tokens are read faster than another way: the median over rounds."""
        return median(ratios(self.seconds[than], self.seconds[PACKED]))


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
        faster = {way: told.faster(way) for way in told.seconds}
        figures = {"setting": asdict(setting), "machine": machine(), "told": asdict(told), "faster": faster}
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
    parser.add_argument("--alike", type=float, default=0.0, help="part of a length's variance that is its prompt's")
    parser.add_argument("--json", type=Path, help="write all figures here")
    return parser.parse_args()


def measure(setting: Setting) -> Told:
    """Run all ways in turns; the first round of each is not counted."""
    from flowgraph.engines.forward_pass.forward import split_rows
    from flowgraph.engines.forward_pass.packing import pack

    model = model_of(setting)
    rows = drawn(setting)
    parts = split_rows(rows, setting.budget)
    padded = {PADDED: arrived(rows, len(parts)), SORTED: arrived(rows, len(parts), by_length=True)}
    ways: dict[str, Callable[[], float]] = {PACKED: lambda: sum(packed_pass(model, part) for part in parts)}
    ways |= {way: partial(_padded_passes, model, batches) for way, batches in padded.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(setting.rounds + 1):
        sums = list[float]()
        for name in sorted(ways, reverse=bool(turn % 2)):
            model.zero_grad()
            start = time.process_time()
            sums.append(ways[name]())
            seconds[name].append(time.process_time() - start)
        same(sums)
    read = {way: sum(len(texts) * max(map(len, texts)) for texts, _ in each) for way, each in padded.items()}
    tokens = {PACKED: sum(len(pack(part).ids) for part in parts)} | read
    counted = {name: each[1:] for name, each in seconds.items()}
    return Told(counted, tokens, int(rows.lengths.sum()), len(parts))


def model_of(setting: Setting) -> Any:
    """Make a model with 20 characters, so that neither way pays for logits."""
    from flowgraph.models import tiny

    return tiny.build(0, tiny.TinySize(setting.hidden, setting.layers, 8, 3 * setting.hidden, 2048))[0]


def same(sums: Sequence[float]) -> None:
    """Refuse ways whose sums differ: they did not do the same work."""
    if max(sums) - min(sums) > SAME * max(map(abs, sums)):
        sys.exit(f"the ways give other sums: {sums}")


def _padded_passes(model: Any, batches: Sequence[Batch]) -> float:
    return sum(padded_pass(model, batch) for batch in batches)


def drawn(setting: Setting) -> Any:
    """Draw the rows: groups of samples of a prompt, side by side, each response of a length of its own."""
    import numpy as np
    import pyarrow as pa
    import torch

    from flowgraph.language.handle import ResponseRows

    random = np.random.default_rng(0)
    count = setting.prompts * setting.samples
    of_prompt = random.standard_normal(setting.prompts).repeat(setting.samples)
    off = np.sqrt(setting.alike) * of_prompt + np.sqrt(1 - setting.alike) * random.standard_normal(count)
    long = setting.median_tokens * np.exp(setting.spread * off)
    lengths = np.clip(long, 1, setting.longest_tokens).astype(np.int64)
    prompts = random.integers(5, VOCABULARY, (setting.prompts, setting.prompt_tokens))
    contexts = pa.array(np.repeat(prompts, setting.samples, 0).tolist(), pa.list_(pa.int64()))
    tokens = random.integers(5, VOCABULARY, (count, int(lengths.max())))
    return ResponseRows(contexts, torch.from_numpy(tokens), torch.from_numpy(lengths))


def arrived(rows: Any, parts: int, *, by_length: bool = False) -> list[Batch]:
    """Cut rows into as many micro-batches, of equally many in order of arrival: texts, and where responses start.

    With `by_length` rows are in order of their length, so that little of a micro-batch is padding.
    """
    contexts, lengths = rows.context.to_pylist(), rows.lengths.tolist()
    texts = [[*c, *t[:n]] for c, t, n in zip(contexts, rows.tokens.tolist(), lengths, strict=True)]
    starts = [len(context) for context in contexts]
    if by_length:
        order = sorted(range(len(texts)), key=lambda row: -len(texts[row]))
        texts, starts = [texts[row] for row in order], [starts[row] for row in order]
    size = -(-len(texts) // parts)
    return [(texts[at : at + size], starts[at : at + size]) for at in range(0, len(texts), size)]


def packed_pass(model: Any, rows: Any) -> float:
    """Run packed tokens forward and backward; give the sum of log-probs less entropies."""
    from flowgraph.engines.forward_pass.forward import forward_stats

    stats = forward_stats(model, rows, WANTED)
    assert stats.logprobs is not None and stats.entropy is not None
    total = stats.logprobs.sum() - stats.entropy.sum()
    total.backward()
    return float(total.detach())


def padded_pass(model: Any, batch: Batch) -> float:
    """Run a padded batch of whole texts forward and backward, log-probs and entropies from full logits; as above."""
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
    total = ((chosen - entropy) * answered).sum()
    total.backward()
    return float(total.detach())


def report(setting: Setting, told: Told) -> str:
    """Return what was measured, in a table."""
    lines = [
        [
            way,
            str(told.tokens[way]),
            f"{median(each):.2f}",
            f"{told.response_tokens / median(each):.0f}",
            f"{told.faster(way):.2f}",
        ]
        for way, each in told.seconds.items()
    ]
    count = f"{setting.prompts * setting.samples} rows of {told.response_tokens} response tokens"
    head = ["", "tokens read", "CPU s", "response tokens a second", "packed is faster by"]
    return f"{count}, {told.micro_batches} micro-batches, median of {setting.rounds} rounds\n{table(head, lines)}"


if __name__ == "__main__":
    raise SystemExit(main())
