"""Jobs that less would do for: by what they used at their peak, never by their mean; and what is not known of them.

A note for people; nothing follows from it. Limits are own choices on the safe side:

- memory: the most that was ever in use, and a tenth on top, must fit;
- a MIG slice or a share: the 99th percentile of activity must stay below four fifths of its part of the card, and no
  peak may reach the whole of it for a MIG slice;
- a smaller card of the site: activity must stay below a third, since nothing here tells how fast the smaller one is;
- a slice or a share have no NVLink of their own: a job that moved more than a trickle over it keeps its cards, and so
  does one of several GPUs of a host of which that is not known.

Where activity is only known as the time in which any kernel ran, it is an upper bound, so what fits does fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tocsin.accounting.profile import Profile
from tocsin.accounting.slices import slices_of
from tocsin.accounting.table import JobProfile
from tocsin.domain.clock import HOUR, SECOND

MEMORY_MARGIN = 1.1
ACTIVITY_MARGIN = 0.8
SMALL_CARD_ACTIVITY = 1 / 3
SMALLER = 1.25
"""How many times as much memory as a smaller card the present one has at least."""
NVLINK_TRICKLE = 1e8
"""Bytes a second over NVLink that are no traffic of a job (own choice)."""
LEAST_KNOWN = 0.9
"""Share of its time in which memory and activity must be known."""
SHARES = (4, 2)
"""Jobs that share a card in equal parts."""


class Fit(StrEnum):
    """What less may be."""

    MIG = "mig"
    CARD = "card"
    SHARE = "share"


class Unfit(StrEnum):
    """Why nothing less is named."""

    SHORT = "short"
    """Watched for too short a time."""
    UNTOLD = "untold"
    """Memory or activity are not known for enough of the time."""
    NEEDED = "needed"
    """It needs what it has."""


@dataclass(frozen=True, slots=True)
class Option:
    """Something smaller: `name` is a MIG profile, a model of the site, or ``1/N``. `freed_hours` are the GPU-hours of
    its present card that it would not have held."""

    fit: Fit
    name: str
    freed_hours: float


@dataclass(frozen=True, slots=True)
class RightSize:
    """A job on a model of card, with what would be enough, the most freed first, or why nothing is named."""

    job: JobProfile
    options: tuple[Option, ...]
    unfit: Unfit | None


def right_sizes(jobs: Sequence[JobProfile], cards: Mapping[str, float], least_hours: float) -> list[RightSize]:
    """What would be enough for each of `jobs`; `cards` is the memory in bytes of the models of the site.

    `least_hours` are the GPU-hours that a job must have been watched.
    """
    return [_judged(job, cards, least_hours) for job in jobs]


def _judged(job: JobProfile, cards: Mapping[str, float], least_hours: float) -> RightSize:
    profile = job.profile
    if profile.seconds < least_hours * HOUR / SECOND:
        return RightSize(job, (), Unfit.SHORT)
    memory, activity, total = profile.memory_max, profile.activity_p99(), profile.memory_total
    apart = _apart(profile)
    if memory is None or activity is None or total is None or apart is None or profile.known() < LEAST_KNOWN:
        return RightSize(job, (), Unfit.UNTOLD)
    if not apart:
        return RightSize(job, (), Unfit.NEEDED)
    need = memory * MEMORY_MARGIN
    options = [
        *_cards(job.model, profile, cards, need, activity),
        *_slices(job.model, profile, total, need, activity),
        *_shares(profile, total, need, activity),
    ]
    options.sort(key=lambda one: (-one.freed_hours, one.fit, one.name))
    return RightSize(job, tuple(options), None if options else Unfit.NEEDED)


def _apart(profile: Profile) -> bool | None:
    """Whether its GPUs work each for itself; None where that is not known."""
    if profile.link_max is not None and profile.link_max > NVLINK_TRICKLE:
        return False
    return True if profile.link_max is not None or profile.gpus_max <= 1 else None


def _hours(profile: Profile) -> float:
    return profile.seconds * SECOND / HOUR


def _slices(model: str, profile: Profile, total: float, need: float, activity: float) -> list[Option]:
    peak = profile.activity_max or 0.0
    for one in slices_of(model, total):
        if need <= one.memory and activity <= ACTIVITY_MARGIN * one.share and peak <= one.share:
            return [Option(Fit.MIG, one.profile, _hours(profile) * (1 - one.share))]
    return []


def _shares(profile: Profile, total: float, need: float, activity: float) -> list[Option]:
    for parts in SHARES:
        if need <= total / parts and activity <= ACTIVITY_MARGIN / parts:
            return [Option(Fit.SHARE, f"1/{parts}", _hours(profile) * (1 - 1 / parts))]
    return []


def _cards(model: str, profile: Profile, cards: Mapping[str, float], need: float, activity: float) -> list[Option]:
    if activity > SMALL_CARD_ACTIVITY:
        return []
    most = (profile.memory_total or 0.0) / SMALLER
    smaller = sorted((memory, name) for name, memory in cards.items() if name != model and need <= memory <= most)
    return [Option(Fit.CARD, name, _hours(profile)) for _, name in smaller[:1]]
