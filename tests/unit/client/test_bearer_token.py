"""A token in a file that others renew, as the kubelet does: what pushes and orders are sent with."""

from __future__ import annotations

import os
from pathlib import Path

import httpx2
import pytest
from structlog.testing import capture_logs

from tocsin.client.agent import OrderLink
from tocsin.client.bearer import BearerToken
from tocsin.collector.spool import Spool
from tocsin.collector.uplink import PushTarget, Uplink
from tocsin.domain.clock import ManualClock
from tocsin.domain.errors import InputError
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0


class Volume:
    """A projected volume: the file is a link into a folder that is put in place of the one before at once."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path, self._made = folder, folder / "token", 0
        self.path.symlink_to("..data/token")

    def renew(self, text: str) -> None:
        self._made += 1
        made = self.folder / f"..{self._made}"
        made.mkdir()
        (made / "token").write_text(text)
        (made / "token").chmod(0o600)
        # A file of the same size, in the same tick of a coarse clock, would look the same.
        os.utime(made / "token", ns=(self._made, self._made))
        (self.folder / "..new").symlink_to(made.name)
        (self.folder / "..new").rename(self.folder / "..data")


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    made = Volume(tmp_path)
    made.renew("first")
    return made


def test_a_renewed_token_is_taken_up_and_one_that_cannot_be_read_is_not(volume: Volume) -> None:
    token = BearerToken(path=volume.path)
    assert token.now() == "first"
    volume.renew("other")
    assert token.now() == "other"
    volume.renew("")
    with capture_logs() as said:
        assert (token.now(), token.now()) == ("other", "other")
    assert [one["event"] for one in said] == ["the renewed token cannot be read, the one before is used"]
    volume.renew("third")
    assert token.now() == "third"
    volume.path.unlink()
    assert token.now() == "third"


def test_a_file_that_is_not_there_is_named_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"agent\.push_token_file = '.*none': No such file"):
        BearerToken(path=tmp_path / "none")
    assert (BearerToken().now(), BearerToken("given").now()) == ("", "given")


def test_pushes_and_orders_carry_the_token_of_now(volume: Volume, tmp_path: Path) -> None:
    sent: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request.headers["Authorization"])
        return httpx2.Response(204) if request.method == "POST" else httpx2.Response(200, content=b"[]")

    clock, own, transport = ManualClock(T0), OwnMetrics(), httpx2.MockTransport(answer)
    spool = Spool(tmp_path / "spool.db", 1 << 20, clock)
    target = PushTarget("http://brain.test", "o", "b", token_file=volume.path)
    uplink = Uplink(spool, target, clock, own, transport=transport)
    link = OrderLink("http://brain.test", "n", BearerToken(path=volume.path), transport=transport)
    for text in ("first", "other"):
        volume.renew(text)
        spool.put("gpu,gpu_uuid=a power_watts=1 1\n", 1)
        assert uplink.push() == 1
        assert link.orders() == []
    assert sent == ["Token first", "Bearer first", "Token other", "Bearer other"]
    for one in (uplink, link, spool):
        one.close()
