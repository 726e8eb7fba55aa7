"""Who asks, and how far that reaches."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from tocsin.config.access import AccessScope, GroupRole, Role

_RANK = [Role.AGENT, Role.VIEWER, Role.OPERATOR, Role.ADMIN]


def least_role(roles: Iterable[Role]) -> Role:
    """The lowest of `roles`, at least one."""
    return min(roles, key=_RANK.index)


@dataclass(frozen=True, slots=True)
class Grant:
    """A role, limited to some actions in some pools where `scopes` names any, and to the work of some namespaces where
    there are any."""

    role: Role
    scopes: tuple[AccessScope, ...] = ()
    namespaces: frozenset[str] = frozenset()

    def covers(self, action: str, pool: str) -> bool:
        """Whether `action` is granted in `pool`; an empty `pool` is the whole fleet."""
        reached = [scope for scope in self.scopes if {"*", action} & set(scope.actions)]
        return not self.scopes or any(
            "*" in scope.pools or (bool(pool) and any(fnmatchcase(pool, pattern) for pattern in scope.pools))
            for scope in reached
        )


@dataclass(frozen=True, slots=True)
class Principal:
    """Whoever proved something; `name` goes into the journal.

    `hosts` are the nodes (lower case) whose telemetry may be written, empty where any. `session` is the digest of a
    log-in by password. `personal` says that one person alone has what was proved.
    """

    name: str
    grants: tuple[Grant, ...]
    hosts: frozenset[str] = field(default_factory=frozenset)
    session: str = ""
    personal: bool = False

    @property
    def role(self) -> Role:
        """The furthest role."""
        return max((grant.role for grant in self.grants), key=_RANK.index)

    @property
    def namespaces(self) -> frozenset[str]:
        """Of a tenant, whose every grant names some: those that are read alone; empty for whoever reads the fleet."""
        if not all(grant.namespaces for grant in self.grants):
            return frozenset()
        return frozenset[str]().union(*(grant.namespaces for grant in self.grants))

    @property
    def limited(self) -> bool:
        """Whether any scope has to be looked at."""
        return any(grant.scopes for grant in self.grants)

    def has(self, roles: Collection[Role]) -> bool:
        """Whether one of `roles` is granted at all."""
        return any(grant.role in roles for grant in self.grants)

    def may(self, roles: Collection[Role], action: str, pools: Iterable[str]) -> bool:
        """Whether `action` is granted with one of `roles` in each of `pools`; no pool means the whole fleet."""
        granted = [grant for grant in self.grants if grant.role in roles]
        return all(any(grant.covers(action, pool) for grant in granted) for pool in (list(pools) or [""]))

    def speaks_for(self, host: str) -> bool:
        """Whether telemetry of `host` may come from here."""
        return not self.hosts or host.lower() in self.hosts

    def scope_texts(self) -> list[str]:
        """Each scope in words, such as ``train-*: throttle, cordon``; empty where there is no limit."""
        scopes = [scope for grant in self.grants for scope in grant.scopes]
        return [f"{', '.join(scope.pools)}: {', '.join(scope.actions)}" for scope in scopes]


def simple(
    name: str,
    role: Role,
    scopes: Sequence[AccessScope] = (),
    host: str = "",
    *,
    personal: bool = False,
    namespaces: Iterable[str] = (),
) -> Principal:
    """A principal with one role."""
    hosts = frozenset({host.lower()}) if host else frozenset[str]()
    return Principal(name, (Grant(role, tuple(scopes), frozenset(namespaces)),), hosts, personal=personal)


def grants_of(groups: Iterable[str], mapping: Sequence[GroupRole]) -> tuple[Grant, ...]:
    """What the members of `groups` may do; capitals do not matter. Empty where no group is mapped."""
    held = {group.casefold() for group in groups}
    mapped = [row for row in mapping if row.group.casefold() in held]
    return tuple(Grant(row.role, tuple(row.scopes), frozenset(row.namespaces)) for row in mapped)
