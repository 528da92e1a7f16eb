"""The paper's claims of BiP as published, and ours of BiP as it is here; `judging` tests them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from studies.judging import MARGIN, Claim, ahead, same_cost, settles
from studies.laptop_runs import (
    BIP,
    GMP_FROZEN,
    GMP_NESTEROV,
    IMP_RUNS,
    KEPT_IMP,
    LIKE_BIP,
    LONG_BIP,
    NOT_LEARNED,
    ONE_PASS,
    PAPER,
    PLAIN_BIP,
    Pick,
    fifth_of_imp,
    picking,
)
from studies.presets import CLAIMED, HIGH, OTHERS, UNITS

SOME = (0.9, 0.95)


def against(ours: Pick, rivals: Sequence[str], at: Sequence[float], words: str) -> list[Claim]:
    """Against other methods with as many passes."""
    return [(words.format(name), "methods", ahead(ours, picking(name), at)) for name in rivals]


def ablated(
    words: str, *, ours: Pick = PAPER, margin: float = 0.0, at: float = 0.95, **changes: Any
) -> Claim:
    """The paper's BiP, or a variant of it, against itself with other settings."""
    return words, "claims", ahead(ours, picking("bip", **changes), [at], margin=margin)


def on_units(ours: str, rivals: Sequence[str]) -> list[Claim]:
    """The same of whole filters and channels, for which the paper too has BiP ahead."""
    return [
        (
            f"on {structure}s more accurate than {name}",
            "claims",
            ahead(picking(ours, structure=structure), picking(name, structure=structure), UNITS),
        )
        for structure in ("filter", "channel")
        for name in rivals
    ]


EQUAL = "more accurate than {} at equal passes"
OUR_QUESTION = "not the paper's claim: more accurate than {} at equal passes"
FROM_INIT = "more accurate than {}, which trains as long from its initial weights"
CLAIMS: list[Claim] = [
    ("as accurate as IMP", "methods", ahead(PAPER, IMP_RUNS, HIGH, margin=MARGIN)),
    (
        "as cheap at every sparsity, far cheaper than IMP, whose cost grows",
        "methods",
        same_cost,
    ),
    *against(PAPER, ("omp", "hydra"), HIGH, EQUAL),
    *against(PAPER, OTHERS, SOME, FROM_INIT),
    *against(PAPER, ("magnitude", "gmp"), HIGH, OUR_QUESTION),
    *(
        ablated(
            f"as accurate as if retrained for 20 passes more from epoch {epoch}",
            at=0.9,
            margin=MARGIN,
            retrain_epochs=20,
            rewind_epoch=epoch,
        )
        for epoch in (0, 1)
    ),
    ablated(
        "as accurate as if its own weights are trained on for 20 passes more",
        at=0.9,
        margin=MARGIN,
        retrain_epochs=20,
    ),
    ablated("better for the implicit gradient", implicit_gradient=False),
    ablated("as good with N = 1 as with N = 3, at half the cost", margin=MARGIN, lower_steps=3),
    ablated("better with different batches than with the same", batches="same"),
    ablated(
        "better with batches in reverse order than with the same",
        ours=picking("bip", batches="reverse"),
        batches="same",
    ),
    ("settled at the end: the IoU of its masks goes to 1", "methods", settles),
    *(
        ablated(
            f"better with gamma {good:g} than with {bad:g}",
            ours=PAPER if good == 1 else picking("bip", gamma=good),
            gamma=bad,
        )
        for good in (1.0, 0.5)
        for bad in (0.1, 10.0)
    ),
    *on_units("bip", ("imp", "omp", "hydra", "grasp", "gmp")),
]
OUR_CLAIMS: list[Claim] = [
    ("more accurate than BiP as published at equal passes", "methods", ahead(BIP, PAPER, HIGH)),
    (
        "more accurate than BiP as published but for the rate, 0.1",
        "claims",
        ahead(BIP, picking("bip", lr=0.1), [0.95]),
    ),
    (
        "more accurate than BiP as published but for the rate, 0.1, and one pass an iteration",
        "methods",
        ahead(BIP, ONE_PASS, [0.95]),
    ),
    *against(BIP, ("gmp", "hydra", "omp", "magnitude"), HIGH, EQUAL),
    *against(BIP, OTHERS, SOME, FROM_INIT),
    (
        "more accurate than snip with the passes of BiP's dense run too",
        "controls",
        ahead(BIP, picking("snip", epochs=40), [0.95]),
    ),
    (
        "more accurate than gmp with BiP's momentum",
        "methods",
        ahead(BIP, GMP_NESTEROV, CLAIMED),
    ),
    (
        "more accurate than gmp with BiP's momentum that leaves pruned weights alone",
        "controls",
        ahead(BIP, GMP_FROZEN, SOME),
    ),
    (
        "more accurate than with gmp's momentum and decay",
        "methods",
        ahead(BIP, PLAIN_BIP, CLAIMED),
    ),
    (
        "more accurate than if its scores are not learned",
        "controls",
        ahead(BIP, NOT_LEARNED, (0.95, 0.98)),
    ),
    (
        "with gmp's momentum and decay more accurate than gmp",
        "methods",
        ahead(PLAIN_BIP, picking("gmp"), CLAIMED),
    ),
    (
        "more accurate than magnitude with BiP's schedule and momentum",
        "controls",
        ahead(BIP, picking("magnitude", **LIKE_BIP), SOME),
    ),
    (
        "as accurate as IMP, with an eighth of its passes at most",
        "methods",
        ahead(BIP, IMP_RUNS, HIGH, margin=MARGIN),
    ),
    (
        "more accurate than IMP, with a fifth of its passes",
        "methods",
        ahead(LONG_BIP, IMP_RUNS, CLAIMED),
    ),
    (
        "as accurate as IMP not rewound, with BiP's schedule and momentum, at a fifth or less",
        "controls",
        ahead(LONG_BIP, KEPT_IMP, SOME, margin=MARGIN),
    ),
    (
        "with a fifth of IMP's passes more accurate than gmp with as many and BiP's momentum",
        "controls",
        ahead(LONG_BIP, fifth_of_imp("gmp", nesterov=True), CLAIMED),
    ),
    *on_units("bip-plus", ("bip", "imp", "omp", "hydra", "grasp", "gmp")),
]
