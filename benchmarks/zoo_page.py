"""The tables of the page that says which architectures work, from the records of the zoo."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

Record = dict[str, Any]

STAGES = ("weights", "groups", "certified", "files", "onnx")
FAMILIES = ("torchvision", "timm", "transformers", "yolo")
LONGEST = 160  # characters of a reason in the page; the records have all of it
PLACE = re.compile(r"(<!-- ([\w-]+) -->\n).*?(\n<!-- end -->)", flags=re.DOTALL)
CHECKED = {True: "yes", False: "no"}
COLUMNS = (
    *("model", "weights", "groups (units)", "form", "parameters", "multiply-adds", "difference"),
    *("files", "ONNX", "Torch-Pruning, parameters"),
)


def places(records: Sequence[Record]) -> dict[str, str]:
    """What stands in the places of the page, by name."""
    return {
        "zoo-counts": summary(records),
        "zoo-table": table(records),
        "zoo-rest": rest(records),
        "zoo-made": machine(records),
    }


def filled(page: str, found: dict[str, str]) -> str:
    """The page with what belongs between <!-- name --> and <!-- end --> in its places."""
    return PLACE.sub(lambda place: f"{place[1]}{found[place[2]]}{place[3]}", page)


def summary(records: Sequence[Record]) -> str:
    """How many of each package pass each stage."""
    lines = [
        "| package | models | weights | groups | certified | files | ONNX | all | Torch-Pruning |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for family in (*FAMILIES, ""):
        own = [r for r in records if r["model"].startswith(f"{family}/" if family else "")]
        if own:
            passed = [sum(passes(record, stage) for record in own) for stage in STAGES]
            every = sum(all(passes(record, stage) for stage in STAGES) for record in own)
            peer = sum(passes(record, "peer") for record in own)
            cells = [family or "**all**", len(own), *passed, every, peer]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def passes(record: Record, stage: str) -> bool:
    """Whether a stage was reached and went well."""
    return stage in record and "error" not in record[stage]


def table(records: Sequence[Record]) -> str:
    """A line for each model."""
    lines = [
        "| " + " | ".join(COLUMNS) + " |",
        "|---" * len(COLUMNS) + "|",
    ]
    for record in records:
        cut = record.get("certified", {})
        done = passes(record, "certified")
        cells = [
            record["model"],
            CHECKED[passes(record, "weights")],
            _groups(record),
            cut["form"] if done else "no",
            f"{cut['parameters']:.2f}" if done else "",
            f"{cut['macs']:.2f}" if done else "",
            f"{cut['difference']:.0e}" if done else "",
            CHECKED[passes(record, "files")],
            CHECKED[passes(record, "onnx")],
            _peer(record),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _groups(record: Record) -> str:
    if not passes(record, "groups"):
        return "no"
    return f"{record['groups']['groups']} ({record['groups']['units']:,})"


def _peer(record: Record) -> str:
    if not passes(record, "peer"):
        return "no"
    star = "*" if record["peer"].get("attributes") else ""
    return f"{record['peer']['parameters']:.2f}{star}"


def rest(records: Sequence[Record]) -> str:
    """What does not work, by model and stage, with what was said."""
    lines = []
    for record in records:
        for stage in STAGES:
            error = record.get(stage, {}).get("error")
            if error:
                lines.append(f"- {record['model']}, {stage}: {_short(error)}")
    if not lines:
        lines.append("Nothing that was tried failed.")
    peers = [record for record in records if not passes(record, "peer")]
    if peers:
        lines += ["", f"Torch-Pruning on {len(peers)} of these models:", ""]
        said = Counter(_kind(record["peer"]["error"]) for record in peers if "peer" in record)
        for kind, count in sorted(said.items(), key=lambda item: (-item[1], item[0])):
            names = [r["model"] for r in peers if _kind(r["peer"]["error"]) == kind]
            lines.append(f"- {kind} ({count}): {', '.join(names)}")
    return "\n".join(lines)


def _kind(error: str) -> str:
    """What went wrong: the class of the exception, or the limit."""
    return error.partition(":")[0]


def _short(error: str) -> str:
    line = " ".join(error.split()).replace("|", "/")
    return line if len(line) <= LONGEST else line[: LONGEST - 3].rstrip() + "..."


def machine(records: Sequence[Record]) -> str:
    """Where and when, and with which versions."""
    last = max(records, key=lambda record: record["date"])
    names = ("torch", "torchvision", "timm", "transformers", "torch-pruning")
    versions = ", ".join(f"{name} {last[name]}" for name in names)
    dates = sorted({record["date"] for record in records})
    days = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return (
        f"These are of {days}: {last['cores']} cores, {last['processor']}, one thread, {versions}."
    )
