"""`tocsin act`: one action on a Kubernetes cluster by a person, through the executor that the brain uses.

It goes past the guards: who runs it has decided, and is on record with it. Exit codes: 0 done, 1 not done, 2 bad input,
3 the API server does not answer, or refuses the credentials or the right.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from tocsin.cli.common import CliContext, SaidGroup, all_of, connect, json_option, pass_context, show
from tocsin.config.kubernetes import KubernetesSettings, KubernetesWorkload
from tocsin.domain.clock import HOUR, Clock, SystemClock
from tocsin.domain.decision import (
    BY_HAND,
    ActionParameters,
    CheckpointParameters,
    CordonGpuParameters,
    CordonParameters,
    Decision,
    DecisionContext,
    DefragmentParameters,
    DrainParameters,
    MigrateParameters,
    Mode,
    PlaceElsewhereParameters,
    ScaleInParameters,
    ScaleOutParameters,
    UncordonGpuParameters,
    UncordonParameters,
)
from tocsin.domain.errors import Conflict, InputError, TocsinError, Unavailable
from tocsin.domain.finding import Category, Severity, Subject, SubjectKind
from tocsin.domain.parameters import encode

if TYPE_CHECKING:
    from tocsin.actions.executors.kubernetes import Kubernetes
    from tocsin.actions.kubernetes.client import KubernetesClient
    from tocsin.actions.kubernetes.cluster import Cluster
    from tocsin.actions.planning.facts import NodeState
    from tocsin.client.client import Client
    from tocsin.client.control import ManualAction


# The record of what a person does by hand: in the brain's journal, or in one of the person's own where none takes it.
# Nothing is done that is not on record first. Both journals are chains of hashes: `tocsin journal verify` and `tocsin
# journal export` read either.

LOCK_SECONDS = 10.0
"""How long another command that writes to the same journal is waited for."""
LONGEST = 4000
"""Characters of a detail that are kept."""


def default_path(environ: Mapping[str, str] | None = None) -> Path:
    """The person's own journal. Raises InputError where no folder of the person's is known."""
    environ = os.environ if environ is None else environ
    if environ.get("XDG_STATE_HOME"):
        return Path(environ["XDG_STATE_HOME"]) / "tocsin" / "by-hand.db"
    try:
        return Path.home() / ".local" / "state" / "tocsin" / "by-hand.db"
    except RuntimeError:
        remedy = "name a file in journal.by_hand (TOCSIN_JOURNAL__BY_HAND)"
        raise InputError("journal.by_hand", "", "no home folder is known", remedy) from None


def account(environ: Mapping[str, str] | None = None) -> str:
    """Who runs this command, as the system knows it: ``unix:anna@host``, with the person behind sudo in brackets."""
    environ = os.environ if environ is None else environ
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    behind = environ.get("SUDO_USER", "")
    return f"unix:{name}@{socket.gethostname()}" + (f" (sudo {behind})" if behind and behind != name else "")


@dataclass(frozen=True, slots=True)
class Deed:
    """What is done: `id` is that of its decision, `manager` the cluster."""

    id: str
    action: str
    subject: Subject
    reason: str
    manager: str
    parameters: Mapping[str, str] = field(default_factory=dict)


class ManualRecord:
    """Puts deeds on record. `brain` makes a client, `say` is told where a record went that the brain refused."""

    def __init__(
        self, brain: Callable[[], Client], path: Path | None, clock: Clock, say: Callable[[str], object]
    ) -> None:
        self._brain = brain
        self._path = path
        self._clock = clock
        self._say = say
        self._by = account()
        self._away = False

    def begun(self, deed: Deed) -> None:
        """Before anything is done. Raises InputError, Conflict or JournalBroken where it can be put nowhere."""
        self._put(self._entry(deed, "begun"))

    def ended(self, deed: Deed, ok: bool, detail: str) -> None:
        """Once it is over; what cannot be put on record any more is said."""
        entry = self._entry(deed, "ended").model_copy(
            update={"status": "succeeded" if ok else "failed", "detail": detail[:LONGEST]}
        )
        try:
            self._put(entry)
        except TocsinError as error:
            self._say(f"warning: the outcome was not recorded: {error}")

    def _entry(self, deed: Deed, phase: Literal["begun", "ended"]) -> ManualAction:
        from tocsin.client.control import ManualAction

        subject = deed.subject
        return ManualAction(
            id=deed.id,
            phase=phase,
            action=deed.action,
            subject=Subject(kind=subject.kind, name=subject.name, host=subject.host, pool=subject.pool),
            reason=deed.reason[:LONGEST],
            parameters={name: value[:LONGEST] for name, value in deed.parameters.items()},
            manager=deed.manager,
            by=self._by,
        )

    def _put(self, entry: ManualAction) -> None:
        if self._away or not self._sent(entry):
            self._keep(entry)

    def _sent(self, entry: ManualAction) -> bool:
        try:
            with self._brain() as client:
                client.record_manual(entry)
            return True
        except Unavailable:
            self._away = True
        except TocsinError as error:
            self._away = True
            self._say(f"the brain refused the record ({error}); it is stored in {self._own_path()}")
        return False

    def _own_path(self) -> Path:
        return self._path or default_path()

    def _keep(self, entry: ManualAction) -> None:
        import stamina

        from tocsin.domain.entry import EntryKind
        from tocsin.journal.journal import Journal

        path = self._own_path()
        patience = stamina.retry_context(
            on=Conflict, timeout=LOCK_SECONDS, attempts=None, wait_initial=0.05, wait_max=0.5
        )
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            for attempt in patience:
                with attempt:
                    # A person's own file: the key of the brain's state is not theirs to read.
                    journal = Journal.open(path, self._clock, sealed=False)
        except OSError as error:
            raise _unusable(path, error) from None
        with closing(journal):
            journal.append(EntryKind.MANUAL_ACTION, entry.model_dump(mode="json"), actor=self._by)


def _unusable(path: Path, error: OSError) -> InputError:
    problem = f"cannot be written ({error.strerror or error}), and nothing is done that is not on record"
    remedy = "name a file that may be written (TOCSIN_JOURNAL__BY_HAND)"
    return InputError("journal.by_hand", str(path), problem, remedy)


LOOK_SECONDS = 2.0
"""Rest between two looks at an action that goes on."""
BRAIN_SECONDS = 3.0
"""How long a brain is waited for that is to take the record."""
_SHOWN = ("host", "schedulable", "ready", "ours", "reason", "work")
"""What `act nodes --json` tells of a node."""
_POOL = "person"
"""Name under which `act scale` enters its workload."""


def rest(seconds: float) -> None:
    """Wait between two looks."""
    threading.Event().wait(seconds)


def carry_out(
    executor: Kubernetes, decision: Decision, wait: Callable[[float], object], say: Callable[[str], object]
) -> int:
    """Run `decision` to its end, saying each new detail once; the exit code."""
    told = ""
    while True:
        result = executor.execute(decision)
        if not result.pending:
            say(("ok: " if result.ok else "failed: ") + result.detail)
            return 0 if result.ok else Unavailable.exit_code if result.unserved else 1
        if result.detail != told:
            told = result.detail
            say(f"... {told}")
        wait(LOOK_SECONDS)


@dataclass(frozen=True)
class Person:
    """What the subcommands share: where the cluster is, and whether anything may be changed there."""

    settings: KubernetesSettings
    dry_run: bool
    yes: bool
    clock: Clock
    record: ManualRecord

    def allow(self) -> None:
        """Raises InputError where neither `--dry-run` nor `--yes` was given, or both."""
        if self.dry_run == self.yes:
            raise InputError("--yes", self.yes, "neither or both of --dry-run and --yes were given", "give exactly one")

    def open(self, **more: Any) -> tuple[KubernetesClient, Cluster, Kubernetes]:
        """The cluster, which has answered, and the executor over it with the settings changed by `more`."""
        from tocsin.actions.executors.kubernetes import Kubernetes
        from tocsin.actions.kubernetes.client import connect
        from tocsin.actions.kubernetes.cluster import Cluster

        settings = self.settings.model_copy(update={"dry_run": self.dry_run} | more)
        client = connect(settings)
        cluster = Cluster(client, dry_run=self.dry_run)
        try:
            client.ask("GET", "/version")
        except BaseException:
            client.close()
            raise
        return client, cluster, Kubernetes(cluster, settings, self.clock)

    def act(self, decision: Decision, **more: Any) -> int:
        self.allow()
        client, _, executor = self.open(**more)
        with closing(client):
            return self.recorded(decision, client.server, lambda say: carry_out(executor, decision, rest, say))

    def recorded(self, decision: Decision, server: str, do: Callable[[Callable[[str], object]], int]) -> int:
        """Run `do`, given what it says things to, between two entries of the record; a dry run leaves none."""
        if self.dry_run:
            return do(click.echo)
        deed = Deed(
            decision.id, decision.action, decision.subject, decision.sentence, server, encode(decision.parameters)
        )
        return self.noted(deed, do)

    def noted(self, deed: Deed, do: Callable[[Callable[[str], object]], int]) -> int:
        said = [""]

        def say(words: str) -> None:
            said[0] = words
            click.echo(words)

        self.record.begun(deed)
        try:
            code = do(say)
        except BaseException as error:
            self.record.ended(deed, False, str(error) or type(error).__name__)
            raise
        self.record.ended(deed, code == 0, said[0])
        return code

    def decision(self, subject: Subject, reason: str, parameters: ActionParameters) -> Decision:
        """The decision of a person, under a key of its own."""
        now_ms, action = self.clock.now_ms(), parameters.action
        return Decision(
            rule=BY_HAND,
            subject=subject,
            action=action,
            mode=Mode.ACT,
            severity=Severity.INFO,
            category=Category.HARDWARE,
            at_ms=now_ms,
            expires_ms=now_ms + HOUR,
            key=f"person|{subject.key}|{action}|{now_ms}",
            sentence=reason,
            parameters=parameters,
        )

    def deed(self, action: str, subject: Subject, server: str, parameters: Mapping[str, str], reason: str = "") -> Deed:
        """What no decision ever asks for, such as the labelling of a node."""
        name = hashlib.sha256(f"person|{subject.key}|{action}|{self.clock.now_ms()}".encode()).hexdigest()[:16]
        return Deed(name, action, subject, reason or "asked for by a person", server, parameters)

    def on_node(self, node: str, reason: str, parameters: ActionParameters) -> Decision:
        return self.decision(Subject(SubjectKind.HOST, node, node), reason, parameters)


pass_person = click.make_pass_decorator(Person)
_reason = click.option("--reason", required=True, help="Why; written on the node for others to read.")
_wait = click.option("--wait", type=click.FloatRange(min=1), help="Most seconds; default: kubernetes.drain_seconds.")


cluster_options = all_of(
    click.option("--kubeconfig", type=click.Path(path_type=Path), help="File; default: setting kubernetes.kubeconfig."),
    click.option("--context", "context_name", help="Context of the kubeconfig; default: its current one."),
    click.option(
        "--dry-run", is_flag=True, help="Print what would be done; the server validates each write and stores none."
    ),
    click.option("--yes", is_flag=True, help="Do it."),
)


def person_of(
    context: CliContext, kubeconfig: Path | None, context_name: str | None, *, dry_run: bool, yes: bool
) -> Person:
    """Who runs the command, at the cluster that the options name, or else the settings."""
    changes: dict[str, Any] = {} if kubeconfig is None else {"kubeconfig": kubeconfig}
    changes |= {} if context_name is None else {"context": context_name}
    settings = context.settings.kubernetes.model_copy(update=changes)
    clock = SystemClock()
    own = context.settings.journal.by_hand
    brain = partial(connect, context, None, None, timeout=BRAIN_SECONDS)
    return Person(settings, dry_run, yes, clock, ManualRecord(brain, own, clock, partial(click.echo, err=True)))


@click.group(cls=SaidGroup)
@cluster_options
@pass_context
@click.pass_context
def act(
    click_context: click.Context,
    context: CliContext,
    kubeconfig: Path | None,
    context_name: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Act on a Kubernetes cluster as a person, without the guards: as `kubectl` would, with Tocsin's annotations.

    Exit codes: 0 done, 1 not done, 2 bad input, 3 the API server does not answer, or refuses the credentials or the
    right.
    """
    click_context.obj = person_of(context, kubeconfig, context_name, dry_run=dry_run, yes=yes)


