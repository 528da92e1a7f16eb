"""The page and the files beside it, without a browser."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from html import escape
from pathlib import Path

import pytest
from PIL import Image

from biprune.core.files import replaced, write_text
from biprune.methods import BiP
from biprune.report import (
    ReferencePoint,
    csv_table,
    latex_tables,
    markdown_tables,
    summarise,
    write_report,
)
from biprune.report.figures import write_figures
from biprune.report.page import details_html
from biprune.report.wording import overview, verdict_sentences
from hand_records import dense, failed, realistic, run

CHARTS = (
    "accuracy",
    "tickets",
    "iou",
    "seconds",
    "passes",
    "loss",
    "validation",
    "layers",
    "layer-epochs",
)


def without_scripts(page: str) -> str:
    return re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def embedded(page: str, name: str) -> dict:
    return json.loads(re.search(rf'id="{name}">(.*?)</script>', page, re.DOTALL)[1])


def test_the_page_holds_everything_it_needs(tmp_path: Path) -> None:
    page = write_report(realistic(), tmp_path / "new" / "report.html").read_text(encoding="utf-8")
    markup = without_scripts(page)
    assert not re.search(r"""(src|href)=["']?(?!#)""", markup)
    assert "default-src 'none'" in markup
    assert list(embedded(page, "charts")) == [f"chart-1-{name}" for name in CHARTS]
    assert markup.count('class="vega"') == len(CHARTS)
    assert os.listdir(tmp_path / "new") == ["report.html"]


