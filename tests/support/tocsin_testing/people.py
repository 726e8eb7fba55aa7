"""Anna, an operator, and Ben, a viewer, in a directory of our own that asks nobody."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import MagicMock

import pytest
from pydantic import SecretStr

from tocsin.api.directory import Directory
from tocsin.api.principal import Principal, simple
from tocsin.config.access import ApiSettings, LdapSettings, Role, Token
from tocsin_testing.fake_service import FakeService, serving

PASSWORD = "open sesame"
OWN_TOKEN = "a-viewer-secret-0123"
_ROLES = {"anna": Role.OPERATOR, "ben": Role.VIEWER}
_LDAP = {
    "url": "ldaps://directory.example",
    "user_dn": "uid={user},dc=example",
    "group_base": "ou=groups,dc=example",
    "groups": [{"group": "ops", "role": "operator"}],
}


class People(Directory):
    """Takes `PASSWORD` of everybody it knows."""

    def __init__(self, _settings: LdapSettings) -> None:
        pass

    def login(self, user: str, password: str) -> Principal | None:
        return simple(f"ldap:{user}", _ROLES[user]) if password == PASSWORD and user in _ROLES else None


@contextmanager
def guarded_api(service: FakeService) -> Iterator[str]:
    """The API over `service`, where people log in by password and `OWN_TOKEN` is a viewer's; yields its URL."""
    token = Token(name="dashboard", role=Role.VIEWER, secret=SecretStr(OWN_TOKEN))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "ldap", MagicMock())
        patch.setattr("tocsin.api.login.Directory", People)
        with serving(service, ApiSettings(tokens=[token], ldap=LdapSettings.model_validate(_LDAP))) as url:
            yield url