@act.command()
@click.argument("node")
@_reason
@pass_person
def cordon(person: Person, node: str, reason: str) -> int:
    """Mark NODE unschedulable, with Tocsin's annotations."""
    return person.act(person.on_node(node, reason, CordonParameters()))


@act.command()
@click.argument("node")
@_reason
@_wait
@pass_person
def drain(person: Person, node: str, reason: str, wait: float | None) -> int:
    """Cordon NODE and evict its pods, as far as disruption budgets allow."""
    more = {} if wait is None else {"drain_seconds": wait}
    return person.act(person.on_node(node, reason, DrainParameters()), **more)


@act.command()
@click.argument("node")
@pass_person
def uncordon(person: Person, node: str) -> int:
    """Remove Tocsin's cordon and annotations from NODE; a cordon by anyone else stays.

    The brain does this only once every GPU is known to be healthy; this command does not check.
    """
    return person.act(person.on_node(node, "given back by a person", UncordonParameters()))


@act.command()
@click.argument("node")
@click.argument("gpu")
@click.option("--evict", is_flag=True, help="Delete the pods that hold it too, as far as disruption budgets allow.")
@_reason
@pass_person
def cordon_gpu(person: Person, node: str, gpu: str, evict: bool, reason: str) -> int:
    """Take the single GPU with UUID GPU out of NODE, for pods that hold GPUs by ResourceClaims (DRA)."""
    subject = Subject(SubjectKind.GPU, gpu, node)
    rules = "NoExecute" if evict else "NoSchedule"
    return person.act(person.decision(subject, reason, CordonGpuParameters()), device_rules=rules)


