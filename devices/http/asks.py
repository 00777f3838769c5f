"""What clients send: the bodies of chat and completion requests, checked field by field."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from .errors import ApiError, bad

# Types are strict (true is no integer, "1" no number), NaN and infinities are refused, fields that
# are not listed are ignored, and null means absent.
_STRICT = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)

Word = Annotated[str, StringConstraints(max_length=256)]
StopString = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
BiasId = Annotated[str, StringConstraints(pattern=r"^(0|[1-9][0-9]{0,9})$")]
TokenIds = Annotated[list[int], Field(fail_fast=True)]


class StreamOptions(BaseModel):
    """How a stream ends."""

    model_config = _STRICT
    include_usage: bool | None = None


class Part(BaseModel):
    """A piece of a message; only text is served."""

    model_config = _STRICT
    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One turn of a chat; other fields (tool_calls, reasoning_content, ...) go to the template."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None

    def plain(self) -> dict[str, Any]:
        """The message as chat templates know it: text alone, `developer` is `system`."""
        content = self.content
        if isinstance(content, list):
            content = "".join(part.text for part in content)
        role = "system" if self.role == "developer" else self.role
        told = {
            name: value for name, value in (self.model_extra or {}).items() if value is not None
        }
        return {**told, "role": role, "content": content}


# What changes nothing of a field that is not served, as null and false do of any.
_NEUTRAL: Mapping[str, str | int] = {
    "suffix": "", "min_tokens": 0, "min_p": 0, "typical_p": 1, "top_a": 0, "mirostat": 0,
    "grammar": "",
}  # fmt: skip


class Elsewhere(BaseModel):
    """Fields that change a reply elsewhere and are not served here: read to be refused by name."""

    model_config = _STRICT
    echo: Any = None
    suffix: Any = None
    min_tokens: Any = None
    min_p: Any = None
    typical_p: Any = None
    top_a: Any = None
    mirostat: Any = None
    grammar: Any = None
    json_schema: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: Any = None

    def check_served(self) -> None:
        """Refuse what would change the reply and is not served, rather than ignore it."""
        for name in Elsewhere.model_fields:
            value = getattr(self, name)
            nothing = value is None or value is False or value == _NEUTRAL.get(name)
            if value is True or not nothing:
                raise _unserved(name)


class Ask(Elsewhere):
    """What both kinds of request share.

    Defaults are OpenAI's: temperature 1, top_p 1, no penalties. A temperature below 1e-5 is
    greedy. Without a seed one is drawn, and stands on the tape.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    best_of: int | None = None
    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.1, le=10)] | None = None
    logit_bias: dict[BiasId, Annotated[float, Field(ge=-100, le=100)]] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=4)] | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    draft: bool | None = None
    cache_salt: Word | None = None
    user: Word | None = None
    logprobs: bool | int | None = None
    response_format: dict[str, Any] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        if isinstance(self.stop, str):
            return (self.stop,)
        return tuple(self.stop or ())

    @property
    def reply_tokens(self) -> int | None:
        """The most reply tokens, if the client said so."""
        return self.max_completion_tokens or self.max_tokens

    def check_served(self) -> None:
        super().check_served()
        for name in ("n", "best_of"):
            if getattr(self, name) not in (None, 1):
                raise bad(f"one reply a request: {name} must be 1", name)
        if self.response_format and self.response_format.get("type") != "text":
            raise _unserved("response_format", " other than text")
        if self.logprobs is not None and self.logprobs is not False:
            raise _unserved("logprobs")


class ChatAsk(Ask):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Word | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def offered(self) -> list[dict[str, Any]]:
        """The tools that the model may call."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def options(self) -> dict[str, Any]:
        """What the chat template may ask for beside messages and tools."""
        effort = {"reasoning_effort": self.reasoning_effort} if self.reasoning_effort else {}
        return effort | (self.chat_template_kwargs or {})

    def check_served(self) -> None:
        super().check_served()
        if self.tool_choice not in (None, "auto", "none"):
            raise _unserved("tool_choice", " other than auto and none")


class CompletionAsk(Ask):
    """The body of POST /v1/completions; prompt may stand in a list of its own."""

    prompt: (
        str
        | TokenIds
        | Annotated[list[str], Field(fail_fast=True)]
        | Annotated[list[TokenIds], Field(fail_fast=True)]
    )

    def one_prompt(self) -> str | list[int]:
        """The prompt as text or ids."""
        prompt = self.prompt
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            if len(prompt) > 1:
                raise bad("one prompt a request", "prompt")
            return prompt[0]
        return prompt  # type: ignore[return-value]  # the nested lists are unwrapped above


A = TypeVar("A", bound=Ask)


def parse(kind: type[A], body: bytes) -> A:
    """A request body, or the ApiError that tells its first fault."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _told(error.errors(include_url=False, include_input=False)[0]) from None


_SHAPES: Mapping[str, str] = {
    "prompt": "a string or a list of token ids",
    "stop": "a string or a list of at most 4 strings, none empty or longer than 1024 characters",
    "logprobs": "false: logprobs are not served",
    "logit_bias": "an object of token ids and biases from -100 to 100",
}


def _told(fault: Any) -> ApiError:
    """One validation error in OpenAI's words."""
    path = fault["loc"]
    if fault["type"] == "json_invalid" or not path:
        return bad(f"the body is not a JSON object: {fault['msg']}", code="invalid_json")
    name = str(path[0])
    if fault["type"] == "missing" and len(path) == 1:
        return bad(f"{name} is required", name, "missing_required_parameter")
    param = ".".join(map(str, path))
    if "content" in path:
        at = ".".join(map(str, path[: path.index("content") + 1]))
        return bad(f"{at} must be a string or a list of text parts", at)
    if name in _SHAPES:
        return bad(f"{name} must be {_SHAPES[name]}", name)
    return bad(f"{param}: {fault['msg']}", param)


def _unserved(name: str, what: str = "") -> ApiError:
    return bad(f"{name}{what} is not served", name, "unsupported_parameter")
