"""Contents of messages as text, and the reasoning beside them."""

from typing import Any

from workflow_scripts.input.reject import Reject

REASONING_KEYS = ("reasoning_content", "reasoning", "thinking", "reasoning_text", "thought")
REASONING_PARTS = ("thinking", "reasoning")


def reasoning_of(item: dict[str, Any]) -> str | None:
    for key in REASONING_KEYS:
        if isinstance(item.get(key), str) and item[key]:
            return item[key]
    return None


def text_of(content: Any, where: str, thoughts: list[str] | None = None) -> str:
    """A content's text. Parts that are an assistant's reasoning go to `thoughts`."""
    if isinstance(content, str):
        _check_unicode(content, where)
        return content
    if not isinstance(content, list):
        raise Reject("bad_content", f"{where}: content is a {kind_of(content)}, not text")
    texts = []
    for part in content:
        kind = part.get("type", "unknown") if isinstance(part, dict) else kind_of(part)
        if isinstance(part, str):
            texts.append(part)
        elif thoughts is not None and kind in REASONING_PARTS:
            thought = next((part[k] for k in (kind, "text") if isinstance(part.get(k), str)), "")
            thoughts.append(thought)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            raise Reject("not_text", f"{where}: a content part of type {kind} is not text")
    text = "".join(texts)
    _check_unicode(text, where)
    return text


def _check_unicode(text: str, where: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        message = f"{where}: a lone surrogate at character {error.start} is no text"
        raise Reject("invalid_encoding", message) from None


def kind_of(value: Any) -> str:
    return "null" if value is None else type(value).__name__