@act.command()
@click.argument("node")
@click.argument("gpu")
@pass_person
def uncordon_gpu(person: Person, node: str, gpu: str) -> int:
    """Remove Tocsin's DeviceTaintRules about the GPU with UUID GPU of NODE; those of others stay."""
    subject = Subject(SubjectKind.GPU, gpu, node)
    decision = person.decision(subject, "given back by a person", UncordonGpuParameters())
    return person.act(decision, device_rules="NoSchedule")


@act.command()
@click.argument("node")
@click.argument("pods", nargs=-1, required=True)
@_wait
@pass_person
def migrate(person: Person, node: str, pods: Sequence[str], wait: float | None) -> int:
    """Evict PODS (NAMESPACE/NAME) from NODE and steer new pods to other nodes; other pods stay."""
    more = {} if wait is None else {"drain_seconds": wait}
    parameters = MigrateParameters(context=DecisionContext(pods=tuple(pods)))
    return person.act(person.on_node(node, "moved by a person", parameters), **more)


@act.command()
@click.argument("node")
@pass_person
def checkpoint(person: Person, node: str) -> int:
    """Request a checkpoint from the pods on NODE that use GPUs, and wait for it."""
    return person.act(person.on_node(node, "asked for by a person", CheckpointParameters()))


@act.command()
@click.argument("node")
@pass_person
def avoid(person: Person, node: str) -> int:
    """Steer new pods to other nodes than NODE for a while."""
    return person.act(person.on_node(node, "asked for by a person", PlaceElsewhereParameters()))


