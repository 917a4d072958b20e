"""Control calls to one inference server over HTTP. Not here: the format of requests for samples, and of answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

from flowgraph.engines.servers.server_process import ServerAddress
from flowgraph.errors import WorkerError

if TYPE_CHECKING:
    import ssl

    import httpx

SHOWN = 300  # characters of an answer that an error shows


def certificates(doors: Iterable[ServerAddress]) -> ssl.SSLContext | bool:
    """Return the TLS context that verifies https servers at `doors`, or False if all of them use http.

    The context trusts the system's certificates, or those in the file that `SSL_CERT_FILE` names.
    """
    import ssl

    return ssl.create_default_context() if any(door.url.startswith("https:") for door in doors) else False


class ServerControl:
    """A client for the control calls of one server, on the paths of SGLang.

    A call may take `limit_s` seconds. Except for `healthy`, calls raise WorkerError, which names the server and the
    path, if the server is not reached, refuses, or takes longer.
    """

    def __init__(self, door: ServerAddress, limit_s: float) -> None:
        import httpx

        self.door, self.limit_s = door, limit_s
        self._client = httpx.Client(
            base_url=door.url,
            headers=bearer(door.admin_key or door.key),
            timeout=httpx.Timeout(limit_s, connect=min(limit_s, 5.0)),
            verify=certificates([door]),
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def healthy(self, limit_s: float = 2.0) -> bool:
        """Return whether the server reports within `limit_s` seconds that it is ready; False if it is not reached."""
        import httpx

        try:
            return self._client.get("/health", timeout=limit_s).status_code == 200
        except httpx.TransportError:
            return False

    def get(self, path: str) -> dict[str, Any]:
        """Return the JSON answer to a GET request on `path`, which is sent with the key for samples.

        A list or null is returned as {"value": …}, an empty answer as {}. Raises WorkerError for any other answer, and
        if the server is not reached, refuses, or takes too long.
        """
        return self._object(path, self._send("GET", path, headers=bearer(self.door.key)))

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """Send `body` as JSON in a POST request to `path`, and return the JSON answer.

        A list or null is returned as {"value": …}, an empty answer as {}. Raises WorkerError for any other answer, and
        if the server is not reached, refuses, or takes too long.
        """
        return self._object(path, self._send("POST", path, body))

    def flush(self) -> bool:
        """Empty the server's cache, and return whether it was emptied: a busy server refuses, with status 400.

        Raises WorkerError for any other refusal, and if the server is not reached or takes too long.
        """
        return self._send("POST", "/flush_cache", {}, may_refuse=True).status_code == 200

    def version(self) -> str:
        """Return the version of the weights that the server reports with samples, as text; "None" if it reports none.

        Raises WorkerError as `get` does.
        """
        return str(self.get("/model_info").get("weight_version"))

    def stamp(self, version: str) -> None:
        """Set the version of the weights that the server reports with samples from now on.

        Running requests continue, and report this version for their remaining tokens. Raises WorkerError as `post`
        does.
        """
        self.post("/update_weight_version", new_version=version, abort_all_requests=False)

    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        may_refuse: bool = False,
    ) -> httpx.Response:
        import httpx

        try:
            answer = self._client.request(method, path, json=body, headers=headers)
        except httpx.TimeoutException:
            raise WorkerError(f"{self.door.name} did not answer {path} within {self.limit_s:.0f} s") from None
        except httpx.TransportError as error:
            why = str(error) or type(error).__name__
            raise WorkerError(f"{self.door.name} cannot be reached for {path}: {why}") from None
        if answer.status_code != 200 and not (may_refuse and answer.status_code == 400):
            raise refusal(self.door.name, path, answer.status_code, answer.text)
        return answer

    def _object(self, path: str, answer: httpx.Response) -> dict[str, Any]:
        if not answer.content:
            return {}
        try:
            value = answer.json()
        except ValueError:
            value = answer  # neither an object, a list nor null
        if isinstance(value, dict):
            return value
        if isinstance(value, list) or value is None:
            return {"value": value}
        raise WorkerError(f"{self.door.name} answers {path} with something other than JSON: {answer.text[:SHOWN]!r}")


def bearer(key: str) -> dict[str, str]:
    """Return the HTTP header that authenticates a request with `key`; {} for an empty key."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def refusal(name: str, path: str, status: int, text: str) -> WorkerError:
    """Return the WorkerError for a call that a server refused, with a hint about the key for status 401 and 403.

    `name` is the server's name, and `path` the path of the call. The error shows the first 300 characters of the answer
    `text`.
    """
    hint = "the key does not match the server's" if status in (401, 403) else ""
    notes = [" ".join(text.split())[:SHOWN]] if text.strip() else []
    return WorkerError(f"{name} answers {path} with status {status}", notes=notes, hint=hint)
