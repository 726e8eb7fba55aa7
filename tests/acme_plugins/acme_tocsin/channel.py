"""Channel ``acme_file``: a line for each message, into the file that its URL names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tocsin.actions.notifications.channel import ChannelDependencies, Delivery, Message


class FileChannel:
    """The path of the URL is that of the file."""

    batch = 1
    keyed = False
    refresh_seconds: float | None = None

    def __init__(self, dependencies: ChannelDependencies) -> None:
        self.name = dependencies.settings.name
        self._path = Path(urlsplit(dependencies.settings.endpoint).path)

    def send(self, messages: Sequence[Message]) -> Delivery:
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(f"{message.phase} {message.id}\n" for message in messages)
        except OSError as error:
            return Delivery(False, f"cannot write: {error.strerror}", 1)
        return Delivery(True, "written", 1)

    def close(self) -> None:
        """The file is closed after each message."""
