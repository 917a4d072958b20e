"""Models and data of the Hugging Face hub, through its client and cache; what is cached needs no network."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from flowgraph.errors import ModelError
from flowgraph.models.folders import weight_files
from flowgraph.models.libraries import hub_client, quiet

TIMEOUT_S = 5.0
_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
_IGNORED = ["*/*", "consolidated*"]


def fetch(name: str, *, say: Callable[[str], None], endpoint: str | None = None) -> Path:
    """Return the folder of a hub model in the hub's cache, and download the model first if it is not complete there.

    It is complete if it has config.json and all files of weights. `name` is the hub id; `endpoint` is another address
    of the hub. `say` gets a message before a download. Raises ModelError within a few seconds if the hub cannot be
    reached or lacks the model, and later if the download fails.
    """
    client = hub_client()
    try:
        folder = Path(client.snapshot_download(name, local_files_only=True))
        weight_files(folder)
        if (folder / "config.json").is_file():
            return folder
    except (client.errors.LocalEntryNotFoundError, ModelError):
        pass
    reach(name, endpoint)
    say(f"{name}: fetching from the hub")
    files = {"allow_patterns": _FILES, "ignore_patterns": _IGNORED}
    with _reaching(name), quiet():
        return Path(client.snapshot_download(name, **files, etag_timeout=TIMEOUT_S, endpoint=endpoint))


def config_folder(name: str, *, endpoint: str | None = None) -> Path:
    """Return a folder that contains the config.json of a hub model, and download this file first if it is not cached.

    `endpoint` is another address of the hub. Raises ModelError if the hub cannot be reached or lacks the model or the
    file.
    """
    client = hub_client()
    cached = client.try_to_load_from_cache(name, "config.json")
    if isinstance(cached, str):
        return Path(cached).parent
    reach(name, endpoint)
    with _reaching(name), quiet():
        return Path(client.hf_hub_download(name, "config.json", etag_timeout=TIMEOUT_S, endpoint=endpoint)).parent


def cached_tokenizer(name: str) -> Path | None:
    """Return the folder in the hub's cache that has a hub model's tokenizer_config.json; None if it is not cached.

    Nothing is downloaded.
    """
    cached = hub_client().try_to_load_from_cache(name, "tokenizer_config.json")
    return Path(cached).parent if isinstance(cached, str) else None


def reach(name: str, endpoint: str | None = None) -> None:
    """Raise ModelError if the hub at `endpoint` (None: the default) lacks the model, or cannot be reached in 5 s."""
    client = hub_client()
    with _reaching(name):
        try:
            client.HfApi(endpoint=endpoint).model_info(name, timeout=TIMEOUT_S)
        except client.errors.RepositoryNotFoundError:
            hint = "if it is private or gated, log in with `hf auth login` first"
            raise ModelError.unusable(name, "it is neither on the hub nor a folder", hint) from None


@contextlib.contextmanager
def _reaching(name: str) -> Generator[None]:
    try:
        yield
    except ModelError:
        raise
    except Exception as error:  # noqa: BLE001 - the client raises from six libraries: time-outs, proxies, offline mode
        raise ModelError.not_reached(name, _why(error)) from None


def _why(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def fetch_data(
    name: str, choose: Callable[[Sequence[str]], Sequence[str]], revision: str, *, endpoint: str | None = None
) -> list[Path]:
    """Return the paths of the files of a hub data set that `choose` selects, in its order; download missing files.

    `choose` gets the names of all files and returns some of them; if the hub cannot be reached, it gets those in the
    cache. The result is [] if `choose` selects none of the files on the hub, or if the hub has no such `revision`.
    Raises ModelError if the hub lacks the data set, if `name` is not a valid id, if the download fails, or if the hub
    cannot be reached and `choose` selects no file in the cache, or the cache is incomplete.
    """
    client, asked = hub_client(), {"repo_type": "dataset", "revision": revision}
    try:
        info = client.HfApi(endpoint=endpoint).dataset_info(name, revision=revision, timeout=TIMEOUT_S)
    except client.errors.RevisionNotFoundError:
        return []
    except client.errors.RepositoryNotFoundError:
        hint = "if it is private or gated, log in with `hf auth login` first"
        raise ModelError.unusable(name, "is not a data set of the hub", hint) from None
    except client.errors.HFValidationError:
        raise ModelError.unusable(name, "is not an ID of a data set", "an ID is ORGANISATION/NAME") from None
    except Exception as error:  # noqa: BLE001 - as in `_reaching`
        with contextlib.suppress(client.errors.LocalEntryNotFoundError):
            cached = Path(client.snapshot_download(name, local_files_only=True, allow_patterns=[], **asked))
            names = [str(path.relative_to(cached)) for path in sorted(cached.rglob("*")) if path.is_file()]
            files = list(choose(names))
            parts = [re.sub(r"\d[^/]*(?=\.\w+$)", "*", file) for file in files]  # the other parts must be there too
            client.snapshot_download(name, local_files_only=True, allow_patterns=parts, **asked)
            if files:
                return [cached / file for file in files]
        raise ModelError.unusable(
            name, "is not in the hub's cache here, and the hub was not reached", _why(error)
        ) from None
    files = list(choose([sibling.rfilename for sibling in info.siblings or ()]))
    if not files:
        return []
    patterns = [re.sub(r"([][*?])", r"[\1]", file) for file in files]
    try:
        limits = {"allow_patterns": patterns, "etag_timeout": TIMEOUT_S, "endpoint": endpoint}
        with quiet():
            folder = Path(client.snapshot_download(name, **limits, **asked))
    except Exception as error:  # noqa: BLE001 - as in `_reaching`
        raise ModelError.unusable(name, "could not be downloaded whole", _why(error)) from None
    return [folder / file for file in files]
