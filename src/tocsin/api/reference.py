"""The page of all endpoints, from the routes: who may ask, what may be sent, and what each does."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, get_args

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel

from tocsin.api.app import ROUTERS
from tocsin.api.auth import roles_needed
from tocsin.api.principal import least_role
from tocsin.config.access import Role

HEAD = """# Endpoints

Made by `tocsin reference endpoints`; [api.md](api.md) says who may ask and how errors look. `x...` may be given more
than once. Where the role is `agent`, role `admin` may ask as well; elsewhere a higher role includes a lower one. Where
it is `none` no token is asked for; what is asked for instead stands in the last column.

| endpoint | role | query | body | answers |
| --- | --- | --- | --- | --- |
"""


def endpoints_page() -> str:
    """Markdown of every endpoint in the order of the routes."""
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    return HEAD + "".join(f"{line}\n" for route in routes for line in _rows(route))


def _rows(route: APIRoute) -> Iterator[str]:
    query = ", ".join(_parameter(one.name, one.field_info.annotation) for one in route.dependant.query_params)
    sent = [one.field_info.annotation for one in route.dependant.body_params]
    fields = ", ".join(f"`{name}`" for kind in sent for name in _fields(kind))
    told = " ".join((inspect.getdoc(route.endpoint) or "").split())
    for method in sorted(route.methods or ()):
        yield f"| `{method} {route.path_format}` | {_role(route.dependant)} | {query} | {fields} | {told} |"


def _parameter(name: str, annotation: Any) -> str:
    kinds = {getattr(kind, "__origin__", kind) for kind in (annotation, *get_args(annotation))}
    return f"`{name}...`" if kinds & {list, tuple} else f"`{name}`"


def _fields(kind: Any) -> list[str]:
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []


def _role(dependant: Dependant) -> str:
    """The lowest role that may ask, in words."""
    roles = [role for one in dependant.dependencies for role in roles_needed(one.call)]
    if not roles:
        return "none"
    return "any" if set(roles) == set(Role) else least_role(roles).value
