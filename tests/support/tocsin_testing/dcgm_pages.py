"""Pages of a dcgm-exporter and texts of dcgmi for tests, and things that serve them."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import httpx2

from tocsin.collector.dcgm.exporter import DcgmExporterSource
from tocsin.collector.source import NodeIdentity
from tocsin.domain.clock import Clock, ManualClock
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0

DATA = Path(__file__).parents[2] / "data" / "dcgm"
URL = "http://127.0.0.1:9400/metrics"


def line(name: str, value: object, gpu: int = 0, **labels: str) -> str:
    """One line about GPU number `gpu` in the label set of dcgm-exporter 3.3."""
    base = {
        "gpu": str(gpu),
        "UUID": f"GPU-{gpu}",
        "device": f"nvidia{gpu}",
        "modelName": "NVIDIA H100",
        "Hostname": "n1",
    }
    inside = ",".join(f'{key}="{text}"' for key, text in {**base, **labels}.items())
    return f"DCGM_FI_{name}{{{inside}}} {value}\n"


def page_of(gpus: int = 2, *, xid: int = 0, temperature: float = 40, energy: int = 1_000_000) -> str:
    """A page of `gpus` GPUs; all have the same values."""
    lines = []
    for gpu in range(gpus):
        lines.append(line("DEV_GPU_TEMP", temperature, gpu))
        lines.append(line("DEV_TOTAL_ENERGY_CONSUMPTION", energy, gpu))
        lines.append(line("DEV_XID_ERRORS", xid, gpu))
    return "".join(lines)


class Exporter:
    """Serves `page`, or fails with `error`; `status` other than 200 is an HTTP error."""

    def __init__(self, page: str = "") -> None:
        self.page = page
        self.status = 200
        self.error: Exception | None = None
        self.requests: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        return httpx2.Response(self.status, text=self.page)


def exporter_source(
    serve: Callable[[httpx2.Request], httpx2.Response],
    *,
    clock: Clock | None = None,
    own: OwnMetrics | None = None,
    node: NodeIdentity | None = None,
) -> DcgmExporterSource:
    """A source over what `serve` answers."""
    return DcgmExporterSource(
        URL,
        node or NodeIdentity(),
        clock or ManualClock(T0),
        own or OwnMetrics(),
        transport=httpx2.MockTransport(serve),
    )


FAKE = """\
#!/bin/sh
# Answers as dcgmi does, out of the files beside it; every start is noted in `calls`.
here=$(dirname "$0")
echo "$*" >> "$here/calls"
case "$1 $2" in
"discovery -l") cat "$here/discovery_l" ;;
"discovery -c") cat "$here/discovery_c" ;;
"dmon -l") cat "$here/dmon_list" ;;
"dmon -e")
    case " $* " in
    *" -i "*) exec tail -n +1 -f "$here/dmon_grouped" ;;
    esac
    if [ -e "$here/dmon_end" ]; then
        cat "$here/dmon_end"
        cp "$here/discovery_then" "$here/discovery_l"
        exit 238
    fi
    exec tail -n +1 -f "$here/dmon" ;;
esac
"""


class FakeDcgmi:
    """A program in place of dcgmi that prints recorded texts. Its fields are those of the recorded rows."""

    def __init__(self, folder: Path, ids: tuple[int, ...], rows: str = "", discovery: str = "discovery_l.txt") -> None:
        self.folder = folder
        self.path = folder / "dcgmi"
        self.path.write_text(FAKE)
        self.path.chmod(self.path.stat().st_mode | stat.S_IXUSR)
        self.write("discovery_l", (DATA / discovery).read_text())
        self.write("discovery_c", "")
        self.write("dmon_list", "".join(f"field_{n}  TAG{n}  {n}\n" for n in ids))
        self.write("dmon", rows)
        self.write("dmon_grouped", rows)

    def write(self, name: str, text: str) -> None:
        """Replace one answer."""
        (self.folder / name).write_text(text)

    def add(self, text: str, name: str = "dmon") -> None:
        """Let a running `dmon` print more."""
        with (self.folder / name).open("a") as file:
            file.write(text)

    def calls(self) -> list[str]:
        """Arguments of each start, in order."""
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


LIVE_IDS = (150, 155, 203, 230, 312, 313)
"""Fields of the two live captures, in their order."""


def live_rows(name: str) -> list[str]:
    """The ticks of a live capture, eight rows each, headings left where they are."""
    ticks: list[str] = [""]
    for text in (DATA / name).read_text().splitlines(keepends=True)[1:-1]:
        if text.startswith("GPU ") and ticks[-1].count("\nGPU ") == 8:
            ticks.append("\n")
        ticks[-1] += text
    return [tick.lstrip("\n") for tick in ticks]
