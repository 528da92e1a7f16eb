"""The paper's claims of BiP as published, and ours of our own method; `judging` tests them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from studies.judging import MARGIN, Claim, ahead, same_cost, settles
from studies.laptop_runs import (
    BEFORE,
    GMP_NESTEROV,
    IMP_RUNS,
    KEPT_IMP,
    LIKE_BIP,
    LONG_GMP,
    NOW,
    PAPER,
    Ours,
    Pick,
    picking,
)
from studies.presets import CLAIMED, HIGH, OTHERS, UNITS

SOME = (0.9, 0.95)
TOP = (0.95, 0.98)
EQUAL = "more accurate than {} at equal passes"
OUR_QUESTION = "not the paper's claim: more accurate than {} at equal passes"
FROM_INIT = "more accurate than {}, which trains as long from its initial weights"


def against(ours: Pick, rivals: Sequence[str], at: Sequence[float], words: str) -> list[Claim]:
    """Against other methods with as many passes."""
    return [(words.format(name), "methods", ahead(ours, picking(name), at)) for name in rivals]


def ablated(
    words: str, *, ours: Pick = PAPER, margin: float = 0.0, at: float = 0.95, **changes: Any
) -> Claim:
    """The paper's BiP, or a variant of it, against itself with other settings."""
    return words, "claims", ahead(ours, picking("bip", **changes), [at], margin=margin)


def retrained(words: str, **changes: Any) -> Claim:
    """Against itself with 20 passes more."""
    return ablated(words, at=0.9, margin=MARGIN, retrain_epochs=20, **changes)


def on_units(ours: str, rivals: Sequence[str]) -> list[Claim]:
    """The same of whole filters and channels, for which the paper too has BiP ahead."""
    found: list[Claim] = []
    for structure in ("filter", "channel"):
        for name in rivals:
            one, other = (picking(each, structure=structure) for each in (ours, name))
            words = f"on {structure}s more accurate than {name}"
            found.append((words, "claims", ahead(one, other, UNITS)))
    return found


CLAIMS: list[Claim] = [
    ("as accurate as IMP", "methods", ahead(PAPER, IMP_RUNS, HIGH, margin=MARGIN)),
    ("as cheap at every sparsity, far cheaper than IMP, whose cost grows", "methods", same_cost),
    *against(PAPER, ("omp", "hydra"), HIGH, EQUAL),
    *against(PAPER, OTHERS, SOME, FROM_INIT),
    *against(PAPER, ("magnitude", "gmp"), HIGH, OUR_QUESTION),
    retrained("as accurate as if retrained for 20 passes more from epoch 0", rewind_epoch=0),
    retrained("as accurate as if retrained for 20 passes more from epoch 1", rewind_epoch=1),
    retrained("as accurate as if its own weights are trained on for 20 passes more"),
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
        ablated(f"better with gamma {good:g} than with {bad:g}", ours=ours, gamma=bad)
        for good, ours in ((1.0, PAPER), (0.5, picking("bip", gamma=0.5)))
        for bad in (0.1, 10.0)
    ),
    *on_units("bip", ("imp", "omp", "hydra", "grasp", "gmp")),
]


def our_claims(ours: Ours) -> list[Claim]:
    """What a version of our method is said to be."""

    def more(
        words: str, preset: str, than: Pick, at: Sequence[float], *, by: Pick = ours.usual
    ) -> Claim:
        return f"more accurate than {words}", preset, ahead(by, than, at)

    usual, long = ours.usual, ours.long
    bare, slow = picking("magnitude", **LIKE_BIP), picking("bip", lr=0.1)
    near, rewound = f"gmp's {ours.shared}", "as accurate as IMP not rewound, with BiP's schedule"
    return [
        more("BiP as published at equal passes", "methods", PAPER, HIGH),
        more("BiP as published but for the rate, 0.1", "claims", slow, [0.95]),
        *against(usual, ("gmp", "hydra", "omp", "magnitude"), HIGH, EQUAL),
        *against(usual, OTHERS, SOME, FROM_INIT),
        more(
            "snip with the passes of BiP's dense run too",
            "controls",
            picking("snip", epochs=40),
            [0.95],
        ),
        more("gmp with BiP's momentum", "methods", GMP_NESTEROV, CLAIMED),
        more(
            "gmp with BiP's momentum that leaves pruned weights alone",
            "controls",
            ours.gmp_like_it,
            SOME,
        ),
        more(f"with {near}", "methods", ours.like_gmp, CLAIMED),
        more("if its scores are not learned", "controls", ours.not_learned, TOP),
        (
            f"with {near} more accurate than gmp",
            "methods",
            ahead(ours.like_gmp, picking("gmp"), CLAIMED),
        ),
        more("magnitude with BiP's schedule and momentum", "controls", bare, SOME),
        (
            "as accurate as IMP, with an eighth of its passes at most",
            "methods",
            ahead(usual, IMP_RUNS, HIGH, margin=MARGIN),
        ),
        more("IMP, with a fifth of its passes", "methods", IMP_RUNS, CLAIMED, by=long),
        (
            f"{rewound} and momentum, at a fifth or less",
            "controls",
            ahead(long, KEPT_IMP, SOME, margin=MARGIN),
        ),
        (
            "with a fifth of IMP's passes more accurate than gmp with as many and BiP's momentum",
            "controls",
            ahead(long, LONG_GMP, CLAIMED),
        ),
        *on_units(ours.name, ("bip", "imp", "omp", "hydra", "grasp", "gmp")),
    ]


NEWER = "more accurate than the default of version 0.1 at equal passes"
OUR_CLAIMS = [(NEWER, "methods", ahead(NOW.usual, BEFORE.usual, HIGH)), *our_claims(NOW)]
PAST_CLAIMS = our_claims(BEFORE)
HEADLINE = (
    "more accurate than gmp at equal passes",
    "more accurate than IMP, with a fifth of its passes",
)
HEADLINES = [
    (f"`{version.name}` is {words}", preset, check)
    for version, claims in ((NOW, OUR_CLAIMS), (BEFORE, PAST_CLAIMS))
    for words, preset, check in claims
    if words in HEADLINE
]
