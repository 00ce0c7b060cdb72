"""What a server's own log and /server_info say of its memory."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Observed:
    """What a server's log says of its own start; GiB. None where the log does not tell."""

    free: float | None = None  # before the load
    loaded: float | None = None  # free after the load of the model
    slots: int | None = None
    ssm: float | None = None
    conv: float | None = None
    intermediate_ssm: float | None = None
    intermediate_conv: float | None = None
    tokens: int | None = None
    k: float | None = None
    v: float | None = None
    pool_end: float | None = None
    draft_load: float | None = None  # with the embedding and head that are dropped again
    draft_k: float | None = None
    draft_v: float | None = None
    graphs: float | None = None
    max_running: int | None = None
    context: int | None = None
    free_end: float | None = None

    @property
    def weights(self) -> float | None:
        return None if self.free is None or self.loaded is None else self.free - self.loaded


def from_log(text: str) -> Observed:
    """Read the last start of a server out of its log (0.5.11's and 0.5.23's lines)."""
    text = text[max(text.rfind("server_args=ServerArgs("), 0) :]

    def find(pattern: str, which: int = 0) -> tuple[str, ...]:
        found = [match.groups() for match in re.finditer(pattern, text)]
        return found[which] if which < len(found) else ()

    def gib(pattern: str, which: int = 0) -> float | None:
        found = find(pattern, which)
        return float(found[0]) if found else None

    def count(pattern: str) -> int | None:
        found = find(pattern)
        return int(found[0]) if found else None

    number = r"([\d.]+\d)"
    end = rf"Load weight end\..*?avail mem={number} GB(?:, mem usage={number} GB)?"
    pool = rf"is allocated\.[^\n]*?#tokens: (\d+), K size: {number} GB, V size: {number} GB"
    target, draft, loads = find(pool), find(pool, 1), find(end, 1)
    graphs = re.findall(rf"Capture [^\n]*graph end\.[^\n]*?mem usage={number} GB", text)
    return Observed(
        free=gib(rf"Load weight begin\. avail mem={number} GB"),
        loaded=gib(end),
        slots=count(r"max_mamba_cache_size: (\d+), conv_state"),
        ssm=gib(rf"[ ,]ssm_state size: {number} ?GB"),
        conv=gib(rf"[ ,]conv_state size: {number} ?GB"),
        intermediate_ssm=gib(rf"intermediate_ssm_state_cache size: {number} ?GB"),
        intermediate_conv=gib(rf"intermediate_conv_window_cache size: {number} ?GB"),
        tokens=int(target[0]) if target else None,
        k=float(target[1]) if target else None,
        v=float(target[2]) if target else None,
        pool_end=gib(rf"Memory pool end\. avail mem={number} GB"),
        draft_load=float(loads[1]) if len(loads) > 1 and loads[1] else None,
        draft_k=float(draft[1]) if draft else None,
        draft_v=float(draft[2]) if draft else None,
        graphs=sum(map(float, graphs)) if graphs else None,
        max_running=count(r"max_total_num_tokens=\d+,[^\n]*?max_running_requests=(\d+)"),
        context=count(r"max_total_num_tokens=\d+,[^\n]*?context_len=(\d+)"),
        free_end=gib(rf"available_gpu_mem={number} GB"),
    )


def from_server_info(info: Mapping[str, Any]) -> Observed:
    """What /server_info says of a running server; sizes of the single caches are not in it."""
    states = info.get("internal_states")
    state = states[0] if isinstance(states, list) and states else {}

    def count(*keys: str) -> int | None:
        values = [source.get(key) for key in keys for source in (state, info)]
        return next((value for value in values if type(value) is int), None)

    return Observed(
        slots=count("max_mamba_cache_size"),
        tokens=count("max_total_num_tokens"),
        max_running=count("effective_max_running_requests_per_dp"),
        context=count("context_length"),
    )
