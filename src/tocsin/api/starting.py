"""The API from the first moment on: before the brain has read its files it says so, then the application answers."""

from __future__ import annotations

from collections.abc import Callable

from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tocsin.api.errors import RETRY_AFTER_SECONDS, ApiError
from tocsin.api.routes_ops import Health
from tocsin.client.control import Readiness

REASON = "the brain is starting: it reads its journal and its store"


class Starting:
    """Passes requests to `app` once that is set, and what is turned away before it to `refused`.

    Until then no body is read and nobody is asked who they are: the process is alive, not ready, and everything else is
    for a little later.
    """

    def __init__(self) -> None:
        self.app: ASGIApp | None = None
        self.refused: Callable[[str], None] = lambda _code: None

    def refuse(self, code: str) -> None:
        """Tell `refused` as it is by now."""
        self.refused(code)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.app is not None:
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await _answer(scope["path"])(scope, receive, send)


def _answer(path: str) -> JSONResponse:
    if path == "/healthz":
        return JSONResponse(Health().model_dump(mode="json"))
    if path == "/readyz":
        return JSONResponse(Readiness(ready=False, reasons=[REASON]).model_dump(mode="json"), 503)
    return ApiError(503, "unavailable", REASON, headers={"Retry-After": str(RETRY_AFTER_SECONDS)}).response()
