"""What belongs to a question and stands in columns beside it: contexts, choices.

What cannot be joined plainly is left alone, so that the audit reports its column as unused.
"""

import re
from typing import Any

from workflow_scripts.config.audit import PLACE
from workflow_scripts.input.contents import text_of
from workflow_scripts.input.record import Record
from workflow_scripts.input.reject import Reject
from workflow_scripts.input.turn import Turn
from workflow_scripts.input.values import Told, from_json, is_nothing, kind_of

CONTEXT_COLUMNS = (
    "context",
    "contexts",
    "passage",
    "passages",
    "paragraph",
    "paragraphs",
    "article",
    "background",
)
CHOICE_COLUMNS = ("choices", "options")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
TEXTS = ("text", "contexts", "passage_text", "content", "value")  # where an object holds its text
LABELS = ("label", "labels", "key", "letter")

Choices = list[tuple[str, str]]  # label and text


# ---- a prompt of several columns ----------------------------------------------------------------


def forced_prompt(record: Record) -> str:
    """The prompt that `audit.columns.prompt` makes of several columns, or of a template.

    Raises:
        Reject: a column is missing, or no text.
    """
    texts = {}
    for name in record.columns.prompts:
        value = record.forced(name)
        text = joined_text(value, name, record.told)
        if text is None:
            raise Reject("bad_content", f"`{name}` is a {kind_of(value)}, not text")
        texts[name] = text
    template = record.columns.prompt_template
    if template is None:
        return "\n\n".join(text for text in texts.values() if text.strip())
    found, at = [], 0
    for place in PLACE.finditer(template):
        name = place[1]
        found += [template[at : place.start()], texts[name] if name else place[0][0]]
        at = place.end()
    return "".join([*found, template[at:]])


# ---- contexts -----------------------------------------------------------------------------------


def join_context(record: Record, turns: list[Turn], joins: str) -> None:
    """Join the columns of contexts to the question, the last turn, where the form does that: before
    it, or after it beside an instruction. A context that the turns hold already is not joined."""
    texts = []
    for name in CONTEXT_COLUMNS:
        if (value := record.values.get(name)) is None:
            continue
        known = Told()
        text = joined_text(value, name, known)
        if text is None:
            continue
        if not text.strip():
            record.take(name)
            continue
        held = _is_held(text, turns)
        if held or joins:
            record.told.used.append("context_in_prompt" if held else "context_joined")
            record.told.ignored |= known.ignored
            record.take(name)
            texts += [] if held else [text]
    if texts:
        asked = turns[-1].content or ""
        parts = [*texts, asked] if joins == "before" else [asked, *texts]
        turns[-1].content = "\n\n".join(part for part in parts if part.strip())


def _is_held(text: str, turns: list[Turn]) -> bool:
    return any(text.strip() in (turn.content or "") for turn in turns if turn.role != "assistant")


def joined_text(value: Any, where: str, told: Told) -> str | None:
    """One text of a text, of a list of texts, of objects with a text (and a title), or of an object
    with one list of them, parted by empty lines. None where it is none of these."""
    if isinstance(value, str):
        return text_of(value, where)
    if isinstance(value, list):
        texts = [_titled(item, f"{where}[{n}]", told) for n, item in enumerate(value)]
        return None if None in texts else "\n\n".join(text for text in texts if text)
    if isinstance(value, dict):
        if _are_texts(value.get("title")) and isinstance(value.get("sentences"), list):
            return _sentences(value, where, told)
        key = next((key for key in TEXTS if isinstance(value.get(key), str | list)), None)
        if key:
            told.ignore(value, {key}, where)
            return joined_text(value[key], f"{where}.{key}", told)
    return None


def _titled(item: Any, where: str, told: Told) -> str | None:
    if item is None or isinstance(item, str):
        return text_of(item or "", where)
    if not isinstance(item, dict) or not isinstance(item.get("text"), str):
        return None
    title = item.get("title")
    told.ignore(item, {"text", "title"} if isinstance(title, str) else {"text"}, where)
    return text_of(f"{title}\n{item['text']}" if isinstance(title, str) else item["text"], where)


