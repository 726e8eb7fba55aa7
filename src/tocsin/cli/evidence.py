"""`tocsin evidence`: a sealed archive about one GPU for its vendor, and its check."""

from __future__ import annotations

import re
from pathlib import Path

import click

from tocsin.cli import values
from tocsin.cli.common import CliContext, api_options, connect, done, json_option, pass_context, show
from tocsin.domain.atomic_file import atomic_file
from tocsin.domain.clock import DAY, HOUR, MINUTE, from_iso
from tocsin.domain.errors import InputError

_SINCE = re.compile(r"^([1-9][0-9]{0,4})([mhd])$")
_UNITS = {"m": MINUTE, "h": HOUR, "d": DAY}
ANSWER_SECONDS = 120.0
"""How long the archive is waited for."""


class GpuFirst(click.Group):
    """A group that takes ``evidence GPU`` as ``evidence collect GPU``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the name of the command in where the first word is none."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["collect", *args]
        return super().parse_args(ctx, args)


@click.group(cls=GpuFirst)
def evidence() -> None:
    """Collect the evidence of one GPU for its vendor (`tocsin evidence GPU`), or verify such a file."""


@evidence.command("collect")
@click.argument("gpu", shell_complete=values.gpus)
@click.option("--since", default="7d", show_default=True, help="How far back, such as 90m, 12h or 7d.")
@click.option("--out", type=click.Path(path_type=Path), help="The file; default: tocsin-evidence-GPU.tar.")
@click.option("--with-owners", is_flag=True, help="Also name owners, processes and people.")
@api_options
@json_option
@pass_context
def collect(
    context: CliContext,
    gpu: str,
    since: str,
    out: Path | None,
    with_owners: bool,
    api_url: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """Write one sealed archive about GPU: text for a ticket, journal, XIDs, telemetry around faults, peers."""
    path = out or Path(f"tocsin-evidence-{re.sub(r'[^A-Za-z0-9.-]', '_', gpu)}.tar")
    with connect(context, api_url, token, ANSWER_SECONDS) as client:
        # The brain's clock: that of a simulated fleet runs ahead.
        start_ms = from_iso(client.summary().now) - _milliseconds(since)
        try:
            with atomic_file(path, 0o600) as file:
                for piece in client.evidence(gpu, start_ms, with_owners):
                    file.write(piece)
        except OSError as error:
            raise InputError("--out", str(path), error.strerror or str(error), "name a file to write") from None
        url = client.base_url
    done(as_json, f"wrote {path}", url, file=str(path))


def _milliseconds(text: str) -> int:
    found = _SINCE.match(text)
    if found is None:
        raise InputError("--since", text, "is no span", "use a number with m, h or d, such as 7d")
    return int(found[1]) * _UNITS[found[2]]


@evidence.command("verify")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--key-file", type=click.Path(path_type=Path), help="Key of the journal; default: journal.key_file.")
@json_option
@pass_context
def verify(context: CliContext, file: Path, key_file: Path | None, as_json: bool) -> int:
    """Check manifest, signature and journal entries of FILE; exit 1 where it is not as it was made."""
    from tocsin.journal.bundle import check
    from tocsin.journal.files import load_key

    chosen = key_file or context.settings.journal.key_file
    found = check(file, b"" if chosen is None else load_key(chosen))
    seal = "signed" if found.proven else "signed, not checked: give --key-file" if found.signed else "unsigned"
    said = f"BROKEN: {found.problem}" if found.problem else f"ok: {seal}; {found.entries} journal entries"
    more = f", {found.withheld} of them by number and hash alone" if found.withheld and not found.problem else ""
    document = {
        "verified": not found.problem,
        "problem": found.problem,
        "signed": found.signed,
        "proven": found.proven,
        "entries": found.entries,
        "withheld": found.withheld,
    }
    show(as_json, document, [said + more])
    return 1 if found.problem else 0


COMMANDS: list[click.Command] = [evidence]
