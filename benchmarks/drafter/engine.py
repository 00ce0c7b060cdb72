"""A running SGLang server, asked with token ids: answers, speed, and the drafts it accepted."""

import json
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from typing import Any

Answer = dict[str, Any]


def post(url: str, path: str, body: dict[str, Any], timeout: float = 600) -> Any:
    request = urllib.request.Request(
        url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.loads(answer.read())


def metric(url: str, name: str) -> float | None:
    """The value of one of the server's own metrics, None where it has none of that name."""
    with urllib.request.urlopen(url + "/metrics", timeout=60) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith((name + "{", name + " ")):
                return float(line.rsplit(" ", 1)[1])
    return None


def ask(url: str, prompt: list[int], temperature: float, max_new_tokens: int) -> Answer:
    """One answer: ids, finish reason, and how its tokens came about."""
    sampling = {"temperature": temperature, "top_p": 1.0, "top_k": -1}
    sampling["max_new_tokens"] = max_new_tokens
    told = post(url, "/generate", {"input_ids": prompt, "sampling_params": sampling})
    meta = told["meta_info"]
    return {
        "output_ids": told["output_ids"],
        "finish": meta["finish_reason"]["type"],
        "tokens": meta["completion_tokens"],
        "steps": meta.get("spec_verify_ct"),
        "accepted": meta.get("spec_accepted_drafts"),
        "histogram": meta.get("spec_accept_histogram"),
    }


def ask_all(
    url: str,
    prompts: list[list[int]],
    temperature: float,
    max_new_tokens: int,
    in_flight: int,
) -> tuple[list[Answer], float]:
    """The answers, in the prompts' order, and the seconds until the last one."""
    start = time.monotonic()
    with ThreadPoolExecutor(in_flight) as pool:
        answers = list(pool.map(lambda p: ask(url, p, temperature, max_new_tokens), prompts))
    return answers, time.monotonic() - start


def summed(answers: list[Answer], seconds: float) -> dict[str, Any]:
    """What a set of answers says together. The accept length is one token of the target's own and
    the accepted drafts of a verification step, over all steps; the server's own figure for a
    request (`spec_accept_length`) also counts the token that the prefill gave."""
    tokens = sum(a["tokens"] for a in answers)
    told: dict[str, Any] = {
        "requests": len(answers),
        "tokens": tokens,
        "seconds": round(seconds, 3),
        "tokens_per_s": round(tokens / seconds, 1),
        "stopped": sum(a["finish"] == "stop" for a in answers),
    }
    steps = sum(a["steps"] or 0 for a in answers)
    if steps:
        accepted = sum(a["accepted"] or 0 for a in answers)
        told |= {"verify_steps": steps, "accepted_drafts": accepted}
        told["accept_length"] = round(1 + accepted / steps, 4)
        told["server_accept_length"] = round(tokens / steps, 4)
        # Loops are easy to draft, and an answer that never ends is mostly one.
        ended = [a for a in answers if a["finish"] == "stop" and a["steps"]]
        if ended:
            of = sum(a["accepted"] for a in ended) / sum(a["steps"] for a in ended)
            told["accept_length_stopped"] = round(1 + of, 4)
        rows = [a["histogram"] or [] for a in answers]
        told["histogram"] = [sum(x) for x in zip_longest(*rows, fillvalue=0)]
    return told
