"""How a model writes its reasoning, found out from what its chat template writes.

Probes are rendered: a question that asks for an answer, with the thinking switches on and off, and
an answer with and without a reasoning. What the template writes around a reasoning is what opens
and closes it. Many templates leave the reasoning of past turns out; then the marks are looked for
in the generation prompt, in the template's text and among the tokenizer's tokens.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any

SWITCHES = ("enable_thinking", "thinking")  # names under which templates are told to think
QUESTION, THOUGHT, ANSWER = "qzquestionzq", "qzthoughtzq", "qzanswerzq"
ASKED: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
PLAIN = [*ASKED, {"role": "assistant", "content": ANSWER}]
FIELDS = ("reasoning_content", "reasoning", "thinking")
REASONED = [*ASKED, {"role": "assistant", "content": ANSWER, **dict.fromkeys(FIELDS, THOUGHT)}]

TAG = re.compile(r"([<\[◁])([^\s<>\[\]◁▷/|]{1,40})([>\]▷])")  # <think>, [THINK], <seed:think>
OF_REASONING = re.compile("think|thought|reason", re.IGNORECASE)
# No tags, in templates that write no past reasoning: Gemma 4, Command R7B, Apertus and others.
PAIRS = (
    ("<|channel>thought", "<channel|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
)
# What a template or tokenizer names that reasons. A cheap first look may only refuse without it.
NAMED = re.compile("think|thought|reason|analysis|inner_prefix", re.IGNORECASE)
NAMED_TOKEN = re.compile(rb'"[<\[][^"\s]{0,20}(?:think|THINK|thought|reason|inner_prefix)')
NO_REASONING = (
    "model.thinking: neither the chat template nor the tokenizer has marks of a reasoning "
    "(<think> and </think> or the like), so this model has no thinking mode; set model.thinking to "
    "false, or name the marks in model.reasoning"
)


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What an assistant's turn is written with.

    Args:
        open, close: before and after a reasoning.
        final: before an answer, after `close` or without a reasoning; empty for most.
        tail: after an answer, before the end token; empty for most.
    """

    open: str
    close: str
    final: str = ""
    tail: str = ""

    @property
    def spelled(self) -> tuple[str, ...]:
        """What separates a reasoning and an answer from what stands around them, longest first.
        With `final`, what closes a reasoning closes any turn, and says nothing alone."""
        pairs = {self.open + self.close, self.close + self.open, self.close + self.final}
        return tuple(sorted({*pairs, self.open, self.final} - {""}, key=len, reverse=True))

    def filled_up(self, found: "Reasoning | None") -> "Reasoning":
        """Marks that the configuration names, with what was found out to stand around an answer."""
        if found is None or not found.final or not self.close.endswith(found.final):
            return self
        close = self.close.removesuffix(found.final) or self.close
        return Reasoning(self.open, close, found.final, found.tail)

    def before(self, text: str) -> str:
        """A text up to its first mark."""
        return text[: min((at for at in map(text.find, self.spelled) if at >= 0), default=None)]


@dataclass(frozen=True, slots=True)
class Written:
    """What a template writes after the question, None where it refuses.

    Args:
        on, off: where an answer is asked, with the switches on and off.
        plain: before and after an answer; switches on.
        reasoned: before a reasoning, between it and its answer, and after that.
        switches: the switches that make a difference.
    """

    on: str | None
    off: str | None
    plain: tuple[str, ...] | None
    reasoned: tuple[str, ...] | None
    switches: tuple[str, ...]


# messages, whether an answer is asked, switches -> text, or None where the template refuses
Render = Callable[[Sequence[Mapping[str, Any]], bool, Mapping[str, bool]], str | None]


def written_by(render: Render) -> Written:
    """Render the probes."""
    on, off = ({name: value for name in SWITCHES} for value in (True, False))
    first = render(ASKED, True, on)
    differ = (name for name in SWITCHES if first != render(ASKED, True, {**on, name: False}))
    alone = (
        name
        for name in SWITCHES
        if render(ASKED, True, {name: True}) != render(ASKED, True, {name: False})
    )
    switches = {*differ, *alone}
    return Written(
        _after(first),
        _after(render(ASKED, True, off)),
        _around(render(PLAIN, False, on), ANSWER),
        _around(render(REASONED, False, on), THOUGHT, ANSWER),
        tuple(name for name in SWITCHES if name in switches),
    )


def _after(text: str | None) -> str | None:
    return None if text is None or QUESTION not in text else text.rpartition(QUESTION)[2]


def _around(text: str | None, *known: str) -> tuple[str, ...] | None:
    rest = _after(text)
    if rest is None or any(rest.count(word) != 1 for word in known):
        return None
    parts = tuple(re.split("|".join(known), rest))
    return parts if rest.find(known[0]) <= rest.find(known[-1]) else None


def find_reasoning(
    written: Written, templates: Collection[str], added: Collection[str], ends: Collection[str]
) -> Reasoning | None:
    """What the model's reasoning is written with, or None where nothing shows one.

    Args:
        written: what the probes gave.
        templates: the templates' texts.
        added: the spellings of the tokenizer's added tokens.
        ends: those that end a completion.
    """
    if written.reasoned:
        found = _as_tags(written) or _by_difference(written, added, ends)
        if found:
            return found
    pair = _named(written, templates, added)
    if pair is None:
        return None
    final = ""
    if written.on is not None and written.plain and written.plain[0].startswith(written.on):
        final = _final(written.plain[0][len(written.on) :], added)
    final = "" if pair[0] in final or pair[1] in final else final
    return Reasoning(*pair, final, _tail(written, ends) if final else "")


