"""The training table: samples as Arrow, and files of one side of the split."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from workflow_scripts.dataset.frequencies import learnt_ids
from workflow_scripts.dataset.samples import Sample
from workflow_scripts.tables.columns import IDS, TRAIN
from workflow_scripts.tables.parquet import TableWriter, table_writer

GROUP_ROWS = 512  # rows of a row group: what a reader that streams holds at once


def train_table(batch: list[Sample]) -> pa.Table:
    """Samples as rows of the training table; ids and masks are built without Python integers."""
    lengths = np.array([s.length for s in batch], dtype=np.int32)
    prompt_lengths = np.array([len(s.prompt_ids) for s in batch], dtype=np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32)
    parts = [part for s in batch for part in (s.prompt_ids, s.output_ids)]
    ids = np.concatenate(parts) if parts else np.array([], dtype=np.int32)
    mask = np.ones(len(ids), dtype=np.int8)
    for start, length in zip(offsets, prompt_lengths, strict=False):
        mask[start : start + length] = 0
    columns: dict[str, Any] = {
        "input_ids": pa.ListArray.from_arrays(offsets, pa.array(ids), type=IDS),
        "loss_mask": pa.ListArray.from_arrays(
            offsets, pa.array(mask), type=TRAIN.field("loss_mask").type
        ),
        "length": lengths,
        "prompt_length": prompt_lengths,
        "completion_length": lengths - prompt_lengths,
    }
    for name in TRAIN.names:
        if name not in columns:
            columns[name] = [s.fields[name] for s in batch]
    arrays = [pa.array(columns[f.name], type=f.type) for f in TRAIN]
    return pa.Table.from_arrays(arrays, schema=TRAIN)


class Side:
    """One side of the dataset, in files of at most `rows_per_file` rows.

    Args:
        metadata: written into each Parquet file's own metadata.
    """

    def __init__(self, folder: Path, name: str, rows_per_file: int, metadata: dict[str, str]):
        self.folder, self.name, self.rows_per_file = folder, name, rows_per_file
        self.schema = TRAIN.with_metadata(metadata)
        self.rows = 0
        self.tokens = 0
        self.supervised = 0
        self.lengths: Counter[int] = Counter()
        self.learnt: Counter[int] = Counter()  # how often each id is supervised
        self._files = 0
        self._writer: TableWriter | None = None
        self._context: Any = None

    def add(self, table: pa.Table) -> None:
        """Append rows of the training table."""
        completions = table["completion_length"].to_pylist()
        self.lengths.update(completions)
        self.learnt.update(learnt_ids(table))
        self.supervised += sum(completions)
        self.tokens += sum(table["length"].to_pylist())
        while len(table):
            room = self.rows_per_file - self.rows % self.rows_per_file
            part, table = table.slice(0, room), table.slice(room)
            if self._writer is None:
                self._open()
            assert self._writer is not None
            self._writer.add_table(part)
            self.rows += len(part)
            if self.rows % self.rows_per_file == 0:
                self._close()

    def _open(self) -> None:
        path = self.folder / f"{self.name}-{self._files:05d}.parquet"
        self._context = table_writer(path, self.schema, GROUP_ROWS)
        self._writer = self._context.__enter__()
        self._files += 1

    def _close(self) -> None:
        self._context.__exit__(None, None, None)
        self._writer = None

    def finish(self, even_empty: bool = True) -> None:
        """Close the last file; a side without rows is a file without rows, or none."""
        if self._files == 0 and even_empty:
            self._open()
        if self._writer is not None:
            self._close()
