"""What a tune has measured, what it means, and which candidate is the choice. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, quantiles
from typing import Any

from workflow_scripts.sglang.compare import TOLERANCE
from workflow_scripts.tune.results import Answered, Result

FULL = 0.9  # of the requests that a server can run: with this many it counts as full
PLATEAU = 1.02  # running requests that grow by less are grown up
LEAST_INTERVALS = 6  # before a speed counts as known
CLOSE = 0.02  # half-width of the median's notch, as a share of it, at which measuring ends
HOPELESS_INTERVALS, HOPELESS = 4, 0.75  # of the best speed so far: stop below it
MIN_GAIN = 1.02  # over the baseline; less is no reason to change anything
LOOPS_MORE = 0.02  # share of looping answers over the baseline's that refuses a candidate ...
DEVIATIONS = 2.0  # ... if it is more than chance by this many standard errors
EARLY_TOKENS = 8  # greedy answers that part before this token part early
EARLY_MORE = 0.25  # share of them over the baseline's that refuses a candidate
AGREEMENT_LESS = 0.4  # share of equal leading tokens under the baseline's that refuses one
SETTLED = 0.05  # change of speed during a measurement with which it may end
DRIFT = 0.1  # change of speed during a measurement that is told
ACCEPT_ALL = 0.95  # of the most a step can give: a model is rarely that predictable, a loop is

# ---- numbers ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lengths:
    """Tokens of an answer, the unfinished ones counted as longer than they had become.

    `mean` is exact where the longest answer has ended; else answers are longer still (`at_least`).
    `held` is what a request of a long run holds of its answer at a random moment: long answers are
    there for longer, so it is more than half the mean.
    """

    mean: float
    held: float
    at_least: bool
    ended: int
    unfinished: int
    finished_mean: float | None


def lengths(answers: Sequence[Answered]) -> Lengths | None:
    """The mean length by the Kaplan-Meier estimate, restricted to the longest one seen.

    S(t) = product over lengths t_i <= t of (1 - ended_i / at_risk_i); the mean is the area under S
    (Kaplan and Meier, J. Am. Stat. Assoc. 53, 1958, 457-481; Klein and Moeschberger, Survival
    Analysis, 2003, section 4.5). The integral of t S(t) is half the second moment, and an answer
    met at a random moment has become E[L^2] / (2 E[L]) long (Cox, Renewal Theory, 1962, chapter 5).
    """
    longest = max((one.tokens for one in answers), default=0)
    if not longest:
        return None
    alive, area, moment, before = 1.0, 0.0, 0.0, 0
    counts: dict[int, tuple[int, int]] = {}
    for one in answers:
        ended, all_ = counts.get(one.tokens, (0, 0))
        counts[one.tokens] = (ended + one.ended, all_ + 1)
    at_risk = len(answers)
    for tokens, (ended, all_) in sorted(counts.items()):
        area += alive * (tokens - before)
        moment += alive * (tokens**2 - before**2) / 2
        alive *= 1 - ended / at_risk
        at_risk -= all_
        before = tokens
    finished = [one.tokens for one in answers if one.ended]
    return Lengths(
        mean=area,
        held=moment / area,
        at_least=alive > 0,
        ended=len(finished),
        unfinished=len(answers) - len(finished),
        finished_mean=fmean(finished) if finished else None,
    )


def notch(rates: Sequence[float]) -> float:
    """Half-width of the interval around the median of `rates`: 1.57 times the interquartile range
    over the root of their number (McGill, Tukey and Larsen, The American Statistician 32, 1978,
    12-16). Medians further apart than both differ."""
    if len(rates) < 2:
        return 0.0
    low, _, high = quantiles(rates, n=4, method="inclusive")
    return float(1.57 * (high - low) / len(rates) ** 0.5)


def full_from(samples: Sequence[dict[str, Any]], most: int, settle_s: float) -> int | None:
    """The first sample at which the server is full, or None.

    It is where it runs nearly as many requests as it can, or where, for `settle_s` seconds, no more
    have come in although some wait: then something else binds, as a rule the KV cache.
    """
    for i, now in enumerate(samples):
        if now["running"] >= FULL * most:
            return i
        window = [s for s in samples[: i + 1] if s["t"] >= now["t"] - settle_s]
        earlier = [s for s in samples[: i + 1] if s["t"] < now["t"] - settle_s]
        if (
            earlier
            and all(s["queued"] for s in window)
            and max(s["running"] for s in window) <= PLATEAU * max(s["running"] for s in earlier)
            and max(s["running"] for s in earlier) > 0
        ):
            return i
    return None


def interval_rates(samples: Sequence[dict[str, Any]], interval_s: float) -> list[float]:
    """Tokens/s of each interval of at least `interval_s`, by the counter of decoded tokens. An
    interval in which the counter began anew is left out."""
    found: list[float] = []
    before = samples[0] if samples else {}
    for now in samples[1:]:
        if now["t"] - before["t"] >= interval_s * 0.99:
            if now["decoded"] >= before["decoded"]:
                found.append((now["decoded"] - before["decoded"]) / (now["t"] - before["t"]))
            before = now
    return found


def settled(rates: Sequence[float]) -> list[float]:
    """`rates` without a start that differs: requests that began together first have short contexts
    and no new prompts between them.

    What is left out, at most half, is what gives the mean of the rest the smallest standard error
    (MSER: White, Simulation 69, 1997, 323-334).
    """

    def error(start: int) -> float:
        rest = rates[start:]
        middle = fmean(rest)
        return sum((rate - middle) ** 2 for rate in rest) / len(rest) ** 2

    return list(rates[min(range(len(rates) // 2 + 1), key=error) :]) if rates else []


def speed(result: Result) -> float:
    """A measured candidate's tokens/s."""
    return median(settled(result.rates))


