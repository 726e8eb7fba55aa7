"""``python -m tocsin``: the same as the command."""

from __future__ import annotations

from tocsin.cli.main import main

if __name__ == "__main__":
    main()