@pytest.mark.parametrize("structure", ["weight", "filter", "channel", "group", "2:4"])
def test_a_page_of_every_structure(structure: str, tmp_path: Path) -> None:
    records = [dense(), run("omp", 0.5, spec={"structure": structure})]
    page = write_report(records, tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"resnet20 on digits, pruned by {structure}" in without_scripts(page)


def test_what_records_say_is_escaped(tmp_path: Path) -> None:
    nasty = "</script><script>alert(1)</script>"
    records = [
        *realistic(),
        run(
            "gmp",
            environment={"host": nasty, "finished": [nasty]},
            spec={"data": f"folder:{nasty}"},
        ),
        failed("gmp", 0.5, error=nasty),
    ]
    page = write_report(records, tmp_path / "report.html", title=nasty).read_text(encoding="utf-8")
    assert page.count("<script") == 4
    assert page.count("</script") == 4
    assert "alert(1)</script>" not in page
    assert escape("RuntimeError: <script>alert('broken')</script> & 50 % of a_b") in page


def test_holes_say_why(tmp_path: Path) -> None:
    page = write_report(realistic(), tmp_path / "report.html").read_text(encoding="utf-8")
    assert re.search(r'<td class="hole" title="seed 0: RuntimeError: [^"]*">hole</td>', page)
    assert "<b>omp</b> at 50 % (seed 1): <code>no record</code>" in page


def test_the_verdict_in_sentences() -> None:
    (comparison,) = summarise(realistic())
    assert verdict_sentences(comparison) == [
        "Dense: 90.50 ± 0.71 % (2 runs).",
        "At 90 %, the sparsest tried, bip is best: 90.90 ± 0.71 %, 2 runs.",
        "bip: sparsest winning ticket at 90 % by its mean (90.90 ± 0.71 %, 2 runs) and at 90 % "
        "with 95 % confidence (+0.40 points or more).",
        "imp: sparsest winning ticket at 50 % by its mean (90.70 ± 0.71 %, 2 runs) and at 50 % "
        "with 95 % confidence (+0.20 points or more).",
        "Tickets that start from the dense networks have trained longer than these. Runs at a "
        "sparsity of 0 would show how much is due to the longer training alone.",
        "No winning ticket at any sparsity: omp.",
    ]
    assert overview([comparison]) == (
        "bip, imp and omp at sparsities of 50 % and 90 %: 2 seeds, 11 pruning runs and 2 dense "
        "runs. 2 runs missing or failed."
    )


def test_none_is_best_among_runs_of_different_seeds() -> None:
    (comparison,) = summarise([run("omp", 0.9, 0, 70.0), run("gmp", 0.9, 1, 80.0)])
    said = "At 90 %, the sparsest tried, no method beats all others on the seeds they share."
    assert said in verdict_sentences(comparison)


def test_many_variants_are_counted_by_method() -> None:
    tried = [
        run("bip", spec={"settings": {"gamma": g, "implicit_gradient": True}}) for g in range(2, 14)
    ]
    (comparison,) = summarise([dense(), run("imp"), *tried])
    assert overview([comparison]).startswith("bip in 12 variants and imp at sparsities of 90 %: ")


def test_what_cannot_be_said_is_said() -> None:
    (comparison,) = summarise([run("bip")])
    assert verdict_sentences(comparison)[0] == (
        "The dense accuracy is unknown, so no ticket can be called a winning ticket."
    )
    (comparison,) = summarise([dense(), run("bip")])
    assert verdict_sentences(comparison)[-1] == "Confidence bounds need at least two seeds."
    (comparison,) = summarise([dense(), failed("bip")])
    assert verdict_sentences(comparison)[-1] == "No pruning run has finished."


def test_settings_and_versions_of_every_run(tmp_path: Path) -> None:
    records = realistic()
    page = write_report(records, tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("<details>") > 3
    assert all(record.key in page for record in records)
    assert escape('"torch": "2.8.0"') in page
    assert escape(f'"score_lr": {BiP().score_lr}') in page  # a default, spelt out


def test_runs_that_differ_in_their_time_alone_share_their_versions() -> None:
    times = [f"2026-01-0{day}T00:00:00+00:00" for day in (1, 2, 3)]
    made = [{"torch": "2.13.0", "finished": time} for time in times]
    runs = [run("bip", seed=seed, environment=made[seed]) for seed in (0, 1)]
    other = run("bip", seed=2, environment={**made[2], "torch": "2.12.0"})
    (comparison,) = summarise([dense(environment=made[0]), *runs, other])
    text = details_html(comparison)
    assert all(time in text for time in times)
    assert (text.count("Versions 2"), text.count("Versions 3")) == (1, 0)


@pytest.mark.parametrize(
    "records", [[dense()], [failed("bip")], [run("bip")], [dense(), failed("bip", seed=3)]]
)
def test_little_is_enough_for_a_page(records: list, tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("csv", "markdown", "latex")}
    page = write_report(records, tmp_path / "report.html", **files)
    assert "resnet20 on digits" in page.read_text(encoding="utf-8")


def test_no_records_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`records` must hold at least one record, got none"):
        write_report([], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("package", ["altair", "vl_convert"])
def test_a_missing_extra_is_named(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    message = rf"need {package}, which is not installed: pip install 'biprune\[report\]'"
    with pytest.raises(ModuleNotFoundError, match=message):
        write_report(realistic(), tmp_path / "report.html")
    assert os.listdir(tmp_path) == []


TABLES = """
import sys
sys.modules.update(dict.fromkeys(["altair", "vl_convert", "scipy"]))
from hand_records import realistic
from biprune.report import csv_table, latex_tables, markdown_tables, summarise
for tables in (csv_table, latex_tables, markdown_tables):
    print(tables(summarise(realistic())), end="")
"""


def test_tables_need_no_extra() -> None:
    here = str(Path(__file__).parents[1])  # of hand_records
    path = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", TABLES],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"},
    )
    comparisons = summarise(realistic())
    expected = [tables(comparisons) for tables in (csv_table, latex_tables, markdown_tables)]
    assert done.stdout == "".join(expected), done.stderr


def test_the_order_of_records_does_not_change_the_page(tmp_path: Path) -> None:
    records = realistic()
    one = write_report(records, tmp_path / "one.html").read_bytes()
    assert write_report(records[::-1], tmp_path / "other.html").read_bytes() == one


def test_everything_at_once(tmp_path: Path) -> None:
    paper = [ReferencePoint("bip", 0.9, 91.0, None, "resnet20", "digits", "Figure 1")]
    page = write_report(
        iter(realistic()),
        tmp_path / "report.html",
        figures=tmp_path / "figures",
        csv=tmp_path / "cells.csv",
        markdown=tmp_path / "tables.md",
        latex=tmp_path / "tables.tex",
        title="Digits",
        paper=paper,
    )
    assert "<h1>Digits</h1>" in page.read_text(encoding="utf-8")
    assert "bip (Figure 1)" in page.read_text(encoding="utf-8")
    for name in ("cells.csv", "tables.md", "tables.tex"):
        assert "91.5" in (tmp_path / name).read_text(encoding="utf-8")
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    stem = "resnet20-on-digits-pruned-by-weight"
    assert names == {f"{stem}-{name}.{kind}" for name in CHARTS for kind in ("svg", "png")}
    svg = ET.parse(tmp_path / "figures" / f"{stem}-accuracy.svg").getroot()
    assert svg.tag.endswith("svg")
    text = " ".join(node.text or "" for node in svg.iter())
    assert "Accuracy against sparsity" in text
    assert "Figure 1" in text
    with Image.open(tmp_path / "figures" / f"{stem}-accuracy.png") as image:
        image.verify()
        assert image.width > 1000


def test_figures_of_settings_with_one_title_get_numbers(tmp_path: Path) -> None:
    records = [run("bip", spec={"data": "folder:a/b"}), run("bip", spec={"data": "folder:a-b"})]
    written = write_figures(summarise(records), tmp_path)
    stem = "resnet20-on-folder-a-b-pruned-by-weight"
    assert {f"{stem}-accuracy.svg", f"{stem}-2-accuracy.svg"} <= {path.name for path in written}


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "half way \ud800")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["report.html"]
    with pytest.raises(IsADirectoryError, match="it is a folder"):
        write_report([run("bip")], tmp_path)


def test_two_writers_of_one_file_do_not_share_a_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    with replaced(path) as one, replaced(path) as other:
        one.write_text("one")
        other.write_text("other")
        assert (one.read_text(), other.read_text()) == ("one", "other")
    assert path.read_text() == "one"  # the outer one ends last
    assert os.listdir(tmp_path) == ["record.json"]
