"""Starts of SGLang that are known, and the plans of them."""

import json
from typing import Any

from tests.made.paths import RECORDED
from workflow_scripts.sglang.geometry import geometry
from workflow_scripts.sglang.memory import Plan, predict
from workflow_scripts.sglang.observed import Observed, from_log

BOOT = RECORDED / "boot"
QWEN_CONFIG = json.loads((BOOT / "qwen3.6-27b.config.json").read_text())
QWEN = geometry(QWEN_CONFIG)
SMOL = geometry(json.loads((BOOT / "smollm2-135m.config.json").read_text()))
H200 = 139.13  # GiB free before the load, by all nine logs

MTP: dict[str, Any] = {
    "speculative-algorithm": "NEXTN",
    "speculative-num-steps": 3,
    "speculative-eagle-topk": 1,
    "speculative-num-draft-tokens": 4,
}
BUFFERED = MTP | {"mamba-scheduler-strategy": "extra_buffer"}
NO_RADIX = {"disable-radix-cache": True}
BEFORE = BUFFERED | {"mem-fraction-static": 0.8, "max-mamba-cache-size": 80}
# The flags of each log, as they were given.
FLAGS: dict[str, dict[str, Any]] = {
    "default80": BEFORE,
    "seed_before_80": BEFORE,
    "seed_tuned_160_mrr32": BUFFERED
    | {"mem-fraction-static": 0.9, "max-mamba-cache-size": 160, "max-running-requests": 32},
    "noradix_spec64": MTP | NO_RADIX | {"mem-fraction-static": 0.9, "max-running-requests": 64},
    "noradix_nospec256": NO_RADIX | {"mem-fraction-static": 0.9, "max-running-requests": 256},
    "noradix_nospec128": NO_RADIX | {"mem-fraction-static": 0.9, "max-running-requests": 128},
    "noradix_nospec256_bf16_state": NO_RADIX
    | {"mem-fraction-static": 0.9, "max-running-requests": 256, "mamba-ssm-dtype": "bfloat16"},
    "kit_nospec32": NO_RADIX | {"mem-fraction-static": 0.85, "max-running-requests": 32},
    "smollm2_real_model": {"mem-fraction-static": 0.3, "max-running-requests": 64},
}
# The motivating run: a B200 of 183,359 MiB. How much of it was free is not known; it is the one
# fitted number of all figures here, chosen so that 798,080 tokens come out.
FITTED_GIB = 177.47
B200_MIB = 183_359
TUNED = BUFFERED | {
    "mem-fraction-static": 0.93,
    "max-mamba-cache-size": 200,
    "max-running-requests": 64,
    "mamba-full-memory-ratio": 0.6,
}


def planned(name: str) -> tuple[Plan, Observed]:
    model = SMOL if name.startswith("smollm2") else QWEN
    server = FLAGS[name] | {"context-length": 8192, "attention-backend": "triton"}
    return predict(model, H200, "0.5.11", server), logged(name)


def logged(name: str) -> Observed:
    return from_log((BOOT / f"{name}.log").read_text())


def motivating(**changes: Any) -> Plan:
    server = {k: v for k, v in (TUNED | changes).items() if v is not None}
    return predict(QWEN, FITTED_GIB, "0.5.11", server, total_mib=B200_MIB)
