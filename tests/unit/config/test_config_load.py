"""Settings: sources, precedence and errors that name the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.config.load import check_plugins, describe, load_settings
from tocsin.domain.errors import InputError
from tocsin.plugins import Kind, plugins

pytestmark = pytest.mark.smoke


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "tocsin.toml"
    path.write_text(text)
    return path


def test_defaults_need_no_file() -> None:
    assert load_settings(environ={}).actions.mode == "observe"


def test_environment_outranks_the_file_and_a_secret_file_both(tmp_path: Path) -> None:
    path = written(tmp_path, '[agent]\npool = "file"\nrack = "r1"\n[webhook]\nsecret = "file"\n')
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "webhook__secret").write_text("from-secret-file")
    environ = {"TOCSIN_AGENT__POOL": "environment", "TOCSIN_WEBHOOK__SECRET": "environment"}
    settings = load_settings(path, environ=environ, secrets=secrets)
    assert (settings.agent.pool, settings.agent.rack) == ("environment", "r1")
    assert settings.webhook.secret.get_secret_value() == "from-secret-file"


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ('[agent]\nsource = "nvlm"\n', "agent.source = 'nvlm': no source has this name; did you mean nvml? known are "),
        ('[actions]\nexecutors = ["node", "kube"]\n', "actions.executors = 'kube': no executor has this name; "),
        (
            '[actions.pool_executors]\nhpc = ["slrum"]\n',
            "actions.pool_executors.hpc = 'slrum': no executor has this name; did you mean slurm? known are ",
        ),
    ],
)
def test_a_source_or_executor_that_nobody_has_is_named_by_the_check_alone(
    tmp_path: Path, text: str, start: str
) -> None:
    settings = load_settings(written(tmp_path, text), environ={})
    with pytest.raises(InputError) as raised:
        check_plugins(settings)
    assert str(raised.value).startswith(start)


def test_the_check_takes_every_known_name(tmp_path: Path) -> None:
    text = f"[agent]\nsource = 'nvml'\n[actions]\nexecutors = {list(plugins(Kind.EXECUTOR))}\n"
    check_plugins(load_settings(written(tmp_path, text), environ={}))


def test_a_store_that_nobody_knows_is_one_plain_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError) as raised:
        load_settings(written(tmp_path, '[store]\nkind = "postgres"\n'), environ={})
    assert str(raised.value).startswith("store.kind = 'postgres': no store has this name; known are ")


def test_variables_without_a_section_are_not_settings() -> None:
    load_settings(environ={"TOCSIN_DATA_DIR": "/somewhere", "TOCSIN_TEST_INFLUX_URL": "http://x"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[agent]\ninterval_secs = 3\n",
            "agent.interval_secs = 3: unknown key in {path}; did you mean interval_seconds?",
        ),
        ("[agnt]\npool = 'x'\n", "agnt = '(a table)': unknown key in {path}; did you mean agent?"),
        (
            "[actions.limits]\nmax_per_hosts = 2\n",
            "actions.limits.max_per_hosts = 2: unknown key in {path}; did you mean max_per_host?",
        ),
        (
            "[[api.tokens]]\nname = 'a'\nrole = 'viewer'\nsecrt = 'x'\n",
            "api.tokens.0.secrt = '(secret)': unknown key in {path}; did you mean secret?",
        ),
    ],
)
def test_a_misspelt_key_is_named_with_the_nearest(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load_settings(path, environ={})
    assert str(caught.value) == message.format(path=path)


def test_a_misspelt_variable_is_named() -> None:
    with pytest.raises(InputError, match=r"TOCSIN_AGNT__POOL = '\(not shown\)': no such section; did you mean agent\?"):
        load_settings(environ={"TOCSIN_AGNT__POOL": "x"})
    with pytest.raises(InputError, match=r"agent\.pol = 'x': unknown key in the environment; did you mean pool\?"):
        load_settings(environ={"TOCSIN_AGENT__POL": "x"})


def test_a_value_that_does_not_fit_is_shown_unless_it_is_secret(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"agent\.interval_seconds = -1: .*greater than 0"):
        load_settings(written(tmp_path, "[agent]\ninterval_seconds = -1\n"), environ={})
    with pytest.raises(InputError) as caught:
        load_settings(written(tmp_path, "[webhook]\nsecret = 5\n"), environ={})
    assert "5" not in str(caught.value).replace("'(secret)'", "")


@pytest.mark.parametrize("text", ["[agent\n", "\xff"])
def test_a_file_that_is_no_toml_is_one_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match="is not TOML"):
        load_settings(path, environ={})


def test_a_missing_file_and_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load_settings(tmp_path / "none.toml", environ={})
    with pytest.raises(InputError, match="TOCSIN_SECRETS"):
        load_settings(environ={}, secrets=tmp_path / "none")


def test_every_key_is_documented() -> None:
    undocumented = [name for name, _, text in describe() if not text]
    assert undocumented == []


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("API__LISTEN", "127.0.0.1", "api.listen = '127.0.0.1': is no address: write HOST:PORT"),
        ("STORE__URL", "mysql://db", "store.url = 'mysql://db': is no address of a server: write http://HOST:PORT"),
        ("STORE__URL", "http://db:99999", "store.url = 'http://db:99999': is no address of a server"),
        ("AGENT__PUSH_URL", "brain:8470", "agent.push_url = 'brain:8470': is no address of a server"),
    ],
)
def test_an_address_that_is_none_is_found_before_anything_listens_or_asks(name: str, value: str, message: str) -> None:
    with pytest.raises(InputError) as found:
        load_settings(environ={f"TOCSIN_{name}": value})
    assert message in str(found.value)
