"""The tables as csv, markdown and LaTeX, number by number."""

from __future__ import annotations

import csv
import io

import pytest

from biprune.report import ReferencePoint, csv_table, latex_tables, markdown_tables, summarise
from biprune.report.tables import Entry, accuracy_table, cost_table, difference_table
from biprune.report.typesetting import latex_text
from hand_records import dense, failed, realistic, run, seeds


def test_the_accuracy_table() -> None:
    (comparison,) = summarise(realistic())
    table = accuracy_table(comparison)
    assert table.columns == ["50 %", "90 %"]
    assert "Dense: 90.50 ± 0.71 % (2 runs)." in table.caption
    # Both gain 1.0 and 0.4 in each seed, so that the bound is the gain itself.
    assert table.rows["bip"] == [
        Entry("91.50 ± 0.71", 2, ("**", "†"), is_best=True),
        Entry("90.90 ± 0.71", 2, ("**",), is_best=True),
    ]
    assert table.rows["imp"][0] == Entry("90.70 ± 0.71", 2, ("**", "†"))
    assert table.rows["imp"][1] == Entry("90.10 ± 0.71", 2, ("†",))
    hole, found = table.rows["omp"]
    assert hole.text == ""
    assert hole.error.startswith("seed 0: RuntimeError: <script>")
    assert hole.error.endswith("; seed 1: no record")
    assert found == Entry("88.20 ± 0.28", 2)
    assert list(table.notes) == ["*", "**", "†"]


def test_the_best_is_so_over_the_seeds_that_both_have() -> None:
    """Behind in every seed that the other has, ahead by the mean of seeds that it has not."""
    few, more = seeds("omp", 0.9, 70.5, 70.5), seeds("gmp", 0.9, 70.0, 70.0, 80.0)
    (comparison,) = summarise([*few, *more])
    rows = accuracy_table(comparison).rows
    assert (rows["gmp"][0].text, rows["omp"][0].text) == ("73.33 ± 5.77", "70.50 ± 0.00")
    assert (rows["gmp"][0].is_best, rows["omp"][0].is_best) == (False, True)
    (comparison,) = summarise([run("omp", 0.9, 0, 70.0), run("gmp", 0.9, 1, 80.0)])
    assert not any(row[0].is_best for row in accuracy_table(comparison).rows.values())
    (comparison,) = summarise([run("omp", 0.9, 0, 70.0), run("gmp", 0.9, 0, 70.0)])
    assert all(row[0].is_best for row in accuracy_table(comparison).rows.values())


def test_what_was_not_pruned_is_no_winning_ticket() -> None:
    (comparison,) = summarise([dense(0, 90.0), *seeds("bip", 0.0, 95.0), *seeds("bip", 0.9, 90.0)])
    assert [entry.marks for entry in accuracy_table(comparison).rows["bip"]] == [(), ("*",)]


def test_the_cost_table() -> None:
    (comparison,) = summarise(
        [
            run("bip", 0.9, 0, backward_passes=12_000, seconds=100.0),
            run("bip", 0.9, 1, backward_passes=12_000, seconds=101.0),
            run("imp", 0.9, 0, backward_passes=36_000, seconds=3000.0),
            run("imp", 0.5, 0, backward_passes=18_000, seconds=1500.0),
            run("imp", 0.5, 1, backward_passes=18_000, seconds=1500.0),
        ]
    )
    rows = cost_table(comparison).rows
    assert rows["bip"] == [Entry("-"), Entry("12,000 / 100 s", marks=("†",))]
    assert rows["imp"] == [
        Entry("18,000 / 1,500 s"),
        Entry("36,000 / 3,000 s", marks=("†", "‡"), error="seed 1: no record"),
    ]


