"""What a worker says reaches its caller whole."""

import msgspec
import pytest

from mlsd import errors
from mlsd.errors import MlsdError, NativeError
from mlsd.measure.messages import Event, Refused

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
