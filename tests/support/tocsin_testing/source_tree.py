"""The product's own modules in a checkout, links resolved."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Module:
    """One module: its name as it is imported, and its file."""

    name: str
    path: Path

    @property
    def package(self) -> str:
        """The package that it lies in; a package lies in itself."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]

    @property
    def lines(self) -> int:
        return len(self.path.read_text().splitlines())


def modules_of(tree: Path) -> list[Module]:
    """Every module of the product in `tree`, in the order of names."""
    return sorted(_walk(tree / "src"), key=lambda one: one.name)


def _walk(src: Path) -> Iterator[Module]:
    for folder, folders, files in os.walk(src / "tocsin", followlinks=True):
        folders[:] = [one for one in folders if one != "__pycache__"]
        for file in files:
            if file.endswith(".py"):
                path = Path(folder, file)
                parts = path.relative_to(src).with_suffix("").parts
                yield Module(".".join(parts[:-1] if file == "__init__.py" else parts), path)
