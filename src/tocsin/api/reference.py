"""The page of all endpoints, from the routes: who may ask, what may be sent, and what each does; and of the parameters
of decisions, from their records."""

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
from tocsin.domain.decision import PARAMETERS, DecisionContext
from tocsin.domain.parameters import Parameters, forms_of

HEAD = """# Endpoints

Made by `tocsin reference endpoints`; [api.md](api.md) says who may ask and how errors look. `x...` may be given more
than once. Where the role is `agent`, role `admin` may ask as well; elsewhere a higher role includes a lower one. Where
it is `none` no token is asked for; what is asked for instead stands in the last column.

| endpoint | role | query | body | answers |
| --- | --- | --- | --- | --- |
"""

PARAMETERS_HEAD = """
## Parameters of a decision

Field `parameters` of a decision, here, in webhooks and in the journal, has texts by key; a key without a value is left
out. A value that cannot be read is denied by the executor's pre-check. Instants are milliseconds since 1970. A list of
names has commas between them; one of GPUs has blanks, and a MIG slice is `GPU@start`; one of hosts has blanks, and
commas between pieces of work. Ranks are JSON, pairs of host and GPU; losses are JSON, GPU-hours by action.

| action | keys | meaning |
| --- | --- | --- |
"""


def endpoints_page() -> str:
    """Markdown of every endpoint in the order of the routes, and of the parameters of each action."""
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    return HEAD + "".join(f"{line}\n" for route in routes for line in _rows(route)) + _parameters()


def _parameters() -> str:
    """The keys of a decision's parameters: those that all actions have, then those of each action that has more."""
    forms = {action: forms_of(kind) for action, kind in PARAMETERS.items()}
    common = set.intersection(*(set(found) for found in forms.values()))
    shared = next(base for base in next(iter(PARAMETERS.values())).__mro__ if set(forms_of(base)) == common)
    rows = [_keys("all", forms_of(shared), f"{_told(DecisionContext)} {_told(shared)}")]
    for action, kind in PARAMETERS.items():
        own = {key: form for key, form in forms[action].items() if key not in common}
        if own:
            bases = [one for one in kind.__mro__ if issubclass(one, Parameters) and not issubclass(shared, one)]
            rows.append(_keys(f"`{action}`", own, " ".join(_told(one) for one in bases)))
    return PARAMETERS_HEAD + "".join(f"{row}\n" for row in rows)


def _keys(action: str, forms: dict[str, str], told: str) -> str:
    return f"| {action} | {', '.join(f'`{key}` ({form})' for key, form in forms.items())} | {told} |"


def _told(kind: type[Any]) -> str:
    """The documentation of `kind` in one line."""
    return " ".join((kind.__doc__ or "").split()).replace("``", "`")


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
