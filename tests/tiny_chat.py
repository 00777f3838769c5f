"""A tiny byte-level tokenizer and chat template in the GLM family's form, made on the spot."""

import json
from pathlib import Path

from tokenizers import AddedToken

from kvtape.devices.chat import Chat, read_chat
from kvtape.devices.text import TAGS, Codec, read_codec
from kvtape.tests.test_text import byte_level

SPECIAL = ["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]
TEMPLATE = """[gMASK]<sop>
{%- if reasoning_effort is defined %}<|system|>Effort: {{ reasoning_effort }}{% endif -%}
{%- if tools -%}
<|system|>Tools:
{% for tool in tools %}{{ tool.function | tojson(ensure_ascii=False) }}
{% endfor %}Call as <tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>
{%- endif -%}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}<|observation|><tool_response>{{ m.content }}</tool_response>
{%- elif m.role == 'assistant' -%}
<|assistant|>
{%- if m.reasoning_content is string -%}<think>{{ m.reasoning_content }}</think>
{%- else -%}<think></think>{%- endif -%}
{{ m.content.strip() }}
{%- for call in m.tool_calls or [] -%}
<tool_call>{{ call.function.name }}
{%- for key, value in call.function.arguments.items() -%}
<arg_key>{{ key }}</arg_key><arg_value>
{{- value if value is string else value | tojson(ensure_ascii=False) -}}
</arg_value>
{%- endfor -%}</tool_call>
{%- endfor -%}
{%- else -%}<|{{ m.role }}|>{{ m.content }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|assistant|>{{ '<think></think>' if enable_thinking is false else '<think>' }}
{%- endif -%}
"""


def write_tokenizer(folder: Path, *, special_tags: bool = False, template: str = TEMPLATE) -> None:
    """tokenizer.json and chat_template.jinja; special_tags: the tags are special tokens too."""
    tokenizer = byte_level()
    tokenizer.add_special_tokens(SPECIAL)
    tags = [AddedToken(tag, special=special_tags, normalized=False) for tag in sorted(TAGS)]
    (tokenizer.add_special_tokens if special_tags else tokenizer.add_tokens)(tags)
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|user|>"}))
    (folder / "chat_template.jinja").write_text(template)


def made(
    folder: Path, *, special_tags: bool = False, template: str = TEMPLATE
) -> tuple[Codec, Chat]:
    """Both, read as from any model's directory; replies end at a user's or a tool's turn."""
    write_tokenizer(folder, special_tags=special_tags, template=template)
    codec = read_codec(folder)
    ends = [codec.special["<|user|>"], codec.special["<|observation|>"]]
    chat = read_chat(folder, codec, ends)
    assert chat is not None
    return codec, chat
