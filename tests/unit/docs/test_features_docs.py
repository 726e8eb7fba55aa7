"""docs/features.md: its example gives what it says, and every feature is in its tables."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

from tocsin.forecaster.features.onsets import EVENT_CLASSES
from tocsin.forecaster.features.plan import CHANNELS, FAMILIES, FeatureKind, FeaturePlan
from tocsin.forecaster.features.table import ALIKE, ERRORS, GAUGES, NEIGHBOURS, names_of

DOCS = Path(__file__).parents[3] / "docs" / "features.md"
MEMBERS = {
    "COUNTER": [channel.name for channel in CHANNELS if channel.kind is FeatureKind.COUNTER],
    "MEAN": [channel.name for channel in CHANNELS if channel.kind is FeatureKind.MEAN],
    "PEAK": [channel.name for channel in CHANNELS if channel.kind is FeatureKind.PEAK],
    "W": ["1h", "6h", "24h", "3d", "7d", "30d"],
    "FAMILY": FAMILIES,
    "CLASS": EVENT_CLASSES,
    "GAUGE": GAUGES,
    "ERRORS": ERRORS,
    "GROUP": NEIGHBOURS,
}


def named() -> list[str]:
    """Patterns of the names in the first column of the table of features."""
    text = DOCS.read_text(encoding="utf-8")
    table = text[text.index("| name | what it is |") :].split("\n\n")[0]
    found = []
    for line in table.splitlines()[2:]:
        names = re.findall(r"`([^`]+)`", line.split("|")[1])
        found += [names[0].rsplit(".", 1)[0] + name if name.startswith(".") else name for name in names]
    return found


def pattern(name: str) -> re.Pattern[str]:
    words = [word for word in re.split(r"([A-Z]+)", name) if word]
    return re.compile("".join(f"(?:{'|'.join(MEMBERS[w])})" if w in MEMBERS else re.escape(w) for w in words))


def test_the_example_gives_what_it_says() -> None:
    found = doctest.testfile(str(DOCS), module_relative=False)
    assert found.attempted >= 15
    assert found.failed == 0


def test_every_feature_is_in_the_table_and_every_line_names_one() -> None:
    patterns = [pattern(name) for name in named()]
    features = names_of(FeaturePlan())
    assert [name for name in features if not any(one.fullmatch(name) for one in patterns)] == []
    assert [one.pattern for one in patterns if not any(one.fullmatch(name) for name in features)] == []


def test_every_channel_is_in_its_table() -> None:
    text = DOCS.read_text(encoding="utf-8")
    table = text[text.index("### Channels") : text.index("## Onsets")]
    assert set(re.findall(r"`([a-z_]+)`", table)) >= {channel.name for channel in CHANNELS}
    assert set(ALIKE) <= set(NEIGHBOURS)