def test_the_table_of_differences() -> None:
    (comparison,) = summarise(realistic())
    table = difference_table(comparison)
    assert table is not None
    assert list(table.rows) == ["imp", "omp"]
    # In both seeds imp is 0.8 behind bip; omp 2.4 in one and 3 in the other.
    assert [entry.text for entry in table.rows["imp"]] == ["-0.80 ± 0.00"] * 2
    hole, found = table.rows["omp"]
    assert (hole.text, found.text, found.n) == ("", "-2.70 ± 0.30", 2)
    assert "?" not in table.notes


def test_what_a_difference_leaves_unclear_is_marked() -> None:
    records = [
        *seeds("bip", 0.5, 90.0, 91.0),
        *seeds("bip", 0.9, 90.0),
        *seeds("imp", 0.5, 90.5, 90.5),
        *seeds("imp", 0.9, 91.0),
        *seeds("omp", 0.5, 90.1, 91.2),
        run("omp", 0.9, 5, 90.0),
    ]
    (comparison,) = summarise(records)
    table = difference_table(comparison)
    assert table is not None
    level, single = table.rows["imp"]
    assert (level.text, single.text) == ("+0.00 ± 0.50", "+1.00")
    assert "?" in level.marks
    assert "?" in single.marks
    ahead, apart = table.rows["omp"]
    assert (ahead.text, apart.text) == ("+0.15 ± 0.05", "-")  # no seed in common
    assert "?" not in ahead.marks
    (alone,) = summarise(seeds("bip", 0.5, 90.0))
    assert difference_table(alone) is None


def test_published_numbers_stand_below_ours_at_our_sparsities() -> None:
    paper = [
        ReferencePoint("imp", 0.9, 99.0, None, "resnet20", "digits", "Figure 1", approximate=True),
        ReferencePoint("bip", 0.9, 91.0, 0.5, "resnet20", "digits", "Figure 1"),
        ReferencePoint("bip", 0.7, 92.0, 0.5, "resnet20", "digits", "Figure 1"),
        ReferencePoint("dense", 0.0, 92.0, None, "resnet20", "digits", "Table 1"),
    ]
    (comparison,) = summarise([*seeds("bip", 0.5, 90.0), *seeds("bip", 0.9, 89.0)], paper)
    rows = accuracy_table(comparison).rows
    assert list(rows) == ["bip", "bip (Figure 1)", "imp (Figure 1)"]
    assert rows["bip (Figure 1)"] == [Entry("-"), Entry("91.00 ± 0.50")]
    assert rows["imp (Figure 1)"][1] == Entry("~99.00")
    assert rows["bip"][1].is_best  # theirs do not compete


def test_markdown() -> None:
    text = markdown_tables(summarise(realistic()))
    assert "## resnet20 on digits, pruned by weight\n" in text
    assert "| method | 50 % | 90 % |\n| --- | ---: | ---: |\n" in text
    assert r"| bip | **91.50 ± 0.71** (2)\*\*† | **90.90 ± 0.71** (2)\*\* |" in text
    assert "| omp | *hole* | 88.20 ± 0.28 (2) |" in text
    assert (
        r"- omp at 50 % (seed 0): RuntimeError: \<script\>alert('broken')\</script\> \& 50" in text
    )
    assert "- omp at 50 % (seed 1): no record" in text
    assert "| bip | 100 / 10 s† | 100 / 10 s |" in text


def test_dense_runs_alone_have_no_tables() -> None:
    comparisons = summarise([dense()])
    assert markdown_tables(comparisons).strip().startswith("## ")
    assert "|" not in markdown_tables(comparisons)
    assert "tabular" not in latex_tables(comparisons)


def test_a_pipe_or_a_line_break_cannot_break_a_markdown_table() -> None:
    records = [run("bip"), failed("bip", seed=1, error="a | b\nc")]
    assert r"(seed 1): a \| b c" in markdown_tables(summarise(records))


