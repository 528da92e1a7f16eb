"""How long `import biprune` and the commands take to start: `python benchmarks/start_up.py`."""

from __future__ import annotations

import subprocess
import sys

from timing import interleaved, medians, parser, report

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import torch": ["-c", "import torch"],
    "import biprune": ["-c", "import biprune"],
    "import biprune; biprune.prune": ["-c", "import biprune; biprune.prune"],
    "biprune --help": ["-m", "biprune", "--help"],
    "biprune list methods": ["-m", "biprune", "list", "methods"],
}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=9)
    options = options.parse_args()
    candidates = {name: lambda a=args: run(a) for name, args in COMMANDS.items()}
    seconds = medians(interleaved(candidates, options.rounds))
    report([{"command": name, "seconds": value} for name, value in seconds.items()], options)


def run(arguments: list[str]) -> None:
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
