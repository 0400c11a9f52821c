"""How much mlsd takes from others before it refuses the rest: every limit once, with the variable that raises it."""

import os

from mlsd.errors import InputError
from mlsd.records import Record


class Limit(Record, frozen=True, kw_only=True):
    """The most of one thing; the environment variable `MLSD_MOST_<NAME>` sets another number."""

    name: str
    usual: int
    what: str

    @property
    def variable(self) -> str:
        return f"MLSD_MOST_{self.name}"

    @property
    def most(self) -> int:
        """The number that holds now. Raises: InputError where the variable holds no positive whole number."""
        text = os.environ.get(self.variable, "")
        if not text:
            return self.usual
        if not (text.isascii() and text.isdigit() and len(text) <= 18 and int(text)):
            raise InputError(f"{self.variable} is {text[:40]!r}, not a whole number from 1 on.")
        return int(text)

    @property
    def words(self) -> str:
        return f"the limit of {self.most:,} {self.what}"

    @property
    def hint(self) -> str:
        return f"If that much is right, raise the limit with {self.variable}."


_MIB = 1 << 20

# What a person may hand over.
FILE_BYTES = Limit(name="FILE_BYTES", usual=256 * _MIB, what="bytes for a file that is read whole")
PROGRAM_BYTES = Limit(name="PROGRAM_BYTES", usual=1 * _MIB, what="bytes for what a program prints")
RECORD_BYTES = Limit(name="RECORD_BYTES", usual=128 * _MIB, what="bytes for an unpacked record")
PLAN_TRIALS = Limit(name="PLAN_TRIALS", usual=500_000, what="trials for a plan")
LOCK_S = Limit(name="LOCK_S", usual=30, what="seconds for another program's lock on a database")
LIMITS = (
    FILE_BYTES, PROGRAM_BYTES, RECORD_BYTES,
    PLAN_TRIALS, LOCK_S,
)  # fmt: skip
