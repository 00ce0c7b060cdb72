"""What a row gives the chat template beside its messages: schemas of tools, documents."""

from typing import Any

from workflow_scripts.input.reject import Reject
from workflow_scripts.input.values import (
    Told,
    from_json,
    is_json,
    is_nothing,
    kind_of,
    without_nulls,
)

# The first that holds something counts.
TOOL_COLUMNS = (
    "tools",
    "functions",
    "tool_defs",
    "available_tools",
    "available_functions",
    "tool_definitions",
    "function_definitions",
    "tool_schemas",
    "function_schemas",
    "tools_json",
)
DOCUMENT_COLUMNS = ("documents",)


def tools_of(value: Any, where: str, told: Told) -> list[Any] | None:
    """The schemas that a column holds, as the template gets them: a list of objects, or of texts in
    JSON, either of them as one text in JSON, or one object. A bare function is wrapped. None where
    there are none.

    Raises:
        Reject: one of them does not parse, or has no name.
    """
    return _schemas(_objects(value, where, "bad_tools", "tool"), where, told)


def _schemas(found: list[Any], where: str, told: Told) -> list[Any] | None:
    tools = []
    for index, tool in enumerate(found):
        place = f"{where}[{index}]"
        if not isinstance(tool, dict):
            raise Reject("bad_tools", f"{place} is a {kind_of(tool)}, not the schema of a tool")
        wrapped = isinstance(tool.get("function"), dict)
        if not wrapped and tool.get("type", "function") != "function":
            tools.append(tool)  # one that the model's host runs, as {"type": "web_search"}
            continue
        function = tool["function"] if wrapped else {k: v for k, v in tool.items() if k != "type"}
        name = function.get("name")
        if not isinstance(name, str) or not name.strip():
            raise Reject("bad_tools", f"{place} is a function without a name")
        if not wrapped or "type" not in tool:
            told.used.append("tools_wrapped")
            others = {key: value for key, value in tool.items() if wrapped and key != "function"}
            tool = {"type": "function", "function": function, **others}
        tools.append(tool)
    return tools or None


def documents_of(value: Any, where: str, told: Told) -> list[Any] | None:
    """Documents as transformers takes them, a list of objects; a text is the `text` of one. None
    where there are none.

    Raises:
        Reject: there is one that is neither.
    """
    documents = []
    for index, document in enumerate(_objects(value, where, "bad_documents", "document")):
        if isinstance(document, str):
            told.used.append("documents_wrapped")
            document = {"text": document}
        if not isinstance(document, dict):
            what = f"{where}[{index}] is a {kind_of(document)}, not a document with a text"
            raise Reject("bad_documents", what)
        documents.append(document)
    return documents or None


def _objects(value: Any, where: str, reason: str, what: str) -> list[Any]:
    """A column's list, its elements decoded. Nulls stay in what was JSON text: no table put them
    there."""
    if is_nothing(value) or (isinstance(value, str) and not value.strip()):
        return []
    decoded = from_json(value)
    if isinstance(decoded, str):
        raise Reject(reason, f"`{where}` is a text that is no JSON list or object of {what}s")
    if decoded is value:
        decoded = without_nulls(value)
    if not isinstance(decoded, list | dict):
        raise Reject(reason, f"`{where}` is a {kind_of(value)}, not a list of {what}s")
    if not is_json(decoded):
        raise Reject(reason, f"`{where}` holds what cannot be written as JSON")
    found = [from_json(item) for item in ([decoded] if isinstance(decoded, dict) else decoded)]
    return [item for item in found if not is_nothing(item)]
