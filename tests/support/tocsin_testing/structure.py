"""How the product is cut: modules, statements, imports between modules, circles, names; tests by kind.

``PYTHONPATH=tests/support python -m tocsin_testing.structure [--tree PATH] [--json] [--lists]``

Read from the source alone, so that any commit can be measured. An import is an edge from a module to another module of
the product, wherever in the file it stands: inside a function and for a type checker counts too. `structure_base.json`
holds what the script printed on an earlier commit.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from tocsin_testing.source_tree import Module, modules_of

BASE = Path(__file__).with_name("structure_base.json")
MOST_LINES = 700
MOST_FUNCTION_LINES = 40
OLD_WORDS = frozenset(
    {
        *("book", "record", "judging", "reach", "people", "notices", "hands", "sight", "marks", "door"),
        *("board", "keeper", "stage", "desk", "kept", "works", "shelf", "twins", "spell"),
    }
)
"""Words that were a module's whole name and that no engineer of this field would search for; see docs/glossary.md."""
ASIDE = (
    "tocsin.forecaster.benchmarks*",
    "tocsin.forecaster.evaluation.result",
    "tocsin.store.embedded*",
    "tocsin.store.hot_*",
    "tocsin.store.segments*",
    "tocsin.store.sqlite*",
)
"""What moved out of the product, with the one module of it that stayed, or was made anew.

Left out of the figures that end in ``_beside``.
"""
KINDS = {"law": "laws", "property": "property", "golden": "golden", "contract": "contract", "chaos": "chaos"}
"""Kind of tests to its folder; tests of accidents are those of files with that word in their name."""


_TEST = re.compile(r"^ *(?:async )?def test_", re.MULTILINE)


