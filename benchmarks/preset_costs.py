"""Write down what each preset costs, for the list: `python benchmarks/preset_costs.py`.

Run it when a preset, a default that counts passes or a network has changed.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from biprune.core.files import write_text
from biprune.experiments.costs import FILE, SPEEDS, Listed, estimate
from biprune.experiments.presets import PRESETS


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
    lines = [f"{json.dumps(name)}: {json.dumps(asdict(cost))}" for name, cost in counted().items()]
    write_text(FILE, "{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
