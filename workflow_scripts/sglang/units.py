"""Sizes that memory is counted in."""

GIB = 2**30
DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}