def _as_tags(written: Written) -> Reasoning | None:
    """A tag and its partner around a reasoning: <think> ... </think>."""
    assert written.reasoned
    before, between, _ = written.reasoned
    tags = [*TAG.finditer(before)]
    if not tags or before[tags[-1].end() :].strip():
        return None
    close = _partner(tags[-1])
    if not between.strip().startswith(close):
        return None
    opens, on, plain = tags[-1][0], written.on, (written.plain or ("",))[0]
    # a model that closes alone where it does not reason, though its prompt has opened nothing
    alone = on is not None and opens not in on and plain.removeprefix(on).strip() == close
    return Reasoning(opens, close, close if alone else "")


def _partner(tag: re.Match[str]) -> str:
    return f"{tag[1]}/{tag[2]}{tag[3]}"


def _by_difference(
    written: Written, added: Collection[str], ends: Collection[str]
) -> Reasoning | None:
    """By comparing what stands before a reasoning with what stands there without one."""
    assert written.reasoned
    before, between, _ = written.reasoned
    asked = [text for text in (written.on, written.off) if text is not None]
    others = [text for text in (*(written.plain or ())[:1], *asked) if not text.startswith(before)]
    everything = "\0".join((before, *others))
    added = [token for token in added if token in everything]  # of perhaps a million
    header = _shared([before, *others], added)
    rest = before[len(header) :]
    if rest and header not in asked and not any(map(rest.startswith, added)):
        at = max((header.rfind(token) for token in added), default=-1)  # cut amid a mark
        header = header[:at] if at > 0 else header
    opens = before[len(header) :]
    if not opens.strip() and written.on is not None and written.on.startswith(before):
        opens = written.on[len(before) :]  # the prompt opens it in words of its own
    finals = (_final(text[len(header) :], added) for text in others)
    final = next((text for text in finals if text and between.rstrip().endswith(text)), "")
    close = between.strip().removesuffix(final).strip()
    opens = opens.strip("\n").rstrip()
    if not opens or not close:
        return None
    return Reasoning(opens, close, final, _tail(written, ends) if final else "")


def _shared(texts: list[str], added: Collection[str]) -> str:
    """The beginning that texts share, not cut within a control token."""
    shared = commonprefix(texts)  # noqa: RUF071
    for token in added:
        for at in (len(shared) - n for n in range(1, min(len(token), len(shared) + 1))):
            if any(text.startswith(token, at) for text in texts):
                return _shared([*texts, shared[:at]], added)
    return shared


def _final(text: str, added: Collection[str]) -> str:
    """What opens an answer: nothing, unless it has a control token."""
    return text.rstrip() if any(token in text for token in added) else ""


def _tail(written: Written, ends: Collection[str]) -> str:
    """What stands between an answer and the first token that ends a completion."""
    after = written.plain[-1] if written.plain else ""
    stops = [at for at in map(after.find, ends) if at >= 0]
    return after[: min(stops, default=0)].strip()


def _named(
    written: Written, templates: Collection[str], added: Collection[str]
) -> tuple[str, str] | None:
    """The pair of marks that the prompts end with, the templates name or the tokenizer has."""
    prompts = "\0".join(text for text in (written.on, written.off) if text)
    everything = "\0".join((prompts, *templates, *added))
    pairs = {
        (tag[0], _partner(tag)): None
        for tag in TAG.finditer(everything)
        if OF_REASONING.search(tag[2])
    }
    known = [
        p
        for p in (*PAIRS, *pairs)
        if p[0] in prompts or (p[0] in everything and p[1] in everything)
    ]
    first = [p for p in known if p[0] in prompts or p[1] in prompts]
    usual = [p for p in known if p == ("<think>", "</think>")]
    return next(iter([*first, *usual, *known]), None)


def ending(reasoning: Reasoning, prompt: str) -> str:
    """`open` where a prompt's end is inside a reasoning, `closed` where it has one behind it, or
    `none`.

    Args:
        prompt: what the template writes after the question.
    """
    closed = [reasoning.open + reasoning.close, reasoning.close + reasoning.final]
    if reasoning.final:
        closed.append(reasoning.final)
    opens, closes = prompt.rfind(reasoning.open), max(map(prompt.rfind, closed))
    if max(opens, closes) < 0:
        return "none"
    return "open" if opens > closes else "closed"


def contradiction(
    reasoning: Reasoning | None, written: Written, thinking: bool, variables: Collection[str]
) -> str | None:
    """Why `model.thinking` cannot be what it is, or None.

    Args:
        reasoning: what was found, or what the configuration says.
        variables: the names that the template reads.
    """
    if reasoning is None:
        return NO_REASONING if thinking else None
    prompt = written.on if thinking else written.off
    if prompt is None:
        return None
    state = ending(reasoning, prompt)
    if state != ("closed" if thinking else "open"):
        return None
    told = sorted(name for name in variables if OF_REASONING.search(name) or "effort" in name)
    others = [name for name in told if name not in SWITCHES]
    now, other, is_, turns = (
        ("true", "false", "a reasoning that is over", "on")
        if thinking
        else ("false", "true", "an open reasoning", "off")
    )
    hint = f", or what turns it {turns} in model.template_variables (it reads {', '.join(others)})"
    return (
        f"model.thinking: {now}, but the chat template ends the prompt with {prompt[-60:]!r}, "
        f"{is_}; set model.thinking to {other}{hint if others else ''}"
    )
