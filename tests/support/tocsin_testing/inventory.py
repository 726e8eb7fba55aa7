"""What the product offers under a name that users, files or other programs rely on, as sorted JSON.

``PYTHONPATH=tests/support python -m tocsin_testing.inventory [--tree PATH] [--against FILE]``

`tests/data/inventory/2bd2118.json` is what it printed on that commit; `tests/unit/project/test_inventory.py`
holds that nothing
is lost but what it names. The script knows public seams alone (the command, the OpenAPI document, the wire format, the
registries); what lies elsewhere from commit to commit is looked up by its name.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import enum
import importlib
import importlib.util
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import click

from tocsin_testing.source_tree import modules_of

Inventory = dict[str, list[str]]
_ROW = re.compile(r"^\| `([^`]+)` \|")


def _modules(where: str) -> list[str]:
    """Names of the modules of the running product below ``tocsin.WHERE``."""
    import tocsin

    tree = Path(tocsin.__file__).parents[2]
    return [one.name for one in modules_of(tree) if f"{one.name}.".startswith(f"tocsin.{where}.")]


@cache
def _names_of(module: str) -> frozenset[str]:
    """What a module defines at its top, without loading it."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    names: set[str] = set()
    for node in ast.parse(Path(spec.origin).read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return frozenset(names)


def find(name: str, *places: str) -> Any:
    """What is called `name` at the top of some module below one of `places`; the first place that has it counts."""
    for place in places:
        for module in _modules(place):
            if name in _names_of(module):
                return getattr(importlib.import_module(module), name)
    raise LookupError(f"nothing below {' or '.join(places)} defines {name}")


def _printed(*words: str) -> str:
    """What a command prints."""
    from click.testing import CliRunner

    done = CliRunner().invoke(_cli(), list(words), catch_exceptions=False, standalone_mode=False)
    return str(done.output)


def _cli() -> click.Group:
    group: click.Group = importlib.import_module("tocsin.cli.main").cli
    return group


def _reference(page: str) -> list[str]:
    rows = [_ROW.match(line) for line in _printed("reference", page).splitlines()]
    return [row[1] for row in rows if row is not None]


def commands() -> Iterator[str]:
    """Every command with its arguments and options."""

    def walk(command: click.Command, name: str) -> Iterator[str]:
        yield name
        for one in command.params:
            yield from (f"{name} {word}" for word in (*one.opts, *one.secondary_opts))
        if isinstance(command, click.Group):
            for child, each in command.commands.items():
                yield from walk(each, f"{name} {child}")

    return walk(_cli(), "tocsin")


def pages() -> Iterator[str]:
    """The dashboard's pages by the name in their address."""
    return iter(find("PAGES", "dashboard"))


@cache
def _app() -> Any:
    return find("create_app", "api")(MagicMock(), find("ApiSettings", "config")())


def endpoints() -> Iterator[str]:
    """Method and path of everything that the API answers, in its document or not."""
    for path, methods in _app().openapi()["paths"].items():
        yield from (f"{method.upper()} {path}" for method in methods)
    for route in _app().routes:
        yield from (f"{method} {route.path}" for method in getattr(route, "methods", None) or () if method != "HEAD")


def api_fields() -> Iterator[str]:
    """Every field that an endpoint takes or answers, by its path in the JSON, whatever its schema is called."""
    for path, methods in _app().openapi()["paths"].items():
        for method, body in methods.items():
            where = f"{method.upper()} {path}"
            answers = [each for code, each in body["responses"].items() if code.startswith("2")]
            for sign, one in ((">", body.get("requestBody", {})), *(("<", each) for each in answers)):
                for kind in one.get("content", {}).values():
                    yield from (f"{where} {sign} {field}" for field in _fields(kind.get("schema", {})))


def _fields(schema: Mapping[str, Any], seen: tuple[str, ...] = ()) -> Iterator[str]:
    """Paths of the fields of a schema; one that holds itself is followed once."""
    name = schema.get("$ref", "").rpartition("/")[2]
    if name:
        if name not in seen:
            yield from _fields(_app().openapi()["components"]["schemas"][name], (*seen, name))
        return
    for choice in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        yield from _fields(choice, seen)
    for field, each in schema.get("properties", {}).items():
        yield field
        yield from (f"{field}.{deeper}" for deeper in _fields(each, seen))
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), Mapping):
            yield from (f"[].{deeper}" for deeper in _fields(schema[key], seen))


def parameters() -> Iterator[str]:
    """What endpoints take in their address and their head."""
    for path, methods in _app().openapi()["paths"].items():
        for method, body in methods.items():
            yield from (f"{method.upper()} {path} {one['in']} {one['name']}" for one in body.get("parameters", ()))


def rules() -> Iterator[str]:
    """The rules that are shipped."""
    load = find("load_rules", "rules")
    return (rule.name for rule in load(None).rules)


def journal_entries() -> Iterator[str]:
    """Kinds of entries of the journal."""
    return (str(kind.value) for kind in find("EntryKind", "domain", "journal"))


def fault_kinds() -> Iterator[str]:
    """Failures that the simulated fleet can have."""
    return iter(importlib.import_module("tocsin.sim.faults").FAULT_KINDS)


