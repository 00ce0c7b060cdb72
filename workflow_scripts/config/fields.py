"""What every section of the configuration is made of; see config.py."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


def data(default: Any = ..., **kwargs: Any) -> Any:
    """A field that changes the result."""
    return Field(default, json_schema_extra={"changes": "data"}, **kwargs)


def speed(default: Any = ..., **kwargs: Any) -> Any:
    """A field that changes only how fast, where or how safely the result is reached."""
    return Field(default, json_schema_extra={"changes": "speed"}, **kwargs)


def layout(default: Any = ..., **kwargs: Any) -> Any:
    """A field that changes how the result is cut up, not what it is."""
    return Field(default, json_schema_extra={"changes": "layout"}, **kwargs)


def section(model: type[BaseModel], description: str) -> Any:
    return Field(default_factory=model, description=description)


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
