"""`tocsin release`: a host or a GPU back to service through the brain, or everything that Tocsin set in a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from tocsin.cli import values
from tocsin.cli.act import BRAIN_SECONDS, Person, cluster_options, person_of
from tocsin.cli.common import CliContext, api_options, connect, done, json_option, pass_context, said_as_json
from tocsin.domain.errors import InputError, TocsinError
from tocsin.domain.finding import Subject, SubjectKind

if TYPE_CHECKING:
    from tocsin.actions.kubernetes.release import Released as KubernetesReleased
    from tocsin.actions.slurm.release import Released as SlurmReleased
    from tocsin.config.slurm import SlurmSettings

    Released = KubernetesReleased | SlurmReleased


@click.command()
@click.argument("kind", type=click.Choice(["host", "gpu"]), required=False)
@click.argument("name", shell_complete=values.released, required=False)
@click.option(
    "--all", "everything", is_flag=True, help="Take back everything that Tocsin set in the Kubernetes cluster."
)
@click.option("--slurm", "in_slurm", is_flag=True, help="With --all: in the Slurm cluster of the settings instead.")
@click.option("--forget", is_flag=True, help="With --all: remove the ids of ended decisions too, to leave no trace.")
@click.option("--reason", default="", help="Why; kept in the journal.")
@click.option("--right", is_flag=True, help="What was done there was right: it does not count against its rule.")
@cluster_options
@api_options
@json_option
@pass_context
def release(
    context: CliContext,
    kind: Literal["host", "gpu"] | None,
    name: str | None,
    everything: bool,
    in_slurm: bool,
    forget: bool,
    reason: str,
    right: bool,
    kubeconfig: Path | None,
    context_name: str | None,
    dry_run: bool,
    yes: bool,
    api_url: str | None,
    token: str | None,
    as_json: bool,
) -> int:
    """Give the host NAME, or the GPU with UUID NAME, back to service and leave it alone for the hold-off.

    A GPU that its host does not report any more may then be reported by another host: it has moved, or the host has a
    new name. --all needs no brain: with --dry-run or --yes it takes back each cordon, taint, label and condition that
    Tocsin set on the nodes of a Kubernetes cluster, and nothing of others; with --slurm each drain, hold and comment in
    a Slurm cluster. Exit code 1 where a node refused, or where something of Tocsin's had to stay: the answer says why,
    and how to take it back later.
    """
    if everything == (kind is not None and name is not None) or (everything and kind is not None):
        raise InputError("release", name or kind or "", "is not one thing to release", "name KIND and NAME, or --all")
    if in_slurm and not everything:
        raise InputError("--slurm", "", "goes with --all alone", "add --all, or name KIND and NAME without it")
    if everything:
        person = person_of(context, kubeconfig, context_name, dry_run=dry_run, yes=yes)
        brain = partial(_active_brain, context, api_url, token)
        site = partial(_slurm_site, context.settings.slurm) if in_slurm else _kubernetes_site
        work = partial(_release_all, person, brain, reason, partial(site, person, forget))
        return said_as_json(work) if as_json else work()
    if kind is not None and name is not None:
        _release_one(context, kind, name, reason, right, (api_url, token), as_json)
    return 0


def _release_one(
    context: CliContext,
    kind: Literal["host", "gpu"],
    name: str,
    reason: str,
    right: bool,
    api: tuple[str | None, str | None],
    as_json: bool,
) -> None:
    with connect(context, *api) as client:
        released = client.release(kind, name, reason, right=right)
    said = f"{kind} {name} released, left alone until {released.held_off_until}"
    if released.given_up:
        said += f"; GPUs that another host may report now: {released.given_up}"
    if released.still_reported:
        said += f"; GPUs that it reports itself and keeps: {released.still_reported}"
    done(as_json, said, client.base_url, **released.model_dump(mode="json"))


def _active_brain(context: CliContext, api_url: str | None, token: str | None) -> bool:
    """Whether a brain answers that is not paused."""
    try:
        with connect(context, api_url, token, timeout=BRAIN_SECONDS) as client:
            return not client.summary().paused
    except TocsinError:
        return False


@dataclass(frozen=True)
class _Site:
    """A cluster with marks of Tocsin's: its name, what takes them back, and what lets go of it."""

    name: str
    take_back: Callable[[], Iterable[Released]]
    close: Callable[[], None]


def _kubernetes_site(person: Person, forget: bool) -> _Site:
    from tocsin.actions.kubernetes.release import release_all

    client, cluster, _ = person.open()
    said = person.settings
    take_back = partial(
        release_all, cluster, condition=said.node_condition, repair=said.repair_condition, forget=forget
    )
    return _Site(client.server, take_back, client.close)


def _slurm_site(settings: SlurmSettings, person: Person, forget: bool) -> _Site:
    from tocsin.actions.slurm.client import Slurm
    from tocsin.actions.slurm.release import release_all
    from tocsin.actions.slurm.rest import Closing, runner_of

    runner = runner_of(settings, person.clock)
    slurm = Slurm(settings, runner, person.clock, [] if person.dry_run else None)
    close = runner.close if isinstance(runner, Closing) else lambda: None
    return _Site(settings.rest_url or "slurm", partial(release_all, slurm, forget=forget), close)


def _release_all(person: Person, active: Callable[[], bool], reason: str, opened: Callable[[], _Site]) -> int:
    person.allow()
    site = opened()
    with closing(site):
        if active():
            click.echo("warning: a brain runs that is not paused, and may act again: tocsin pause REASON", err=True)
        work = partial(_taken_back, site, person.dry_run)
        if person.dry_run:
            return work(click.echo)
        about = Subject(SubjectKind.FLEET, "fleet")
        return person.noted(person.deed("release_all", about, site.name, {}, reason), work)


def _taken_back(site: _Site, dry_run: bool, say: Callable[[str], object]) -> int:
    nodes, failed, waiting = 0, 0, 0
    for one in site.take_back():
        click.echo(_line(one, dry_run=dry_run))
        nodes += bool(one.taken)
        failed += bool(one.error)
        waiting += bool(one.waits)
    words = f"{nodes} nodes {'would be released' if dry_run else 'released'}"
    trouble = [f"{failed} nodes refused"] if failed else []
    trouble += [f"{waiting} nodes keep something of Tocsin's"] if waiting else []
    say(f"failed: {', '.join((*trouble, words))}" if trouble else f"ok: {words}")
    return 1 if trouble else 0


def _line(one: Released, *, dry_run: bool) -> str:
    parts = [f"{'would take' if dry_run else 'took'} back {', '.join(one.taken)}"] if one.taken else []
    parts += [f"failed: {one.error}"] if one.error else []
    return f"{one.node}: " + "; ".join([*parts, *one.left, *one.waits])


COMMANDS: list[click.Command] = [release]
