"""What single texts show: classes of responses, scripts, damage, control tokens, personal data.

Scans that look for rare things ask the row's raw JSON first, where a search for a few bytes costs
next to nothing; only a row that may have one is read by a regular expression.
"""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable

from workflow_scripts.conversation import Turn

# Worst first: a row has the worst class of its responses.
TRIVIAL = ("missing", "empty", "whitespace", "empty_think", "refusal", "echo", "repeated")
CLASS_TEXT = {
    "missing": "have no response at all",
    "empty": "are empty",
    "whitespace": "are only white space",
    "empty_think": "are an empty reasoning without an answer",
    "refusal": "are refusals",
    "echo": "repeat the prompt",
    "repeated": "are one of a few strings given to many different prompts",
    "reasoning_only": "have a reasoning but no answer",
    "short": "are short, but differ from each other",
    "normal": "are none of these",
}
REFUSAL = re.compile(
    r"\A\W*(?:(?:i['’]?m|i am) (?:very |so |really )?sorry|sorry,? (?:but )?i|i apologi[sz]e)?\W*"
    r"(?:but )?(?:as an? (?:ai )?(?:language )?(?:model|assistant)\W+)?(?:i['’]?m|i am|i)? ?"
    r"(?:can(?:no|['’])t|cannot|can not|unable|not able|won['’]t|will not|must decline)"
    r"(?: to)? (?:help(?! (?:but|it)\b)|assist|answer|comply|fulfil|provide|do|complete|continue|"
    r"engage|with)",
    re.IGNORECASE,
)
REFUSAL_CHARS = 300
NUMBERS = re.compile(r"\d+(?:[.,:/-]\d+)*")
WORD = re.compile(r"[^\W\d_]{2,}")


def response_class(turn: Turn) -> str:
    """The class that a response has by itself; `normal` where nothing is wrong with it."""
    if turn.content is None and turn.reasoning is None:
        return "missing"
    text = turn.content or ""
    if not text.strip():
        if (turn.reasoning or "").strip():
            return "reasoning_only"
        if turn.reasoning is not None:
            return "empty_think"
        return "whitespace" if text else "empty"
    if len(text) <= REFUSAL_CHARS and REFUSAL.match(text):
        return "refusal"
    return "normal"


def folded(text: str) -> str:
    """A text without what does not count between equal answers: case, spaces, closing marks."""
    return " ".join(text.casefold().split()).rstrip(" .!?…。！？")


def pattern(text: str) -> str | None:
    """A text with its numbers as 0: equal for `Ticket 17 is closed.` and `Ticket 9 is closed.`.
    None where fewer than three words are left, since a bare number is an answer, no pattern."""
    masked, count = NUMBERS.subn("0", text)
    return folded(masked) if count and len(WORD.findall(masked)) >= 3 else None


# ---- scripts ----

_SCRIPTS = (
    (0x0370, "Greek"), (0x0400, "Cyrillic"), (0x0530, "Armenian"), (0x0590, "Hebrew"),
    (0x0600, "Arabic"), (0x0700, "other"), (0x0750, "Arabic"), (0x0780, "other"),
    (0x08A0, "Arabic"), (0x0900, "Devanagari"), (0x0980, "Bengali"), (0x0A00, "other"),
    (0x0B80, "Tamil"), (0x0C00, "other"), (0x0E00, "Thai"), (0x0E80, "other"),
    (0x10A0, "Georgian"), (0x1100, "Hangul"), (0x1200, "Ethiopic"), (0x13A0, "other"),
    (0x1E00, "Latin"), (0x1F00, "Greek"), (0x2000, "other"), (0x2C60, "Latin"),
    (0x2C80, "other"), (0x3040, "Kana"), (0x3100, "other"), (0x3400, "Han"), (0xA000, "other"),
    (0xAC00, "Hangul"), (0xD7B0, "other"), (0xF900, "Han"), (0xFB00, "other"),
    (0xFB1D, "Hebrew"), (0xFB50, "Arabic"), (0xFE00, "other"), (0x20000, "Han"),
)  # fmt: skip
_STARTS = [start for start, _ in _SCRIPTS]
SCRIPT_CHARS = 400  # of a text that decide


