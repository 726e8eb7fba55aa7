"""`tocsin`: the root command."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tocsin import __version__
from tocsin.cli import (
    act,
    backtest,
    control,
    diagnose,
    files,
    imports,
    login,
    models,
    notify,
    plan,
    processes,
    reference,
    rehearse,
    scan,
    scoreboard,
    xid,
)
from tocsin.cli.common import Context
from tocsin.domain.errors import TocsinError, Unavailable


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="tocsin")
@click.option("--config", type=click.Path(path_type=Path), help="TOML file of settings; default: $TOCSIN_CONFIG.")
@click.option("--secrets", type=click.Path(path_type=Path), help="Folder of secret files; default: $TOCSIN_SECRETS.")
@click.pass_context
def cli(ctx: click.Context, config: Path | None, secrets: Path | None) -> None:
    """The early-warning bell of a GPU fleet."""
    ctx.obj = Context(config, secrets)


for module in (
    act,
    backtest,
    processes,
    scan,
    control,
    diagnose,
    files,
    imports,
    login,
    models,
    notify,
    plan,
    reference,
    rehearse,
    scoreboard,
    xid,
):
    for command in module.COMMANDS:
        cli.add_command(command)


_EXTRAS = {
    "fastapi": "brain",
    "uvicorn": "brain",
    "influxdb_client": "brain",
    "polars": "brain",
    "pyarrow": "brain",
    "safetensors": "brain",
    "sklearn": "brain",
    "skops": "brain",
    "statsmodels": "brain",
    "joserfc": "access",
    "ldap": "ldap",
    "torch": "deep",
    "ray": "ray",
    "kubernetes": "kubernetes",
    "streamlit": "dashboard",
    "plotly": "dashboard",
}
"""Libraries that a plain installation goes without, and the extra that brings each."""


def main() -> None:
    """Run the command line; an error that an operator can mend is one line on standard error."""
    try:
        code = cli.main(standalone_mode=False)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        click.echo(f"tocsin: {error.name} is not installed; run pip install 'tocsin[{extra}]'", err=True)
        sys.exit(Unavailable.exit_code)
    except TocsinError as error:
        click.echo(f"tocsin: {error}", err=True)
        sys.exit(error.exit_code)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    sys.exit(code if isinstance(code, int) else 0)
