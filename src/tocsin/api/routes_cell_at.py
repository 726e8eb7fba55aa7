"""Endpoints of one cell by way of any brain: a request is passed on to the cell that it names, with its credential."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from tocsin.api.auth import Viewer
from tocsin.api.dependencies import ServiceDep, operation_id, require_json
from tocsin.api.errors import ApiError, documented
from tocsin.api.service import CellService

AT = "/v1/cells/at/"
"""What stands before a path of the API, with the name of the cell that is to answer it."""
_NOT_PASSED = ("v1/cells", "v1/login", "v1/logout", "v1/orders", "v1/desk", "v1/slack")
"""Not passed on: what is over all cells, or has a proof of its own that is not the credential."""

cell_at_router = APIRouter(generate_unique_id_function=operation_id, tags=["cells"])
Cell = Annotated[str, Path(min_length=1, max_length=100, description="Name of a cell.")]
Below = Annotated[str, Path(min_length=1, max_length=500, description="Path of an endpoint, such as `v1/gpus`.")]


async def _pass(request: Request, service: ServiceDep, cell: str, path: str) -> Response:
    if not path.startswith("v1/") or any(path == one or path.startswith(f"{one}/") for one in _NOT_PASSED):
        raise ApiError(404, "not_found", f"/{path} is not passed on to another cell; ask its brain (`tocsin cells`)")
    # As it came: what is escaped in it stays so.
    raw = request.scope.get("raw_path", request.url.path.encode()).decode("latin-1")
    target = "/" + raw.removeprefix(AT).partition("/")[2]
    query = request.url.query
    found = await run_in_threadpool(
        service.cells.pass_to,
        cell,
        request.method,
        f"{target}?{query}" if query else target,
        dict(request.headers),
        await request.body(),
    )
    return Response(found.body, found.status, dict(found.headers))


@cell_at_router.get(
    AT + "{cell}/{path:path}", responses=documented(400, 401, 403, 404, 422, 429, 500, 503), response_class=Response
)
async def read_at_cell(request: Request, service: ServiceDep, _who: Viewer, cell: Cell, path: Below) -> Response:
    """What the cell answers to the same request at its own brain."""
    return await _pass(request, service, cell, path)


@cell_at_router.post(
    AT + "{cell}/{path:path}",
    dependencies=[Depends(require_json)],
    responses=documented(400, 401, 403, 404, 415, 422, 429, 500, 503),
    response_class=Response,
)
async def change_at_cell(request: Request, service: ServiceDep, _who: Viewer, cell: Cell, path: Below) -> Response:
    """The same for what is to change there; the cell decides by the credential."""
    return await _pass(request, service, cell, path)


@cell_at_router.delete(
    AT + "{cell}/{path:path}", responses=documented(400, 401, 403, 404, 422, 429, 500, 503), response_class=Response
)
async def end_at_cell(request: Request, service: ServiceDep, _who: Viewer, cell: Cell, path: Below) -> Response:
    """The same for what is to end there."""
    return await _pass(request, service, cell, path)


class OwnCell:
    """ASGI middleware: what is asked of the brain's own cell by name is asked of the brain itself."""

    def __init__(self, app: ASGIApp, cells: CellService) -> None:
        self._app = app
        self._cells = cells

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(AT):
            cell, _, path = scope["path"].removeprefix(AT).partition("/")
            if cell == self._cells.name and path.startswith("v1/"):
                raw = scope.get("raw_path", scope["path"].encode())
                below = raw.removeprefix(AT.encode()).partition(b"/")[2]
                scope = {**scope, "path": f"/{path}", "raw_path": b"/" + below}
        await self._app(scope, receive, send)
