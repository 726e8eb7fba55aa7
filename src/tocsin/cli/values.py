"""Values that a shell completes: names from the code, from settings, and from a brain that answers at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from tocsin.cli.common import CliContext, connect
from tocsin.domain.errors import TocsinError

if TYPE_CHECKING:
    from tocsin.client.client import Client

ASK_SECONDS = 1.0
"""How long a brain is waited for: somebody looks at a line that does not move."""
MOST = 200
"""Values that a brain gives: beyond that more has to be typed."""

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
Named = Mapping[str, str] | Iterable[str]
"""Values with what each means, or alone."""


def _items(values: Named, incomplete: str) -> list[CompletionItem]:
    named = values if isinstance(values, Mapping) else dict.fromkeys(values, "")
    fitting = [(name, meaning) for name, meaning in named.items() if name.startswith(incomplete)]
    return [CompletionItem(name, help=meaning or None) for name, meaning in fitting[:MOST]]


def known(values: Callable[[], Named]) -> Completer:
    """Completes from what `values` gives."""

    def complete(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return _items(values(), incomplete)

    return complete


def told(ask: Callable[[Client], Named]) -> Completer:
    """Completes from what a brain tells; nothing where none answers within `ASK_SECONDS`, or it refuses."""

    def complete(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        root = ctx.find_root().params
        context = CliContext(root.get("config"), root.get("secrets"))
        try:
            with connect(context, ctx.params.get("api_url"), ctx.params.get("token"), ASK_SECONDS) as client:
                return _items(ask(client), incomplete)
        except TocsinError:
            return []

    return complete


def _fault_kinds() -> Named:
    from tocsin.sim.faults import fault_kinds as kinds

    return {kind.kind: kind.help for kind in kinds().values()}


def _sources() -> Named:
    from tocsin.plugins import Kind, plugins

    return sorted(plugins(Kind.SOURCE))


def _scorers() -> Named:
    from tocsin.forecaster.hazard import registry

    return registry.names()


def _datasets() -> Named:
    from tocsin.offline.backtest import names

    return names()


def _entry_kinds() -> Named:
    from tocsin.domain.entry import EntryKind

    return [kind.value for kind in EntryKind]


def _released(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return (hosts if ctx.params.get("kind") == "host" else gpus)(ctx, parameter, incomplete)


def _versions(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from tocsin.forecaster.lifecycle.model_registry import ModelRegistry

    root = ctx.find_root().params
    try:
        settings = CliContext(root.get("config"), root.get("secrets")).settings
        return _items(ModelRegistry(ctx.params.get("out") or settings.forecast.models).versions(), incomplete)
    except TocsinError:
        return []


fault_kinds = known(_fault_kinds)
sources = known(_sources)
scorers = known(_scorers)
datasets = known(_datasets)
entry_kinds = known(_entry_kinds)
engines = known(lambda: ("local", "ray"))
gpus = told(lambda client: {gpu.uuid: f"{gpu.host} GPU {gpu.index}, {gpu.state}" for gpu in client.gpus()})
hosts = told(lambda client: sorted({gpu.host for gpu in client.gpus()}))
waiting = told(lambda client: {one.id: one.sentence for one in client.decisions() if one.approvable})
cards = told(lambda client: {one.id: one.headline for one in client.cards().items})
released = _released
versions = _versions
