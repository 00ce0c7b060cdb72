"""Identities: of a row and of a request, and the one spelling of what they are taken from."""

import hashlib
import json
import math
from statistics import NormalDist
from typing import Any

import orjson


def digest(*parts: bytes | str) -> str:
    """128-bit BLAKE2b over length-prefixed parts, as 32 hex digits."""
    pieces: list[bytes] = []
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        pieces += (len(raw).to_bytes(8, "little"), raw)
    return hashlib.blake2b(b"".join(pieces), digest_size=16).hexdigest()


def canonical_content(record: Any) -> bytes:
    """An input record's content, independent of key order and white space."""
    return orjson.dumps(record, option=orjson.OPT_SORT_KEYS)


def row_id(source: str, line: int, content: bytes) -> str:
    """Identity of an input row: source name, line number (from 1) and canonical content."""
    return digest(source, str(line), content)


def shard_of(row: str, shards: int) -> int:
    """The shard (from 0) a row belongs to.

    Shard k of n holds the row ids whose leading 64 bits fall into the k-th of n equal ranges, so
    a shard is a random sample of the input, shards in order are row ids in order, and with another
    n a row's journal is found by arithmetic.
    """
    return int(row[:16], 16) * shards >> 64


def request_seed(seed: int, row: str, turn: int) -> int:
    """Seed of one request, 31 bits (SGLang takes an int32)."""
    return int(digest(str(seed), row, str(turn))[:8], 16) & 0x7FFFFFFF


def rehearsal_length(spread: tuple[int, int], row: str, turn: int) -> int:
    """Tokens of a rehearsed completion: log-normal with the given median and 95th percentile."""
    median, p95 = spread
    share = (int(digest("length", row, str(turn))[:13], 16) + 0.5) / 16**13
    sigma = math.log(p95 / median) / NormalDist().inv_cdf(0.95)
    return max(1, round(median * math.exp(sigma * NormalDist().inv_cdf(share))))


def canonical(value: Any) -> str:
    """The one JSON spelling of a value: sorted keys, no spaces. Snakemake compares parameters
    as text, so equal settings must be equal text."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=_as_dict
    )


def _as_dict(value: Any) -> Any:
    """Of a pydantic model."""
    return value.model_dump(mode="json")


def key64(text: str) -> int:
    """A hash that equal texts share, for counting them."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
