"""The names of things as types, so that a lane is never passed where a page is meant."""

from typing import NewType

PageId = NewType("PageId", int)
StreamId = NewType("StreamId", int)
StateId = NewType("StateId", int)
Lane = NewType("Lane", int)
Rank = NewType("Rank", int)
Token = NewType("Token", int)
RequestId = NewType("RequestId", str)
SessionId = NewType("SessionId", str)

NO_STATE = StateId(-1)
