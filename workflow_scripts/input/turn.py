"""One turn of a conversation, whatever form it was read from."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Turn:
    """`content` None stands for a missing assistant response, or for none beside `tool_calls`.
    `origin` holds what a tool turn says of its call: `name` and `tool_call_id`."""

    role: str
    content: str | None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None
    origin: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"role": self.role, "content": self.content, **self.origin}
        if self.reasoning is not None:
            found["reasoning_content"] = self.reasoning
        if self.tool_calls:
            found["tool_calls"] = self.tool_calls
        return found
