"""One whole study and its page for every test that only reads them."""

import pytest

import mlsd
from mlsd.analysis.study.study import Study
from mlsd.report.page import build
from mlsd.report.render.sections import Page
from tests.analysis.studies import whole_study

ASKED = {"": ["A", "B", "C", "D", "F"], "--profile": ["tiny"], "--repeats": ["3"]}


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return mlsd.open_study(whole_study(tmp_path_factory.mktemp("study") / "study.sqlite", asked=ASKED))


@pytest.fixture(scope="session")
def page(study: Study) -> Page:
    return build(study)
