"""Contents of messages as text."""

from typing import Any

from workflow_scripts.input.media import MEDIA_COLUMNS, MEDIA_TYPE, holds
from workflow_scripts.input.reasoning import trace
from workflow_scripts.input.reject import Reject
from workflow_scripts.input.values import Told, kind_of

REASONING_PARTS = ("thinking", "reasoning")


def text_of(
    content: Any,
    where: str,
    told: Told | None = None,
    thoughts: list[str] | None = None,
    parts: str = "",
) -> str:
    """A content's text.

    Args:
        where: its place, for messages.
        told: gets the keys of parts that are not used.
        thoughts: gets the parts that are an assistant's reasoning.
        parts: the content's name below `where`, as `.content`.

    Raises:
        Reject: it is no text, or holds what is none.
    """
    if isinstance(content, str):
        _check_unicode(content, where)
        return content
    if not isinstance(content, list):
        raise Reject("bad_content", f"{where}: content is a {kind_of(content)}, not text")
    told = told or Told()
    texts = [
        _part(part, where, f"{where}{parts}[{n}]", told, thoughts) for n, part in enumerate(content)
    ]
    text = "".join(texts)
    _check_unicode(text, where)
    return text


def _part(part: Any, where: str, place: str, told: Told, thoughts: list[str] | None) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") or "unknown" if isinstance(part, dict) else kind_of(part)
    if isinstance(part, dict) and not is_media(part):
        if thoughts is not None and kind in REASONING_PARTS:
            if thought := trace(part, place, told):
                thoughts.append(thought)
            return ""
        if isinstance(part.get("text"), str):
            told.ignore(part, {"type", "text"}, place)
            return part["text"]
    raise Reject("not_text", f"{where}: a content part of type {kind} is not text")


def is_media(part: dict[str, Any]) -> bool:
    """Whether a part of a content is an image or the like, whatever text it holds too."""
    return bool(MEDIA_TYPE.search(str(part.get("type")))) or any(
        key in MEDIA_COLUMNS and holds(value) for key, value in part.items()
    )


def _check_unicode(text: str, where: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        message = f"{where}: a lone surrogate at character {error.start} is no text"
        raise Reject("invalid_encoding", message) from None
