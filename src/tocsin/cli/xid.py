"""`tocsin xid`: what a driver error means."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import BinaryIO

import click

from tocsin.cli.common import CliContext, json_option, pass_context, show
from tocsin.collector.kernel_log.amdgpu import AmdgpuParser
from tocsin.collector.kernel_log.parser import VERDICT_CODE, KernelEvent, KernelLogParser, verdict_of
from tocsin.collector.kernel_log.readers import decode_any
from tocsin.domain.clock import to_iso
from tocsin.domain.device_fault import BROKEN, DeviceFault
from tocsin.domain.errors import InputError
from tocsin.domain.event import EventKind
from tocsin.domain.finding import Severity
from tocsin.rules.sxid import shipped_sxids
from tocsin.rules.xid import XidSpec, shipped_catalogue
from tocsin.rules.xid_explain import Catalogues, Explanation, asks_for, explain_sxid, explain_xid
from tocsin.rules.xid_nvlink import DECODED_CODES, parse_words

# What `tocsin xid` prints: explanations, and the events of a log.

_WIDTH = 11
_UNKNOWN = "(not in the catalogue)"


def lines_of(explained: Explanation) -> Iterator[str]:
    """The explanation as lines of text."""
    spec = explained.spec
    yield f"{'XID' if explained.kind == 'xid' else 'SXid'} {spec.code}: {spec.name}"
    yield _row("means", spec.help)
    meaning = f" ({explained.class_meaning})" if explained.class_meaning else ""
    yield _row("class", f"{explained.class_name}{meaning}")
    open_ = explained.kind == "xid" and spec.code in DECODED_CODES and explained.decoded is None
    yield _row("severity", f"{spec.severity}{' where no sub-code says otherwise' if open_ else ''}")
    yield _row("Tocsin", spec.action.value)
    for name, word in (("NVIDIA now", explained.do_now), ("then", explained.look_into)):
        if word:
            yield _row(name, f"{word}: {asks_for(word)}")
    if explained.verdict_since:
        yield _row("verdict", f"XID 154 with the driver's own verdict follows, {_since(explained.verdict_since)}")
    for sequence in explained.sequences:
        codes, then = (", ".join(map(str, numbers)) for numbers in (sequence.codes, sequence.then))
        yield _row("seen as", f"{codes}{f', then {then}' if then else ''}: {sequence.meaning}. {sequence.handling}")
    for stance in explained.stances:
        yield _row("others", f"{stance.project}: {stance.says}")
    if explained.decoded is not None:
        layout = f" (layout {explained.decoded.layout})" if explained.decoded.layout else ""
        partial = f"; {explained.partial}" if explained.partial else ""
        yield _row("sub-code", f"{explained.decoded.sentence()}{layout}{partial}")
    for change in explained.changes:
        yield _row("overridden", change)
    yield _row("source", explained.provenance)


def _since(text: str) -> str:
    return f"from driver {text} on" if text.startswith("R") else text


def _row(name: str, text: str) -> str:
    return f"  {name:<{_WIDTH}} {text}"


def print_log(log: BinaryIO, catalogues: Catalogues, driver: int | None, as_json: bool) -> None:
    """Print every event of `log`, then what is known of each number that it has."""
    number, events = _read(log, driver)
    explained = _explained(events, catalogues)
    document = {
        "lines": number,
        "events": [_event_json(event, catalogues) for event in events],
        "explained": [one.as_json() for one in explained],
    }
    # A recovery action is in the same line of the log as its XID 154.
    shown = [_event_line(event, catalogues) for event in events if event.kind is not EventKind.RECOVERY_ACTION]
    lines = [*shown, *(line for one in explained for line in ("", *lines_of(one)))]
    show(as_json, document, lines if events else [f"no XID and no SXid in {number} lines"])


def _read(log: BinaryIO, driver: int | None) -> tuple[int, list[KernelEvent]]:
    """Number of lines, and the events; those before the line that names their GPU have its UUID too."""
    parser = KernelLogParser("" if driver is None else str(driver))
    amdgpu = AmdgpuParser()
    number = 0
    events: list[KernelEvent] = []
    named: dict[str, str] = {}
    for line in log:
        number += 1
        record = decode_any(line.rstrip(b"\r\n"))
        events += [*parser.feed(record), *amdgpu.feed(record)]
        if len(parser.uuids) > len(named):
            named = {**parser.uuids, **named}
    return number, [_with_uuid(event, named) for event in events]


def _with_uuid(event: KernelEvent, named: Mapping[str, str]) -> KernelEvent:
    if event.uuid or event.kind not in (EventKind.XID, EventKind.RECOVERY_ACTION):
        return event
    return replace(event, uuid=named.get(event.bus, ""))


def _explained(events: Iterable[KernelEvent], catalogues: Catalogues) -> list[Explanation]:
    """One explanation for each number that was seen and is known, in the order of their first line."""
    made = []
    for kind, code in dict.fromkeys((event.kind, event.code) for event in events):
        if kind is EventKind.XID and code in catalogues.xids:
            made.append(explain_xid(catalogues.xids, code))
        elif kind is EventKind.SXID and code in catalogues.sxids:
            made.append(explain_sxid(catalogues.sxids, code))
    return made


def _named(event: KernelEvent, catalogues: Catalogues) -> tuple[str, str]:
    if event.kind is EventKind.XID:
        spec = catalogues.xids.seen(event.code, event.severity, event.remedy)
        severity = _verdict_severity(event, spec)
        return severity.value, f"XID {event.code} {spec.name if event.code in catalogues.xids else _UNKNOWN}"
    if event.kind is EventKind.SXID:
        switch = catalogues.sxids.seen(event.code, event.severity)
        return switch.severity.value, f"SXid {event.code} {switch.name if event.code in catalogues.sxids else _UNKNOWN}"
    word = event.kind.value.replace("_", " ")
    if event.kind is EventKind.DEVICE_FAULT:
        return ("critical" if event.code in BROKEN else "info" if event.code == DeviceFault.WATCH else "warning"), word
    return ("critical" if event.kind is EventKind.RECOVERY_ACTION and event.code else "info"), word


def _verdict_severity(event: KernelEvent, spec: XidSpec) -> Severity:
    """That of the number; for XID 154 it is by what the driver asks for, unless a site's own correction says."""
    if event.code != VERDICT_CODE or event.line is None or "severity" in spec.overridden:
        return spec.severity
    if (verdict := verdict_of(event.line.text)) is None:
        return spec.severity
    return Severity.CRITICAL if verdict else Severity.INFO


