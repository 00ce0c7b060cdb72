"""What is made from the configuration's models: the JSON schema and the documentation."""

import argparse
import json
from pathlib import Path

from workflow_scripts.config.load import walk
from workflow_scripts.config.sections import Config
from workflow_scripts.identity import canonical

SCHEMA_FILE = Path("config/schema.json")
DOCS_FILE = Path("docs/configuration.md")


def schema_text() -> str:
    return json.dumps(Config.model_json_schema(), indent=2) + "\n"


def docs_text() -> str:
    """docs/configuration.md: a table per section."""
    lines = [
        "# Configuration",
        "",
        "Made from the models in `workflow_scripts/config` by `make docs`; a test keeps it "
        "current. `config/schema.json` is the same as JSON schema, for editors.",
        "",
        "*Changes*: `data` means that the stages that use the key run again; `layout` that they "
        "do, but no answered row is asked again; `speed` that nothing does. An unknown key is an "
        "error.",
    ]
    current = None
    for name, field, changes in walk(Config):
        head, _, key = name.rpartition(".")
        if head != current:
            current = head
            title = f"`{head}`" if head else "Top level"
            lines += ["", f"## {title}", "", "| key | default | changes | meaning |"]
            lines += ["|---|---|---|---|"]
        default = "required" if field.is_required() else f"`{canonical(field.default)}`"
        meaning = (field.description or "").replace("|", "\\|")
        lines.append(f"| `{key}` | {default} | {changes} | {meaning} |")
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write or show the schema and the documentation.")
    parser.add_argument("--write", action="store_true", help="regenerate both files")
    args = parser.parse_args(argv)
    if not args.write:
        print(docs_text())
        return 0
    for path, text in ((SCHEMA_FILE, schema_text()), (DOCS_FILE, docs_text())):
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
