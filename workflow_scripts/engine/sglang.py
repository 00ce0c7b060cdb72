"""SGLang's native API."""

from typing import Any

from workflow_scripts.config.sections import Sampling
from workflow_scripts.engine.http import PROBE_S, HttpEngine
from workflow_scripts.engine.protocol import Ask, EngineError, Facts
from workflow_scripts.model.answers import Answer


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

    async def ask(self, ask: Ask, sampling: Sampling | None = None) -> Answer:
        s = sampling or self.sampling
        body = {
            "rid": ask.rid,
            "input_ids": ask.prompt_ids,
            "sampling_params": {
                "temperature": s.temperature,
                "top_p": s.top_p,
                "top_k": s.top_k,
                "min_p": s.min_p,
                "max_new_tokens": ask.fixed or s.max_new_tokens,
                "sampling_seed": ask.seed,
                "stop_token_ids": None if ask.fixed else self.end_ids,
                "ignore_eos": ask.fixed is not None,
            },
        }
        return self._understood(_read_sglang, await self._json("POST", "/generate", None, body))

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


def _read_sglang(found: Any) -> Answer:
    meta = found["meta_info"]
    finish = meta["finish_reason"]
    retractions = meta.get("num_retractions", meta.get("total_retractions"))
    return Answer(
        output_ids=list(found["output_ids"]),
        finish=str(finish["type"]),
        matched=finish.get("matched"),
        retractions=int(retractions or 0),
        accept_length=meta.get("spec_accept_length"),
    )
