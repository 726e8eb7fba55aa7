"""`tocsin brain`: a brain with its API, until it is told to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tocsin.api.app import create_app
from tocsin.api.server import ApiServer
from tocsin.config.address import is_loopback, split_address
from tocsin.config.settings import Settings
from tocsin.domain.clock import Clock
from tocsin.queries.service import BrainService
from tocsin.runtime.brain.assembly import open_brain
from tocsin.runtime.service_manager import ServiceManager


def run_brain(settings: Settings, clock: Clock, stop: threading.Event, announce: Callable[[str], None]) -> None:
    """Serve until `stop` is set; `announce` gets a line with the URL once the API answers."""
    host, port = split_address(settings.api.listen, "api.listen")
    running = open_brain(settings, clock)
    try:
        service = BrainService(running.brain)
        app = create_app(service, settings.api, clock)
        server = ApiServer(app, host, port, settings.api, service.refused)
        server.start()
        announce(f"api: {server.url}")
        if settings.api.open_to_loopback and not is_loopback(host):
            announce("no api.tokens are set: requests from other hosts are refused, agents on other nodes among them")
        elif settings.api.tls_certificate is None and not is_loopback(host):
            announce("no api.tls_certificate is set: tokens and passwords travel in the clear")
        running.start()
        try:
            ServiceManager().stand_by(stop, running.evaluations)
        finally:
            server.stop()
    finally:
        running.stop()
