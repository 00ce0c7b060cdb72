"""Already tokenized rows back to conversations, with the response's ids as they stand.

How the chat template opens and closes each turn is learned by rendering it with known contents. A
row is then cut at its control token ids: in its text each of them is one lone surrogate, which no
decoded text holds, so text that merely spells a control token stays text.
"""

import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate, pairwise
from os.path import commonprefix
from typing import Any

from workflow_scripts.config.audit import Columns
from workflow_scripts.input.dialects import LISTS, PROMPT_COLUMNS
from workflow_scripts.input.reject import Reject
from workflow_scripts.model.answers import split, texts
from workflow_scripts.model.prompts import Message, PromptError, Prompts

CONVERSATIONS = (*LISTS, "instruction", *PROMPT_COLUMNS)
# columns that say which ids are a response's, the first one found counts
KINDS = {
    **dict.fromkeys(("loss_mask", "assistant_masks", "assistant_mask", "completion_mask"), "mask"),
    "labels": "labels",
    **dict.fromkeys(("response_start", "prompt_length"), "start"),
}
IGNORED = -100  # in labels
ROLES = {"s": "system", "u": "user", "a": "assistant"}
# conversations to learn from, `+` asks for an answer; a template may refuse or change some
LESSONS = ("u", "u+", "ua", "uaua", "sua", "suaua", "uasua")
SURROGATES = "[\ud800-\udfff]"
NOTHING = "(?!)"  # the pattern that matches nothing


def is_tokenized(record: dict[str, Any], columns: Columns) -> bool:
    """Whether a record has token ids and no conversation. Ids that the configuration names count
    even beside a conversation, unless it names that one too."""
    ids = record.get(columns.input_ids or "input_ids")
    if not isinstance(ids, list) or (ids and type(ids[0]) is not int):
        return False
    named = [name for name in (columns.messages, columns.prompt) if name]
    others = named if columns.input_ids else [*named, *CONVERSATIONS]
    return all(record.get(name) is None for name in others)


@dataclass(slots=True)
class Tokenized:
    """A tokenized row as a conversation that ends with the last turn that has supervised ids.

    `response_ids` are the last supervised ids as they stand in the row, at most to the white space
    after the end token. A row that is only a prompt has none, and content None in its last message.
    `spans` counts the row's supervised spans. `same_prompt`: rendering the messages again gives the
    ids before the response.
    """

    messages: list[Message]
    response_ids: list[int]
    spans: int
    same_prompt: bool


@dataclass(slots=True)
class _Row:
    """A row's text, and where its pieces (a control token, or the text between two) begin: in the
    ids and in the text."""

    ids: list[int]
    text: str
    first: list[int]
    at: list[int]


@dataclass(slots=True)
class _Turn:
    """A turn's text; an answer's ids are [begin, stop), with end token and white space [begin,
    after)."""

    role: str
    text: str
    begin: int = 0
    stop: int = 0
    after: int = 0


