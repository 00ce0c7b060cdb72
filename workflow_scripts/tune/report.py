"""A tune's results as people post them, and the chosen flags as a file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from workflow_scripts.sglang.numerics import hash_changes
from workflow_scripts.tune import judge
from workflow_scripts.tune.judge import Choice, Figures
from workflow_scripts.tune.results import Result

NONE = "–"


@dataclass(frozen=True)
class About:
    """What was tuned, where and how.

    `requests` are those of the whole run, `gpus` those that it uses.
    """

    model: str
    model_path: str
    model_key: str
    architecture: str
    sglang: str
    gpu: str
    gpu_mib: int | None
    rehearsal: bool
    accept_length: float | None
    requests: int
    gpus: int
    prompts: int
    prompt_tokens: float
    source: str
    sampling: str
    window_s: float
    interval_s: float
    made_at: str
    planned: int  # candidates to be measured in all

    @property
    def label(self) -> str:
        """What stands on every output of a rehearsal."""
        if not self.rehearsal:
            return ""
        text = "REHEARSAL: its speeds and answers are not the real model's"
        if self.accept_length:
            text += f"; with speculation an accept length of {self.accept_length:g} is simulated"
        return text

    @property
    def machine(self) -> str:
        size = f" ({self.gpu_mib / 1024:.0f} GiB)" if self.gpu_mib else ""
        return f"one {self.gpu}{size}, SGLang {self.sglang}"


# ---- cells --------------------------------------------------------------------------------------


def cell(value: float | None, form: str = ",.0f", unit: str = "") -> str:
    return NONE if value is None else f"{value:{form}}{unit}"


def percent(share: float | None, digits: int = 0) -> str:
    return NONE if share is None else f"{100 * share:.{digits}f} %"


def speed(now: Figures) -> str:
    return NONE if now.tokens_s is None else f"{now.tokens_s:,.0f} ± {now.spread:,.0f}"


def running(now: Figures) -> str:
    if now.running is None:
        return NONE if now.most_running is None else f"? of {now.most_running:,}"
    return f"{now.running:,.0f} of {now.most_running:,}"


def length(found: judge.Lengths | None) -> str:
    if found is None:
        return NONE
    return f"{'≥ ' if found.at_least else ''}{found.mean:,.0f}"


def finished(found: judge.Lengths | None) -> str:
    if found is None:
        return NONE
    return f"{cell(found.finished_mean)} ({found.ended:,} ended, {found.unfinished:,} under way)"


def agreement(result: Result, results: Sequence[Result]) -> str:
    ref = judge.reference(results)
    if ref is None or not result.greedy:
        return NONE
    if ref is result:
        return "reference"
    found = judge.agreement(result.greedy, ref.greedy)
    if found is None:
        return NONE
    return f"{percent(found.share)}, {percent(found.early)} part early"


def time(hours: float | None) -> str:
    if hours is None:
        return NONE
    if hours < 2:
        return f"{hours * 3600:.0f} s" if hours < 1 / 30 else f"{hours * 60:.0f} min"
    return f"{hours:,.1f} h"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table; a pipe inside a cell would end it."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(c.replace("|", "/") for c in line) + " |" for line in lines]


# ---- the parts ----------------------------------------------------------------------------------


def before_and_after(
    results: Sequence[Result], choice: Choice, about: About
) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the comparison of the baseline with the choice."""
    chosen = choice.result or results[0]
    pair = [results[0]] if chosen is results[0] else [results[0], chosen]
    now = [judge.figures(result) for result in pair]
    size = judge.pooled(results)
    requests = [n.tokens_s / size.mean if n.tokens_s and size else None for n in now]
    eta = [
        judge.hours(about.requests, size.mean, n.tokens_s, about.gpus)
        if n.tokens_s and size
        else None
        for n in now
    ]
    names = ["before", "after"] if len(pair) > 1 else ["before and after"]
    head = ["", *(f"{n}: {r.name}" for n, r in zip(names, pair, strict=True))]
    more, less = ("≥ ", "≤ ") if size and size.at_least else ("", "")
    rows = [
        ["tokens/s", *map(speed, now)],
        ["requests running", *map(running, now)],
        ["requests/s", *(less + cell(r, ",.2f") if r else NONE for r in requests)],
        ["mean answer, of the finished ones", *(finished(n.lengths) for n in now)],
        ["mean answer, unfinished ones counted", *(length(n.lengths) for n in now)],
        ["KV cache in use", *(percent(n.kv_use) for n in now)],
        ["state cache in use", *(percent(n.state_use) for n in now)],
        ["accept length", *(cell(n.accept_length, ".2f") for n in now)],
        ["retractions", *(cell(n.retractions if n.tokens_s else None) for n in now)],
        ["GPU use", *(cell(n.util, ".0f", " %") for n in now)],
        ["power", *(cell(n.watts, ",.0f", " W") for n in now)],
        ["energy a token", *(cell(n.joules, ".3f", " J") for n in now)],
        ["looping answers", *(percent(n.loops, 1) for n in now)],
        ["cut at max_new_tokens", *(percent(n.truncated, 1) for n in now)],
        ["greedy answers as the reference's", *(agreement(r, results) for r in pair)],
        [
            f"{about.requests:,} requests on {about.gpus} GPU{'s' * (about.gpus > 1)}",
            *(more + time(hours) if hours else NONE for hours in eta),
        ],
    ]
    return head, rows