def wire_fields() -> Iterator[str]:
    """Measurements of the line protocol with their tags and fields: of one of everything, with nothing left out."""
    batch = sample(find("Batch", "domain"))
    for line in str(find("encode", "store.line_protocol", "store.lp_encode")(batch)).splitlines():
        head, fields, *_ = re.split(r'(?<!\\) (?=(?:[^"]*"[^"]*")*[^"]*$)', line)
        measurement, *tags = head.split(",")
        yield measurement
        yield from (f"{measurement} tag {one.partition('=')[0]}" for one in tags)
        yield from (f"{measurement} field {name}" for name in re.findall(r'(?:^|,)([a-z_]+)=(?="|[-\dtf])', fields))


def sample(kind: Any, name: str = "") -> Any:
    """Some value of a type, with every optional part there."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return sample(next(one for one in inner if one is not type(None)), name)
    if origin is typing.Literal:
        return inner[0]
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(name, inner)
    if origin is tuple and inner[-1] is not Ellipsis:
        return tuple(sample(one) for one in inner)
    if origin is not None and issubclass(origin, Sequence | AbstractSet):
        return (sample(inner[0], name),)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return next(iter(kind))
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{one.name: sample(hints[one.name], one.name) for one in dataclasses.fields(kind) if one.init})
    return {str: "x", int: 1, float: 0.5, bool: True}[kind]


def _mapping(name: str, inner: tuple[Any, ...]) -> dict[Any, Any]:
    """Values and reasons are by metric; anything else by any word."""
    keys = {"values": "gpu_power_watts", "missing": "gpu_fan_speed_ratio"}
    return {keys.get(name, "x"): sample(inner[1])}


def _alerts(tree: Path) -> Iterator[str]:
    """Alert rules for Prometheus, by file."""
    for path in sorted((tree / "grafana" / "alerts").glob("*.yaml")):
        yield from (f"{path.stem} {name}" for name in re.findall(r"- alert: (\S+)", path.read_text()))


def _dashboards(tree: Path) -> Iterator[str]:
    """Grafana's dashboards with their panels."""
    for path in sorted((tree / "grafana" / "dashboards").rglob("*.json")):
        name = f"{path.parent.name}/{path.stem}"
        yield name
        yield from (f"{name} {panel.get('title', '')}".strip() for panel in json.loads(path.read_text())["panels"])


def _by_registry(kind: str) -> list[str]:
    """Plug-ins of one kind, from the registry of all kinds, or where it has none of them from that of the kind."""
    rows = json.loads(_printed("plugins", "--json")) if "plugins" in _cli().commands else []
    return [row["name"] for row in rows if row["kind"] == kind and _own(row)] or list(OLD_REGISTRIES[kind]())


def _own(row: Mapping[str, str]) -> bool:
    return row["package"].partition(".")[0] == "tocsin"


OLD_REGISTRIES: dict[str, Callable[[], Iterator[str]]] = {
    "guard": lambda: (guard.name for guard in find("GUARDS", "actions")),
    "executor": lambda: iter(find("executors", "actions")()),
    "channel": lambda: iter(find("channels", "actions")()),
    "source": lambda: iter(find("SOURCES", "runtime")),
    "companion": lambda: iter(find("COMPANIONS", "runtime")),
    "condition": lambda: iter(find("kinds", "rules")()),
    "scorer": lambda: iter(find("names", "forecaster.hazard", "forecaster.scorers")()),
    "store": lambda: (str(kind.value) for kind in find("STORES", "store")),
}


def inventory(tree: Path) -> Inventory:
    """Everything, by what it is; the product of `tree` must be the one that is imported."""
    found: dict[str, Callable[[], Iterator[str]]] = {
        "commands": commands,
        "settings": lambda: iter(_reference("settings")),
        "metrics": lambda: iter(_reference("metrics")),
        "own metrics": lambda: iter(_reference("own_metrics")),
        "dashboard pages": pages,
        "endpoints": endpoints,
        "endpoint parameters": parameters,
        "API fields": api_fields,
        "rules": rules,
        "journal entries": journal_entries,
        "line protocol": wire_fields,
        "simulated faults": fault_kinds,
        "alerts": lambda: _alerts(tree),
        "Grafana dashboards": lambda: _dashboards(tree),
        **{f"{kind}s": lambda kind=kind: iter(_by_registry(kind)) for kind in OLD_REGISTRIES},  # type: ignore[misc]
    }
    return {name: sorted(set(map(str, listed()))) for name, listed in sorted(found.items())}


def lost(before: Mapping[str, Sequence[str]], now: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """What of `before` is gone, by what it is; nothing where nothing is."""
    gone = {kind: sorted(set(names) - set(now.get(kind, ()))) for kind, names in before.items()}
    return {kind: names for kind, names in gone.items() if names}


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tree", type=Path, default=Path(__file__).resolve().parents[3])
    parser.add_argument("--against", type=Path, help="an earlier output: print what is gone and what is new instead")
    wanted = parser.parse_args()
    sys.path.insert(0, str(wanted.tree.resolve() / "src"))
    found = inventory(wanted.tree.resolve())
    if wanted.against is None:
        print(json.dumps(found, indent=1, ensure_ascii=False))
        return 0
    before = json.loads(wanted.against.read_text())
    print(json.dumps({"gone": lost(before, found), "new": lost(found, before)}, indent=1, ensure_ascii=False))
    return 1 if lost(before, found) else 0


if __name__ == "__main__":
    sys.exit(main())
