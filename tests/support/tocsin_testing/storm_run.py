"""``python -m tocsin_testing.storm_run``: the collapse and its nulls over random storms, as a table.

The seeds are none that anything was developed on. With ``--write FILE`` the table takes the place of the one in FILE.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tocsin.domain.event import Event
from tocsin.domain.finding import Finding, Incident
from tocsin.rules.incidents import collapse
from tocsin.topology.topology import Topology
from tocsin_testing import old_incidents
from tocsin_testing.storm_scores import Collapse, Score, per_domain, per_host, score
from tocsin_testing.storms import Storm, make_storm

FIRST_SEED = 600_000
"""No storm from it on was looked at while the code was written."""
STORMS = 1_000
BEGIN, END = "<!-- storms: made by `make storms` -->", "<!-- end of storms -->"


def before_places(findings: Sequence[Finding], events: Sequence[Event], topology: Topology) -> list[Incident]:
    """Null: the collapse that knew no places."""
    return old_incidents.collapse(findings, events)


NULLS: dict[str, Collapse] = {
    "one incident per host": per_host,
    "one incident per NVLink domain": per_domain,
    "the collapse before places were known": before_places,
}


def strata(storm: Storm) -> list[str]:
    """The rows that a storm counts for."""
    said = {"two causes in one domain": storm.paired, "lost or late events": storm.lossy, "no topology": storm.blind}
    return ["all", *(name for name, holds in said.items() if holds)]


def table(first: int, count: int) -> str:
    """The scores over `count` storms from seed `first`, in Markdown."""
    scores: dict[tuple[str, str], Score] = {}
    for seed in range(first, first + count):
        storm = make_storm(seed)
        runs = {"this collapse": collapse, **NULLS}
        for name, run in runs.items():
            incidents = run(storm.findings, storm.events, storm.topology)
            for row in strata(storm) if name == "this collapse" else ["all"]:
                score(storm, incidents, scores.setdefault((name, row), Score()))
    rows = [
        f"| {name} | {row} | {one.storms:,} | {one.merges} | {one.share:.2%} of {one.members:,} | "
        f"{'passes' if one.passes else 'fails'} |"
        for (name, row), one in sorted(scores.items(), key=lambda item: _place(*item[0]))
    ]
    head = ["| collapse | storms | number | merges across domains | members under the right root | bars |"]
    return "\n".join([*head, "| --- | --- | --- | --- | --- | --- |", *rows])


def _place(name: str, row: str) -> tuple[int, str]:
    """This collapse before the nulls, all storms before a part of them."""
    return list(NULLS).index(name) + 1 if name in NULLS else 0, "" if row == "all" else row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=FIRST_SEED)
    parser.add_argument("--storms", type=int, default=STORMS)
    parser.add_argument("--write", type=Path)
    wanted = parser.parse_args()
    made = table(wanted.first, wanted.storms)
    print(made)
    if wanted.write is not None:
        text = wanted.write.read_text()
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        said = f"{wanted.storms:,} storms, seeds {wanted.first} to {wanted.first + wanted.storms - 1}:"
        wanted.write.write_text(f"{before}{BEGIN}\n\n{said}\n\n{made}\n\n{END}{after}")


if __name__ == "__main__":
    main()
