"""Numbers as people read them, the same in sentences, tables and tooltips."""

from __future__ import annotations


def percent_of(fraction: float) -> str:
    """A sparsity in percent.

    >>> percent_of(0.98), percent_of(1 - 0.8**3)
    ('98 %', '48.8 %')
    """
    return f"{100 * fraction:.4g} %"


def spread(mean: float, std: float | None) -> str:
    """Mean and standard deviation, the latter only where there is one.

    >>> spread(91.234, 0.1), spread(91.234, None)
    ('91.23 ± 0.10', '91.23')
    """
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"


def points(difference: float | None, error: float | None = None) -> str:
    """A signed difference of accuracies, with its standard error where there is one.

    >>> points(0.5), points(-0.25, 0.1), points(None)
    ('+0.50', '-0.25 ± 0.10', 'unknown')
    """
    if difference is None:
        return "unknown"
    return f"{difference:+.2f}" if error is None else f"{difference:+.2f} ± {error:.2f}"


def counted(number: int, noun: str) -> str:
    """A count with its noun.

    >>> counted(1, "run"), counted(3, "run")
    ('1 run', '3 runs')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(words: list[str]) -> str:
    """Words as a sentence lists them.

    >>> listed(["bip", "imp", "omp"]), listed(["bip"])
    ('bip, imp and omp', 'bip')
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
