"""`tocsin xid`: what a driver error means."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, BinaryIO

import click

from tocsin.cli.common import CliContext, dump, json_option, pass_context
from tocsin.domain.errors import InputError

if TYPE_CHECKING:
    from tocsin.rules.xid_explain import Catalogues

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
            self.fail(f"{value!r} is no XID number; write for example 79", param, ctx)
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
            self.fail(f"{value!r} is no 32-bit hexadecimal word; write for example 0x004505c6", param, ctx)
        return word


class Branch(click.ParamType[int]):
    """Branch of a driver: ``575``, ``R575`` or ``575.57.08``."""

    name = "version"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = _BRANCH.fullmatch(str(value))
        if match is None:
            self.fail(f"{value!r} is no driver version; write for example 575 or 575.57.08", param, ctx)
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
    from tocsin.cli.xid_report import lines_of, print_log
    from tocsin.rules.xid_explain import explain_sxid, explain_xid

    catalogues = _catalogues(context)
    if log is not None:
        print_log(log, catalogues, driver, as_json)
        return
    if sxid is not None:
        explained = explain_sxid(catalogues.sxids, sxid)
    else:
        assert code is not None
        explained = explain_xid(catalogues.xids, code, _words(code, intrinfo, status, registers), driver=driver)
    if as_json:
        dump(explained.as_json())
    else:
        click.echo("\n".join(lines_of(explained)))


def _catalogues(context: CliContext) -> Catalogues:
    from tocsin.rules.sxid import shipped_sxids
    from tocsin.rules.xid import shipped_catalogue
    from tocsin.rules.xid_explain import Catalogues

    rules = context.settings.rules
    if rules.path is None and rules.xid_overrides is None:
        return Catalogues(shipped_catalogue(), shipped_sxids())
    from tocsin.rules.load import load_rules

    loaded = load_rules(rules.path, rules.xid_overrides)
    return Catalogues(loaded.xids, loaded.sxids)


def _words(code: int, intrinfo: int | None, status: int | None, registers: str | None) -> tuple[int, ...]:
    from tocsin.rules.xid_nvlink import parse_words

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