def _sentences(value: dict[str, Any], where: str, told: Told) -> str | None:
    """HotpotQA's passages: titles, and a list of sentences for each."""
    titles, passages = value["title"], value["sentences"]
    if len(titles) != len(passages) or not all(map(_are_texts, passages)):
        return None
    told.ignore(value, {"title", "sentences"}, where)
    texts = (" ".join(s.strip() for s in sentences) for sentences in passages)
    pairs = zip(titles, texts, strict=True)
    return text_of("\n\n".join(f"{title}\n{text}" for title, text in pairs), where)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


# ---- choices ------------------------------------------------------------------------------------


def join_choices(record: Record, turns: list[Turn], joins: str) -> Choices:
    """Write the choices after the question, the last turn, a lettered line each, unless it has them
    already. Returns them."""
    for name in CHOICE_COLUMNS:
        if (value := record.values.get(name)) is None:
            continue
        known = Told()
        found = choices_of(from_json(value), name, known)
        if not found:
            continue
        held = any(_are_written(found, turn.content or "") for turn in turns if turn.role == "user")
        if not held and not joins:
            return []
        if from_json(value) is not value:
            record.told.used.append("json_text_decoded")
        record.told.used.append("choices_in_prompt" if held else "choices_joined")
        record.told.ignored |= known.ignored
        record.take(name)
        if not held:
            lines = text_of("\n".join(f"{label}. {text}" for label, text in found), name)
            turns[-1].content = f"{turns[-1].content}\n\n{lines}"
        return found
    return []


def choices_of(value: Any, where: str, told: Told) -> Choices | None:
    """Labels and texts of a list of texts, of {"text": [...], "label": [...]}, of {"A": ...}, or of
    a list of objects with a text and a label. None where it is none of these."""
    if isinstance(value, list):
        if _are_texts(value):
            return _lettered(value)
        pairs = [_labelled(item, f"{where}[{n}]", told) for n, item in enumerate(value)]
        return None if None in pairs else [pair for pair in pairs if pair]
    if not isinstance(value, dict):
        return None
    text = next((key for key in TEXTS if _are_texts(value.get(key))), None)
    if text is None:
        letters = {k: v for k, v in value.items() if len(k) == 1 and isinstance(v, str)}
        held = [key for key in value if not is_nothing(value[key])]
        return list(letters.items()) if len(letters) == len(held) else None
    label = next((key for key in LABELS if isinstance(value.get(key), list)), None)
    told.ignore(value, {text, label or text}, where)
    if label is None:
        return _lettered(value[text])
    labels = [str(item) for item in value[label]]
    return [*zip(labels, value[text], strict=True)] if len(labels) == len(value[text]) else None


def _lettered(texts: list[str]) -> Choices | None:
    return [*zip(LETTERS, texts, strict=False)] if len(texts) <= len(LETTERS) else None


def _labelled(item: Any, where: str, told: Told) -> tuple[str, str] | None:
    if not isinstance(item, dict):
        return None
    text = next((key for key in TEXTS if isinstance(item.get(key), str)), None)
    label = next((key for key in LABELS if isinstance(item.get(key), str)), None)
    if text is None or label is None:
        return None
    told.ignore(item, {text, label}, where)
    return item[label], item[text]


def _are_written(choices: Choices, text: str) -> bool:
    """Whether a question has the choices already: each, in their order, on a line of its own or
    after its label."""
    at = 0
    for label, choice in choices:
        marked = rf"(?:{re.escape(label)}\s*[.):\]]+|^[ \t]*[-*•]?)[ \t]*"
        found = re.compile(rf"{marked}{re.escape(choice.strip())}(?!\w)", re.M).search(text, at)
        if not found:
            return False
        at = found.end()
    return True


def choice_named(choices: Choices, answer: Any) -> str | None:
    """The text of the choice that an old response names by its label or index (from 0). None where
    it names none, or is a choice's text itself."""
    if isinstance(answer, bool) or not isinstance(answer, int | str):
        return None
    word = str(answer).strip(" \t\n().:")
    if isinstance(answer, str) and answer.strip() in (text for _, text in choices):
        return None
    labels = {label.casefold(): text for label, text in choices}
    if word.casefold() in labels:
        return labels[word.casefold()]
    index = int(word) if word.isascii() and word.isdigit() and len(word) < 4 else len(choices)
    return choices[index][1] if index < len(choices) else None
