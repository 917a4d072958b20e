"""Models of the Hugging Face hub, through its client and cache; a cached model needs no network."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from pathlib import Path

from flowgraph.errors import ModelError
from flowgraph.models.folders import weight_files
from flowgraph.models.libraries import hub_client, quiet

TIMEOUT_S = 5.0
_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
_IGNORED = ["*/*", "consolidated*"]


def fetch(name: str, *, say: Callable[[str], None], endpoint: str | None = None) -> Path:
    """Return the folder of a hub model in the hub's cache, and download it first if it is not complete there.

    `name` is the hub id; `endpoint` is another address of the hub. `say` gets a message before a download. Raises
    ModelError within a few seconds if the hub cannot be reached or does not have the model.
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
    """Return a folder with the config.json of a hub model, and download this file first if it is not cached.

    Raises ModelError as `fetch` does.
    """
    client = hub_client()
    cached = client.try_to_load_from_cache(name, "config.json")
    if isinstance(cached, str):
        return Path(cached).parent
    reach(name, endpoint)
    with _reaching(name), quiet():
        return Path(client.hf_hub_download(name, "config.json", etag_timeout=TIMEOUT_S, endpoint=endpoint)).parent


def reach(name: str, endpoint: str | None = None) -> None:
    """Raise ModelError if the hub does not answer within 5 seconds, or if it does not have the model `name`."""
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
        lines = str(error).strip().splitlines()
        why = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        raise ModelError.not_reached(name, why) from None
