"""Bytes of a model's weight files, by their headers."""

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.sglang.parameters import Parameters

FLOATS = {"F64", "F32", "F16", "BF16"}
OTHERS = {"F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1, "BOOL": 1, "I16": 2, "I32": 4, "I64": 8}


def stored_bytes(folder: Path, counted: Parameters) -> tuple[int | None, int | None, str]:
    """Bytes of the model and of its MTP layers by the files, or None where there are none."""
    files = sorted(folder.glob("*.safetensors"))
    index = folder / "model.safetensors.index.json"
    listed: Any = {}
    if index.is_file():
        try:
            listed = json.loads(index.read_text(encoding="utf-8"))
            needed = set(listed["weight_map"].values())
            total = int(listed.get("metadata", {}).get("total_size", 0))
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise ConfigError(f"{index} cannot be read ({error!r}); fetch it again") from None
        if not needed <= {path.name for path in files}:
            has_drafts = any(str(name).startswith("mtp.") for name in listed["weight_map"])
            rest = total - (counted.draft if has_drafts else 0)
            return (rest, None, f"by {index.name}") if rest > 0 else (None, None, "")
        files = [path for path in files if path.name in needed]
    if not files:
        return None, None, ""
    model, sums = counted.model, [0, 0]
    plain = not model.quant
    for path in files:
        for name, kind, numbers in _tensors(path):
            each = (
                model.size if kind in FLOATS and (plain or kind != "F32") else OTHERS.get(kind, 4)
            )
            sums[name.startswith("mtp.")] += numbers * each
    return sums[0], sums[1], "measured in the weight files"


def _tensors(path: Path) -> Iterator[tuple[str, str, int]]:
    """Name, type and number of elements of a safetensors file's tensors, by its header alone."""
    try:
        with path.open("rb") as f:
            (length,) = struct.unpack("<Q", f.read(8))
            header = json.loads(f.read(min(length, 200_000_000)))
        for name, tensor in header.items():
            if name != "__metadata__":
                yield name, tensor["dtype"], math.prod(tensor["shape"])
    except (OSError, struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} cannot be read ({error!r}); fetch the model again") from None
