"""Write down what each preset costs, for the list: `python benchmarks/preset_costs.py`.

Run it when a preset, a default that counts passes or a network has changed.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from biprune.core.files import write_text
from biprune.experiments.costs import FILE, SPEEDS, Listed
from biprune.experiments.presets import PRESETS
from biprune.experiments.presets.estimate import estimate


def counted() -> dict[str, Listed]:
    """Every run of every preset at every scale is built, which takes seconds."""
    return {
        name: Listed(
            preset.source,
            preset.summary,
            {scale: estimate(preset.specs(scale)) for scale in SPEEDS},
        )
        for name, preset in PRESETS.items()
    }


def main() -> None:
    documents = {name: asdict(entry) for name, entry in counted().items()}
    write_text(FILE, json.dumps(documents, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
