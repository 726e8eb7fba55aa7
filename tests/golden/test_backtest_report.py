"""The report of a backtest, byte for byte, and that a part of it can be renewed alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tocsin.domain.errors import InputError
from tocsin.forecaster.evaluation.report import IMAGES, draw, from_json, markdown, number, put, to_json
from tocsin.forecaster.evaluation.result import Curve, SectionPlace, researched
from tocsin_testing.eval_result import RESULT

GOLDEN = Path(__file__).parent / "backtest"
COMMAND = "tocsin backtest --dataset made --train $TOCSIN_DATA_DIR/made"


def test_markdown_of_one_data_set() -> None:
    assert markdown(RESULT, COMMAND) == (GOLDEN / "made.md").read_text(encoding="utf-8")


def test_json_of_one_data_set_and_back() -> None:
    document = to_json(RESULT)
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    assert text == (GOLDEN / "made.json").read_text(encoding="utf-8")
    assert to_json(from_json(json.loads(text))) == document
    assert markdown(from_json(document), COMMAND) == markdown(RESULT, COMMAND).replace("0.9123456", "0.912346")


def test_whole_report(tmp_path: Path) -> None:
    path = put(tmp_path, RESULT, COMMAND)
    assert path.read_text(encoding="utf-8") == (GOLDEN / "accuracy_figures.md").read_text(encoding="utf-8")


def test_a_part_is_renewed_alone(tmp_path: Path) -> None:
    put(tmp_path, RESULT, COMMAND)
    put(tmp_path, replace(RESULT, dataset="titan"), "titan's command")
    images = {one.name: one.read_bytes() for one in (tmp_path / IMAGES).iterdir()}
    put(tmp_path, replace(RESULT, sections=RESULT.sections[1:]), "another command")
    text = (tmp_path / "accuracy_figures.md").read_text(encoding="utf-8")
    assert "titan's command" in text
    assert "another command" in text
    assert COMMAND not in text
    assert text.index("## titan") < text.index("## made")
    left = {one.name: one.read_bytes() for one in (tmp_path / IMAGES).iterdir()}
    assert sorted(images) == ["made-1-reliability.png", "titan-1-reliability.png"]
    assert left == {"titan-1-reliability.png": images["titan-1-reliability.png"]}
    assert images["made-1-reliability.png"] == images["titan-1-reliability.png"]
    assert images["made-1-reliability.png"].startswith(b"\x89PNG")


def test_a_rare_probability_is_drawn_on_logarithmic_axes_and_an_empty_curve_at_all(tmp_path: Path) -> None:
    rare = Curve("r", "x", "y", {"m": ([0.0001, 0.3, float("nan")], [0.0, 0.2, 0.4])}, diagonal=True)
    empty = Curve("e", "x", "y", {"m": ([], [])})
    for curve in (rare, empty, Curve("none", "x", "y", {}, diagonal=True)):
        draw(curve, tmp_path / f"{curve.title}.png")
        assert (tmp_path / f"{curve.title}.png").read_bytes().startswith(b"\x89PNG")


def test_running_again_changes_nothing(tmp_path: Path) -> None:
    def written() -> dict[str, bytes]:
        put(tmp_path, RESULT, COMMAND)
        return {one.name: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()}

    assert written() == written()


def test_a_foreign_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "accuracy.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(InputError, match="no report of a backtest"):
        put(tmp_path, RESULT, COMMAND)
    assert (tmp_path / "accuracy.json").read_text(encoding="utf-8") == "[1]"
    with pytest.raises(InputError, match="no report of a backtest"):
        from_json({"dataset": "x"})


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0.0, "0"),
        (0.00041, "0.00041"),
        (0.0561, "0.056"),
        (3.14159, "3.14"),
        (301.56, "301.6"),
        (12345.6, "12,346"),
        (1.0, "1"),
        (float("nan"), "-"),
        (None, "-"),
        (12345, "12,345"),
        ("a", "a"),
    ],
)
def test_numbers_show_three_digits_that_matter(value: object, told: str) -> None:
    assert number(value) == told


def test_what_the_service_says_stands_first_and_research_elsewhere(tmp_path: Path) -> None:
    first, *rest = RESULT.sections
    sections = [first, replace(first, title="Said", place=SectionPlace.SERVICE), *researched(rest)]
    put(tmp_path, replace(RESULT, sections=sections), COMMAND)
    text, research = ((tmp_path / name).read_text(encoding="utf-8") for name in ("accuracy_figures.md", "research.md"))
    order = [text.index(one) for one in ("## What the running service says", "#### Said", "## What parts can do")]
    assert order == sorted(order)
    assert text.index("## What parts can do") < text.index(f"#### {first.title}")
    for one in rest:
        assert one.title not in text
        assert f"### {one.title}" in research
    assert first.title not in research.split("## made")[1]
