"""How a model's chat template opens and closes each turn, learned by rendering known contents.

Ids are read as text in which each control token is one lone surrogate, which no decoded text holds:
so text that merely spells a control token stays text, and patterns over such a text find the turns.
"""

import re
from dataclasses import dataclass
from itertools import accumulate, pairwise
from os.path import commonprefix

from workflow_scripts.model.prompts import PromptError, Prompts
from workflow_scripts.model.spellings import Spellings

ROLES = {"s": "system", "u": "user", "a": "assistant"}
# conversations to learn from, `+` asks for an answer; a template may refuse or change some
LESSONS = ("u", "u+", "ua", "uaua", "sua", "suaua", "uasua")
SURROGATES = "[\ud800-\udfff]"
NOTHING = "(?!)"  # the pattern that matches nothing


@dataclass(slots=True)
class MarkedText:
    """Ids as text, and where its pieces (a control token, or the text between two) begin: in the
    ids and in the text."""

    ids: list[int]
    text: str
    first: list[int]
    at: list[int]


class TemplateMarks:
    """The control tokens that a chat template writes, and patterns for a `MarkedText`.

    Args:
        prompts: the model's template and tokenizer.

    Attributes:
        think, end: a mark of a reasoning, as far as there are any; a token that ends a completion.
        border: a token that the template writes between turns.
        following: by a turn's letter, what closes the turn and opens the next. In it and in `start`
            the name of the group that matched begins with the letter in `ROLES` of the turn that
            follows.
    """

    def __init__(self, prompts: Prompts):
        self.prompts = prompts
        self._control = {i: text for text, i in prompts.added.items() if text.strip()}
        self._others = Spellings(self._control.values())
        self._marks: dict[int, str] = {}
        reasoning = prompts.reasoning
        own = prompts.marks.control_ids if prompts.marks else set()
        self._mark([i for i in self._control if i in own or i in prompts.end_ids])
        spelled = map(self._marked, reasoning.spelled if reasoning else ())
        self.think = re.compile("|".join(map(re.escape, spelled)) or NOTHING)
        self.end = _any_of([mark for i, mark in self._marks.items() if i in prompts.end_ids])
        self._learn()
        self._spelled = {ord(mark): self._control[i] for i, mark in self._marks.items()}

    def is_foreign(self, token: int) -> bool:
        """Whether it is a control token that the template never writes."""
        return token in self._control and token not in self._marks

    def spelled(self, text: str) -> str:
        """The text with its control tokens spelled out."""
        return text.translate(self._spelled)

    def start(self, text: str) -> re.Match[str] | None:
        """What opens the conversation in a marked text, after two other control tokens at most."""
        at = 0
        for _ in range(3):
            if found := self._start.match(text, at):
                return found
            marked = "\ud800" <= text[at : at + 1] <= "\udfff"
            at += 1 if marked else len(self._others.at(text, at))
        return None

    def outside(self, text: str) -> str:
        """A marked text with the marks of reasonings blanked out, since some hold tokens that
        stand between turns as well."""
        return self.think.sub(_blank, text)

    def read(self, ids: list[int]) -> MarkedText:
        marked = [n for n, token in enumerate(ids) if token in self._marks]
        first = sorted({0, *marked, *(n + 1 for n in marked), len(ids)})
        runs = [ids[a:b] for a, b in pairwise(first)]
        plain = iter(self.prompts.decode([run for run in runs if run[0] not in self._marks]))
        pieces = [self._marks.get(run[0]) or next(plain) for run in runs]
        at = [0, *accumulate(map(len, pieces))]
        # the end stands three times: two pieces may be looked for after any
        return MarkedText(ids, "".join(pieces), first + first[-1:] * 2, at + at[-1:] * 2)

    def _marked(self, text: str) -> str:
        """A text that the template writes, its control tokens as surrogates."""
        pieces = self.prompts.spellings.cut(text)
        return "".join(self._marks.get(self.prompts.added.get(p, -1), p) for p in pieces)

    def _mark(self, ids: list[int]) -> None:
        for token in ids:
            if token in self._control:
                self._marks.setdefault(token, chr(0xD800 + len(self._marks)))

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
            if after == "a":  # what differs is the answers', and so is a reasoning's mark
                shared = commonprefix([*some])  # noqa: RUF071
                some = {self.think.split(shared)[0]}
            following[before] += [(after, text) for text in some if re.search(SURROGATES, text)]
        for role, text in following["a"]:
            if role != "a":  # a row may begin without what the template adds by itself
                some = {text.removeprefix(c) for c in closings if text.startswith(c)}
                starts[role] |= some - {"", text}
        if not any(role == "u" for role, _ in following["s"]):
            starts["s"].clear()  # the template makes system and user one turn
        first = [(role, text) for role, some in starts.items() for text in some]
        written = "".join(text for some in (first, *following.values()) for _, text in some)
        self.border = _any_of([*set(re.findall(SURROGATES, self.think.sub("", written)))])
        self.following = {role: _one_of(some) for role, some in following.items()}
        self._start = _one_of(first)

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
        text = self.read(ids).text
        return re.split(r"qz\d+zq", text) if re.findall(r"qz\d+zq", text) == known else None


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


def _any_of(marks: list[str]) -> re.Pattern[str]:
    return re.compile(f"[{''.join(sorted(marks))}]" if marks else NOTHING)


def _one_of(some: list[tuple[str, str]]) -> re.Pattern[str]:
    """A pattern for any of the texts, longest first; the matching group's name begins with the
    role of the turn that the text opens."""
    ordered = sorted(some, key=lambda pair: (-len(pair[1]), pair))
    groups = (f"(?P<{role}{n}>{re.escape(text)})" for n, (role, text) in enumerate(ordered))
    return re.compile("|".join(groups) or NOTHING)
