"""How often each id is learnt: what a drafter's reduced vocabulary (EAGLE-3's `d2t` and `t2d`) is
made of.

Counted as speculators and SpecForge do: the ids where the loss mask is 1, unshifted, of all rows
that train a drafter.
"""

import pickle
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from workflow_scripts.base.files import appearing

FILE = "token_freq.pt"
SIZES = (8_000, 16_000, 32_000)  # of a reduced vocabulary; 32,000 is most EAGLE-3 drafters'


def learnt_ids(rows: pa.Table | pa.RecordBatch) -> dict[int, int]:
    """How often each id is supervised in rows of the training table."""
    ids, mask = (
        pc.list_flatten(rows[name]).to_numpy(zero_copy_only=False)
        for name in ("input_ids", "loss_mask")
    )
    found, counts = np.unique(ids[mask == 1], return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def coverage(counts: Counter[int]) -> dict[str, Any]:
    """What was counted, and the share of it that the most frequent ids cover; no share of
    nothing."""
    total = counts.total()
    most = sorted(counts.values(), reverse=True)
    shares = {str(size): sum(most[:size]) / total for size in SIZES if total}
    return {"supervised_tokens": total, "distinct_ids": len(counts), "coverage": shares}


def write_frequencies(path: Path, counts: Counter[int]) -> None:
    """{id: count} in the form of torch.save, without torch: a zip archive that holds a pickle of
    protocol 2. torch.load takes it with weights_only, since it is integers alone. Equal counts are
    equal bytes."""
    entries = {
        "data.pkl": pickle.dumps(dict(sorted(counts.items())), protocol=2),
        "version": b"3\n",
    }
    with appearing(path) as f, zipfile.ZipFile(f, "w") as archive:
        for name, content in entries.items():  # ZipInfo: a fixed date, not today's
            archive.writestr(zipfile.ZipInfo(f"{path.stem}/{name}"), content)
