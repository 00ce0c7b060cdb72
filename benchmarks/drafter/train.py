"""EAGLE-3 drafters by speculators' own trainer: every arm and seed, several at a time on one GPU.

Each gets the same number of steps. The options are those whose model SGLang's llama_eagle3.py has:
no norm before fc, the residual taken before the norm, hidden states handed on before the last norm.
With --dflash, DFlash drafters of some arms too.
The trainer's end of an epoch need not be the end of training, so what its validation said last
stands in the record.
"""

import argparse
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.drafter import record

DRAFTS = 3  # of a step, in training and in the engine
DFLASH = "dflash_"  # before the arm in such a drafter's name
BLOCK = 8  # tokens that DFlash drafts at once, the first of them known
KINDS = {
    "eagle3": [
        *("--speculator-type", "eagle3", "--full-attention-indices", "0"),
        *("--no-norm-before-fc", "--no-norm-output", "--no-norm-before-residual"),
        *("--ttt-steps", str(DRAFTS)),
    ],
    "dflash": [
        *("--speculator-type", "dflash", "--block-size", str(BLOCK), "--max-anchors", "256"),
    ],
}
OPTIONS = [
    # With torch.compile the fused loss of 0.9.0 dies, hence also TORCHDYNAMO_DISABLE.
    *("--loss-implementation", "eager", "--draft-attn-impl", "sdpa"),
    *("--mask-token-id", "0", "--on-missing", "raise"),
    *("--no-resume-from-checkpoint", "--log-freq", "50"),
]


def packed(lengths: list[int], batch_tokens: int, seed: int) -> Iterator[int]:
    """The trainer's own numbers of batches, epoch by epoch."""
    from speculators.train.distributed_batch_sampler import MultipackDistributedBatchSamplerV2

    sampler = MultipackDistributedBatchSamplerV2(
        batch_max_length=batch_tokens, lengths=np.array(lengths), num_replicas=1, rank=0, seed=seed
    )
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        yield len(sampler)


