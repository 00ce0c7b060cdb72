"""The content of files, decompressed."""

import gzip
import io
import zlib
from contextlib import suppress
from typing import Any, BinaryIO, cast

import zstandard

COMPRESSIONS = {b"\x1f\x8b\x08": ".gz", b"\x28\xb5\x2f\xfd": ".zst"}
HEAD = 65536  # bytes that decide about the format
BLOCK = 65536

DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError)


class _Zstandard(io.RawIOBase):
    """A Zstandard file as a stream that notices when a frame is cut off."""

    def __init__(self, path: str):
        self._file = open(path, "rb")  # noqa: SIM115
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._left = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            block = self._left or self._file.read(BLOCK)
            if not block:
                if self._frame is not None:
                    raise EOFError("the file ends inside a Zstandard frame")
                return 0
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
            self._ready = memoryview(self._frame.decompress(block))
            self._left = b""
            if self._frame.eof:
                self._left, self._frame = self._frame.unused_data, None
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


def compression_of(path: str) -> str:
    with open(path, "rb") as f:
        magic = f.read(4)
    return next((name for start, name in COMPRESSIONS.items() if magic.startswith(start)), "")


def open_stream(path: str) -> BinaryIO:
    """The file's content, decompressed."""
    compression = compression_of(path)
    if compression == ".gz":
        return cast(BinaryIO, gzip.open(path))
    if compression == ".zst":
        return io.BufferedReader(_Zstandard(path), BLOCK)
    return open(path, "rb")


def head_of(path: str) -> bytes:
    head = b""
    with open_stream(path) as f, suppress(*DAMAGE):
        while len(head) < HEAD and (block := cast(io.BufferedReader, f).read1(HEAD)):
            head += block
    return head
