from pathlib import Path

import pytest

from mlsd.errors import SuiteError
from mlsd.models.manifest import load_manifest
from mlsd.planning.prompts import load_prompt
from mlsd.planning.suite import (
    Profile,
    default_profile,
    find_profile,
    load_profiles,
    load_suites,
    read_suite,
    suite_names,
)

GOOD = """
name = "X"
title = "Some suite"

[[parts]]
targets = ["moe-q4"]
drafters = [{ draft = "draft-small" }, { name = "pld", options = { ngram = 3 } }]
gammas = [4]
prompts = ["code"]
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "x.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_seven_suites_ship_each_found_once_in_either_case_and_all_of_their_prompts_exist():
    assert suite_names() == ("A", "B", "C", "D", "E", "F", "G")
    assert [suite.name for suite in load_suites(["b", "A", "B"])] == ["B", "A"]
    for suite in load_suites(suite_names()):
        for part in suite.parts:
            assert all(load_prompt(name).key == name for name in part.prompts)


def test_a_suite_may_be_a_file_of_the_users_whose_name_no_other_has(tmp_path):
    (suite,) = load_suites([str(write(tmp_path, GOOD))])
    (part,) = suite.parts
    assert (suite.name, part.targets, part.drafters[0].draft) == ("X", ("moe-q4",), "draft-small")
    assert part.drafters[1].options == {"ngram": 3}
    for names, message in ((["H"], r"'H'.*A, B, C, D, E, F, G"), ([], "No suite")):
        with pytest.raises(SuiteError, match=message):
            load_suites(names)
    with pytest.raises(SuiteError, match="Two different suites"):
        load_suites(["B", str(write(tmp_path, GOOD.replace('"X"', '"B"')))])


def test_the_embedded_profile_asks_for_trials_long_enough_to_time_and_for_texts_without_loops() -> None:
    """Two thousand tokens a second would make 48 tokens a trial of 24 ms; `chinese` was copied whole."""
    profile = find_profile("tiny")
    (short,), (shown,) = load_suites(["E"], profile), load_suites(["B"], profile)
    assert (short.n_predict, shown.n_predict) == (profile.n_predict, profile.n_predict)
    asked = {name for suite in (short, shown) for part in suite.parts for name in part.prompts}
    assert not asked & set(profile.prompts)
    assert all(load_prompt(name).text for name in profile.prompts.values())
    assert load_suites(["B"], find_profile("study")) == load_suites(["B"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("gammas = [4]", "gammas = [4, 0]"), r"parts\[0\]\.gammas\[1\] = 0: Expected `int` >= 1"),
        (("gammas = [4]", "gammas = [4, 4]"), r"parts\[0\]\.gammas = \[4, 4\], but must be each value once"),
        (("gammas = [4]", ""), r"parts\[0\]\.gammas = .*at least one gamma"),
        (("gammas = [4]", "gamas = [4]"), r"unknown field `gamas`"),
        (('targets = ["moe-q4"]', ""), r"parts\[0\].*missing required field `targets`"),
        (('targets = ["moe-q4"]', "targets = []"), r"parts\[0\]\.targets = \[\]: Expected `array` of length >= 1"),
        (('{ draft = "draft-small" }', "{}"), r"parts\[0\]\.drafters\[0\]\.draft = ''"),
        (("ngram = 3", "ngram = [3]"), r"options.*\[3\]"),
        (('title = "Some suite"', 'title = "s"\nrepeats = 99_999'), r"repeats = 99999: Expected `int` <= 10000"),
        (('title = "Some suite"', 'title = "s"\nn_predict = 1'), r"n_predict = 1: Expected `int` >= 2"),
        (('drafters = [{ draft = "draft-small" }, { name', "# = [{ name"), "absent, because there are no drafters"),
        (('name = "X"', 'name = "../X"'), r"name = '\.\./X'"),
        (('name = "X"', 'name = "X\\n"'), r"name = 'X\\n'"),
        (('"pld",', '"pld", gammas = [4, 4],'), r"drafters\[1\]\.gammas = \[4, 4\], but must be each value once"),
        (('name = "X"', "name = "), r"not valid TOML.*line 2"),
    ],
)
def test_a_wrong_suite_is_refused_with_file_key_and_value(tmp_path, change, message):
    file = write(tmp_path, GOOD.replace(*change))
    with pytest.raises(SuiteError, match=message) as caught:
        read_suite(file)
    assert "x.toml" in str(caught.value)


def test_a_suite_file_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "latin.toml").write_bytes(b'name = "\xff"')
    for name, message in (("missing.toml", "cannot be read"), ("latin.toml", "not UTF-8")):
        with pytest.raises(SuiteError, match=message):
            read_suite(tmp_path / name)


def test_profiles_ship_from_small_to_large_and_cover_every_role_or_say_why_not():
    profiles = load_profiles()
    macs = [f"mac-{gib}gb" for gib in (16, 32, 48, 64, 128)]
    assert list(profiles) == ["tiny", "smollm2", "synth", *macs, "study"]
    parts = [part for suite in load_suites(suite_names()) for part in suite.parts]
    drafts = {choice.draft for part in parts for choice in part.drafters if choice.draft}
    roles = ({role for part in parts for role in part.targets} | drafts) - set(load_manifest().models)
    for profile in profiles.values():
        assert set(profile.roles) | set(profile.left_out) == roles, profile.name


@pytest.mark.parametrize("memory_gib", [16, 32, 48, 64, 128])
def test_every_pair_of_a_mac_profile_leaves_a_quarter_of_the_memory_free(memory_gib):
    models, name = load_manifest().models, f"mac-{memory_gib}gb"
    used = {role: models[model] for role, model in find_profile(name).roles.items()}
    drafts = [model.n_bytes for role, model in used.items() if role.startswith("draft")]
    # A size that was not published is bounded by eight and a half bits a weight and the vocabulary's header.
    targets = [model.n_bytes or model.parameters * 34 / 32 + 20e6 for model in used.values()]
    assert max(targets) + max(drafts) < 0.75 * (memory_gib << 30)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[p]\ntitle = 1\nroles = {}", r"p\.title = 1: Expected `str`"),
        ("[p]\ntitle = 'p'", r"p: .*missing required field `roles`"),
        ("[p]\ntitle = 'p'\nroles = { moe-q4 = 3 }", r"p\.roles.*= \{'moe-q4': 3\}"),
        ("[p]\ntitle = 'p'\nroles = { a = 'b' }\nleft_out = { a = 'c' }", r"p\.left_out = \['a'\]"),
        ("p = 3", r"p: Expected `object`"),
    ],
)
def test_a_wrong_profile_is_refused_with_file_key_and_value(tmp_path, text, message):
    with pytest.raises(SuiteError, match=message) as caught:
        load_profiles(write(tmp_path, text))
    assert "x.toml" in str(caught.value)


def ladder() -> dict[str, Profile]:
    models = {"tiny": "t", "packaged": "p", "medium": "md", "large": "ld"}
    return {
        name: Profile(name=name, title="", roles=dict(zip("xy", keys, strict=False)), automatic=len(keys) == 2)
        for name, keys in models.items()
    }


@pytest.mark.parametrize(
    ("downloaded", "expected"),
    [("", "tiny"), ("p", "tiny"), ("m", "tiny"), ("md", "medium"), ("ld", "large"), ("mld", "large")],
)
def test_the_default_is_the_largest_automatic_profile_that_is_wholly_downloaded_else_tiny(downloaded, expected):
    assert default_profile(ladder(), lambda model: model in downloaded).name == expected


def test_a_part_needs_no_gammas_when_every_drafter_has_its_own(tmp_path):
    text = GOOD.replace("gammas = [4]\n", "").replace('name = "pld",', 'name = "pld", gammas = [4],')
    with pytest.raises(SuiteError, match="at least one gamma"):
        read_suite(write(tmp_path, text))
    text = text.replace('draft = "draft-small"', 'draft = "draft-small", gammas = [2]')
    assert [choice.gammas for choice in read_suite(write(tmp_path, text)).parts[0].drafters] == [(2,), (4,)]
