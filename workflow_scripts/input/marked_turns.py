"""A tokenized row's text cut into turns, where the chat template's marks stand."""

import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from workflow_scripts.input.template_marks import ROLES, SURROGATES, MarkedText, TemplateMarks
from workflow_scripts.model.prompts import Prompts


@dataclass(slots=True)
class MarkedTurn:
    """A turn's text, `role` a letter of `ROLES`; an answer's ids are [begin, stop), with end token
    and white space [begin, after)."""

    role: str
    text: str
    begin: int = 0
    stop: int = 0
    after: int = 0


def cut(row: MarkedText, marks: TemplateMarks) -> tuple[list[MarkedTurn], str | None]:
    """The turns, and why what follows them is none."""
    text, outside = row.text, marks.outside(row.text)
    turns: list[MarkedTurn] = []
    found = marks.start(text)
    while found:
        role, begin = str(found.lastgroup)[0], found.end()
        if role == "s" and turns:
            return turns, "a second system turn; several conversations in one row?"
        border = marks.border.search(outside, begin)
        found = marks.following[role].search(text, begin)
        stop = border.start() if border else len(text)
        if found and found.start() > stop:
            found = None
        elif found:
            stop = found.start()  # a closing can begin with text
        turns.append(_turn(row, marks, role, begin, stop))
        rest = text[begin + len(turns[-1].text) : stop if found else None]
        if re.sub(SURROGATES, "", rest).strip():
            shown = marks.spelled(rest[:60])
            return turns, f"after the {ROLES[role]}'s turn the template never writes {shown!r}"
        if not found:
            return turns, None
    return turns, "the ids do not begin as the chat template begins a conversation"


def _turn(row: MarkedText, marks: TemplateMarks, role: str, begin: int, stop: int) -> MarkedTurn:
    if role != "a":
        return MarkedTurn(role, row.text[begin:stop])
    ended = marks.end.search(row.text, begin, stop)
    stop = ended.start() if ended else stop
    piece = bisect_left(row.at, stop)
    after = row.text[row.at[piece + 1] : row.at[piece + 2]]
    blank = row.at[piece + 1] + len(after) - len(after.lstrip())
    first, last = (_index(row, marks.prompts, position) for position in (begin, blank))
    return MarkedTurn(role, row.text[begin:stop], first, row.first[piece], last)


def _index(row: MarkedText, prompts: Prompts, position: int) -> int:
    """How many ids end before or at a position in the text."""
    piece = bisect_right(row.at, position) - 1
    start, wanted = row.first[piece], position - row.at[piece]
    stop = start
    while wanted and len(prompts.decode([row.ids[start : stop + 1]])[0]) <= wanted:
        stop += 1
    return stop
