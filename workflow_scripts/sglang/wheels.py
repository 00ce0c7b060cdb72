"""Read the launch flags of SGLang versions out of their wheels into sglang_flags.json.

    pip download --no-deps sglang==0.5.17
    python -m workflow_scripts.sglang.wheels sglang-0.5.17-*.whl     # or a site-packages folder

Sources are parsed, never imported: importing them needs a GPU machine. A flag is an `add_argument`
call, or, in later versions, a field annotated `A[type, "help" or Arg(...)]` from which SGLang makes
one. Versions that are in the file already and are not named stay as they are.
"""

import argparse
import ast
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workflow_scripts.sglang.flags import FLAGS_FILE

Record = dict[str, Any]
TYPES = {"int": "int", "float": "float", "human_readable_int": "size", "json.loads": "json"}
TYPES |= {"json_list_type": "json", "parse_cuda_graph_config_arg": "json"}
DEPRECATED = re.compile(r"\s*[\[(]?deprecated[^A-Za-z]*", re.IGNORECASE)


class Sources:
    """The Python files of a wheel or of a site-packages folder, and literals in them by name."""

    def __init__(self, place: Path):
        self.root = zipfile.Path(place) if place.suffix == ".whl" else place
        found = [re.match(r"sglang-([^-]+)\.dist-info", path.name) for path in self.root.iterdir()]
        versions = [match[1] for match in found if match]
        if len(versions) != 1:
            raise SystemExit(f"{place}: neither a wheel of SGLang nor a folder with SGLang in it")
        self.version = versions[0]
        self._trees: dict[str, ast.Module] = {}

    def tree(self, module: str) -> ast.Module:
        if module not in self._trees:
            path = self.root / (module.replace(".", "/") + ".py")
            if not path.is_file():
                raise ValueError(f"no module {module}")
            self._trees[module] = ast.parse(path.read_text(encoding="utf-8"))
        return self._trees[module]

    def modules(self) -> Iterator[str]:
        yield "sglang.srt.server_args"
        fields = self.root / "sglang/srt/arg_groups/fields"
        if fields.is_dir():
            for path in sorted(p.name for p in fields.iterdir() if p.name.endswith(".py")):
                yield "sglang.srt.arg_groups.fields." + path.removesuffix(".py")

    def literal(self, node: ast.expr | None, module: str, scope: list[ast.stmt]) -> Any:
        """A node's value; names are looked up in `scope`, the module, and where it imports from.

        Raises:
            ValueError: it is not made of literals.
        """
        match node:
            case ast.Constant(value=value):
                return value
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return [self.literal(item, module, scope) for item in items]
            case ast.Dict(keys=keys):
                return [self.literal(key, module, scope) for key in keys]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self.literal(left, module, scope) + self.literal(right, module, scope)
            case ast.Call(func=ast.Name("list" | "set" | "frozenset"), args=[inner]):
                return self.literal(inner, module, scope)
            case ast.Call(func=ast.Attribute(value=inner, attr="keys")):
                return self.literal(inner, module, scope)
            case ast.Attribute(value=ast.Name(name), attr=attr):
                where, found = self._define(name, module, scope)
                if isinstance(found, ast.ClassDef):
                    return self.literal(ast.Name(attr), where, found.body)
            case ast.Name(name):
                where, found = self._define(name, module, scope)
                if isinstance(found, ast.expr):
                    return self.literal(found, where, scope if where == module else [])
        raise ValueError("not a literal")

    def _define(self, name: str, module: str, scope: list[ast.stmt]) -> tuple[str, ast.AST]:
        for statement in [*scope, *self.tree(module).body]:
            match statement:
                case ast.Assign(targets=[ast.Name(found)], value=value) if found == name:
                    return module, value
                case ast.AnnAssign(target=ast.Name(found), value=ast.expr() as value):
                    if found == name:
                        return module, value
                case ast.ClassDef(name=found) if found == name:
                    return module, statement
                case ast.ImportFrom(module=str(source), names=names):
                    if any(alias.name == name for alias in names):
                        return self._define(name, source, [])
        raise ValueError(f"{name} is not defined in {module}")


def read(sources: Sources) -> dict[str, Record]:
    """All flags of a version by name, as sglang_flags.json has them."""
    found: dict[str, Record] = {}
    fields: dict[str, str] = {}
    for module in sources.modules():
        for node in ast.walk(sources.tree(module)):
            match node:
                case ast.FunctionDef(name="add_cli_args", body=body):
                    for call in ast.walk(node):
                        match call:
                            case ast.Call(func=ast.Attribute(attr="add_argument")):
                                _add(found, fields, *_from_call(call, sources, module, body))
                case ast.AnnAssign(
                    target=ast.Name(name),
                    annotation=ast.Subscript(value=ast.Name("A"), slice=ast.Tuple(elts=parts)),
                ):
                    _add(found, fields, *_from_field(name, parts, sources, module))
    for field, name in fields.items():  # the name in Python, unless it is another flag's own
        if field not in found and field not in found[name].get("other_names", []):
            found[name].setdefault("other_names", []).append(field)
    return found