@dataclass
class Parsed:
    """One module, read once."""

    module: Module
    tree: ast.Module
    lines: int
    statements: int
    functions: list[tuple[str, int]] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, module: Module) -> Parsed:
        """Read and take apart."""
        text = module.path.read_text()
        tree = ast.parse(text)
        nodes = list(ast.walk(tree))
        functions = [
            (node.name, (node.end_lineno or node.lineno) - node.lineno + 1)
            for node in nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        statements = sum(isinstance(node, ast.stmt) for node in nodes)
        classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
        return cls(module, tree, len(text.splitlines()), statements, functions, classes)


class Structure:
    """Everything that is counted of one tree."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self.parsed = {one.name: Parsed.of(one) for one in modules_of(tree)}

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """Module to the modules of the product that it imports."""
        return {name: set().union(*self._imported(one.tree)) - {name} for name, one in self.parsed.items()}

    def _imported(self, tree: ast.Module) -> Iterator[set[str]]:
        """What each import of a module names; what is no module of its own is of the module that has it."""
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and _ours(node.module):
                whole = (f"{node.module}.{alias.name}" for alias in node.names)
                yield {one if one in self.parsed else str(node.module) for one in whole}
            elif isinstance(node, ast.Import):
                yield from ({alias.name} for alias in node.names if _ours(alias.name))

    @cached_property
    def importers(self) -> dict[str, set[str]]:
        """Module to the modules that import it."""
        found: dict[str, set[str]] = defaultdict(set)
        for name, targets in self.imports.items():
            for target in targets:
                found[target].add(name)
        return found

    def beside(self) -> set[str]:
        """Modules without those of `ASIDE`."""
        return {name for name in self.parsed if not any(fnmatch(name, pattern) for pattern in ASIDE)}

    def package(self, name: str) -> str:
        return self.parsed[name].module.package if name in self.parsed else name.rpartition(".")[0]

    def helpers(self) -> list[str]:
        """Modules with a single importer, in their own folder."""
        return sorted(
            name
            for name, users in self.importers.items()
            if len(users) == 1 and name in self.parsed and self.package(name) == self.package(*users) != name
        )

    def repeated_classes(self) -> dict[str, list[str]]:
        """Class names that more than one module defines, or one twice."""
        places: dict[str, list[str]] = defaultdict(list)
        for name, one in self.parsed.items():
            for each in one.classes:
                places[each].append(name)
        return {each: where for each, where in sorted(places.items()) if len(where) > 1}

    def folder_pairs(self) -> list[str]:
        """Folders of one room, the room itself among them, that import each other."""
        edges = {
            (self.package(name), self.package(target)) for name, targets in self.imports.items() for target in targets
        }
        return sorted(f"{a} <-> {b}" for a, b in edges if a < b and (b, a) in edges and _room(a) == _room(b))

    def tests(self) -> dict[str, int]:
        """Test functions by kind."""
        found: Counter[str] = Counter(dict.fromkeys([*KINDS, "accident"], 0))
        for path in sorted((self.tree / "tests").rglob("test_*.py")):
            number = len(_TEST.findall(path.read_text()))
            kinds = [kind for kind, folder in KINDS.items() if folder in path.relative_to(self.tree).parts]
            for kind in [*kinds, *(["accident"] if "accident" in path.name else [])]:
                found[kind] += number
        return dict(found)

    @cached_property
    def lists(self) -> dict[str, Any]:
        """What there should be none, or little, of: by name."""
        return {
            "modules_over_700": sorted(name for name, one in self.parsed.items() if one.lines > MOST_LINES),
            "functions_over_40": sorted(
                f"{name}.{function}"
                for name, one in self.parsed.items()
                for function, lines in one.functions
                if lines > MOST_FUNCTION_LINES
            ),
            "modules_of_an_old_word": sorted(name for name in self.parsed if name.rpartition(".")[2] in OLD_WORDS),
            "circles": circles(self.imports),
            "folder_pairs": self.folder_pairs(),
            "single_importer_helpers": self.helpers(),
            "class_names_used_twice": self.repeated_classes(),
        }

    def figures(self) -> dict[str, Any]:
        """The numbers."""
        beside = self.beside()
        return {
            "modules": len(self.parsed),
            "median_lines": median(one.lines for one in self.parsed.values()),
            "statements": sum(one.statements for one in self.parsed.values()),
            "statements_beside": sum(self.parsed[name].statements for name in beside),
            "imports": sum(len(targets) for targets in self.imports.values()),
            "imports_beside": sum(len(self.imports[name] & beside) for name in beside),
            "import_statements": sum(1 for one in self.parsed.values() for _ in self._imported(one.tree)),
            **{name: len(found) for name, found in self.lists.items()},
            **{f"tests_{kind}": number for kind, number in self.tests().items()},
        }


def _ours(name: str | None) -> bool:
    return name is not None and (name == "tocsin" or name.startswith("tocsin."))


def _room(name: str) -> str:
    return ".".join(name.split(".")[:2])


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Groups of names each of which leads to all others.

    Tarjan, "Depth-first search and linear graph algorithms", SIAM Journal on Computing 1(2), 1972.
    """
    search = _Search(graph)
    for name in graph:
        if name not in search.number:
            search.visit(name)
    return sorted(search.found)


class _Search:
    """The state of one search for circles."""

    def __init__(self, graph: Mapping[str, Iterable[str]]) -> None:
        self._graph = graph
        self.number: dict[str, int] = {}
        self._low: dict[str, int] = {}
        self._open: list[str] = []
        self.found: list[list[str]] = []

    def visit(self, start: str) -> None:
        """Search from `start`, without recursion: a chain of imports may be long."""
        way = [(start, self._enter(start))]
        while way:
            name, targets = way[-1]
            for target in targets:
                if target not in self.number:
                    way.append((target, self._enter(target)))
                    break
                if target in self._open:
                    self._low[name] = min(self._low[name], self.number[target])
            else:
                way.pop()
                if way:
                    self._low[way[-1][0]] = min(self._low[way[-1][0]], self._low[name])
                self._leave(name)

    def _enter(self, name: str) -> Iterator[str]:
        self.number[name] = self._low[name] = len(self.number)
        self._open.append(name)
        return iter(sorted(self._graph.get(name, ())))

    def _leave(self, name: str) -> None:
        if self._low[name] != self.number[name]:
            return
        at = self._open.index(name)
        group, self._open = sorted(self._open[at:]), self._open[:at]
        if len(group) > 1:
            self.found.append(group)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tree", type=Path, default=Path(__file__).resolve().parents[3])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--lists", action="store_true", help="name what is counted where there should be little of it")
    wanted = parser.parse_args()
    structure = Structure(wanted.tree)
    figures = structure.figures()
    if wanted.json:
        print(json.dumps(figures | ({"lists": structure.lists} if wanted.lists else {}), indent=1))
        return
    base = json.loads(BASE.read_text())
    print(f"{'':28}{'now':>8}{base['commit']:>10}{'change':>9}")
    for name, number in figures.items():
        before = base["figures"][name]
        change = f"{(number - before) / before:+.1%}" if before else ""
        print(f"{name.replace('_', ' '):28}{number:>8,}{before:>10,}{change:>9}")
    for name, found in structure.lists.items() if wanted.lists else ():
        print(f"\n{name.replace('_', ' ')}:")
        items = [f"{key}: {', '.join(each)}" for key, each in found.items()] if isinstance(found, dict) else found
        for item in items:
            print(f"    {item if isinstance(item, str) else ', '.join(item)}")


if __name__ == "__main__":
    main()
