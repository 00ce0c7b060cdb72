"""SGLang's native API.

An answer counts only if it is the one to its request: its id is the request's, both token counts
are those of the ids, there are no more than were asked for, and a stop is at an end token. Whatever
else stands between (a proxy, another server on the port, a late answer on a connection that was
kept) would otherwise put somebody else's words into the dataset.
"""

import math
from functools import partial
from typing import Any

from workflow_scripts.config.sections import Sampling
from workflow_scripts.engine.http import PROBE_S, HttpEngine
from workflow_scripts.engine.protocol import Ask, EngineError, Facts
from workflow_scripts.model.answers import Answer

# Bytes of an answer beside those of its tokens, and of a token: its id, and its text as JSON.
ANSWER_BYTES, TOKEN_BYTES = 1 << 20, 512


class SGLang(HttpEngine):
    """SGLang's native API (seen on 0.5.11; the same fields in 0.5.23)."""

    async def describe(self) -> Facts:
        found = await self._json("GET", "/server_info", PROBE_S)
        try:
            state = found["internal_states"][0]
            running = state["effective_max_running_requests_per_dp"]
            return Facts(
                max_running=int(running) * int(found.get("dp_size") or 1),
                context=int(found["context_length"] or found["max_req_input_len"] + 6),
                raw=found,
            )
        except (KeyError, TypeError, IndexError, ValueError) as error:
            message = f"{self.url}/server_info: not what SGLang answers ({error!r})"
            raise EngineError("foreign_server", message, retry=False) from None

    async def model(self) -> dict[str, Any]:
        """What the server says of its model."""
        found = await self._json("GET", "/model_info", PROBE_S)
        return found if isinstance(found, dict) else {}

    async def ask(self, ask: Ask, sampling: Sampling | None = None) -> Answer:
        s = sampling or self.sampling
        most = ask.fixed or s.max_new_tokens
        body = {
            "rid": ask.rid,
            "input_ids": ask.prompt_ids,
            "sampling_params": {
                "temperature": s.temperature,
                "top_p": s.top_p,
                "top_k": s.top_k,
                "min_p": s.min_p,
                "max_new_tokens": most,
                "sampling_seed": ask.seed,
                "stop_token_ids": None if ask.fixed else self.end_ids,
                "ignore_eos": ask.fixed is not None,
            },
        }
        found = await self._json("POST", "/generate", None, body, ANSWER_BYTES + TOKEN_BYTES * most)
        return self._understood(partial(_read_sglang, ask, most, self.end_ids), found)

    async def abort(self, rid: str) -> None:
        await self._call("POST", "/abort_request", PROBE_S, {"rid": rid})

    async def loads(self) -> list[dict[str, Any]]:
        """The server's own account of its load, one entry per data-parallel rank."""
        found = await self._json("GET", "/v1/loads?include=core", PROBE_S)
        return list(found["loads"])

    async def prometheus(self) -> bytes:
        return await self._call("GET", "/metrics", PROBE_S)

    async def progress(self) -> object:
        keys = ("num_running_reqs", "num_waiting_reqs", "num_used_tokens", "num_total_tokens")
        return [[load.get(key) for key in keys] for load in await self.loads()]

    async def load(self) -> tuple[int | None, float | None]:
        loads = await self.loads()
        return sum(x["num_running_reqs"] for x in loads), max(x["token_usage"] for x in loads)


def _read_sglang(ask: Ask, most: int, end_ids: list[int], found: Any) -> Answer:
    """An answer of at most `most` ids to `ask`.

    Raises:
        KeyError, TypeError, IndexError, AttributeError: it is no answer of SGLang's.
        ValueError: it is not the answer to this request, or contradicts itself.
    """
    meta = found["meta_info"]
    finish = meta["finish_reason"]
    kind, matched = str(finish["type"]), finish.get("matched")
    ids = list(found["output_ids"])
    _same("meta_info.id", meta["id"], ask.rid)
    if kind != "abort":  # one in the queue has no counts
        _same("prompt_tokens", meta["prompt_tokens"], len(ask.prompt_ids))
        _same("completion_tokens", meta["completion_tokens"], len(ids))
    if len(ids) > most:
        raise ValueError(f"{len(ids)} output ids, {most} were asked for at most")
    last = ids[-1] if ids else None
    at_an_end = last == matched and matched in end_ids
    if kind == "stop" and not at_an_end and not isinstance(matched, str):  # a text: a fault
        raise ValueError(f"stopped at {matched!r}, the last id is {last!r}, no end token")
    retractions = meta.get("num_retractions", meta.get("total_retractions"))
    return Answer(
        output_ids=ids,
        finish=kind,
        matched=matched,
        retractions=_count("retractions", retractions),
        accept_length=_length("spec_accept_length", meta.get("spec_accept_length")),
    )


def _same(name: str, found: Any, wanted: object) -> None:
    if type(found) is not type(wanted) or found != wanted:
        raise ValueError(f"{name} is {found!r}, this request's is {wanted!r}")


def _count(name: str, value: Any) -> int:
    if value is None:
        return 0
    if type(value) is not int or not 0 <= value < 2**31:
        raise ValueError(f"{name} is {value!r}, no count")
    return value


def _length(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} is {value!r}, no length")
    return float(value)
