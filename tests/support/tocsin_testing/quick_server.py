"""An HTTP server of a test that ends at once."""

from __future__ import annotations

from pytest_httpserver import HTTPServer


class QuickHttpServer(HTTPServer):
    """Looks 100 times a second whether it is to end; socketserver's own twice a second would cost every test half one."""

    def thread_target(self) -> None:
        assert self.server is not None
        self.server.serve_forever(poll_interval=0.01)