def outcome(result: Result, choice: Choice, enforce: bool) -> str:
    """What became of a candidate, in a few words."""
    if choice.result is not None and result.name == choice.result.name:
        return "**chosen**"
    if result.status != "measured":
        lines = result.reason.splitlines() or [result.status]
        return lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"  # of a log: its end
    if result.name in choice.refused:
        return "refused" if enforce else "would be refused"
    return ""


def all_candidates(
    results: Sequence[Result], choice: Choice, about: About
) -> tuple[list[str], list[list[str]]]:
    head = ["candidate", "running", "tokens/s", "times", "mean answer", "KV", "state", "accept"]
    head += ["W", "J/token", "loops", "cut", "greedy", "start", ""]
    base = judge.figures(results[0]).tokens_s
    rows = []
    for result in results:
        n = judge.figures(result)
        gain = n.tokens_s / base if n.tokens_s and base else None
        cells = [result.name, running(n), speed(n), cell(gain, ".2f"), length(n.lengths)]
        cells += [percent(n.kv_use), percent(n.state_use), cell(n.accept_length, ".2f")]
        cells += [cell(n.watts), cell(n.joules, ".3f"), percent(n.loops, 1)]
        cells += [percent(n.truncated, 1), agreement(result, results)]
        cells += [cell(result.boot_s, ".0f", " s"), outcome(result, choice, not about.rehearsal)]
        rows.append(cells)
    return head, rows


