"""What `tocsin xid` prints, byte for byte, and how it fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tocsin.cli.main import cli
from tocsin.domain.errors import InputError

GOLDEN = Path(__file__).parent / "xid"
DATA = Path(__file__).parents[1] / "data" / "kernel_log"

CASES = {
    "79.txt": ("79",),
    "79.json": ("79", "--json"),
    "149.txt": ("149", "--intrinfo", "0x004505c6", "--status", "0x0", "--driver", "570.86.15"),
    "149.json": ("149", "--intrinfo", "0x00400011", "--status", "0x0", "--driver", "R575", "--json"),
    "74.txt": ("74", "--registers", "0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0"),
    "sxid_20034.txt": ("--sxid", "20034"),
    "sxid_20034.json": ("--sxid", "20034", "--json"),
    "log.txt": ("--log", str(DATA / "published_bus_loss_with_switches.log")),
    "log.json": ("--log", str(DATA / "published_nvlink5.log"), "--json"),
}


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("TOCSIN_CONFIG", "TOCSIN_SECRETS", "TOCSIN_RULES__PATH", "TOCSIN_RULES__XID_OVERRIDES"):
        monkeypatch.delenv(name, raising=False)


def run(*arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(cli, ["xid", *arguments], input=stdin)


@pytest.mark.parametrize(("name", "arguments"), CASES.items())
def test_output(name: str, arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.exit_code == 0, done.output
    assert done.output == (GOLDEN / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("999",), "code = 999: is not in the XID catalogue; known are 1 to 176; give an NVSwitch number with --sxid"),
        (("--sxid", "20035"), "--sxid = 20035: is not in the SXid catalogue; the nearest known is 20034"),
        (("79", "--intrinfo", "0x1"), "code = 79: has no sub-codes; leave the words out, or name 74 or 144 to 150"),
        (("74", "--intrinfo", "0x1"), "--intrinfo = '0x1': XID 74 has registers; give all of them with --registers"),
        (("149", "--status", "0x1"), "--status = '0x1': says nothing without the first word; give --intrinfo too"),
        (("149", "--registers", "0x1"), "--registers = '0x1': belongs to XID 74; give --intrinfo for XID 144 to 150"),
        (
            ("74", "--registers", "what"),
            "--registers = 'what': is not one to seven hexadecimal words; "
            "copy the words of the log line, for example 0x0,0x0,0x10000,0x0,0x0,0x0,0x0",
        ),
    ],
)
def test_what_cannot_be_explained_is_one_clear_error(arguments: tuple[str, ...], message: str) -> None:
    done = run(*arguments)
    assert isinstance(done.exception, InputError)
    assert str(done.exception) == message
    assert done.exception.exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("79", "--sxid", "20034"),
        ("seven",),
        ("0",),
        ("149", "--intrinfo", "zz"),
        ("149", "--intrinfo", "0x1ffffffff"),
    ],
)
def test_wrong_use(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert "Error:" in done.output


def test_a_log_from_standard_input() -> None:
    done = run("--log", "-", stdin=b"\xff\xfe\nNVRM: Xid (PCI:0000:65:00): 31, pid=1, name=x, y\r\n")
    assert done.output.startswith("00000000:65:00.0  warning  XID 31 FIFO_ERROR_MMU_ERR_FLT: y; process 1 x\n\nXID 31:")
    assert run("--log", "-", stdin=b"a\nb\n").output == "no XID and no SXid in 2 lines\n"


def test_overrides_are_shown_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "overrides.toml"
    path.write_text('[[xid]]\ncode = 63\nseverity = "critical"\nreason = "site policy"\n', encoding="utf-8")
    monkeypatch.setenv("TOCSIN_RULES__XID_OVERRIDES", str(path))
    text = run("63").output
    assert "  overridden  severity: warning -> critical\n  source      override: site policy\n" in text
    made = json.loads(run("63", "--json").output)
    assert (made["severity"], made["overridden"]) == ("critical", ["severity: warning -> critical"])


IDENTITY = b"NVRM: GPU at PCI:0000:65:00: GPU-5f6a7b8c-0000-1111-2222-333344445555\n"


def verdict_line(text: str) -> bytes:
    return f"NVRM: Xid (PCI:0000:65:00): 154, GPU recovery action changed from 0x0 (None) to {text}\n".encode()


@pytest.mark.parametrize(
    ("text", "severity"), [("0x2 (Node Reboot Required)", "critical"), ("0x0 (None)", "info"), ("0x9 (What)", "info")]
)
def test_a_verdict_is_one_line_as_severe_as_what_it_asks_for(text: str, severity: str) -> None:
    shown = run("--log", "-", stdin=verdict_line(text)).output.split("\n\n")[0]
    assert shown.splitlines() == [
        f"00000000:65:00.0  {severity}  XID 154 GPU_RECOVERY_ACTION_CHANGED: "
        f"GPU recovery action changed from 0x0 (None) to {text}"
    ]
    events = json.loads(run("--log", "-", "--json", stdin=verdict_line(text)).output)["events"]
    assert {event["severity"] for event in events} == {severity}


def test_a_correction_of_the_verdicts_severity_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "overrides.toml"
    path.write_text('[[xid]]\ncode = 154\nseverity = "warning"\nreason = "ours"\n', encoding="utf-8")
    monkeypatch.setenv("TOCSIN_RULES__XID_OVERRIDES", str(path))
    assert "  warning  XID 154" in run("--log", "-", stdin=verdict_line("0x2 (Node Reboot Required)")).output


def test_a_gpu_has_one_name_in_the_whole_log() -> None:
    before = b"NVRM: Xid (PCI:0000:65:00): 31, pid=1, name=x, y\n"
    elsewhere = b"NVRM: Xid (PCI:0000:66:00): 31, pid=1, name=x, y\n"
    shown = run("--log", "-", stdin=before + IDENTITY + before + elsewhere).output.splitlines()[:3]
    uuid = "GPU-5f6a7b8c-0000-1111-2222-333344445555"
    assert [line.split("  ")[0] for line in shown] == [uuid, uuid, "00000000:66:00.0"]


def test_a_sub_code_with_a_verdict_of_its_own_has_nothing_of_its_number() -> None:
    shown = run("74", "--registers", "0x1").output
    assert "  severity    info\n" in shown
    assert "  then " not in shown
    assert "immediate action ignore; 1 of 7 words given\n" in shown
    assert json.loads(run("74", "--registers", "0x1", "--json").output)["partial"] == "1 of 7 words given"
    unknown = run("74", "--registers", "0x0,0x0,0x0,0x0,0x0,0x0,0x0").output
    assert "  then        contact_support" in unknown
    assert "words given" not in unknown


@pytest.mark.parametrize("code", ["abc", "0", "7.9"])
def test_what_is_no_number_is_named(code: str) -> None:
    assert f"{code!r} is not an XID number; write for example 79" in run(code).output


def test_a_log_with_amdgpu_s_lines_says_their_faults(tmp_path: Path) -> None:
    log = tmp_path / "dmesg.txt"
    log.write_text(
        "[  10.1] amdgpu 0000:1b:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block\n"
        "[  11.0] amdgpu 0000:1b:00.0: amdgpu: GPU mode1 reset\n"
        "[  12.0] amdgpu 0000:1b:00.0: amdgpu: Poison is created, no user action is needed.\n"
    )
    lines = run("--log", str(log)).output.splitlines()
    assert [line.split("  ")[:2] for line in lines] == [
        ["00000000:1b:00.0", word] for word in ("critical", "warning", "info")
    ]
    assert "device fault: uncorrectable error of the memory (HBM): 2 uncorrectable hardware errors" in lines[0]
