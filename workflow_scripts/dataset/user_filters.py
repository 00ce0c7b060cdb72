"""The user's own filters: SQL expressions and a Python function, checked before a run starts."""

import importlib.util
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pyarrow as pa

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.base.files import file_sha256
from workflow_scripts.config.dataset import Filters
from workflow_scripts.dataset.samples import Sample
from workflow_scripts.tables.columns import TRAIN

COLUMNS = [name for name in TRAIN.names if name not in ("input_ids", "loss_mask")]
Expressions = Callable[[pa.Table], Iterator[tuple[str, list[int]]]]


def expressions(wanted: dict[str, str]) -> Expressions:
    """A function that says for a training table which rows each expression drops.

    Raises:
        ConfigError: an expression is no SQL, names no column of the table, is not true or false, or
            looks at other rows too.
    """
    parsed = {}
    empty: Any = pl.from_arrow(TRAIN.empty_table())
    for name, text in wanted.items():
        where = f"dataset.filters.expressions.{name}: {text!r}"
        try:
            parsed[name] = pl.sql_expr(text)
            kind = empty.select(parsed[name]).dtypes[0]
        except pl.exceptions.PolarsError as error:
            told = str(error).split("\n")[0]
            raise ConfigError(
                f"{where} cannot be used: {told}; columns are {', '.join(COLUMNS)}"
            ) from None
        if kind != pl.Boolean:
            raise ConfigError(f"{where} is {kind}, not true or false")
        if not parsed[name].meta.root_names() or not _row_by_row(parsed[name]):
            raise ConfigError(
                f"{where} does not judge each row by itself; use columns of the row alone, no "
                "aggregates (MAX, SUM, COUNT) and no windows (OVER)"
            )

    def found(table: pa.Table) -> Iterator[tuple[str, list[int]]]:
        if not parsed or not len(table):
            return
        frame: Any = pl.from_arrow(table)
        for name, expression in parsed.items():
            told = frame.select(expression.alias("told").fill_null(False))["told"]
            yield name, told.arg_true().to_list()

    return found


def _row_by_row(expression: pl.Expr) -> bool:
    """Whether each row's result depends on that row alone: rows come in batches."""
    try:
        alone = expression.meta.is_literal() or expression.meta.is_row_separable()
    except pl.exceptions.ColumnNotFoundError:  # arithmetic, whose type depends on its columns
        alone = True
    return alone and all(map(_row_by_row, expression.meta.pop()))


def python_filter(wanted: str) -> Callable[[Sample], str | None]:
    """The user's function, taking a sample.

    Raises:
        ConfigError: there is no such file or function.
    """
    function = _function(wanted)

    def reason(sample: Sample) -> str | None:
        row = {**sample.fields, "messages": orjson.loads(sample.fields["messages"])}
        row |= {"length": sample.length, "prompt_length": len(sample.prompt_ids)}
        row |= {"completion_length": len(sample.output_ids)}
        row |= {"input_ids": [*sample.prompt_ids.tolist(), *sample.output_ids.tolist()]}
        try:
            told = function(row)
        except Exception as error:
            raise ConfigError(
                f"dataset.filters.python: {wanted} failed on {row['source']}:{row['line']}, turn "
                f"{row['turn']}: {type(error).__name__}: {error}"
            ) from error
        if told is not None and (not isinstance(told, str) or not told):
            raise ConfigError(
                f"dataset.filters.python: {wanted} returned {told!r} for {row['source']}:"
                f"{row['line']}; return None to keep a turn, or the reason that drops it"
            )
        return told

    return reason


@cache
def _function(wanted: str) -> Callable[[dict[str, Any]], Any]:
    path, _, name = wanted.rpartition(":")
    if not Path(path).is_file():
        raise ConfigError(f"dataset.filters.python: {(path or wanted)!r} is no file")
    spec = importlib.util.spec_from_file_location("tracemill_user_filter", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"dataset.filters.python: {path}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"dataset.filters.python: {path} has no function {name!r}")
    return function


def check(filters: Filters) -> str | None:
    """Check the user's filters of a configuration before anything runs; returns the hash of the
    Python file, so that an edit of it makes the dataset again."""
    expressions(filters.expressions)
    if filters.python is None:
        return None
    _function(filters.python)
    return file_sha256(Path(filters.python.rpartition(":")[0]))