def is_known(rates: Sequence[float]) -> bool:
    """Whether the median is known well enough, and the speed no longer changes: a server that is
    new compiles kernels for its first minute."""
    known = len(rates) >= LEAST_INTERVALS and notch(rates) <= CLOSE * median(rates)
    return known and abs(trend(rates)) <= SETTLED


def is_hopeless(rates: Sequence[float], best: float | None) -> bool:
    """Whether a candidate is clearly slower than the best one so far."""
    if best is None or len(rates) < HOPELESS_INTERVALS:
        return False
    return median(rates) + notch(rates) < HOPELESS * best


# ---- one candidate's figures --------------------------------------------------------------------


@dataclass(frozen=True)
class Figures:
    """What the table shows; None where it was not measured."""

    tokens_s: float | None = None
    spread: float = 0.0
    running: float | None = None
    most_running: int | None = None
    lengths: Lengths | None = None
    kv_use: float | None = None
    state_use: float | None = None
    accept_length: float | None = None
    retractions: int = 0
    util: float | None = None
    watts: float | None = None
    joules: float | None = None  # per token
    loops: float | None = None
    truncated: float | None = None
    held: float | None = None  # tokens a running request held at the end, prompt included


def figures(result: Result) -> Figures:
    """The figures of a candidate, from its steady part alone."""
    most = (result.reported or {}).get("max_running")
    if not result.measured or not result.rates:
        return Figures(most_running=most)
    steady = [s for s in result.samples if s["t"] >= (result.steady_s or 0.0)]

    def mean(name: str) -> float | None:
        values = [s[name] for s in steady if s.get(name) is not None]
        return fmean(values) if values else None

    rates, watts, answers = settled(result.rates), mean("watts"), result.answers
    tokens_s = median(rates)
    ended = [one for one in answers if one.ended]
    last, tokens = steady[-1], (result.reported or {}).get("tokens")
    held = None
    if tokens and last.get("kv_use") is not None and last["running"]:
        held = last["kv_use"] * tokens / last["running"]
    counted = [s["retractions"] for s in result.samples if s.get("retractions") is not None]
    return Figures(
        tokens_s=tokens_s,
        spread=notch(rates),
        running=median(s["running"] for s in steady),
        most_running=most,
        lengths=lengths(answers),
        kv_use=mean("kv_use"),
        state_use=mean("state_use"),
        accept_length=mean("accept_length") if result.speculative else None,
        retractions=max([int(max(counted, default=0)), sum(one.retractions for one in answers)]),
        util=mean("util"),
        watts=watts,
        joules=watts / tokens_s if watts is not None and tokens_s else None,
        loops=fmean(one.loops for one in answers) if answers else None,
        truncated=fmean(one.at_limit for one in ended) if ended else None,
        held=held,
    )


