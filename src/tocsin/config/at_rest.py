"""Settings of the encryption of what lies on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from tocsin.config.section import Section


class AtRestSettings(Section):
    """Encryption of the state on disk (docs/at_rest.md)."""

    key_file: Path | None = None
    """File of the key, closed to all but its owner: 32 bytes, or 64 hexadecimal digits. New files are encrypted with
    it; `tocsin at-rest encrypt` encrypts those that are there. Needs the extra `encryption`; unset: no key."""
    credential: str = Field(default="", pattern=r"^[A-Za-z0-9_.-]{0,255}$")
    """Name of the systemd credential that is the key, in place of `key_file`; empty: none."""
    require_encryption: bool = False
    """Whether brain and agent refuse to start over a file that neither a key nor its disk encrypts."""
    vouched: list[Path] = Field(default_factory=list)
    """Folders whose disk somebody vouches for: encrypted in a way that is not seen, such as ZFS, fscrypt or a cloud's
    volume."""

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if self.key_file is not None and self.credential:
            raise ValueError("give either key_file or credential")
        return self