def batch_tokens(lengths: list[int], longest: int, per_epoch: int) -> int:
    """Tokens of a batch with which an epoch has `per_epoch` of them: then each arm learns the same
    number of supervised tokens a step, whatever its prompts take."""
    tokens = max(-(-sum(lengths) // per_epoch), longest)
    while next(packed(lengths, tokens, 0)) > per_epoch:
        tokens += tokens // 100
    return tokens


def epochs(lengths: list[int], tokens: int, seed: int, steps: int) -> int:
    """How many epochs hold `steps` batches."""
    seen = itertools.accumulate(packed(lengths, tokens, seed))
    return next(epoch for epoch, batches in enumerate(seen, 1) if batches >= steps)


def lengths_of(out: Path, arm: str) -> list[int]:
    rows = pq.read_table(out / "arms" / arm / "train.parquet", columns=["length"])
    lengths: list[int] = rows["length"].to_pylist()
    return lengths


def dflash_layers(out: Path, model: str, count: int = 2) -> Path:
    """The configuration of DFlash's layers: the target's sizes, Qwen3's kind. SGLang 0.5.11 takes a
    RoPE base of a million where it finds none, and transformers 5 has moved it from where it looks.
    """
    target = json.loads((Path(model) / "config.json").read_text())
    names = ["hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"]
    names += ["head_dim", "vocab_size", "max_position_embeddings", "rms_norm_eps"]
    layers: dict[str, Any] = {name: target[name] for name in names} | {
        "model_type": "qwen3",
        "hidden_act": "silu",
    }
    layers |= {"num_hidden_layers": count, "layer_types": ["full_attention"] * count}
    layers |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    layers |= {"use_sliding_window": False, "tie_word_embeddings": False}
    folder = out / "dflash"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(layers))
    return folder


def command(
    name: str, told: dict[str, Any], seed: int, args: argparse.Namespace
) -> tuple[Path, list[str]]:
    """Where a drafter is saved, and how it is trained."""
    out, arm = args.out, name.removeprefix(DFLASH)
    kind = KINDS["eagle3" if arm == name else "dflash"]
    count = epochs(lengths_of(out, arm), told["batch_tokens"], seed, args.steps)
    save = out / "drafters" / f"{name}-{seed}"
    given = {
        "verifier-name-or-path": args.model,
        "data-path": out / "arms" / arm / "data",
        "train-data-ratio": repr(told["ratio"]),
        "total-seq-len": told["batch_tokens"],
        "max-steps": args.steps,
        "epochs": count,
        "checkpoint-freq": count,
        "lr": args.lr,
        "seed": seed,
        "num-workers": args.workers,
        "save-path": save,
    }
    if arm != name:
        given["draft-config"] = dflash_layers(out, args.model)
    words = [word for key, value in given.items() for word in (f"--{key}", str(value))]
    return save, [sys.executable, "-m", "speculators", "train", *kind, *OPTIONS, *words]


def validation(log: str) -> list[dict[str, float]]:
    """The validation's figures of each epoch, from the trainer's log: its files keep the best."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", log)
    found = re.findall(r"full_acc_(\d)_epoch=([0-9.e+-]+)", plain)
    said = [{int(k): float(v)} for k, v in found]
    epochs_said: list[dict[str, float]] = []
    for one in said:
        for k, v in one.items():
            if k == 0 or not epochs_said:
                epochs_said.append({})
            epochs_said[-1][f"full_acc_{k}"] = v
    for one_epoch in epochs_said:
        one_epoch["accept_length"] = 1 + sum(one_epoch.values())
    # DFlash's trainer says the accept length itself.
    blocks = re.findall(r"\beal_epoch=([0-9.e+-]+)", plain)
    return epochs_said or [{"accept_length": float(value)} for value in blocks]


def train(save: Path, words: list[str], until: float) -> dict[str, Any]:
    """One training, or what is known of it; none is started or goes on after `until`."""
    done = save / "done.json"
    if done.exists():
        told: dict[str, Any] = json.loads(done.read_text())
        return told
    start = time.monotonic()
    told = {"drafter": save.name, "returncode": "no time left", "validation": []}
    if start > until:
        return told
    shutil.rmtree(save, ignore_errors=True)
    save.mkdir(parents=True)
    env = {**os.environ, "TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    env |= {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "OMP_NUM_THREADS": "1"}
    with (save / "log.txt").open("w") as log:
        out: dict[str, Any] = {"stdout": log, "stderr": subprocess.STDOUT, "env": env}
        try:
            code = subprocess.run(words, timeout=until - start, **out).returncode
        except subprocess.TimeoutExpired:
            return told
    said = (save / "log.txt").read_text(errors="replace")
    told |= {"returncode": code, "seconds": round(time.monotonic() - start, 1)}
    told["validation"] = validation(said)
    if code:
        print(f"{save.name} failed:\n{said[-2000:]}", file=sys.stderr, flush=True)
        return told
    for state in save.glob("*/optimizer*"):
        state.unlink()
    done.write_text(json.dumps(told))
    print(f"{save.name}: {told['seconds']} s, {told['validation'][-1:]}", flush=True)
    return told


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="train", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="prepare's folder")
    parser.add_argument("--model", required=True)
    parser.add_argument("--arms", nargs="+", help="default: all")
    parser.add_argument("--dflash", nargs="*", default=["regenerated"], help="arms for DFlash too")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=512)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--jobs", type=int, default=9, help="trainings at the same time")
    parser.add_argument("--limit", type=float, default=1e6, help="seconds; the next call goes on")
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args(argv)
    found = json.loads((args.out / "records/arms.json").read_text())
    arms, per_epoch = found["arms"], found["steps_per_epoch"]
    for arm, told in arms.items():
        # More rows, the same batches: `everything` reads fewer epochs of more text.
        like = "filtered" if arm == "everything" else arm
        lengths = lengths_of(args.out, like)
        told["batch_tokens"] = batch_tokens(lengths, told["longest"], per_epoch)
    # Seed by seed, so that an interrupted training has all arms of some seeds.
    chosen = [*(args.arms or arms), *(DFLASH + arm for arm in args.dflash)]
    jobs = [
        command(name, arms[name.removeprefix(DFLASH)], seed, args)
        for seed in args.seeds
        for name in chosen
    ]
    until = time.monotonic() + args.limit
    with ThreadPoolExecutor(args.jobs) as pool:
        drafters = list(pool.map(lambda job: train(job[0], job[1], until), jobs))
    sizes = {arm: told["batch_tokens"] for arm, told in arms.items()}
    said = {"steps": args.steps, "lr": args.lr, "batch_tokens": sizes, "drafters": drafters}
    record(args.out, "train", said)
    return int(any(one.get("returncode") for one in drafters))
