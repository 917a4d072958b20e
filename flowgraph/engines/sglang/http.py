"""What is said to an SGLang server over HTTP: its control calls, and the form of a sample's question and answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field, FiniteFloat, ValidationError

from flowgraph.engines.servers.server_process import ServerAddress
from flowgraph.errors import WorkerError
from flowgraph.language.handle import SampleRequest

if TYPE_CHECKING:
    import ssl

    import httpx

SHOWN = 300  # characters of an answer that an error shows


def certificates(doors: Iterable[ServerAddress]) -> ssl.SSLContext | bool:
    """Give what servers' certificates are held against: this system's, or those of `SSL_CERT_FILE`; http has none."""
    import ssl

    return ssl.create_default_context() if any(door.url.startswith("https:") for door in doors) else False


class ServerControl:
    """The control calls of one server, made one at a time; each has `limit_s` seconds.

    Raises WorkerError, which names the server and the call, where it is not reached, refuses, or takes too long.
    """

    def __init__(self, door: ServerAddress, limit_s: float) -> None:
        import httpx

        self.door, self.limit_s = door, limit_s
        headers = {"Authorization": f"Bearer {door.admin_key or door.key}"} if door.admin_key or door.key else {}
        self._plain = {"Authorization": f"Bearer {door.key}"} if door.key else {}
        limit = httpx.Timeout(limit_s, connect=min(limit_s, 5.0))
        self._client = httpx.Client(
            base_url=door.url, headers=headers, timeout=limit, verify=certificates([door]), trust_env=False
        )

    def __enter__(self) -> ServerControl:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._client.close()

    def healthy(self, limit_s: float = 2.0) -> bool:
        """Say whether the server answers within `limit_s` seconds that it is ready."""
        import httpx

        try:
            return self._client.get("/health", timeout=limit_s).status_code == 200
        except httpx.TransportError:
            return False

    def get(self, path: str) -> dict[str, Any]:
        """Ask for what a path tells; such paths take the key of requests, not that of control."""
        return self._object(path, self._send("GET", path, None, self._plain))

    def post(self, path: str, **told: Any) -> dict[str, Any]:
        """Make one call and give its answer."""
        return self._object(path, self._send("POST", path, told, {}))

    def flush(self) -> bool:
        """Empty the cache; say whether that was done, which a server does only while it works on nothing."""
        return self._send("POST", "/flush_cache", {}, {}, refused=True).status_code == 200

    def version(self) -> str:
        """Give the version that the server stamps."""
        return str(self.get("/model_info").get("weight_version"))

    def stamp(self, version: str) -> None:
        """Have the server stamp this version from now on; requests that run get a span of it."""
        self.post("/update_weight_version", new_version=version, abort_all_requests=False)

    def _send(
        self,
        method: str,
        path: str,
        told: Mapping[str, Any] | None,
        headers: Mapping[str, str],
        *,
        refused: bool = False,
    ) -> httpx.Response:
        import httpx

        try:
            answer = self._client.request(method, path, json=told, headers=dict(headers))
        except httpx.TimeoutException:
            raise WorkerError(f"{self.door.name} does not answer {path} within {self.limit_s:.0f} s") from None
        except httpx.TransportError as error:
            raise WorkerError(
                f"{self.door.name} is not reached for {path}: {str(error) or type(error).__name__}"
            ) from None
        if answer.status_code != 200 and not (refused and answer.status_code == 400):
            raise refusal(self.door.name, path, answer.status_code, answer.text)
        return answer

    def _object(self, path: str, answer: httpx.Response) -> dict[str, Any]:
        if not answer.content:
            return {}
        try:
            told = answer.json()
        except ValueError:
            told = None
        if isinstance(told, dict):
            return told
        if isinstance(told, list) or (told is None and answer.content == b"null"):
            return {"value": told}
        raise WorkerError(f"{self.door.name} answers {path} with what is no JSON: {answer.text[:SHOWN]!r}")


def refusal(name: str, path: str, status: int, text: str) -> WorkerError:
    """Say what a server refused, with which status, and its own words."""
    hint = "the key is another than the server's" if status in (401, 403) else ""
    said = [" ".join(text.split())[:SHOWN]] if text.strip() else []
    return WorkerError(f"{name} answers {path} with status {status}", notes=said, hint=hint)


class _Span(BaseModel):
    version: str
    start: int
    end: int


class _Ending(BaseModel):
    type: str
    message: str = ""


class _MetaInfo(BaseModel):
    finish_reason: _Ending
    output_token_logprobs: list[tuple[Annotated[FiniteFloat, Field(le=1e-3)], int, Any]]
    weight_version: str
    weight_versions: list[_Span] | None = None


class SampleAnswer(BaseModel):
    """A sample as the server gives it: token ids, and what is told of them."""

    output_ids: list[Annotated[int, Field(ge=0)]]
    meta_info: _MetaInfo

    @property
    def logprobs(self) -> tuple[float, ...]:
        """Give the log-prob of each token."""
        return tuple(min(0.0, logprob) for logprob, _, _ in self.meta_info.output_token_logprobs)

    @property
    def spans(self) -> list[tuple[int, str]]:
        """Give where each version of the weights begins, by token."""
        told = self.meta_info.weight_versions
        return [(span.start, span.version) for span in told] if told else [(0, self.meta_info.weight_version)]


def question(request: SampleRequest, ends: Sequence[int]) -> dict[str, Any]:
    """Give the body of `/generate` for one sample: token ids in and out, and no setting left to the server.

    The server draws by `sampling_seed` only where it runs with kernels that do not depend on the batch.
    """
    seed = request.key.bits(request.prompt, request.sample)[0] >> 1  # the server's seeds have 63 bits
    return {
        "input_ids": list(request.context),
        "return_logprob": True,
        "logprob_start_len": -1,
        "sampling_params": {
            "temperature": request.temperature,
            "max_new_tokens": request.max_tokens,
            "stop_token_ids": list(ends),
            "sampling_seed": seed,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "repetition_penalty": 1.0,
        },
    }


def read_answer(name: str, text: bytes, request: SampleRequest) -> SampleAnswer:
    """Read a sample's answer, and refuse one that is none: not of this form, of too many tokens, or cut off.

    Raises WorkerError, which names the server and what is wrong.
    """
    try:
        answer = SampleAnswer.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        shown = text[:SHOWN].decode(errors="replace")
        raise _no_sample(name, f"{place}: {first['msg']}" if place else first["msg"], shown) from None
    told, ids = answer.meta_info, answer.output_ids
    why = _wrong(told, ids, request)
    if why:
        raise _no_sample(name, why, told.finish_reason.message)
    return answer


def _wrong(told: _MetaInfo, ids: Sequence[int], request: SampleRequest) -> str:
    reason, many = told.finish_reason.type, len(ids)
    starts = [span.start for span in told.weight_versions or ()]
    if reason not in ("stop", "length"):
        return f"the sample ended by `{reason}`"
    if [token for _, token, _ in told.output_token_logprobs] != list(ids):
        return "its log-probs are of other tokens"
    if not 0 < many <= request.max_tokens:
        return f"{many} tokens where 1 to {request.max_tokens} were asked for"
    if reason == "length" and many < request.max_tokens:
        return f"cut off after {many} of {request.max_tokens} tokens: the server's cache or context is too short"
    if starts and (starts[0] != 0 or starts != sorted(set(starts)) or starts[-1] >= many):
        return f"its version spans start at {starts}, of {many} tokens"
    return ""


def _no_sample(name: str, why: str, shown: str) -> WorkerError:
    notes = [" ".join(shown.split())[:SHOWN]] if shown.strip() else []
    return WorkerError(f"{name} answers a sample with what cannot be used: {why}", notes=notes)


def as_number(version: str) -> int | None:
    """Give a stamped version as a number, or none where it is no version of ours.

    >>> as_number("3"), as_number("default")
    (3, None)
    """
    return int(version) if version.isdecimal() else None
