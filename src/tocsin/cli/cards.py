"""`tocsin cards` and `tocsin card`: what is wrong, what happens next, and the one action of each cause."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tocsin.cli import values
from tocsin.cli.common import CliContext, api_options, connect, json_option, pass_context, show
from tocsin.client.models_cards import CardState
from tocsin.domain.words import counted

if TYPE_CHECKING:
    from tocsin.client.models_cards import Card, CardAction, CardEvidence, Cards
    from tocsin.client.models_silences import SilenceOut

_STATES = [state.value for state in CardState]


def summary_lines(cards: Sequence[Card], total: int, cells: Sequence[str] = ()) -> list[str]:
    """Two lines a card: what is wrong, and what comes next or why nothing can be done; `cells` are those that have
    each, where they are several."""
    lines = []
    for n, card in enumerate(cards):
        state = f"{card.state}{_taken(card)}"
        lines += [
            f"  {card.level} {card.id}  {card.headline}{f' (cell {cells[n]})' if cells else ''}",
            f"    {state}. {_short(card)}",
        ]
    return [*lines, *([f"  and {total - len(cards)} more (tocsin cards)"] if total > len(cards) else [])]


def _short(card: Card) -> str:
    if card.state is CardState.RESOLVED:
        return card.proof
    if card.action is None:
        return card.obstacle or card.next
    if not card.action.can_approve:
        return card.next
    return f"{card.next}: {card.action.kind.value.replace('_', ' ')}, {_yes(card.action)}"


def _yes(action: CardAction) -> str:
    """The command that says yes to all that the card asks for, last, as it can be copied."""
    alone = f"tocsin approve {action.decision}"
    return f"for all {action.alike + 1}: {alone} --alike" if action.alike else alone


@click.command()
@click.option("--state", type=click.Choice(_STATES), help="Only cards in this state; default: all but resolved.")
@click.option("--hidden", is_flag=True, help="What snoozes and planned maintenance hide.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=50, show_default=True, help="Most cards.")
@api_options
@json_option
@pass_context
def cards(
    context: CliContext,
    state: str | None,
    hidden: bool,
    limit: int,
    api_url: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """List cards, the most urgent first: one cause each, what happens next, and the one action that can run."""
    with connect(context, api_url, token) as client:
        found = client.cards(limit, None if state is None else CardState(state), hidden=hidden)
        url = client.base_url
    show(as_json, found.model_dump(mode="json"), _list_lines(found), url)


def _list_lines(found: Cards) -> list[str]:
    if not found.items:
        return ["no cards", *hidden_line(found)]
    title = f"{counted(found.total, 'card')}{_waiting(found)}"
    return [title, *summary_lines(found.items, found.total), *hidden_line(found)]


def _waiting(found: Cards) -> str:
    """How many decisions wait, and where the others are: one card may stand for several, and one may be hidden."""
    asked = sum(card.action is not None and card.action.can_approve for card in found.items)
    rest = found.waiting - asked
    wait = f"{counted(found.waiting, 'decision')} {'waits' if found.waiting == 1 else 'wait'} for you"
    elsewhere = f", {rest} of them not named here (tocsin status)" if rest > 0 else ""
    return f"; {wait}{elsewhere}" if found.waiting else ""


@click.command()
@click.argument("card_id", metavar="ID", shell_complete=values.cards)
@api_options
@json_option
@pass_context
def card(context: CliContext, card_id: str, api_url: str | None, token: str | None, as_json: bool) -> None:
    """Show one card with its evidence. ID is that of the card or of an incident that it stands for."""
    with connect(context, api_url, token) as client:
        found = client.card(card_id)
        url = client.base_url
    show(as_json, found.model_dump(mode="json"), card_lines(found), url)


def card_lines(card: Card) -> list[str]:
    """Everything on a card, a line each."""
    touched = card.touches
    names = ", ".join([*touched.gpu_names, *touched.job_names, *touched.owner_names])
    sure = card.confidence + (f", {card.probability:.0%}" if card.probability is not None else "")
    facts = (
        ("state", _stand(card)),
        ("hidden", "" if card.hidden is None else _hidden(card.hidden)),
        ("level", card.level.value),
        ("since", readable(card.since)),
        ("place", card.place),
        (
            "touches",
            f"{counted(touched.gpus, 'GPU')}, {counted(touched.hosts, 'host')}, {counted(touched.jobs, 'job')}"
            + (f" ({names})" if names else ""),
        ),
        ("confidence", sure),
        ("waiting costs", "" if card.waiting_gpu_hours is None else f"{card.waiting_gpu_hours:.1f} GPU-hours"),
        ("next", card.next),
        ("action", "" if card.action is None else card.action.sentence),
        ("worth", _worth(card)),
        ("yes", _yes(card.action) if card.action and card.action.can_approve else ""),
        ("obstacle", card.obstacle),
        ("proof", card.proof),
    )
    lines = [card.headline + (" (simulated)" if card.simulated else "")]
    lines += [f"  {name + ':':<15}{value}" for name, value in facts if value]
    told = [f"  - {one.name + ': ' if one.name else ''}{one.text}{_named(one)}" for one in card.evidence]
    return [*lines, *(["evidence:", *told] if told else [])]


def _named(one: CardEvidence) -> str:
    """The id of another decision, which a person may approve or reject by itself."""
    return f" ({one.decision})" if one.kind == "decision" else ""


def readable(instant: str | None) -> str:
    """An instant of the API for people."""
    return "" if instant is None else f"{instant[:10]} {instant[11:16]} UTC"


def _stand(card: Card) -> str:
    if card.state is CardState.RESOLVED:
        return f"resolved at {readable(card.resolved)}"
    again = f", came again after its end at {readable(card.reopened_from)}" if card.reopened_from else ""
    return card.state.value + _taken(card) + again


def _taken(card: Card) -> str:
    """By whom it is acknowledged, and until when; empty where it is not."""
    return f" by {card.acknowledged_by} until {readable(card.acknowledged_until)}" if card.acknowledged_by else ""


def hidden_line(found: Cards) -> list[str]:
    """How many cards are hidden, and by what; nothing where none is."""
    if not found.hidden:
        return []
    by = [
        f"{count} {one if count == 1 else several}"
        for count, one, several in (
            (found.snoozes, "snooze", "snoozes"),
            (found.maintenances, "planned maintenance", "planned maintenances"),
        )
        if count
    ]
    cards = "1 card is" if found.hidden == 1 else f"{found.hidden} cards are"
    return [f"{cards} hidden by {' and '.join(by)} (tocsin cards --hidden)"]


def _hidden(by: SilenceOut) -> str:
    return f"{by.silence} of {by.kind} {by.name} by {by.by} until {readable(by.until)} (id {by.id})"


def _worth(card: Card) -> str:
    action = card.action
    if action is None or action.cost_gpu_hours is None:
        return ""
    saves = "" if action.benefit_gpu_hours is None else f", saves {action.benefit_gpu_hours:.1f}"
    return f"costs {action.cost_gpu_hours:.1f} GPU-hours{saves}"


COMMANDS: list[click.Command] = [cards, card]
