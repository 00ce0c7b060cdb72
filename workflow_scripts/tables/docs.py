"""docs/tables.md, made from columns.py."""

import argparse
from pathlib import Path

import pyarrow as pa

from workflow_scripts.tables.columns import TABLES

DOCS_FILE = Path("docs/tables.md")


def docs_text() -> str:
    lines = [
        "# Tables of a run",
        "",
        "Made from `workflow_scripts/tables/columns.py` by `make docs`; a test keeps it current. "
        "Paths are relative to `output_dir`.",
    ]
    for name, table in TABLES.items():
        lines += ["", f"## {name}", "", "| column | type | meaning |", "|---|---|---|"]
        for column in table:
            kind = "list of struct" if pa.types.is_nested(column.type) else str(column.type)
            if pa.types.is_list(column.type) and not pa.types.is_struct(column.type.value_type):
                kind = f"list of {column.type.value_type}"
            text = column.metadata[b"description"].decode()
            lines.append(f"| `{column.name}` | {kind} | {text} |")
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write or show the documentation of the tables.")
    parser.add_argument("--write", action="store_true", help=f"write {DOCS_FILE}")
    args = parser.parse_args(argv)
    if args.write:
        DOCS_FILE.write_text(docs_text(), encoding="utf-8")
        print(f"wrote {DOCS_FILE}")
    else:
        print(docs_text())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