class Detokenizer:
    """Cuts token ids into the turns of a model's chat template."""

    def __init__(self, prompts: Prompts):
        self.prompts = prompts
        self.vocab_size = max([prompts.vocab_size, *(i + 1 for i in prompts.added.values())])
        self._control = {i: text for text, i in prompts.added.items() if text.strip()}
        self._marks: dict[int, str] = {}
        self._think_ids = {prompts.think_open, prompts.think_close} - {None}
        self._mark([i for i in self._control if i in self._think_ids or i in prompts.end_ids])
        self._think = _any_of([self._marks[i] for i in self._think_ids if i is not None])
        self._end = _any_of([mark for i, mark in self._marks.items() if i in prompts.end_ids])
        self._learn()
        self._spelled = {ord(mark): self._control[i] for i, mark in self._marks.items()}

    def _mark(self, ids: list[int]) -> None:
        for token in ids:
            if token in self._control:
                self._marks.setdefault(token, chr(0xD800 + len(self._marks)))

    # ---- the template ----

    def _learn(self) -> None:
        """What stands before, between and after turns, from renders of `LESSONS`."""
        between: dict[tuple[str, str], set[str]] = {}
        starts: dict[str, set[str]] = {"s": set(), "u": set()}
        closings: set[str] = set()  # after a last answer
        for roles in LESSONS:
            pieces = self._lesson(roles)
            if pieces:
                starts[roles[0]].add(pieces[0])
                pairs = pairwise(roles.replace("+", "a"))
                for (before, after), piece in zip(pairs, pieces[1:], strict=False):
                    between.setdefault((before, after), set()).add(piece)
                if roles[-1] == "a":
                    closings.add(pieces[-1])
        following: dict[str, list[tuple[str, str]]] = {role: [] for role in ROLES}
        for (before, after), some in between.items():
            if after == "a":  # what differs is the answers', and so is a think token
                shared = commonprefix([*some])  # noqa: RUF071
                some = {self._think.split(shared)[0]}
            following[before] += [(after, text) for text in some if re.search(SURROGATES, text)]
        for role, text in following["a"]:
            if role != "a":  # a row may begin without what the template adds by itself
                some = {text.removeprefix(c) for c in closings if text.startswith(c)}
                starts[role] |= some - {"", text}
        if not any(role == "u" for role, _ in following["s"]):
            starts["s"].clear()  # the template makes system and user one turn
        first = [(role, text) for role, some in starts.items() for text in some]
        written = "".join(text for some in (first, *following.values()) for _, text in some)
        self._border = _any_of([*set(re.findall(SURROGATES, self._think.sub("", written)))])
        self._next = {role: _one_of(some) for role, some in following.items()}
        other = "|".join(map(re.escape, self._control.values())) or NOTHING
        self._start = _one_of(first, f"(?:{SURROGATES}|{other}){{0,2}}?")

    def _lesson(self, roles: str) -> list[str] | None:
        """The text before, between and after the contents, or None if the template refuses or
        changes them."""
        names = [ROLES[role] for role in roles.rstrip("+")]
        known = [f"qz{n}zq" for n in range(len(names))]
        messages = [{"role": r, "content": c} for r, c in zip(names, known, strict=True)]
        try:
            [ids] = self.prompts.encode([self.prompts.render(messages, roles[-1] == "+")])
        except PromptError:
            return None
        self._mark(ids)
        text = self._read(ids).text
        return re.split(r"qz\d+zq", text) if re.findall(r"qz\d+zq", text) == known else None

    # ---- a row ----

    def conversation(self, record: dict[str, Any], columns: Columns) -> Tokenized:
        """The conversation of a record that `is_tokenized`.

        Raises:
            Reject: with the reason class that the audit counts.
        """
        name = columns.input_ids or "input_ids"
        ids = record.get(name)
        if not isinstance(ids, list) or not ids:
            raise Reject("bad_ids", f"`{name}` is no list of ids, or an empty one")
        if {*map(type, ids)} != {int} or min(ids) < 0 or max(ids) >= self.vocab_size:
            wrong = (i for i in ids if type(i) is not int or not 0 <= i < self.vocab_size)
            message = f"`{name}` holds {next(wrong)!r}, which is no id of {self.vocab_size}"
            raise Reject("bad_ids", message)
        real = self._real(record, ids)
        taught = _supervised(record, columns, ids)[real]
        ids = ids[real]
        turns, fault = self._cut(self._read(ids))
        if not any(taught):
            return self._unanswered(turns, fault, ids)
        answers = [n for n, turn in enumerate(turns) if any(taught[turn.begin : turn.after])]
        if not answers or (fault and any(taught[turns[answers[-1]].after :])):
            what = fault or "the supervised ids lie outside the assistant's turns"
            raise Reject("not_this_template", what)
        last = turns[answers[-1]]
        edges = [n for n, (a, b) in enumerate(pairwise([False, *taught, False])) if a != b]
        spans = [*zip(edges[::2], edges[1::2], strict=True)]
        start, end = [(a, b) for a, b in spans if a < last.after and b > last.begin][-1]
        response = ids[max(start, last.begin) : min(end, last.after)]
        messages = [self._message(turn, ids, taught) for turn in turns[: answers[-1] + 1]]
        same = self._same(messages[:-1], ids[: last.begin])
        return Tokenized(messages, response, len(spans), same)

    def _real(self, record: dict[str, Any], ids: list[int]) -> slice:
        """Where the ids are that are no padding."""
        real = [1] * len(ids)
        if record.get("attention_mask") is not None:
            real = _as_long(record, "attention_mask", ids)
        kept = [n for n, value in enumerate(real) if value]
        while kept and ids[kept[-1]] in self._control and ids[kept[-1]] not in self._marks:
            kept.pop()  # the template never writes it
        return slice(kept[0], kept[-1] + 1) if kept else slice(0)

    def _read(self, ids: list[int]) -> _Row:
        marked = [n for n, token in enumerate(ids) if token in self._marks]
        first = sorted({0, *marked, *(n + 1 for n in marked), len(ids)})
        runs = [ids[a:b] for a, b in pairwise(first)]
        plain = iter(self.prompts.decode([run for run in runs if run[0] not in self._marks]))
        pieces = [self._marks.get(run[0]) or next(plain) for run in runs]
        at = [0, *accumulate(map(len, pieces))]
        # the end stands three times: two pieces may be looked for after any
        return _Row(ids, "".join(pieces), first + first[-1:] * 2, at + at[-1:] * 2)

    def _cut(self, row: _Row) -> tuple[list[_Turn], str | None]:
        """The turns, and why what follows them is none."""
        text = row.text
        turns: list[_Turn] = []
        found = self._start.match(text)
        while found:
            role, begin = str(found.lastgroup)[0], found.end()
            if role == "s" and turns:
                return turns, "a second system turn; several conversations in one row?"
            border = self._border.search(text, begin)
            found = self._next[role].search(text, begin)
            stop = border.start() if border else len(text)
            if found and found.start() > stop:
                found = None
            elif found:
                stop = found.start()  # a closing can begin with text
            turns.append(self._turn(row, role, begin, stop))
            rest = text[begin + len(turns[-1].text) : stop if found else None]
            if re.sub(SURROGATES, "", rest).strip():
                shown = rest[:60].translate(self._spelled)
                return turns, f"after the {ROLES[role]}'s turn the template never writes {shown!r}"
            if not found:
                return turns, None
        return turns, "the ids do not begin as the chat template begins a conversation"

    def _turn(self, row: _Row, role: str, begin: int, stop: int) -> _Turn:
        if role != "a":
            return _Turn(role, row.text[begin:stop])
        ended = self._end.search(row.text, begin, stop)
        stop = ended.start() if ended else stop
        piece = bisect_left(row.at, stop)
        after = row.text[row.at[piece + 1] : row.at[piece + 2]]
        blank = row.at[piece + 1] + len(after) - len(after.lstrip())
        text, ids = row.text[begin:stop], row.first[piece]
        return _Turn(role, text, self._index(row, begin), ids, self._index(row, blank))

    def _index(self, row: _Row, position: int) -> int:
        """How many ids end before or at a position in the text."""
        piece = bisect_right(row.at, position) - 1
        start, wanted = row.first[piece], position - row.at[piece]
        stop = start
        while wanted and len(self.prompts.decode([row.ids[start : stop + 1]])[0]) <= wanted:
            stop += 1
        return stop

    def _message(self, turn: _Turn, ids: list[int], taught: list[bool]) -> Message:
        message: Message = {"role": ROLES[turn.role]}
        start, stop = turn.begin, turn.stop
        if any(taught[start : turn.after]):
            known = [n for n in range(start, stop) if taught[n]]
            start, stop = (known[0], known[-1] + 1) if known else (stop, stop)
        whole = (start, stop) == (turn.begin, turn.stop)
        if turn.role != "a" or (whole and not self._think.search(turn.text)):
            return {**message, "content": turn.text.translate(self._spelled)}
        opener = next((n for n in range(start, stop) if ids[n] == self.prompts.think_open), start)
        if not self.prompts.decode([ids[start:opener]])[0].strip():
            start = opener  # some models write an empty line before their reasoning
        before, output = ids[turn.begin : start], ids[start:stop]
        if split(self.prompts, before, output).closed:
            [(reasoning, answer)] = texts(self.prompts, [(before, output)])
        else:
            reasoning, answer = None, self.prompts.decode([output])[0]
        message["content"] = answer
        return message if reasoning is None else {**message, "reasoning_content": reasoning}

    def _unanswered(self, turns: list[_Turn], fault: str | None, ids: list[int]) -> Tokenized:
        last = turns[-1] if turns and not fault else _Turn("", "")
        if last.role != "a" or self._think.sub("", last.text).strip():
            raise Reject("no_response_ids", "no id is supervised, and the row asks for no answer")
        messages = [self._message(turn, ids, [False] * len(ids)) for turn in turns[:-1]]
        same = self._same(messages, ids[: last.begin])
        return Tokenized([*messages, {"role": "assistant", "content": None}], [], 0, same)

    def _same(self, messages: list[Message], ids: list[int]) -> bool:
        """Whether the messages' prompt is these ids and, at most, think tokens."""
        try:
            ours = self.prompts.prompt_ids(messages)
        except PromptError:
            return False
        rest = [token for token in ours[len(ids) :] if token not in self._think_ids]
        return ours[: len(ids)] == ids and not self.prompts.decode([rest])[0].strip()


