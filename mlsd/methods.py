"""The drafting methods by name: the file that each is written in, and of which kind it is.

What is said, counted or left out of a method because of its kind is decided by this table and by no list of names.
"""

from typing import Literal, NamedTuple

Kind = Literal[
    "draft model",
    "head",
    "look-up",  # copies what followed in a text
    "n-grams",  # counts or guesses what follows
    "own layers",  # a part of the target drafts
    "control",  # measures a bound, no method that can be used
]


class KnownMethod(NamedTuple):
    """A method that ships."""

    module: str  # under mlsd.drafters
    kind: Kind
    tried: bool = False  # unasked, on every target: it needs nothing beside the target


METHODS: dict[str, KnownMethod] = {
    "draft-model": KnownMethod("draft_model", "draft model"),
    "dflash": KnownMethod("heads.dflash", "head"),
    "draft-tree": KnownMethod("draft_model", "draft model"),
    "eagle3": KnownMethod("heads.eagle3", "head"),
    "eagle3-tree": KnownMethod("heads.eagle3", "head"),
    "expert-skip": KnownMethod("layer_skip.expert_skip", "own layers"),
    "kangaroo": KnownMethod("layer_skip.kangaroo", "own layers"),
    "lookahead": KnownMethod("lookup.lookahead", "n-grams"),
    "layer-skip": KnownMethod("layer_skip.subset", "own layers"),
    "mtp": KnownMethod("heads.mtp", "head"),
    "pld": KnownMethod("lookup.pld", "look-up", tried=True),
    "ngram-cache": KnownMethod("lookup.ngram_cache", "n-grams", tried=True),
    "oracle": KnownMethod("oracle", "control"),
    "random": KnownMethod("oracle", "control"),
    "rest": KnownMethod("lookup.rest", "look-up"),
}


def of_kind(*kinds: Kind) -> tuple[str, ...]:
    """The names of the methods of these kinds."""
    return tuple(name for name, method in METHODS.items() if method.kind in kinds)


def is_control(name: str) -> bool:
    """Whether a drafter measures a bound: nobody can use it, so nothing recommends it."""
    return name in METHODS and METHODS[name].kind == "control"


def tried_unasked() -> tuple[str, ...]:
    """The methods that a bench tries where none is named."""
    return tuple(name for name, method in METHODS.items() if method.tried)
