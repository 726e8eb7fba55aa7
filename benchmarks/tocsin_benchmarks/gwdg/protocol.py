"""GWDG: A100 nodes around logged incidents, on the ticket clock and on the onset clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tocsin.domain.clock import HOUR
from tocsin.forecaster.evaluation.result import DataSet, Figure, ReportSection, ReportTable, Request, Result, researched
from tocsin.forecaster.evaluation.ticket_clock import DRAWS, Instants, LoggedIncident, score
from tocsin.forecaster.hazard.scorer import NotEnoughData
from tocsin_benchmarks.gwdg.anomaly import anomaly_alerts
from tocsin_benchmarks.gwdg.live import live_sections
from tocsin_benchmarks.gwdg.onset import onset_sections
from tocsin_benchmarks.gwdg.tables import (
    Judgement,
    incident_table,
    judgement,
    sign_table,
    start_table,
    ticket_figures,
)
from tocsin_benchmarks.gwdg.ticket import (
    UNIONS,
    Node,
    Union,
    choose,
    judged,
    leave_one_out,
    nodes_of,
    observed,
    start_rows,
)
from tocsin_benchmarks.gwdg.tidy import Telemetry, read_folder

QUICK_FILES = 3
QUICK_DRAWS = 100
SOURCE = "GWDG GPU Node Telemetry Dataset, Bidollahkhani, Nordsiek, Kunkel 2026, doi:10.5281/zenodo.19052367, CC BY 4.0"
PROTOCOL = (
    "Ticket clock: an incident is a node and its logged day at 00:00 UTC, scored with telemetry at 100 or more "
    "instants of the 48 h before. Alert times closer than 24 h are one episode and only its start counts. Found: a "
    "start from 7 days before the day to 24 h after 00:00 of it; lead: the day less the earliest such start. "
    "Precision: starts that an incident follows so. What may alert is chosen on the other nodes. Onset clock: a new "
    "hardware XID of a GPU within 48 h, one node left out; overlapping windows are joined first, splits are by node, "
    "never by row."
)
CHOSEN = "structural signs, chosen on other nodes"


def run(request: Request) -> Result:
    """What the running service says, what structural signs would, and the onset clock of models. With `request.test`
    everything is chosen and learnt on `request.train`, and the service is judged on the test folder."""
    most = QUICK_FILES if request.quick else None
    train = read_folder(request.train, most)
    test = None if request.test is None else read_folder(request.test, most)
    learnt = nodes_of(train.nodes)
    asked = learnt if test is None else nodes_of(test.nodes)
    if test is None:
        unions = leave_one_out(learnt, train.incidents)
    else:
        best = choose(learnt, train.incidents)
        unions = {node.record.node: best for node in asked}
    told = train if test is None else test
    sections = live_sections(request.test or request.train, seed=request.seed, quick=request.quick, most_files=most)
    sections += researched([_ticket(learnt, asked, unions, told, request)])
    sections += onset_sections(
        train.nodes,
        None if test is None else test.nodes,
        seed=request.seed,
        draws=request.draws,
        quick=request.quick,
        leak=request.leak,
    )
    problems = (*train.problems, *(() if test is None else test.problems))
    return Result("gwdg", PROTOCOL, SOURCE, sections, (*_notes(), *problems))


def _ticket(
    learnt: Sequence[Node], asked: Sequence[Node], unions: Mapping[str, Union], told: Telemetry, request: Request
) -> ReportSection:
    incidents = told.incidents
    scored = judged(asked, unions, incidents)
    models: dict[str, dict[str, Figure]] = {CHOSEN: ticket_figures(scored, request.draws, request.seed)}
    for union in UNIONS:
        fixed = judged(asked, {node.record.node: union for node in asked}, incidents)
        models[" or ".join(union)] = ticket_figures(fixed, request.draws, request.seed, bars=False)
    models |= _anomaly(learnt, asked, incidents, request)
    against = judgement(asked, unions, incidents, request.seed, QUICK_DRAWS if request.quick else DRAWS)
    tables = (
        incident_table(scored, asked, unions),
        start_table(asked, unions, incidents),
        against.table,
        _unions_table(unions),
        sign_table(asked, scored),
    )
    population: dict[str, float | int | str] = {
        "nodes": len(asked),
        "windows": told.files,
        "node_days": scored.node_days,
        "incidents_scored": len(scored.found),
        "starts": scored.starts,
        "starts_followed": scored.followed,
    }
    return ReportSection(
        "Structural signs, by the ticket clock",
        models,
        population,
        tables,
        notes=_ticket_notes(against, start_rows(asked, unions)),
    )


def _anomaly(
    learnt: Sequence[Node], asked: Sequence[Node], incidents: Sequence[LoggedIncident], request: Request
) -> dict[str, dict[str, Figure]]:
    """The unsupervised detector by itself, each node by others; nothing where these are too few."""
    times: dict[str, Instants] = {}
    try:
        for node in asked:
            others = [other for other in learnt if other.record.node != node.record.node]
            times |= anomaly_alerts(others, [node]) if others else {}
    except NotEnoughData:
        return {}
    names = set(times)
    own = [one for one in incidents if one.node in names]
    seen = {name: at_ms for name, at_ms in observed(asked).items() if name in names}
    told = score(times, own, seen)
    return {"unsupervised detector of values": ticket_figures(told, request.draws, request.seed, bars=False)}


def _unions_table(unions: Mapping[str, Union]) -> ReportTable:
    rows = [(name, " or ".join(union)) for name, union in sorted(unions.items())]
    return ReportTable("What alerts, chosen on the other nodes", ("node", "signs"), rows)


def _ticket_notes(against: Judgement, starts: Sequence[tuple[str, int, str]]) -> tuple[str, ...]:
    above, whole = (", ".join(names) if names else "none" for names in (against.above, against.above_whole))
    shared = sum(any(name != other and abs(at - at_ms) < HOUR for other, at, _ in starts) for name, at_ms, _ in starts)
    return (
        f"Figures above the 95th percentile of {against.draws} circular shifts of the starts: {above}. Of as many "
        f"shifts of the whole time in alarm, which break into more starts: {whole}. Skill is claimed for these alone; "
        "'bar' is 1 where every bar is reached at once.",
        f"{shared} of {len(starts)} starts fall within 1 h of a start on another node: what all nodes share is an "
        "outage of the site or of its telemetry, not a sign of one node.",
        "'found' allows a start on the logged day itself; 'found_before_the_day_share' counts only those before it.",
        "State of the scheduler is not used: a node that an operator drains is the ticket itself. The power state of "
        "the board's controller only holds alerts back while a node is switched off.",
    )


def _notes() -> tuple[str, ...]:
    return (
        "Every window was recorded around an incident, so precision is flattered: a start has little room to be "
        "followed by nothing.",
        "Lead to the ticket is not lead to the fault: most starts are the fault itself, seen before a person saw it.",
        "A few incidents on a few nodes: intervals draw incidents and are wide.",
        "The list of signs was drawn up after all development windows had been looked at: silence of all GPUs was "
        "added for the incident that the other signs do not find. Leaving a node out tests the choice among "
        "the signs only.",
        "Shifts of the starts and of the time in alarm were both looked at, and holding silence back for 72 h after "
        "another sign was tried and dropped: it takes one start away, and precision is then no longer above the "
        "shifts. Several figures are compared without correction, so one just above the 95th percentile is "
        "weak evidence.",
    )


DATASET = DataSet(run)