def script(text: str) -> str:
    """The script most letters of the text's beginning belong to; `none` without letters."""
    head = text[:SCRIPT_CHARS]
    if head.isascii():
        return "Latin" if any(map(str.isalpha, head)) else "none"
    counts: dict[str, int] = {}
    for char in head:
        if char.isalpha():
            at = bisect_right(_STARTS, ord(char)) - 1
            name = _SCRIPTS[at][1] if at >= 0 else "Latin"
            counts[name] = counts.get(name, 0) + 1
    if counts.get("Kana"):  # Japanese writes both
        counts["Kana"] += counts.pop("Han", 0)
    return max(counts, key=lambda name: counts[name]) if counts else "none"


# ---- damage and personal data ----

# Text that was decoded by the wrong table and encoded again: "Ã©", "â€™".
MOJIBAKE = re.compile("Ã[\u0080-\u00bf]|â€[\u0090-\u00ff\u0152-\u2122]|Â[\u00a0-\u00bf]")
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
EMAIL = re.compile(r"(?<=[\w+-])@[\w-]{1,63}(?:\.[\w-]{1,63}){0,9}\.[a-zA-Z]{2,24}\b")
SECRET = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{20,}|AKIA[0-9A-Z]{16}|gh[po]_[A-Za-z0-9]{36}|hf_[A-Za-z0-9]{30,})\b"
    r"|-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----"
)
DIGITS = re.compile(r"\d[\d.() -]{5,30}\d")  # where the following three can stand
NUMBERED = {
    "phone": re.compile(r"(?<![\d.-])\(?\d{3}\)?[ -]\d{3}[ -]\d{4}(?![\d.-])"),
    "ip_address": re.compile(
        r"(?<![\d.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\d.])"
    ),
    "payment_card": re.compile(r"(?<![\d.-])(?:\d[ -]?){12,18}\d(?![\d.-])"),
}


def damage(raw: bytes, texts: Iterable[str]) -> set[str]:
    """Kinds of encoding damage in the texts, whose JSON is `raw`."""
    found = set()
    if b"\\u00" in raw and any(map(CONTROL.search, texts)):
        found.add("control_character")
    if raw.isascii():
        return found
    if b"\xef\xbf\xbd" in raw and any("\ufffd" in text for text in texts):
        found.add("replacement_character")
    signs = b"\xc3\x83" in raw or b"\xc3\xa2\xe2\x82\xac" in raw or b"\xc3\x82" in raw
    if signs and any(map(MOJIBAKE.search, texts)):
        found.add("mojibake")
    return found


def personal(texts: Iterable[str]) -> set[str]:
    """Kinds of personal data that the texts seem to hold; hints, never the data."""
    found = set()
    for text in texts:
        if "@" in text and EMAIL.search(text):
            found.add("email")
        signs = "sk-" in text or "AKIA" in text or "gh" in text or "hf_" in text or "KEY--" in text
        if signs and SECRET.search(text):
            found.add("secret_key")
        for digits in DIGITS.findall(text):
            for kind, exact in NUMBERED.items():
                hit = exact.search(digits)
                if hit and (kind != "payment_card" or luhn(hit[0])):
                    found.add(kind)
    return found


def luhn(digits: str) -> bool:
    """Whether a card number's check digit is right (ISO/IEC 7812-1)."""
    values = [int(c) for c in reversed(digits) if c.isdigit()]
    doubled = [2 * v - 9 * (v > 4) for v in values[1::2]]
    return len(set(values)) > 1 and (sum(values[::2]) + sum(doubled)) % 10 == 0


def visible(text: str, limit: int = 200) -> str:
    """The beginning of a text, control characters as symbols."""
    cut = text[:limit] + ("…" if len(text) > limit else "")
    return "".join(
        c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs") else "\ufffd"
        for c in cut
    )
