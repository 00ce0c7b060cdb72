"""Reads an HTML page as a browser would, for tests; and what holds of every page."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise

VOID = {"meta", "br", "img", "link", "input", "hr", "base", "wbr"}


# ---- reading the page ---------------------------------------------------------------------------


class Node:
    def __init__(self, tag: str, attrs: dict[str, str | None]):
        self.tag, self.attrs = tag, attrs
        self.inside: list[Node | str] = []

    def walk(self) -> "Iterator[Node]":
        yield self
        for part in self.inside:
            if isinstance(part, Node):
                yield from part.walk()

    def all(self, tag: str, cls: str | None = None) -> "list[Node]":
        found = [node for node in self.walk() if node.tag == tag]
        return [n for n in found if cls is None or cls in (n.attrs.get("class") or "").split()]

    @property
    def raw(self) -> str:
        return "".join(part if isinstance(part, str) else part.raw for part in self.inside)

    @property
    def text(self) -> str:
        return " ".join(self.raw.split())


class Page(HTMLParser):
    """A page as a tree; every element must be closed in its place."""

    def __init__(self, source: str):
        super().__init__()
        self.source = source
        self.root = Node("", {})
        self.open = [self.root]
        self.feed(source)
        self.close()
        assert self.open == [self.root], f"not closed: {self.open[-1].tag}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, dict(attrs))
        self.open[-1].inside.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].inside.append(Node(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].inside.append(data)

    def __getitem__(self, name: str) -> Node:
        """The element with an id."""
        (found,) = (node for node in self.root.walk() if node.attrs.get("id") == name)
        return found

    def has(self, name: str) -> bool:
        return any(node.attrs.get("id") == name for node in self.root.walk())

    def table(self, name: str) -> list[list[str]]:
        """The cells of a table's body and foot."""
        rows = [
            row for part in ("tbody", "tfoot") for p in self[name].all(part) for row in p.inside
        ]
        return [
            [cell.text for cell in row.inside if isinstance(cell, Node)]
            for row in rows
            if isinstance(row, Node)
        ]

    def badges(self) -> list[tuple[str, str]]:
        found = self["headline"].all("span", "badge")
        return [(badge.text, (badge.attrs["class"] or "").split()[-1]) for badge in found]

    def flow(self) -> list[str]:
        return [item.all("div", "sum")[0].text for item in self["flow"].all("li")]

    def facts(self) -> dict[str, str]:
        pairs = self["headline"].all("dl")[0].all("div")
        return {pair.all("dt")[0].text: pair.all("dd")[0].text for pair in pairs}


def assert_nothing_is_fetched(page: Page) -> None:
    for node in page.root.walk():
        for name in ("src", "href", "xlink:href", "srcset", "data", "action"):
            if node.tag == "a" and name == "href":  # followed by hand, and stays in the run
                assert ":" not in (node.attrs.get(name) or "")
                continue
            assert (node.attrs.get(name) or "#").startswith("#"), node.attrs
        for value in (node.attrs.get("style"), node.raw if node.tag == "style" else None):
            assert "@import" not in (value or "")
            assert all(url.startswith("#") for url in re.findall(r"url\(([^)]*)\)", value or ""))
    policies = [node.attrs.get("content") for node in page.root.all("meta")]
    assert "default-src 'none'; style-src 'unsafe-inline'" in policies


def assert_headings_and_ids(page: Page) -> None:
    levels = [int(n.tag[1]) for n in page.root.walk() if re.fullmatch(r"h\d", n.tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    ids = [node.attrs["id"] for node in page.root.walk() if "id" in node.attrs]
    assert len(ids) == len(set(ids))
    for section in page.root.all("section"):
        assert page[section.attrs["aria-labelledby"] or ""].tag == "h2"