@act.command()
@click.argument("node")
@click.argument("config")
@pass_person
def mig(person: Person, node: str, config: str) -> int:
    """Have mig-manager repartition NODE as CONFIG, or as `previous`; no pod may hold a GPU there."""
    return person.act(person.on_node(node, "asked for by a person", DefragmentParameters(mig_config=config)))


@act.command()
@click.argument("target")
@click.argument("replicas", type=click.IntRange(min=0))
@pass_person
def scale(person: Person, target: str, replicas: int) -> int:
    """Set TARGET (NAMESPACE/KIND/NAME) to REPLICAS, unless an autoscaler owns it."""
    from pydantic import ValidationError

    from tocsin.actions.kubernetes.rights import resource_of

    person.allow()
    try:
        workload = KubernetesWorkload(target=target, min_replicas=0, max_replicas=max(1, replicas))
    except ValidationError as error:
        raise InputError("TARGET", target, "is not a workload", error.errors()[0]["msg"]) from None
    for words in _past_bounds(person.settings.workloads, target, replicas):
        click.echo(words, err=True)
    client, cluster, executor = person.open(workloads={_POOL: workload})
    with closing(client):
        now = int(cluster.scale(resource_of(workload).path).get("spec", {}).get("replicas", 0))
        kind = ScaleOutParameters if replicas > now else ScaleInParameters
        subject = Subject(SubjectKind.POOL, _POOL, pool=_POOL)
        decision = person.decision(subject, "asked for by a person", kind(replicas=replicas))
        return person.recorded(decision, client.server, lambda say: carry_out(executor, decision, rest, say))


