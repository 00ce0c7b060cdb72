"""Tables: written whole or not at all, read with little memory."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from workflow_scripts.tables.columns import SHARD
from workflow_scripts.tables.parquet import read_batches, table_writer

ROW = {name: None for name in SHARD.names} | {"row_id": "a", "line": 1}


def test_a_table_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    with pytest.raises(RuntimeError), table_writer(path, SHARD, 2) as writer:
        writer.add([ROW] * 3)
        raise RuntimeError("killed in the middle")
    assert list(tmp_path.iterdir()) == []
    with table_writer(path, SHARD, 2) as writer:
        writer.add([ROW] * 3)
        writer.add_table(pa.Table.from_pylist([ROW], SHARD))
    assert pq.read_table(path).num_rows == 4 == writer.written
    assert [batch.num_rows for batch in read_batches(path, 10)] == [4]


def test_reading_holds_one_row_group(tmp_path: Path) -> None:
    """160 MB that do not compress, in row groups of 4 MB: reading them takes far less than all."""
    path = tmp_path / "t.parquet"
    noise = np.random.default_rng(1)
    with pq.ParquetWriter(path, pa.schema([("x", pa.int64())])) as writer:
        for _ in range(40):
            ids = noise.integers(0, 2**62, 500_000)
            writer.write_table(pa.table({"x": ids}))
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from workflow_scripts.tables.parquet import read_batches\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024\n"
        "before = peak(); rows = sum(len(b) for b in read_batches(Path(sys.argv[1]), 1000))\n"
        "print(rows, peak() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    rows, grown = map(int, done.stdout.split())
    assert rows == 20_000_000 and grown < 60, done.stdout
