"""Options of methods: read before any work, refused with a sentence that helps."""

from __future__ import annotations

import pytest

from mlsd.drafters import preset_gamma, resolve_spec
from mlsd.drafters.options import parse_drafter
from mlsd.errors import InputError, UnsupportedError


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("pld:speed=9", "pld has no option 'speed'"),
        ("pld:ngram=0", "pld: ngram=0: Expected `int` >= 1"),
        ("pld:ngram=big", "pld: ngram='big': Expected `int`, got `str`"),
        ("pld:match=middle", "pld: match='middle': Invalid enum value 'middle'"),
        ("pld:preset=gpt", "pld has no preset 'gpt'. Choose from qwen2.5-1.5b, smollm2"),
        (
            "draft-model:depth=3",
            "draft-model has no option 'depth'. Options of draft-model, with their defaults: p_min (0.0)",
        ),
        ("draft-model:p_min=2", "draft-model: p_min=2: Expected `float` <= 1"),
        ("dflash:depth=3", "dflash has no option 'depth'. dflash takes no options"),
        ("mtp:preset=x", "mtp has no preset 'x'. mtp has no presets"),
    ],
)
def test_a_wrong_option_is_refused_by_name(text: str, complaint: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve_spec(parse_drafter(text, None))
    assert complaint in str(caught.value)


def test_an_unknown_method_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnsupportedError, match=r"no drafting method 'medium'.*pld"):
        resolve_spec(parse_drafter("medium:a=1", None))


def test_a_preset_is_written_out_and_what_is_given_wins_over_it() -> None:
    assert resolve_spec(parse_drafter("pld:preset=smollm2", None)).options == {"ngram": 3}
    assert resolve_spec(parse_drafter("pld:preset=ngram-simple,ngram=9", None)).options == {
        "ngram": 9,
        "min_ngram": 12,
        "match": "last",
    }


def test_a_preset_names_a_gamma() -> None:
    assert preset_gamma(parse_drafter("pld:preset=smollm2", None)) == 15
    assert preset_gamma(parse_drafter("pld", None)) is None