def _past_bounds(workloads: Mapping[str, KubernetesWorkload], target: str, replicas: int) -> list[str]:
    """Which bounds of the settings a person goes past: the brain itself would not."""
    said = []
    for pool, workload in workloads.items():
        if workload.target == target and not workload.min_replicas <= replicas <= workload.max_replicas:
            name = "max_replicas" if replicas > workload.max_replicas else "min_replicas"
            bound = f"kubernetes.workloads.{pool}.{name} = {getattr(workload, name)}"
            side = "above" if name == "max_replicas" else "below"
            said.append(f"warning: {replicas} replicas are {side} {bound}; the brain stays within its bounds")
    return said


@act.command()
@click.argument("node")
@click.argument("labels", nargs=-1, required=True)
@pass_person
def label(person: Person, node: str, labels: Sequence[str]) -> int:
    """Set or remove LABELS of NODE: NAME=VALUE sets one, NAME- removes it."""
    from tocsin.actions.kubernetes import patches

    person.allow()
    changes = dict(_label(one) for one in labels)
    client, cluster, _ = person.open()

    def change(say: Callable[[str], object]) -> int:
        changed = cluster.change_node(node, lambda found: patches.label(found, changes))
        words = "would label" if person.dry_run else "labelled"
        say(f"ok: {words} {node}" if changed else f"ok: {node} already has these labels")
        return 0

    with closing(client):
        if person.dry_run:
            return change(click.echo)
        about = Subject(SubjectKind.HOST, node, node)
        return person.noted(person.deed("label", about, client.server, {"labels": " ".join(labels)}), change)


def _label(text: str) -> tuple[str, str | None]:
    name, sign, value = text.partition("=")
    if sign and name:
        return name, value
    if text.endswith("-") and len(text) > 1:
        return text[:-1], None
    raise InputError("LABELS", text, "is not a label", "write NAME=VALUE, or NAME- to remove one")


@act.command()
@json_option
@pass_person
def nodes(person: Person, as_json: bool) -> None:
    """List the nodes as Tocsin sees them, with the pods that hold their GPUs."""
    client, _, executor = person.open()
    with closing(client):
        found = executor.nodes().values()
    show(as_json, [{name: getattr(node, name) for name in _SHOWN} for node in found], map(_node_line, found))


def _node_line(node: NodeState) -> str:
    state = "takes work" if node.schedulable else ("cordoned by Tocsin" if node.ours else "cordoned")
    return f"{node.host}: {state}{'' if node.ready else ', not ready'}; {', '.join(node.work) or 'no GPU held'}"


@act.command()
@pass_person
def rights(person: Person) -> int:
    """Check that the cluster grants every permission that the settings need; exit code 1 if one is missing."""
    client, _, executor = person.open()
    with closing(client):
        missing = executor.missing_rights()
    if not missing:
        click.echo("ok: every right is granted")
        return 0
    click.echo(f"missing: {', '.join(str(need) for need in missing)}; see deploy/kubernetes/rbac.yaml")
    return 1


COMMANDS: list[click.Command] = [act]
