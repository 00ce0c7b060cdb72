"""How a trainer's ids and mask of a row differ from ours, in one phrase a row."""

from dataclasses import dataclass

from workflow_scripts.model.prompts import Prompts

SAME = "same ids, same mask"


@dataclass(slots=True)
class Row:
    """A row of our dataset: its id (row and turn), the kind it was made as, ids and mask."""

    id: str
    kind: str
    turn: int
    ids: list[int]
    mask: list[int]


def difference(row: Row, ids: list[int], mask: list[int], prompts: Prompts) -> str:
    """The first of these that holds: what the text brought back, then what the mask marks.

    Args:
        row: ours.
        ids: theirs, of the conversation up to the same turn.
        mask: theirs, as long.
        prompts: the tokenizer; its end tokens say where a line end follows.
    """
    found = []
    if row.ids[-1] in prompts.end_ids and ids[-2:-1] == row.ids[-1:]:
        if mask[-1]:
            found.append("line end after the end token supervised")
        ids, mask = ids[:-1], mask[:-1]
    if ids != row.ids:
        found.append(_ids(row, ids, prompts))
    if (ids, mask) != (row.ids, row.mask) and (what := _mask(row, ids, mask, prompts)):
        found.append(what)
    return "; ".join(found) or SAME


def _ids(row: Row, ids: list[int], prompts: Prompts) -> str:
    """Where and why ids differ."""
    text, other = prompts.decode([row.ids, ids])
    same = next((i for i, (a, b) in enumerate(zip(row.ids, ids, strict=False)) if a != b), None)
    place = min(len(row.ids), len(ids)) if same is None else same
    start = row.mask.index(1)
    where = "prompt" if place < start - 1 else "boundary" if place <= start else "answer"
    if text == other.removesuffix("\n"):
        return f"same text in other tokens, from the {where} on"
    return f"other text, from the {where} on"


def _mask(row: Row, ids: list[int], mask: list[int], prompts: Prompts) -> str | None:
    """What is supervised, as text: a mask on other ids can still mark the same."""
    pairs = ((row.ids, row.mask), (ids, mask))
    marked = [[i for i, m in zip(a, b, strict=True) if m] for a, b in pairs]
    ours, theirs = (text.removesuffix("\n") for text in prompts.decode(marked))
    if ours == theirs:
        return None
    if not theirs:
        return "nothing supervised"
    if ours.endswith(theirs):
        return "the answer's start is not supervised"
    if theirs.endswith(ours):
        return "text before the answer supervised"
    return "other text supervised"
