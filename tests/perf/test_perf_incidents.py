"""A storm of 10,000 findings collapses in well under a second of CPU, whatever it is made of."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tocsin.domain.finding import ActionKind, Category, Evidence, Finding, Severity, Subject, SubjectKind
from tocsin.domain.place import Place, PlaceKind
from tocsin.domain.reading import Owner
from tocsin.rules.conditions.xid_class import XID_METRIC
from tocsin.rules.incidents import collapse
from tocsin.rules.xid import xid
from tocsin.topology.claims import Claim, ClaimSource
from tocsin.topology.topology import NO_TOPOLOGY, Topology
from tocsin_testing import old_incidents
from tocsin_testing.builders import T0

MANY = 10_000
MOST_SECONDS = 1.0
"""CPU for one collapse; "well under" leaves room for a slow machine."""


def one(n: int, code: int, at_ms: int, host: str, owner: str = "") -> Finding:
    """A finding of an XID as the shipped rules make it."""
    spec = xid(code)
    subject = Subject(SubjectKind.GPU, f"GPU-{n:05d}", host, "default")
    return Finding(
        f"xid_{spec.xid_class}",
        subject,
        spec.severity,
        spec.category,
        spec.action,
        T0 + at_ms,
        T0 + at_ms,
        f"{host} GPU-{n:05d}: XID {code}.",
        XID_METRIC,
        float(code),
        evidence=(Evidence(f"xid:{code}", spec.help, T0 + at_ms, float(code)), Evidence("rack", "r1", T0)),
        owners=(Owner(1, "python", slurm_job=owner),) if owner else (),
    )


def fabrics() -> list[Finding]:
    """139 NVLink domains, in each of which one link fails and 71 GPUs echo it."""
    return [
        one(n, 149 if n % 72 == 0 else 145, 60_000 * (n // 720) + n % 72 * 50, f"node-{n // 4}") for n in range(MANY)
    ]


def lost() -> list[Finding]:
    """10,000 GPUs that are lost one after the other, 8 a host, all with one rack in their evidence."""
    return [one(n, 79, 7_000 * n % 600_000, f"node-{n // 8}") for n in range(MANY)]


def ended() -> list[Finding]:
    """One job whose programs all end."""
    return [one(n, 45 if n % 2 else 31, n * 20, f"node-{n // 8}", "7") for n in range(MANY)]


def sources() -> list[Finding]:
    """10,000 failed links within minutes, of one domain."""
    return [one(n, 149 if n % 2 else 145, n * 37 % 400_000, f"node-{n // 4}") for n in range(MANY)]


def silent() -> list[Finding]:
    """A hall goes dark."""
    return [
        Finding(
            "gpu_silent",
            Subject(SubjectKind.GPU, f"GPU-{n:05d}", f"node-{n // 8}", "default"),
            Severity.WARNING,
            Category.TELEMETRY,
            ActionKind.NOTIFY,
            T0 + n * 13 % 60_000,
            T0 + 900_000,
            "silent",
        )
        for n in range(MANY)
    ]


def places(findings: Sequence[Finding], domain: int) -> Topology:
    """Domains of `domain` GPUs, racks of 128, power zones of 1,024."""
    hosts = {finding.subject.name: finding.subject.host for finding in findings}
    claims = []
    for n, (uuid, host) in enumerate(hosts.items()):
        subject, at = Place(PlaceKind.GPU, uuid), Place(PlaceKind.HOST, host)
        claims += [
            Claim(subject, Place(PlaceKind.NVLINK_DOMAIN, f"u.{n // domain}"), ClaimSource.DRIVER),
            Claim(at, Place(PlaceKind.RACK, f"rack-{n // 128}"), ClaimSource.SITE_FILE),
            Claim(at, Place(PlaceKind.POWER_ZONE, f"feed-{n // 1024}"), ClaimSource.SITE_FILE),
        ]
    return Topology(hosts, claims)


STORMS = {
    "fabrics": (fabrics, 72),
    "lost": (lost, 8),
    "ended": (ended, 8),
    "sources": (sources, MANY),
    "silent": (silent, 8),
}


@pytest.mark.benchmark(group="10,000 findings of one kind of storm to their incidents, CPU", timer=time.process_time)
@pytest.mark.parametrize("name", STORMS)
@pytest.mark.parametrize("known", [True, False], ids=["places", "blind"])
def test_any_storm_of_10000_findings_is_bounded(name: str, known: bool, benchmark: BenchmarkFixture) -> None:
    make, domain = STORMS[name]
    findings = make()
    topology = places(findings, domain) if known else NO_TOPOLOGY
    incidents = benchmark.pedantic(collapse, (findings, (), topology), rounds=1)
    if not benchmark.disabled:
        assert benchmark.stats.stats.max < MOST_SECONDS
    assert sum(len(incident.members) for incident in incidents) == len(findings)


@pytest.mark.benchmark(group="10,000 findings of 139 failed NVLinks to their incidents, CPU", timer=time.process_time)
def test_collapse(benchmark: BenchmarkFixture) -> None:
    findings = fabrics()
    topology = places(findings, 72)
    incidents = benchmark.pedantic(lambda: collapse(findings, (), topology), rounds=5, warmup_rounds=1)
    assert len(incidents) == 139


@pytest.mark.benchmark(group="10,000 findings of 139 failed NVLinks to their incidents, CPU", timer=time.process_time)
def test_baseline_without_places_makes_one_incident_of_all(benchmark: BenchmarkFixture) -> None:
    """All become one incident."""
    findings = fabrics()
    incidents = benchmark.pedantic(lambda: old_incidents.collapse(findings), rounds=5, warmup_rounds=1)
    assert len(incidents) == 1
