"""Who carries out what: executors in order, for the fleet and for single pools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tocsin.actions.model.executor import Closes, Executor
from tocsin.config.settings import ActionSettings
from tocsin.domain.decision import Decision
from tocsin.domain.finding import ActionKind


class Routing:
    """The first executor that supports a decision's action, and takes the decision for its own, carries it out.

    `pools` names those of single pools, in place of `default`.
    """

    def __init__(self, default: Sequence[Executor], pools: Mapping[str, Sequence[Executor]] | None = None) -> None:
        self._default = tuple(default)
        self._pools = {pool: tuple(executors) for pool, executors in (pools or {}).items()}
        everybody = [*self._default, *(each for pool in self._pools.values() for each in pool)]
        self._named = {each.name: each for each in everybody}

    @property
    def executors(self) -> tuple[Executor, ...]:
        """Each of them once."""
        return tuple(self._named.values())

    def close(self) -> None:
        for each in self.executors:
            if isinstance(each, Closes):
                each.close()

    def executor_for(self, decision: Decision) -> Executor | None:
        """Who carries out `decision`; None where nobody does."""
        own = self._pools.get(decision.subject.pool or decision.parameters.context.pool, self._default)
        return next((each for each in own if each.supports(decision.action) and each.serves(decision)), None)

    def supports(self, action: ActionKind, pool: str) -> bool:
        """Whether anybody carries out `action` in `pool` at all."""
        return any(each.supports(action) for each in self._pools.get(pool, self._default))

    def named(self, name: str) -> Executor | None:
        """The executor of that name; None where there is none any more."""
        return self._named.get(name)


def build_routing(settings: ActionSettings, build: Callable[[str], Executor]) -> Routing:
    """The routing that `settings` ask for, each executor built once; raises what `build` raises."""
    built: dict[str, Executor] = {}

    def get(name: str) -> Executor:
        if name not in built:
            built[name] = build(name)
        return built[name]

    pools = {pool: [get(name) for name in names] for pool, names in settings.pool_executors.items()}
    return Routing([get(name) for name in settings.executors], pools)
