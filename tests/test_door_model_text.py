"""The door speaks with a real tokenizer and chat template, and says what they refuse."""

from dataclasses import replace

import httpx
import pytest

from kvtape.devices.chat import read_chat
from kvtape.devices.http.engine import BadPrompt
from kvtape.devices.http.model_text import ModelText
from kvtape.devices.text import read_codec
from kvtape.devices.weights.find import find_path
from kvtape.events.commands import Arrive
from kvtape.events.ids import Token
from kvtape.tests.door_engine import INFO, opened

pytestmark = pytest.mark.smollm2


def test_a_chat_is_written_by_the_models_own_template() -> None:
    codec = read_codec(find_path("smollm2"))
    chat = read_chat(find_path("smollm2"), codec)
    assert chat is not None
    messages = [{"role": "user", "content": "Name a colour: 日本 🎌 <|im_end|>"}]
    prompt = chat.render(messages)
    reply = codec.encode("Blue, 日本 🎌. Or red")
    with (
        opened(text=ModelText(codec, chat)) as (serving, engine),
        httpx.Client(base_url=serving.url, trust_env=False) as client,
    ):
        engine.info = replace(INFO, vocab=codec.vocab, eos=tuple(map(Token, chat.ends)))
        engine.script = lambda _: [*((token,) for token in reply), (chat.ends[0],)]
        body = {"messages": messages, "stop": " Or", "max_tokens": 99}
        said = client.post("/v1/chat/completions", json=body).json()
        assert said["choices"][0]["message"]["content"] == "Blue, 日本 🎌."
        (arrive,) = engine.seen(Arrive)
        assert list(arrive.prompt) == prompt.ids
        assert arrive.history_tokens == prompt.history_tokens
        wrong = client.post("/v1/chat/completions", json={"messages": [{"role": "user"}]})
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "bad_prompt")
        plain = client.post("/v1/completions", json={"prompt": "Blue", "ignore_eos": False})
        assert plain.json()["usage"]["prompt_tokens"] == len(codec.prompt("Blue"))
    with pytest.raises(BadPrompt, match="/v1/completions"):
        ModelText(codec, None).render(messages, None, {})
    with pytest.raises(BadPrompt, match="surrogate"):
        ModelText(codec, chat).encode("\ud800")