def predictions(results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    head = ["candidate", "requests: plan", "server", "KV tokens: plan", "server", "off"]
    head += ["state slots: plan", "server", "K and V, GiB: plan", "log"]
    rows = []
    for result in results:
        plan, seen = result.predicted or {}, result.reported or {}
        ours, theirs = plan.get("tokens"), seen.get("tokens")
        off = theirs / ours - 1 if ours and theirs else None
        gib, told = plan.get("gib", {}), seen.get("gib", {})
        kv = [g.get("K", 0) + g.get("V", 0) or None for g in (gib, told)]
        cells = [result.name, cell(plan.get("max_running")), cell(seen.get("max_running"))]
        cells += [cell(ours), cell(theirs), cell(off, "+.2%")]
        cells += [cell(plan.get("slots") or None), cell(seen.get("slots") if plan else None)]
        cells += [cell(kv[0], ".2f"), cell(kv[1], ".2f")]
        rows.append(cells)
    return head, rows


def remarks(results: Sequence[Result], choice: Choice, about: About) -> list[str]:
    """What the numbers do not say by themselves."""
    found = []
    for result in results:
        for text in choice.refused.get(result.name, []):
            what = "would be refused" if about.rehearsal else "refused"
            found.append(f"`{result.name}` {what}: {text}")
        if result.problem:
            found.append(f"`{result.name}` was not predicted: {result.problem}")
        found += [f"`{result.name}`: {text}" for text in judge.concerns(result)]
    if choice.result is not None and choice.result is not results[0]:
        names = hash_changes(results[0].server, choice.result.server)
        if names:
            found.append(
                f"`{choice.result.name}` changes {', '.join(names)}, which the run's hash covers: "
                "rows that are answered already are asked again"
            )
    return found


def method(results: Sequence[Result], about: About) -> list[str]:
    size = judge.pooled(results)
    cycles = max((result.cycles for result in results), default=0)
    again = f"; the prompts were used up to {cycles} times, with other seeds" if cycles > 1 else ""
    lines = [
        f"Load: {about.prompts:,} prompts of {about.prompt_tokens:,.0f} tokens on average, the "
        f"first question of {about.source}; {about.sampling}. A little more in flight than the "
        f"server runs at once{again}.",
        f"tokens/s: median of the intervals of {about.interval_s:g} s after the server was full, "
        "by its counter of decoded tokens, without a start that differs from the rest (MSER); ± is "
        f"the notch around it (1.57 IQR / √n). At most {about.window_s:g} s a candidate, so "
        "prompts are short of history: the times of the whole run leave out its beginning and end, "
        "and slowing down with longer contexts.",
    ]
    if size is not None:
        text = (
            "Mean answer: a short measurement sees short answers end first, so the mean of the "
            f"finished ones is too small. The other counts the {size.unfinished:,} unfinished ones "
            "as longer than they had become (Kaplan-Meier); of all candidates together it is "
            f"{length(size)} tokens, and times are computed with that."
        )
        if size.at_least:
            text += " ≥: the longest answer seen had not ended, so answers are longer still."
        lines.append(text)
    return lines


def markdown(results: Sequence[Result], choice: Choice, about: About) -> str:
    """table.md."""
    parts = [f"# {headline(results, choice, about)}", ""]
    if about.label:
        parts += [f"**{about.label}.**", ""]
    if len(results) < about.planned:
        parts += [f"Not finished: {len(results)} of {about.planned} candidates.", ""]
    parts += [f"{about.architecture} ({about.model}), {about.machine}. {about.made_at}.", ""]
    parts += table(*before_and_after(results, choice, about))
    parts += ["", f"Choice: {chosen(choice)}.", "", "## All candidates", ""]
    parts += table(*all_candidates(results, choice, about))
    parts += ["", "## Predicted before the start, and reported", ""]
    parts += table(*predictions(results))
    if found := remarks(results, choice, about):
        parts += ["", "## Remarks", "", *(f"- {text}" for text in found)]
    parts += ["", "## Flags", ""]
    for result in results:
        parts.append(f"- `{result.name}` ({result.why}): {flags(result.changes or result.server)}")
    parts += ["", "## How it was measured", "", *(f"- {x}" for x in method(results, about)), ""]
    return "\n".join(parts)


def headline(results: Sequence[Result], choice: Choice, about: About) -> str:
    now = [judge.figures(r).tokens_s for r in (results[0], choice.result or results[0])]
    start = "Rehearsed tune" if about.rehearsal else "Tune"
    if now[0] and now[1] and choice.result is not results[0]:
        return f"{start} of {about.model}: {now[1] / now[0]:.2f} times the tokens a second"
    return f"{start} of {about.model}"


def chosen(choice: Choice) -> str:
    name = f"`{choice.result.name}`" if choice.result else "none"
    return f"{name}, {choice.why}"


def flags(found: Mapping[str, Any]) -> str:
    return ", ".join(
        f"without {k}" if v is None else f"{k}: {json.dumps(v)}" for k, v in found.items()
    )


# ---- the file for `engine.server: auto` ---------------------------------------------------------


def server_yaml(results: Sequence[Result], choice: Choice, about: About) -> str:
    """server.yaml: the chosen flags, each with where it comes from, and what they were made for."""
    result = choice.result
    assert result is not None
    made_for = {
        "model": about.model_key,
        "model_path": about.model_path,
        "sglang": about.sglang,
        "gpu": about.gpu,
        "gpu_mib": about.gpu_mib,
        "rehearsal": about.rehearsal,
    }
    lines = ["# Made by `python -m workflow_scripts.tune`; used where engine.server is `auto`."]
    lines += [f"# {about.label}"] if about.label else []
    lines += [
        f"# {about.made_at}, {about.machine}: {speed(judge.figures(result))} tokens/s, the "
        f"baseline {speed(judge.figures(results[0]))}",
        yaml.safe_dump({"chosen": result.name, "made_for": made_for}, sort_keys=False).rstrip(),
        "server:" if result.server else "server: {}",
    ]
    for name, value in result.server.items():
        text = yaml.safe_dump({name: value}, default_flow_style=True, width=10**6).strip()
        where = f"`{result.name}`" if name in result.changes else "the configuration's"
        lines.append(f"  {text[1:-1]} # {where}")
    for name, value in result.changes.items():
        if value is None:
            lines.append(f"  # {name}: taken away by `{result.name}`")
    return "\n".join(lines) + "\n"