def test_latex() -> None:
    text = latex_tables(summarise(realistic()))
    assert r"\begin{tabular}{lrr}" in text
    assert r"method & 50 \% & 90 \% \\" in text
    bip = r"bip & \textbf{91.50 $\pm$ 0.71} (2)$^{** \dagger}$ & "
    assert bip + r"\textbf{90.90 $\pm$ 0.71} (2)$^{**}$ \\" in text
    assert r"omp & \emph{hole} & 88.20 $\pm$ 0.28 (2) \\" in text
    assert r"\textless{}script\textgreater{}" in text
    assert r"\& 50 \% of a\_b" in text
    for rule in (r"\toprule", r"\midrule", r"\bottomrule"):
        assert text.count(rule) == 3  # accuracy, differences and cost


def test_latex_specials() -> None:
    assert latex_text(r"\ & % $ # _ { } ~ ^") == (
        r"\textbackslash{} \& \% \$ \# \_ \{ \} \textasciitilde{} \textasciicircum{}"
    )


def test_csv() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_table(summarise(realistic())))))
    bip = next(row for row in rows if (row["label"], row["sparsity"]) == ("bip", "0.9"))
    assert (bip["model"], bip["data"], bip["structure"]) == ("resnet20", "digits", "weight")
    assert (bip["status"], bip["n"], bip["values"]) == ("done", "2", "90.4 91.4")
    numbers = ("mean", "std", "dense_mean", "dense_std", "bound", "backward_passes", "budget_ratio")
    assert [float(bip[name]) for name in numbers] == pytest.approx(
        [90.9, 0.5**0.5, 90.5, 0.5**0.5, 0.4, 100, 1], abs=1e-6
    )
    assert (bip["wins_by_mean"], bip["wins_by_bound"]) == ("True", "True")
    holes = [row for row in rows if row["status"] == "hole"]
    assert [(row["label"], row["seed"], row["mean"]) for row in holes] == [
        ("omp", "0", ""),
        ("omp", "1", ""),
    ]
    assert holes[0]["error"] == "RuntimeError: <script>alert('broken')</script> & 50 % of a_b"


def test_what_is_unknown_is_empty() -> None:
    (row,) = csv.DictReader(io.StringIO(csv_table(summarise([run("bip")]))))
    assert (row["std"], row["dense_mean"], row["wins_by_mean"]) == ("", "", "")
    (row,) = csv.DictReader(io.StringIO(csv_table(summarise([dense(), run("bip")]))))
    assert (row["wins_by_mean"], row["wins_by_bound"]) == ("True", "")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sparsity": 90}, r"`sparsity` must be in \[0, 1\)"),
        ({"accuracy": 120}, "`accuracy` must be in percent, 0 to 100, got 120"),
        ({"std": -1}, "`std` must be 0 or more, or None, got -1"),
        ({"source": " "}, "`source` must say where the number was published, got nothing"),
    ],
)
def test_impossible_reference_points_are_refused(change: dict[str, object], message: str) -> None:
    good = {"method": "bip", "sparsity": 0.9, "accuracy": 91.0, "std": None}
    good |= {"model": "resnet20", "data": "digits", "source": "Figure 1"}
    with pytest.raises(ValueError, match=message):
        ReferencePoint(**good | change)


@pytest.mark.parametrize(
    "error", ["=1+1", "+1|cmd", "-2+3", "@SUM(A1)", "\t=1", "\r=1", '=HYPERLINK("http://x")']
)
def test_csv_holds_no_formula(error: str) -> None:
    table = csv_table(summarise([dense(), failed(error=error)]))
    (row,) = csv.DictReader(io.StringIO(table, newline=""))
    assert row["error"] == "'" + error.replace("\t", r"\t").replace("\r", r"\r")


def test_csv_keeps_negative_numbers() -> None:
    records = [dense(accuracy=-1.5), run("bip", accuracy=-2.25)]
    (row,) = csv.DictReader(io.StringIO(csv_table(summarise(records))))
    assert (row["mean"], row["values"], row["dense_mean"]) == ("-2.25", "-2.25", "-1.5")
