"""A small model folder: ids can be worked out by hand."""

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>"]
IM_START, IM_END, END_OF_TEXT, THINK, THINK_CLOSE = range(256, 261)
VOCAB = 320  # the model's vocabulary is padded beyond the tokenizer's 261, as real ones are

# ChatML with a thinking switch, in the manner of the Qwen3.5 family: earlier reasoning is left out.
TEMPLATE = """\
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' and loop.last and m.reasoning_content is defined %}
{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}
{%- endif %}
{{- m.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking %}{{- '<think>\\n' }}
{%- else %}{{- '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
{%- endif %}
"""


def byte_tokenizer(special: Sequence[str] = SPECIAL, words: Sequence[str] = ()) -> Tokenizer:
    """One token per byte, id = byte; then words, then special tokens. Ids can be worked out by
    hand."""
    alphabet = {}
    spare = 256
    for byte in range(256):  # the printable stand-ins of byte-level BPE
        printable = 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255
        alphabet[chr(byte if printable else spare)] = byte
        spare += not printable
    alphabet |= {word: 256 + number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in special])
    return tokenizer


def make_model(folder: Path, template: str = TEMPLATE) -> Path:
    """A model folder without weights, for the stand-in server."""
    folder.mkdir(parents=True)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    tokenizer_config = {"chat_template": template, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    config = {"model_type": "tiny", "vocab_size": VOCAB, "eos_token_id": END_OF_TEXT}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": IM_END}))
    (folder / "model.safetensors").write_bytes(b"\0" * 64)
    return folder
