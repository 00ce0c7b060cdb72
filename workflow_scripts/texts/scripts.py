"""The script that a text is written in."""

from bisect import bisect_right

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
