"""Models of the Hugging Face hub, through its own client and its own cache; what is cached needs no network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flowgraph.errors import ModelError
from flowgraph.models.folders import weight_files
from flowgraph.models.libraries import hub_client
from flowgraph.models.silence_transformers import quiet

TIMEOUT_S = 5.0
_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
_NOT_THESE = ["*/*", "consolidated*"]


def fetch(name: str, *, say: Callable[[str], None], endpoint: str | None = None) -> Path:
    """Give the folder of a hub model, from the hub's cache if it is whole there, else from the hub.

    Raises ModelError within a few seconds if the hub is not reached or has no such model.
    """
    cached = _cached(name)
    if cached is not None:
        return cached
    reach(name, endpoint)
    say(f"{name}: fetching from the hub")
    try:
        with quiet():
            folder = hub_client().snapshot_download(
                name, allow_patterns=_FILES, ignore_patterns=_NOT_THESE, etag_timeout=TIMEOUT_S, endpoint=endpoint
            )
    except Exception as error:  # noqa: BLE001 - the client raises from six libraries
        raise ModelError.not_reached(name, _line(error)) from None
    return Path(folder)


def config_folder(name: str, *, endpoint: str | None = None) -> Path:
    """Give a folder that holds a hub model's config.json, fetching no weights.

    Raises ModelError as `fetch` does.
    """
    client = hub_client()
    here = client.try_to_load_from_cache(name, "config.json")
    if isinstance(here, str):
        return Path(here).parent
    reach(name, endpoint)
    try:
        with quiet():
            return Path(client.hf_hub_download(name, "config.json", etag_timeout=TIMEOUT_S, endpoint=endpoint)).parent
    except Exception as error:  # noqa: BLE001 - as above
        raise ModelError.not_reached(name, _line(error)) from None


def reach(name: str, endpoint: str | None = None) -> None:
    """Ask the hub for a model, within `TIMEOUT_S`; raise ModelError if it is not reached or has none."""
    client = hub_client()
    try:
        client.HfApi(endpoint=endpoint).model_info(name, timeout=TIMEOUT_S)
    except client.errors.RepositoryNotFoundError:
        hint = "if it is private or gated, log in with `hf auth login` first"
        raise ModelError.unusable(name, "the hub has no such model, and there is no such folder", hint) from None
    except Exception as error:  # noqa: BLE001 - name resolution, time-outs, proxies, offline mode
        raise ModelError.not_reached(name, _line(error)) from None


def _cached(name: str) -> Path | None:
    client = hub_client()
    try:
        folder = Path(client.snapshot_download(name, local_files_only=True))
        weight_files(folder)
    except (client.errors.LocalEntryNotFoundError, ModelError):
        return None
    return folder if (folder / "config.json").is_file() else None


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
