"""Typical mistakes on the command line: one line that says what, the value and the remedy; no traceback."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tocsin.cli.main import main
from tocsin.config.access import ApiSettings
from tocsin_testing.fake_service import FakeService, serving


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("TOCSIN_CONFIG", "TOCSIN_SECRETS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TOCSIN_TOKEN_FILE", str(tmp_path / "tokens.json"))
    monkeypatch.chdir(tmp_path)


def failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and the one line on standard error."""
    monkeypatch.setattr(sys, "argv", ["tocsin", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = printed.err.splitlines()
    assert len(lines) == 1, printed.err
    assert lines[0].startswith("tocsin: ")
    assert isinstance(ended.value.code, int)
    return ended.value.code, lines[0]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("stauts",), 2, ("'stauts'", "Did you mean 'status'", "tocsin --help")),
        (("journal", "verfy"), 2, ("'verfy'", "'verify'", "tocsin journal --help")),
        (("status", "--jsno"), 2, ("'--jsno'", "'--json'", "tocsin status --help")),
        (("demo", "--for", "soon"), 2, ("'--for'", "'soon'", "60s", "tocsin demo --help")),
        (("demo", "--gpus", "0"), 2, ("'--gpus'", "0", "1<=x<=100000", "tocsin demo --help")),
        (("replay",), 2, ("PATHS", "tocsin replay --help")),
        (("approve",), 2, ("DECISION_ID", "tocsin approve --help")),
        (("completion", "tcsh"), 2, ("'tcsh'", "'bash', 'zsh', 'fish'", "tocsin completion --help")),
        (("--config", "none.toml", "config", "show"), 2, ("none.toml", "No such file", "name a readable file")),
        (("config", "check", "bad.toml"), 2, ("agent.intervall_seconds", "5", "did you mean interval_seconds")),
        (("config", "check", "torn.toml"), 2, ("torn.toml",)),
        (("config", "check", "source.toml"), 2, ("agent.source", "'nvlm'", "did you mean nvml", "replay")),
        (("rules", "check", "none.toml"), 2, ("none.toml",)),
        (("replay", "none.csv"), 2, ("none.csv",)),
        (("journal", "verify"), 2, ("journal.db", "does not exist", "set journal.path")),
        (("journal", "show", "journal.db", "--kind", "paus"), 2, ("'paus'", "use one of", "pause")),
        (("plan", "defragment"), 2, ("--state", "--simulated", "give one of the two")),
        (("backtest", "--dataset", "none", "--train", "."), 2, ("'none'", "use one of", "backblaze")),
        (("import", "prometheus", "http://127.0.0.1:9", "--since", "soon"), 2, ("--since", "'soon'", "30d")),
        (("top",), 2, ("no terminal", "--once")),
        (("status", "--api-url", "http://127.0.0.1:9"), 3, ("http://127.0.0.1:9", "tocsin brain", "correct the URL")),
        (("status", "--api-url", "nonsense"), 3, ("nonsense", "correct the URL")),
        (("login", "--api-url", "http://127.0.0.1:9"), 3, ("http://127.0.0.1:9", "tocsin brain")),
    ],
)
def test_a_mistake(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: tuple[str, ...],
    code: int,
    words: tuple[str, ...],
) -> None:
    (tmp_path / "bad.toml").write_text("[agent]\nintervall_seconds = 5\n")
    (tmp_path / "torn.toml").write_text("[agent\n")
    (tmp_path / "source.toml").write_text('[agent]\nsource = "nvlm"\n')
    if "show" in arguments and "--kind" in arguments:
        (tmp_path / "journal.db").touch()
    ended, line = failure(monkeypatch, capsys, *arguments)
    assert ended == code, line
    assert [word for word in words if word not in line] == [], line


def test_a_wrong_token(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    token = {"name": "viewer", "role": "viewer", "secret": "0123456789abcdef"}
    settings = ApiSettings.model_validate({"tokens": [token]})
    with serving(FakeService(), settings) as url:
        ended, line = failure(monkeypatch, capsys, "status", "--api-url", url, "--token", "wrong-wrong-wrong")
        assert ended == 5
        assert line.startswith("tocsin: the token is none of api.tokens; give --token TOKEN, set dashboard.api_token")
        ended, line = failure(monkeypatch, capsys, "status", "--api-url", url)
        assert ended == 5
        assert "`tocsin login`" in line
        ended, line = failure(monkeypatch, capsys, "pause", "why", "--api-url", url, "--token", token["secret"])
        assert ended == 5
        assert "viewer" in line
        assert "--token" not in line, "another token of the same role would not help"


def test_a_library_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("tocsin.cli.top.sys.stdout.isatty", lambda: True, raising=False)
    for name in [name for name in sys.modules if name.startswith(("textual", "tocsin.terminal.screen"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual", None)
    ended, line = failure(monkeypatch, capsys, "top", "--local", "--source", "simulated")
    assert ended == 3
    assert line.startswith("tocsin: textual is not installed; install Tocsin with the extra terminal: pip install '.[")