def _any_of(marks: list[str]) -> re.Pattern[str]:
    return re.compile(f"[{''.join(sorted(marks))}]" if marks else NOTHING)


def _one_of(some: list[tuple[str, str]], before: str = "") -> re.Pattern[str]:
    """A pattern for any of the texts, longest first; the matching group's name begins with the
    role of the turn that the text opens."""
    ordered = sorted(some, key=lambda pair: (-len(pair[1]), pair))
    groups = (f"(?P<{role}{n}>{re.escape(text)})" for n, (role, text) in enumerate(ordered))
    return re.compile(f"{before}(?:{'|'.join(groups) or NOTHING})")


def _supervised(record: dict[str, Any], columns: Columns, ids: list[int]) -> list[bool]:
    """Which ids are a response's; columns that the configuration names are the only ones then."""
    named = (columns.loss_mask, columns.labels, columns.response_start)
    forced = dict(zip(named, ("mask", "labels", "start"), strict=True))
    kinds = {name: kind for name, kind in forced.items() if name} or KINDS
    name = next((name for name in kinds if record.get(name) is not None), None)
    if name is None:
        message = f"nothing says which ids are the response; no column {', '.join(kinds)}"
        raise Reject("no_mask", message)
    if kinds[name] == "start":
        start = record[name]
        if type(start) is not int or not 0 <= start <= len(ids):
            raise Reject("mask_length", f"`{name}` is {start!r}; there are {len(ids)} ids")
        return [n >= start for n in range(len(ids))]
    values = _as_long(record, name, ids)
    if kinds[name] == "labels":
        _check_labels(values, ids, name)
        return [label != IGNORED for label in values]
    numbers = {*map(type, values)} <= {int, bool, float}
    if not numbers or not all(0 <= v < float("inf") for v in {*values}):
        raise Reject("bad_mask", f"`{name}` has values that are neither 0 nor 1")
    return [v > 0 for v in values]


def _as_long(record: dict[str, Any], name: str, ids: list[int]) -> list[Any]:
    values = record[name]
    if not isinstance(values, list) or len(values) != len(ids):
        size = f"{len(values)} values" if isinstance(values, list) else "no list"
        raise Reject("mask_length", f"`{name}` has {size}; there are {len(ids)} ids")
    return values


def _check_labels(labels: list[Any], ids: list[int], name: str) -> None:
    wrong = _difference(labels, ids)
    if wrong is not None:
        message = f"`{name}[{wrong}]` is {labels[wrong]!r}, the id there is {ids[wrong]}"
        for side, some, others in (("before", labels, ids[1:]), ("after", labels[1:], ids)):
            if _difference(some, others) is None:
                message += f"; the labels are shifted by one: each stands {side} its id"
        raise Reject("labels_differ", message)


def _difference(labels: list[Any], ids: list[int]) -> int | None:
    pairs = enumerate(zip(labels, ids, strict=False))
    return next((n for n, (label, token) in pairs if label not in (IGNORED, token)), None)
