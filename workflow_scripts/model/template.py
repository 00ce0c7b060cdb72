"""Chat templates, compiled in the environment that transformers gives them."""

import json
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from workflow_scripts.base.errors import ConfigError


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks assistant text in some templates; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(_format: str) -> str:
    raise ConfigError(
        "model.chat_template: the template prints today's date, so a prompt would change from "
        "day to day and finished rows would be asked again; set model.chat_template to a copy "
        f"of it with a fixed date, such as {datetime.now():%Y-%m-%d}"
    )


def _tojson(value: Any, indent: int | None = None, **kwargs: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, **kwargs)


def compile_template(text: str) -> jinja2.Template:
    """The template in the environment that transformers gives chat templates."""
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, "jinja2.ext.loopcontrols"],
    )
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = _strftime_now
    try:
        return env.from_string(text)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(
            f"the chat template is not valid Jinja, line {error.lineno}: {error.message}; "
            "set model.chat_template to a working one"
        ) from None
