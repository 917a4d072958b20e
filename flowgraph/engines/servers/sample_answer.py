"""The request for one sample, as far as engines share it, and the checks of an answer in SGLang's format."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, FiniteFloat, ValidationError

from flowgraph.engines.capabilities import EngineCapabilities
from flowgraph.engines.servers.server_control import SHOWN
from flowgraph.errors import WorkerError
from flowgraph.language.handle import SampleRequest

Form = TypeVar("Form", bound=BaseModel)
UNCHANGED: dict[str, float | int] = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Settings under which a server samples from the model's own distribution; no setting is left to its defaults."""


def refuse_other_distribution(request: SampleRequest, engine: EngineCapabilities) -> None:
    """Raise WorkerError if an engine would apply settings of a request differently from the engine `local`.

    The error names these settings.
    """
    if settings := engine.other_distribution(request.reshaped()):
        raise WorkerError(f"the engine `{engine.name}` does not sample with {settings}, as `local` does")


def sample_seed(request: SampleRequest) -> int:
    """Return the random seed of a sample, from 0 to 2⁶³ - 1; it depends only on key, prompt, sample and turn."""
    return request.key.bits(*request.stream)[0] >> 1


class _Span(BaseModel):
    version: str
    start: int
    end: int


class _Ending(BaseModel):
    type: str
    message: str = ""


_LogProb = Annotated[FiniteFloat, Field(le=1e-3)]


class _MetaInfo(BaseModel):
    finish_reason: _Ending
    output_token_logprobs: list[tuple[_LogProb, int, Any]]
    output_token_sampling_logprobs: list[_LogProb] | None = None  # of the tokens that a truncation keeps
    weight_version: str
    weight_versions: list[_Span] | None = None


class SampleAnswer(BaseModel):
    """The token ids of one sample, their log-probs, the reason why it ended, and the versions of the weights."""

    output_ids: list[Annotated[int, Field(ge=0)]]
    meta_info: _MetaInfo

    @property
    def logprobs(self) -> tuple[float, ...]:
        """Return the log-prob of each token in nats, under the distribution from which the token was sampled.

        The server reports these separately only for a truncated distribution; otherwise the log-probs of the whole
        distribution, which are then the same, are returned. Values that rounding has made positive become 0.
        """
        meta = self.meta_info
        whole = [logprob for logprob, _, _ in meta.output_token_logprobs]
        return tuple(min(0.0, logprob) for logprob in meta.output_token_sampling_logprobs or whole)

    @property
    def spans(self) -> list[tuple[int, str]]:
        """Return (index of the first token, version) for each span of tokens sampled by one version of the weights.

        If the server reports no spans, the result is one span from index 0, with the one version that it reports.
        """
        spans = self.meta_info.weight_versions
        return [(span.start, span.version) for span in spans] if spans else [(0, self.meta_info.weight_version)]


def parse_answer(form: type[Form], name: str, text: bytes) -> Form:
    """Return a server's JSON answer `text` as an object of the pydantic model `form`.

    Raises WorkerError, which names the server `name` and the first wrong field, if the answer is not JSON of this form.
    """
    try:
        return form.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"]))
        start = text[:SHOWN].decode(errors="replace")
        raise _unusable(name, f"{field}: {first['msg']}" if field else first["msg"], start) from None


def read_answer(name: str, text: bytes, request: SampleRequest) -> SampleAnswer:
    """Return the parsed and checked answer `text` of the server `name` to a request for a sample.

    Raises WorkerError, which names the server and the fault, for an unusable answer: if it has another form; if it has
    no tokens, or more than `max_tokens`; if its log-probs belong to other tokens, or log-probs of the truncated
    distribution are missing; if it ended for another reason than an end token or `max_tokens`, or was cut off earlier;
    or if its spans of versions contradict its tokens.
    """
    answer = parse_answer(SampleAnswer, name, text)
    if why := _fault(answer, request):
        raise _unusable(name, why, answer.meta_info.finish_reason.message)
    return answer


def _fault(answer: SampleAnswer, request: SampleRequest) -> str:
    meta, count = answer.meta_info, len(answer.output_ids)
    reason, starts = meta.finish_reason.type, [span.start for span in meta.weight_versions or ()]
    if reason not in ("stop", "length"):
        return f"the sample ended with the reason `{reason}`"
    if [token for _, token, _ in meta.output_token_logprobs] != answer.output_ids:
        return "its log-probs belong to other tokens"
    if request.truncation.changed() and request.temperature and len(meta.output_token_sampling_logprobs or ()) != count:
        return "it lacks log-probs of the truncated distribution"
    if not 0 < count <= request.max_tokens:
        return f"{count} tokens where 1 to {request.max_tokens} were asked for"
    if reason == "length" and count < request.max_tokens:
        return f"cut off after {count} of {request.max_tokens} tokens: the server's cache or context is too short"
    if starts and (starts[0] != 0 or starts != sorted(set(starts)) or starts[-1] >= count):
        return f"its version spans start at {starts}, of {count} tokens"
    return ""


def _unusable(name: str, why: str, text: str) -> WorkerError:
    notes = [" ".join(text.split())[:SHOWN]] if text.strip() else []
    return WorkerError(f"{name} returned an unusable sample: {why}", notes=notes)
