"""Chat templates, compiled in the environment that transformers gives them."""

import json
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from workflow_scripts.base.errors import ConfigError
from workflow_scripts.model.folder import DEFAULT, FOR_TOOLS
from workflow_scripts.model.spellings import MASK, Spellings
from workflow_scripts.model.time_limit import limited

LIMIT_S = 30.0  # a render takes some 50 microseconds
ESCAPED_MASK = json.dumps(MASK).strip('"')


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks assistant text in some templates. As in transformers, what is set
    inside stays inside."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_written"), [], [], body).set_lineno(line)

    def _written(self, caller: Callable[[], str]) -> str:
        return caller()


class Templates:
    """A model's chat templates: one, or several by name.

    Args:
        texts: their Jinja texts.
        spellings: what is masked in what they are given.
        today: the date that `strftime_now` tells.
        limit_s: seconds that a render may take.

    Attributes:
        variables: the names that they read and do not set.

    Raises:
        ConfigError: one is not valid Jinja.
    """

    def __init__(
        self,
        texts: Mapping[str, str],
        spellings: Spellings,
        today: date | None = None,
        limit_s: float | None = None,
    ):
        self.limit_s = limit_s or LIMIT_S
        env = _environment(spellings, today)
        self._compiled = {
            name: _compile(env, text, name if len(texts) > 1 else None)
            for name, text in texts.items()
            if len(texts) == 1 or name in (DEFAULT, FOR_TOOLS)
        }

        trees = [env.parse(texts[name]) for name in self._compiled]
        self.variables = {name for tree in trees for name in find_undeclared_variables(tree)}

    def render(self, variables: dict[str, Any]) -> str:
        """The text that the template makes of its variables; which one is transformers' choice.

        Raises:
            TimeoutError: the template runs for longer than the limit.
            Exception: whatever the template's expressions raise.
        """
        template = self._chosen(variables["tools"])

        def work() -> str:
            return template.render(variables)

        try:
            return limited(work, self.limit_s)
        except TimeoutError:
            raise TimeoutError(f"it ran for longer than {self.limit_s:g} seconds") from None

    def _chosen(self, tools: Any) -> jinja2.Template:
        if len(self._compiled) == 1 and FOR_TOOLS not in self._compiled:
            (only,) = self._compiled.values()
            return only
        if tools is not None and FOR_TOOLS in self._compiled:
            return self._compiled[FOR_TOOLS]
        if DEFAULT not in self._compiled:
            raise jinja2.TemplateError("the model has a template for tools and none by default")
        return self._compiled[DEFAULT]


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(today: date | None) -> Callable[[str], str]:
    def strftime_now(format: str) -> str:
        if today is None:
            raise ConfigError(
                "model.chat_template: the template prints today's date, so a prompt would change "
                "from day to day and finished rows would be asked again; set model.date to a fixed "
                f"date, such as {datetime.now():%Y-%m-%d}"
            )
        return datetime.combine(today, time()).strftime(format)

    return strftime_now


def _tojson(spellings: Spellings) -> Callable[..., str]:
    """transformers' filter. JSON may escape what a masked text spells, so it is made of the text
    itself and masked after."""

    def tojson(
        x: Any,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        def dumps(value: Any) -> str:
            return json.dumps(
                value,
                ensure_ascii=ensure_ascii,
                indent=indent,
                separators=separators,
                sort_keys=sort_keys,
            )

        text = dumps(x)
        if MASK not in text and ESCAPED_MASK not in text:
            return text
        return spellings.masked(dumps(spellings.restored(x)))

    return tojson


def _environment(spellings: Spellings, today: date | None) -> ImmutableSandboxedEnvironment:
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, "jinja2.ext.loopcontrols"],
    )
    env.filters["tojson"] = _tojson(spellings)
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = _strftime_now(today)
    return env


def _compile(env: ImmutableSandboxedEnvironment, text: str, name: str | None) -> jinja2.Template:
    try:
        return env.from_string(text)
    except jinja2.TemplateSyntaxError as error:
        which = f" {name!r}" if name else ""
        raise ConfigError(
            f"the chat template{which} is not valid Jinja, line {error.lineno}: {error.message}; "
            "set model.chat_template to a working one"
        ) from None
