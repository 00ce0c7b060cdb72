"""Classes of responses: what a text shows by itself."""

import re

from workflow_scripts.input.turn import Turn

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
    if turn.tool_calls:
        return "normal"
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
