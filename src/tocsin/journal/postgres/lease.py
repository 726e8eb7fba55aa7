"""Who writes the journal of a cell: the holder of a row in the database, by the database's clock."""

from __future__ import annotations

from tocsin.domain.clock import Clock
from tocsin.journal.postgres.connections import CellDatabase, DatabaseTrouble

RENEW_SHARE = 2 / 3
"""Part of the duration after which a holder that could not renew stops by itself, before another can begin."""
RETRY_SHARE = 2 / 15
"""Part of the duration between two renewals or looks."""

_TAKE = """
WITH taken AS (
    UPDATE lease SET epoch = epoch + 1, holder = %s, until = clock_timestamp() + make_interval(secs => %s)
    WHERE holder = '' OR holder = %s OR until <= clock_timestamp() RETURNING epoch
)
SELECT (SELECT epoch FROM taken), holder, epoch,
    extract(epoch FROM greatest(until, clock_timestamp()) - clock_timestamp())::float8 FROM lease
"""
_RENEW = """
UPDATE lease SET until = clock_timestamp() + make_interval(secs => %s) WHERE holder = %s AND epoch = %s RETURNING epoch
"""
_RELEASE = "UPDATE lease SET holder = '', until = clock_timestamp() WHERE holder = %s AND epoch = %s"


class DatabaseLease:
    """The lease row of a cell; a `tocsin.runtime.brain.lease.Lease`.

    `identity` must be another one for every process and every try. Each taking is a new epoch, and every transaction
    that adds entries asks for it: what this object believes is never what decides. Once another has had the lease it is
    `lost` for good: what this process knows of the journal is out of date then.

    `held` is by the monotonic clock since before the last renewal that was answered, and ends at two thirds of the
    duration: a process that was stopped finds it ended when it goes on.
    """

    def __init__(self, database: CellDatabase, identity: str, seconds: float, clock: Clock) -> None:
        self.identity = identity
        self.seconds = seconds
        self._clock = clock
        # A statement that hangs must not use up the time in which the holder could renew.
        self._line = database.line(seconds * RENEW_SHARE / 3)
        self._renewed: float | None = None
        self._holder = ""
        self._next = float("-inf")
        self.epoch = 0
        self.lost = False
        self.trouble = ""

    def held(self) -> bool:
        renewed = self._renewed
        return not self.lost and renewed is not None and self._clock.monotonic() - renewed < self.seconds * RENEW_SHARE

    def holder(self) -> str:
        return self._holder

    def tick(self) -> None:
        now = self._clock.monotonic()
        if self.lost or now < self._next:
            return
        self._next = now + self.seconds * RETRY_SHARE
        try:
            if self._renewed is None:
                self._take(now)
            else:
                self._renew(now)
            self.trouble = ""
        except DatabaseTrouble as error:
            self.trouble = str(error)

    def lose(self) -> None:
        """The database refused an entry: another has the lease, or this process does not know the journal's end."""
        self.lost = True

    def release(self) -> None:
        if self._renewed is not None and not self.lost:
            self.lost = True
            try:
                self._line.ask(_RELEASE, (self.identity, self.epoch))
            except DatabaseTrouble as error:
                self.trouble = str(error)
        self._line.close()

    def _take(self, now: float) -> None:
        ((taken, holder, _, left),) = self._line.ask(_TAKE, (self.identity, self.seconds, self.identity))
        if taken is None:
            self._holder = str(holder)
            # A lease that nobody renews is taken when it runs out, not at the look after that.
            self._next = min(self._next, self._clock.monotonic() + float(left))
            return
        self.epoch, self._holder, self._renewed = int(taken), self.identity, now

    def _renew(self, now: float) -> None:
        if self._line.ask(_RENEW, (self.seconds, self.identity, self.epoch)):
            self._renewed = now
            return
        self.lost = True
        self._holder = ""