# ---- quality ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Agreement:
    """Greedy answers beside the reference's: share of equal leading tokens, and share of answers
    that part within EARLY_TOKENS."""

    share: float
    early: float


def agreement(ours: Sequence[list[int]], theirs: Sequence[list[int]]) -> Agreement | None:
    """None where there is nothing to compare."""
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=False) if a or b]
    if not pairs:
        return None
    shares, early = [], 0
    for a, b in pairs:
        longest = max(len(a), len(b))
        same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
        same = min(len(a), len(b)) if same is None else same
        shares.append(same / longest)
        early += same < min(EARLY_TOKENS, longest)
    return Agreement(fmean(shares), early / len(pairs))


def reference(results: Sequence[Result]) -> Result | None:
    """Whose greedy answers the others are held against: the first candidate without speculation,
    else the first of all."""
    answered = [result for result in results if result.greedy]
    plain = [result for result in answered if not result.speculative]
    return next(iter(plain or answered), None)


def faults(result: Result, results: Sequence[Result]) -> list[str]:
    """Why a candidate may not be the choice: its answers are worse than the baseline's."""
    found, base, ref = [], results[0], reference(results)
    ours, theirs = figures(result), figures(base)
    if ours.loops is not None and result is not base:
        before, n, m = theirs.loops or 0.0, len(result.answers), max(len(base.answers), 1)
        chance = ((ours.loops * (1 - ours.loops) / n) + before * (1 - before) / m) ** 0.5
        if ours.loops - before > max(LOOPS_MORE, DEVIATIONS * chance):
            found.append(
                f"{100 * ours.loops:.1f} % of its answers loop, of the baseline's "
                f"{100 * before:.1f} % (at most {100 * LOOPS_MORE:.0f} points more)"
            )
    if ref is not None and result is not ref and result is not base:
        mine = agreement(result.greedy, ref.greedy)
        other = Agreement(1.0, 0.0) if base is ref else agreement(base.greedy, ref.greedy)
        other = other or Agreement(1.0, 0.0)
        if mine and mine.early > other.early + EARLY_MORE:
            found.append(
                f"{100 * mine.early:.0f} % of its greedy answers part from those of `{ref.name}` "
                f"within {EARLY_TOKENS} tokens, of the baseline's {100 * other.early:.0f} % (at "
                f"most {100 * EARLY_MORE:.0f} points more)"
            )
        if mine and mine.share < other.share - AGREEMENT_LESS:
            found.append(
                f"its greedy answers begin as those of `{ref.name}` for {100 * mine.share:.0f} % "
                f"of their length, the baseline's for {100 * other.share:.0f} % (at most "
                f"{100 * AGREEMENT_LESS:.0f} points less)"
            )
    return found


