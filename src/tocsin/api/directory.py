"""Log-in of people against an LDAP directory, by python-ldap over OpenLDAP's own library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from tocsin.api.principal import Principal, grants_of
from tocsin.config.access import LdapSettings
from tocsin.domain.errors import InputError, TocsinError, Unavailable, install_extra
from tocsin.telemetry.log import logger

_log = logger("ldap")

MAX_USER = 200
"""Longest name that is tried."""


class NoRole(TocsinError):
    """The password is right, but no group of the person has a role."""


class Directory:
    """Checks passwords and reads groups; a connection for each log-in, none is kept.

    Raises InputError where the library for it is not installed.
    """

    def __init__(self, settings: LdapSettings) -> None:
        self._settings = settings
        try:
            import ldap  # noqa: F401  # only whether it is there
        except ModuleNotFoundError:
            remedy = f"{install_extra('ldap')} (it builds against libldap-dev and libsasl2-dev)"
            raise InputError("api.ldap.url", settings.url, "the library python-ldap is missing", remedy) from None

    def login(self, user: str, password: str) -> Principal | None:
        """Whose `user` and `password` are; None where they are wrong.

        Raises NoRole for a person in no mapped group, and Unavailable where the directory does not answer, its
        certificate is not good, or it refuses the search.
        """
        import ldap

        user = user.strip(" ")
        # A simple bind without a password succeeds as anonymous (RFC 4513, section 5.1.2): it proves nothing.
        if not user or not password or len(user) > MAX_USER or not user.isprintable() or "\0" in password:
            return None
        try:
            return self._login(user, password)
        except (ldap.INVALID_CREDENTIALS, ldap.INVALID_DN_SYNTAX):
            return None
        except ldap.LDAPError as error:
            _log.warning("log-in failed: the directory cannot be asked", url=self._settings.url, error=_reason(error))
            raise Unavailable(f"the directory cannot be asked: {_reason(error)}") from error

    def _login(self, user: str, password: str) -> Principal | None:
        dn = self._dn_of(user)
        if dn is None:
            return None
        with self._connected() as person:
            person.simple_bind_s(dn, password)
            name = self._name(person, dn, user)
            groups = None if self._settings.bind_dn else self._groups(person, dn, user)
        if groups is None:
            with self._searching() as account:
                groups = self._groups(account, dn, user)
        grants = grants_of(groups, self._settings.groups)
        if not grants:
            raise NoRole(f"ldap:{name} is in no group of api.ldap.groups")
        return Principal(f"ldap:{name}", grants, personal=True)

    def _dn_of(self, user: str) -> str | None:
        from ldap.dn import escape_dn_chars
        from ldap.filter import escape_filter_chars

        wanted = self._settings
        if wanted.user_dn:
            return wanted.user_dn.replace("{user}", escape_dn_chars(user))
        text = wanted.search_filter.replace("{user}", escape_filter_chars(user))
        with self._searching() as account:
            found = _entries(self._search(account, wanted.search_base, text, ["1.1"]))
        # Two people under one name: neither can be meant.
        return found[0][0] if len(found) == 1 else None

    def _name(self, person: Any, dn: str, user: str) -> str:
        """The name as the directory spells it: `Anna` and `anna` are one person there, and one in the journal."""
        import ldap

        attribute = self._settings.name_attribute
        try:
            rows = person.search_ext_s(
                dn, ldap.SCOPE_BASE, attrlist=[attribute], timeout=self._settings.timeout_seconds
            )
        except (ldap.NO_SUCH_OBJECT, ldap.INSUFFICIENT_ACCESS):
            rows = []
        values = [value for _, row in _entries(rows) for value in _texts(row, attribute)]
        return values[0] if values else user.casefold()

    def _groups(self, connection: Any, dn: str, user: str) -> list[str]:
        from ldap.filter import escape_filter_chars

        wanted = self._settings
        text = wanted.group_filter.replace("{dn}", escape_filter_chars(dn))
        text = text.replace("{user}", escape_filter_chars(user))
        rows = self._search(connection, wanted.group_base, text, [wanted.group_attribute])
        return [value for _, row in _entries(rows) for value in _texts(row, wanted.group_attribute)]

    def _search(self, connection: Any, base: str, text: str, attributes: list[str]) -> Sequence[Any]:
        import ldap

        rows: Sequence[Any] = connection.search_ext_s(
            base, ldap.SCOPE_SUBTREE, text, attributes, timeout=self._settings.timeout_seconds
        )
        return rows

    @contextmanager
    def _searching(self) -> Iterator[Any]:
        with self._connected() as account:
            if self._settings.bind_dn:
                self._bind_account(account)
            yield account

    def _bind_account(self, account: Any) -> None:
        import ldap

        password = self._settings.bind_password.get_secret_value()
        if not password:
            raise Unavailable("api.ldap.bind_password is empty; nobody can log in")
        try:
            account.simple_bind_s(self._settings.bind_dn, password)
        except ldap.INVALID_CREDENTIALS as error:
            # Not the person's fault: it must not count as a wrong password.
            raise Unavailable("the directory refuses api.ldap.bind_dn; nobody can log in") from error

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        import ldap

        wanted = self._settings
        connection = ldap.initialize(wanted.url)
        try:
            connection.set_option(ldap.OPT_PROTOCOL_VERSION, 3)
            connection.set_option(ldap.OPT_REFERRALS, 0)
            connection.set_option(ldap.OPT_NETWORK_TIMEOUT, wanted.timeout_seconds)
            connection.set_option(ldap.OPT_TIMEOUT, wanted.timeout_seconds)
            if wanted.ca is not None:
                connection.set_option(ldap.OPT_X_TLS_CACERTFILE, str(wanted.ca))
            connection.set_option(ldap.OPT_X_TLS_REQUIRE_CERT, ldap.OPT_X_TLS_DEMAND)
            connection.set_option(ldap.OPT_X_TLS_PROTOCOL_MIN, ldap.OPT_X_TLS_PROTOCOL_TLS1_2)
            connection.set_option(ldap.OPT_X_TLS_NEWCTX, 0)
            if urlsplit(wanted.url).scheme == "ldap" and wanted.start_tls:
                connection.start_tls_s()
            yield connection
        finally:
            connection.unbind_s()


def _entries(rows: Sequence[Any]) -> list[tuple[str, dict[str, list[bytes]]]]:
    """Entries among what a search found; referrals to other servers have no DN."""
    return [(dn, row) for dn, row, *_ in rows if dn is not None]


def _texts(row: dict[str, list[bytes]], attribute: str) -> list[str]:
    wanted = attribute.casefold()
    return [
        value.decode("utf-8", "replace")
        for name, values in row.items()
        if name.casefold() == wanted
        for value in values
    ]


def _reason(error: Exception) -> str:
    """What the library says, without its dictionary around it; it holds no password."""
    detail = error.args[0] if error.args and isinstance(error.args[0], dict) else {}
    said = [str(detail[key]) for key in ("desc", "info") if detail.get(key)]
    return "; ".join(said) or type(error).__name__
