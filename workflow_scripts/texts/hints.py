"""Hints of damaged text and of personal data.

Scans that look for rare things ask the row's raw JSON first, where a search for a few bytes costs
next to nothing; only a row that may have one is read by a regular expression."""

import re
from collections.abc import Iterable

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