def concerns(result: Result) -> list[str]:
    """What to know of a candidate's figures, whether it is chosen or not."""
    found, now = list(result.notes), figures(result)
    if now.tokens_s is None:
        return found
    most = result.drafts
    if now.accept_length is not None and most > 1 and now.accept_length > ACCEPT_ALL * most:
        found.append(
            f"accept length {now.accept_length:.2f} of at most {most}: loops are accepted whole; "
            "look at its answers"
        )
    if now.retractions:
        found.append(f"{now.retractions} requests were retracted: the KV cache is too small")
    tokens, size = (result.reported or {}).get("tokens"), now.lengths
    if size and tokens and result.answers and now.running:
        prompt = fmean(one.prompt for one in result.answers)
        later = prompt + size.held
        more = "at least " if size.at_least else ""
        if later * now.running > tokens * (1 - TOLERANCE):
            found.append(
                f"in a long run a request holds {more}{later:,.0f} tokens at a time, so the "
                f"{tokens:,} KV tokens are full with {tokens / later:,.0f} requests, not "
                f"{now.running:,.0f}"
            )
        elif now.held is not None and later > 1.5 * now.held:
            found.append(
                f"requests held {now.held:,.0f} tokens at the end of the measurement, in a long "
                f"run they hold {more}{later:,.0f}: attention takes longer then"
            )
    if size and now.running and size.ended < now.running:
        found.append(
            f"{size.ended:,} answers ended while {now.running:,.0f} ran at once: its speed holds "
            "little of the time that new prompts take; a longer --window-s holds more"
        )
    if abs(change := trend(settled(result.rates))) > DRIFT:
        found.append(f"its speed changed by {change:+.0%} during the measurement")
    if result.faults:
        told = ", ".join(f"{n} x {name}" for name, n in sorted(result.faults.items()))
        found.append(f"requests without an answer: {told}")
    return found


# ---- the choice ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """The candidate to use, None where none can be; and why the faster ones are not it."""

    result: Result | None
    refused: dict[str, list[str]]
    why: str


def choose(results: Sequence[Result], enforce: bool) -> Choice:
    """The fastest candidate whose answers are as good as the baseline's.

    Args:
        results: the baseline first.
        enforce: whether worse answers refuse a candidate; a rehearsal's mean nothing.
    """
    base = results[0]
    refused = {r.name: found for r in results if r.measured and (found := faults(r, results))}
    able = [r for r in results if r.status == "measured" and not (enforce and r.name in refused)]
    if not able:
        return Choice(None, refused, "no candidate was measured to the end")
    best = max(able, key=speed)
    if base.status != "measured":
        return Choice(best, refused, f"the fastest one; the baseline: {base.reason}")
    gain = speed(best) / speed(base)
    if best is not base and gain < MIN_GAIN:
        return Choice(base, refused, f"`{best.name}` is only {gain - 1:.1%} faster")
    why = "nothing acceptable is faster" if best is base else f"{gain:.2f} times the baseline"
    return Choice(best if gain >= MIN_GAIN else base, refused, why)


def pooled(results: Sequence[Result]) -> Lengths | None:
    """The length of an answer by all candidates together: flags do not change it, and a speed is
    comparable only at one length."""
    return lengths([one for result in results for one in result.answers])


def hours(requests: int, mean: float, tokens_s: float, gpus: int) -> float:
    """Time for all requests in hours; ramp and tail left out."""
    return requests * mean / (tokens_s * gpus) / 3600


def trend(rates: Sequence[float]) -> float:
    """Change of speed from the first to the last interval, as a share of the median, by the median
    of all slopes (Theil-Sen)."""
    if len(rates) < 2:
        return 0.0
    slopes = [(b - a) / (j - i) for i, a in enumerate(rates) for j, b in enumerate(rates) if j > i]
    return median(slopes) * (len(rates) - 1) / median(rates) if median(rates) else 0.0


def steps(samples: Sequence[dict[str, Any]]) -> list[tuple[float, float, float]]:
    """Seconds, requests running and tokens/s between each two samples, for the plots."""
    return [
        (b["t"], b["running"], max(b["decoded"] - a["decoded"], 0) / (b["t"] - a["t"]))
        for a, b in pairwise(samples)
        if b["t"] > a["t"]
    ]
