"""Parquet files, read a batch at a time and written whole or not at all."""

import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from workflow_scripts.base.files import naming

SIDES = ("train", "validation", "drafter")  # of a dataset


def read_batches(
    path: Path, rows: int, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The batches of a Parquet file (of some columns, or of all), holding one row group at a time.
    (pyarrow's own default keeps every row group that was read ahead until the end: the whole
    file.)"""
    with pq.ParquetFile(path, pre_buffer=False) as file:
        yield from file.iter_batches(rows, columns=columns)


class TableWriter:
    """Appends rows to a Parquet file in row groups, holding one group in memory."""

    def __init__(self, path: Path, table: pa.Schema, group_rows: int):
        self.schema = table
        self.group_rows = group_rows
        self.written = 0
        self._rows: list[dict[str, Any]] = []
        self._tables: list[pa.Table] = []
        self._path = path
        self._writer = pq.ParquetWriter(path, table, compression="zstd")

    def add(self, rows: Iterable[dict[str, Any]]) -> None:
        self._rows.extend(rows)
        if len(self._rows) >= self.group_rows:
            self.flush()

    def add_table(self, rows: pa.Table) -> None:
        """Append an Arrow table; small ones are gathered into one row group."""
        if len(rows):
            self._tables.append(rows.cast(self.schema))
            if sum(map(len, self._tables)) >= self.group_rows:
                self.flush()

    def flush(self) -> None:
        if self._rows:
            self._tables.append(pa.Table.from_pylist(self._rows, self.schema))
        if self._tables:
            table = pa.concat_tables(self._tables)
            with naming(self._path):
                self._writer.write_table(table, row_group_size=len(table))
            self.written += len(table)
        self._rows, self._tables = [], []

    def close(self) -> None:
        self.flush()
        with naming(self._path):
            self._writer.close()


@contextmanager
def table_writer(path: Path, table: pa.Schema, group_rows: int = 2048) -> Iterator[TableWriter]:
    """A writer whose file appears under its name only when it is whole and on the disk. Of what
    killed processes left half written nothing stays."""
    for left in path.parent.glob(f"{path.name}*.part"):
        left.unlink(missing_ok=True)
    part = path.with_name(f"{path.name}.{socket.gethostname()}-{os.getpid()}.part")
    writer = TableWriter(part, table, group_rows)
    try:
        yield writer
        writer.close()
        with naming(part), part.open("rb") as f:
            os.fsync(f.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def side_files(folder: Path) -> dict[str, list[Path]]:
    """A finished dataset's files by side, in order; a side without files is left out."""
    found = {side: sorted(folder.glob(f"{side}-*.parquet")) for side in SIDES}
    return {side: files for side, files in found.items() if files}