def _add(
    found: dict[str, Record], fields: dict[str, str], options: list[str], field: str, record: Record
) -> None:
    if options:
        name, *others = [option.lstrip("-").replace("-", "_") for option in options]
        found[name] = {k: v for k, v in (record | {"other_names": others}).items() if v}
        fields.setdefault(field or name, name)


def _from_call(
    call: ast.Call, sources: Sources, module: str, scope: list[ast.stmt]
) -> tuple[list[str], str, Record]:
    given = {k.arg: k.value for k in call.keywords if k.arg}
    options = [str(sources.literal(a, module, scope)) for a in call.args]
    field = sources.literal(given["dest"], module, scope) if "dest" in given else ""
    return options, field, _record(given, sources, module, scope)


def _from_field(
    name: str, parts: list[ast.expr], sources: Sources, module: str
) -> tuple[list[str], str, Record]:
    """As SGLang's add_cli_args_from_dataclass does it."""
    kind, about = parts[0], parts[1]
    given: dict[str, ast.expr] = {"help": about}
    if isinstance(about, ast.Call) and isinstance(about.func, ast.Name):
        given = {k.arg: k.value for k in about.keywords if k.arg}
        if about.func.id != "Arg" or "no_cli" in given:
            return [], name, {}
    options = ["--" + name.replace("_", "-")]
    if "cli_name" in given:
        options = [sources.literal(given["cli_name"], module, [])]
    if "aliases" in given:
        options += sources.literal(given["aliases"], module, [])
    match given.get("action_kwargs"):
        case ast.Dict(keys=keys, values=values):
            given |= {sources.literal(k, module, []): v for k, v in zip(keys, values, strict=True)}
    if "type_parser" in given:
        given["type"] = given.pop("type_parser")
    match kind:  # Optional[X] is X
        case ast.Subscript(value=ast.Name("Optional"), slice=inner):
            kind = inner
    match kind:
        case ast.Name("bool") if "action" not in given:
            given["action"] = ast.Constant("store_true")
        case ast.Name():
            given.setdefault("type", kind)
        case ast.Subscript(value=ast.Name("Literal"), slice=allowed):
            first = allowed.elts[0] if isinstance(allowed, ast.Tuple) else allowed
            given.setdefault("type", ast.Name(type(sources.literal(first, module, [])).__name__))
            given.setdefault("choices", allowed)
        case ast.Subscript(value=ast.Name("List"), slice=inner) if "type" not in given:
            given |= {"type": inner, "nargs": given.get("nargs", ast.Constant("+"))}
    return options, name, _record(given, sources, module, [])


def _record(
    given: dict[str, ast.expr], sources: Sources, module: str, scope: list[ast.stmt]
) -> Record:
    def literal(name: str) -> Any:
        try:
            return sources.literal(given.get(name), module, scope)
        except ValueError:
            return None

    action = ast.unparse(given["action"]).strip("'") if "action" in given else ""
    nargs, about = literal("nargs"), literal("help") or ""
    alone = re.fullmatch("store_true|Deprecated(StoreTrue|StoreConst)?Action", action)
    kind = "list" if nargs in ("+", "*") else "value"
    if alone and "nargs" not in given:
        kind = "switch"
    elif action.endswith("BooleanOptionalAction"):
        kind = "toggle"
    deprecated, prefix = literal("new_flag") or "", DEPRECATED.match(about)
    if not deprecated and (prefix or action.startswith("Deprecated")):
        deprecated = re.split(r"[.)] ", about[prefix.end() if prefix else 0 :])[0] or "no effect"
    type_ = ast.unparse(given["type"]) if "type" in given else "str"
    return {
        "kind": kind,
        "type": "" if kind in ("switch", "toggle") else TYPES.get(type_, "str"),
        "choices": literal("choices"),
        "nargs": nargs,
        "deprecated": deprecated,
    }


def write(versions: dict[str, dict[str, Record]]) -> None:
    """One line a flag, so that a difference between versions is a difference between lines."""
    blocks = []
    for version in sorted(versions, key=lambda v: [int(n) for n in re.findall(r"\d+", v)]):
        flags = versions[version]
        lines = [f"  {json.dumps(name)}: {json.dumps(flags[name])}" for name in sorted(flags)]
        blocks.append(f"{json.dumps(version)}: {{\n" + ",\n".join(lines) + "\n}")
    FLAGS_FILE.write_text("{\n" + ",\n".join(blocks) + "\n}\n", encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("places", nargs="+", type=Path, help="wheels or site-packages folders")
    args = parser.parse_args(argv)
    versions = json.loads(FLAGS_FILE.read_text(encoding="utf-8")) if FLAGS_FILE.exists() else {}
    for place in args.places:
        sources = Sources(place)
        versions[sources.version] = read(sources)
        print(f"SGLang {sources.version}: {len(versions[sources.version])} flags")
    write(versions)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
