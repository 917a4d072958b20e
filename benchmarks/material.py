"""What both programs are given: a model's folder whose responses never end by themselves, and the rows in order."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

NEVER = {"tiny": "<eos>", "smollm2-135m": "<repo_name>"}
"""The token that ends a response: made impossible in `tiny`; in SmolLM2 one that no prompt of ours leads to."""


def make_model(name: str, folder: Path, cache: Path) -> Path:
    """Save the model as a folder, float32, with an end token that is not drawn; one that is there is used again."""
    if folder.is_dir():
        return folder
    from flowgraph.models.loading import load
    from flowgraph.models.saving import save
    from flowgraph.models.sources import resolve

    loaded = load(resolve(name, cache=cache), seed=0, cache=cache, say=lambda line: print(line, file=sys.stderr))
    model: Any = loaded.model
    tokenizer: Any = loaded.tokenizer
    end = NEVER[name.partition(":")[0]]
    if name.startswith("tiny"):
        _never_ends(model, tokenizer.convert_tokens_to_ids(end))
    tokenizer.eos_token = end
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    return save(model, tokenizer, folder)


def _never_ends(model: Any, end: int) -> None:
    """Make the end token's logit about -800: every embedding has a 1 in its first unit, and the token's row reads it.

    The other rows do not read that unit. Shapes, and so the work, stay as they are.
    """
    import torch

    with torch.no_grad():
        model.get_input_embeddings().weight[:, 0] = 1.0
        output = model.get_output_embeddings().weight
        output[:, 0] = 0.0
        output[end] = 0.0
        output[end, 0] = -100.0


def make_rows(data: str, file: Path, steps: int, prompts: int) -> Path:
    """Write the rows that our run of seed 0 reads, in its order, as TRL reads them."""
    from nodes.data.sets import load
    from nodes.data.source import PromptSource

    source = PromptSource(load(data, cache=file.parent, seed=0).train, prompts, 0)
    batches = [source.batch(step).columns.data.to_pylist() for step in range(steps)]
    rows = [
        {"prompt": row["prompt"], "ground_truth": row["reward_model"]["ground_truth"]}
        for batch in batches
        for row in batch
    ]
    file.write_text(json.dumps(rows), "utf-8")
    return file
