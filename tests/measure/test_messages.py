"""What a worker says reaches its caller whole."""

from __future__ import annotations

import importlib
import inspect
from typing import get_args

import msgspec
import pytest

from mlsd import errors
from mlsd.errors import MlsdError, NativeError
from mlsd.measure.messages import QUESTIONS, CalibrateJob, Event, Refused, Work
from mlsd.planning.job import Job

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, MlsdError)]


def received(error: MlsdError) -> MlsdError:
    event = msgspec.json.decode(msgspec.json.encode(Refused.of(error)), type=Event)
    assert isinstance(event, Refused)
    return event.error()


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_a_worker_arrives_with_all_of_its_fields(kind: type[MlsdError]) -> None:
    own = {"code": -3, "log": ("no memory", "giving up")} if issubclass(kind, NativeError) else {}
    error = kind("The call failed.", hint="Try again.", **own)
    arrived = received(error)
    assert type(arrived) is kind
    assert vars(arrived) == vars(error)
    assert str(arrived) == str(error)


@pytest.mark.parametrize("kind", QUESTIONS)
def test_every_question_has_a_function_in_the_worker_that_answers_it(kind: type) -> None:
    module, _, name = QUESTIONS[kind].handler.partition(":")
    handler = getattr(importlib.import_module(f"mlsd.measure.worker.{module}"), name)
    asked, *others = inspect.signature(handler).parameters.values()
    assert asked.annotation == kind.__name__
    assert all(other.default is not inspect.Parameter.empty for other in others)
    answer = inspect.signature(handler).return_annotation
    assert answer in {one.__name__ for one in get_args(Event)}


def test_what_is_no_question_is_a_job_with_many_events() -> None:
    assert set(get_args(Work)) - set(QUESTIONS) == {Job, CalibrateJob}
