"""What the target computes for each row of each arm, by plain transformers: EAGLE-3's features.

speculators looks for hs_<row>.safetensors: token_ids [n], hidden_states [n, 4, hidden], the inputs
of layers 2, n/2 and n-3 and the last layer's output before the final norm. Rows that several arms
share are computed once.
"""

import argparse
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from benchmarks.drafter import record


class Features:
    """The target with a hook on each layer whose output is wanted."""

    def __init__(self, model: str, device: str):
        kind = torch.bfloat16
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=kind).to(device).eval()
        self.device = device
        layers = self.model.model.layers
        count = len(layers)
        self.places = [1, count // 2 - 1, count - 4, count - 1]
        self.seen: dict[int, torch.Tensor] = {}
        for place in self.places:
            layers[place].register_forward_hook(self._keep(place))

    def _keep(self, place: int) -> Any:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            self.seen[place] = output[0] if isinstance(output, tuple) else output

        return hook

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def __call__(self, rows: list[list[int]]) -> list[torch.Tensor]:
        """[n, 4, hidden] a row. Causal attention never reads the padding at a row's end."""
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        self.model.model(ids.to(self.device), use_cache=False)
        whole = torch.stack([self.seen[place] for place in self.places], dim=2).cpu()
        return [whole[k, : len(row)].clone() for k, row in enumerate(rows)]


def wanted(out: Path) -> dict[bytes, tuple[list[int], list[Path]]]:
    """Different rows of all arms, each with the files that it goes to."""
    rows: dict[bytes, tuple[list[int], list[Path]]] = {}
    for arm in sorted((out / "arms").iterdir()):
        parts = [arm / "train.parquet", arm / "validation.parquet"]
        ids = [
            i for part in parts for i in pq.read_table(part, columns=["input_ids"])[0].to_pylist()
        ]
        folder = arm / "data/hidden_states"
        folder.mkdir(exist_ok=True)
        for number, row in enumerate(ids):
            key = blake2b(repr(row).encode(), digest_size=16).digest()
            rows.setdefault(key, (row, []))[1].append(folder / f"hs_{number}.safetensors")
    return rows


def batches(rows: list[Any], most: int) -> Iterator[list[Any]]:
    """Rows of about one length together, at most `most` tokens with their padding."""
    batch: list[Any] = []
    for row in sorted(rows, key=lambda row: len(row[0])):
        if batch and len(row[0]) * (len(batch) + 1) > most:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def store(ids: list[int], features: torch.Tensor, files: list[Path]) -> None:
    first, *others = files
    tensors = {"token_ids": torch.tensor(ids), "hidden_states": features}
    save_file(tensors, str(first))
    for other in others:
        other.unlink(missing_ok=True)
        os.link(first, other)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="features", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="prepare's folder")
    parser.add_argument("--model", required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch-tokens", type=int, default=65536)
    args = parser.parse_args(argv)
    start = time.monotonic()
    rows = list(wanted(args.out).values())
    features = Features(args.model, args.device)
    with ThreadPoolExecutor(8) as pool:
        waiting: list[Any] = []
        for batch in batches(rows, args.batch_tokens):
            for (ids, files), found in zip(batch, features([r[0] for r in batch]), strict=True):
                waiting.append(pool.submit(store, ids, found, files))
        for done in waiting:
            done.result()
    told: dict[str, Any] = {"rows": len(rows), "tokens": sum(len(r[0]) for r in rows)}
    told |= {"files": sum(len(r[1]) for r in rows), "layers": [p + 1 for p in features.places]}
    record(args.out, "features", told | {"seconds": round(time.monotonic() - start, 1)})
    return 0