def _event_line(event: KernelEvent, catalogues: Catalogues) -> str:
    when = to_iso(event.at_ms) if event.at_ms is not None else event.when
    severity, name = _named(event, catalogues)
    parts = [when, event.uuid or event.bus, severity, f"{name}: {event.message}"]
    return "  ".join(part for part in parts if part)


def _event_json(event: KernelEvent, catalogues: Catalogues) -> dict[str, object]:
    severity, _ = _named(event, catalogues)
    line = event.line
    return {
        "kind": event.kind.value,
        "code": event.code,
        "at": to_iso(event.at_ms) if event.at_ms is not None else None,
        "when": event.when,
        "gpu": event.uuid,
        "bus": event.bus,
        "severity": severity,
        "message": event.message,
        "pid": line.pid if line is not None else None,
        "process": line.process if line is not None else "",
        "link": line.link if line is not None else None,
        "decoded": event.decoded.as_json() if event.decoded is not None else None,
    }


_BRANCH = re.compile(r"R?(\d{3})(?:\.\d+)*")


class Number(click.ParamType[int]):
    """Number of an XID such as ``79``."""

    name = "integer"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(str(value))
        except ValueError:
            number = 0
        if number < 1:
            self.fail(f"{value!r} is not an XID number; write for example 79", param, ctx)
        return number


class Hex(click.ParamType[int]):
    """A hexadecimal word such as ``0x004505c6``."""

    name = "hex"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            word = int(str(value), 16)
        except ValueError:
            word = -1
        if not 0 <= word < 1 << 32:
            self.fail(f"{value!r} is not a 32-bit hexadecimal word; write for example 0x004505c6", param, ctx)
        return word


class Branch(click.ParamType[int]):
    """Branch of a driver: ``575``, ``R575`` or ``575.57.08``."""

    name = "version"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if (match := _BRANCH.fullmatch(str(value))) is None:
            self.fail(f"{value!r} is not a driver version; write for example 575 or 575.57.08", param, ctx)
        return int(match[1])


@click.command()
@click.argument("code", type=Number(), required=False)
@click.option("--sxid", type=click.IntRange(1), help="Explain an NVSwitch number instead.")
@click.option("--log", type=click.File("rb"), help="Explain every XID and SXid in a log; - reads standard input.")
@click.option("--intrinfo", type=Hex(), help="First word behind XID 144 to 150, which holds the sub-code.")
@click.option("--status", type=Hex(), help="Second word behind XID 144 to 150.")
@click.option("--registers", help="The seven words behind XID 74, separated by commas or spaces.")
@click.option("--driver", type=Branch(), help="Version of the driver: sub-codes moved with R575.")
@json_option
@pass_context
def xid(
    context: CliContext,
    code: int | None,
    sxid: int | None,
    log: BinaryIO | None,
    intrinfo: int | None,
    status: int | None,
    registers: str | None,
    driver: int | None,
    as_json: bool,
) -> None:
    """Explain driver error CODE: what it means, what to do and what comes with it."""
    if sum(given is not None for given in (code, sxid, log)) != 1:
        raise click.UsageError("give one of CODE, --sxid or --log, for example tocsin xid 79")
    catalogues = catalogues_of(context)
    if log is not None:
        print_log(log, catalogues, driver, as_json)
        return
    if sxid is not None:
        explained = explain_sxid(catalogues.sxids, sxid)
    else:
        assert code is not None
        explained = explain_xid(catalogues.xids, code, _words(code, intrinfo, status, registers), driver=driver)
    show(as_json, explained.as_json(), lines_of(explained))


def catalogues_of(context: CliContext) -> Catalogues:
    """The catalogues with the site's own corrections."""
    rules = context.settings.rules
    if rules.path is None and rules.xid_overrides is None:
        return Catalogues(shipped_catalogue(), shipped_sxids())
    from tocsin.rules.load import load_rules

    loaded = load_rules(rules.path, rules.xid_overrides)
    return Catalogues(loaded.xids, loaded.sxids)


def _words(code: int, intrinfo: int | None, status: int | None, registers: str | None) -> tuple[int, ...]:
    if registers is not None:
        if code != 74:
            raise InputError("--registers", registers, "belongs to XID 74", "give --intrinfo for XID 144 to 150")
        try:
            words = parse_words(registers)
        except ValueError:
            words = ()
        if not 0 < len(words) < 8:
            remedy = "copy the words of the log line, for example 0x0,0x0,0x10000,0x0,0x0,0x0,0x0"
            raise InputError("--registers", registers, "is not one to seven hexadecimal words", remedy)
        return words
    if intrinfo is None:
        if status is not None:
            raise InputError("--status", hex(status), "says nothing without the first word", "give --intrinfo too")
        return ()
    if code == 74:
        raise InputError("--intrinfo", hex(intrinfo), "XID 74 has registers", "give all of them with --registers")
    return (intrinfo,) if status is None else (intrinfo, status)


COMMANDS: list[click.Command] = [xid]
