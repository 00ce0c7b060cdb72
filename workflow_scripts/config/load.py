"""The configuration: one source of defaults, documentation and JSON schema.

`python -m workflow_scripts.config.docs --write` makes config/schema.json and
docs/configuration.md from these models; a test holds that they are current.

Every field says what a change of it does: `data` (it is part of a stage's parameters, so that
stage runs again), `layout` (stages run again, but no answered row is asked again) or `speed`
(nothing runs again).
"""

import difflib
import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.config.fields import Section
from workflow_scripts.config.sections import Config


def load(values: dict[str, Any]) -> Config:
    """Check a configuration and fill in its defaults.

    Raises:
        ConfigError: one line per fault, each with its key; an unknown key names the nearest
            known one.
    """
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        lines = [_explain(fault) for fault in error.errors()]
        raise ConfigError("the configuration cannot be used:\n  " + "\n  ".join(lines)) from None


def read_run(path: Path) -> tuple[Config, dict[str, Any]]:
    """The configuration and the identity of a run, from the run.json in its folder.

    Scripts take their settings from there; the rules' `params:` say which of them make a stage run
    again.
    """
    found = json.loads(path.read_text(encoding="utf-8"))
    return Config.model_validate(found["config"]), found["identity"]


def _explain(fault: Any) -> str:
    loc = [str(part) for part in fault["loc"]]
    if fault["type"] != "extra_forbidden":
        where = ".".join(loc)
        return f"{where}: {fault['msg']}" if where else fault["msg"].removeprefix("Value error, ")
    known = [name for name, _, _ in walk(Config)]
    parent, key = loc[:-1], loc[-1]
    prefix = ".".join(parent) + "." if parent else ""
    siblings = {n.removeprefix(prefix).split(".")[0] for n in known if n.startswith(prefix)}
    elsewhere = [n for n in known if n.rsplit(".", 1)[-1] == key]
    near = difflib.get_close_matches(key, siblings, 1, 0.5)
    if elsewhere or near:
        return f"{prefix}{key}: unknown key; did you mean {(elsewhere or [prefix + near[0]])[0]}?"
    far = difflib.get_close_matches(key, [n.rsplit(".", 1)[-1] for n in known], 1, 0.6)
    if far:
        full = next(n for n in known if n.rsplit(".", 1)[-1] == far[0])
        return f"{prefix}{key}: unknown key; did you mean {full}?"
    return f"{prefix}{key}: unknown key; known here: {', '.join(sorted(siblings))}"


def walk(model: type[BaseModel], prefix: str = "") -> list[tuple[str, Any, str]]:
    """All keys as (dotted name, field, what a change does), sections themselves left out."""
    found = []
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            found += walk(inner, f"{prefix}{name}.")
        else:
            extra = field.json_schema_extra
            changes = str(extra["changes"]) if isinstance(extra, dict) else "data"
            found.append((prefix + name, field, changes))
    return found
