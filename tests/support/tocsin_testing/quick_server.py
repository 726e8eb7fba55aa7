"""An HTTP server of a test that ends at once."""

from __future__ import annotations

from pytest_httpserver import HTTPServer


class QuickHttpServer(HTTPServer):
    """Looks 100 times a second whether it is to end; with the usual twice a second every test would wait for it."""

    def thread_target(self) -> None:
        assert self.server is not None
        self.server.serve_forever(poll_interval=0.01)
