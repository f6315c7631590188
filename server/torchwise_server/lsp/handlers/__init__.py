"""One module a subject; a handler turns a message into a question to the session and its answer back."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

logger = logging.getLogger(__name__)

_Server = TypeVar("_Server")
_Params = TypeVar("_Params")
_Result = TypeVar("_Result")


def contained(
    handler: Callable[[_Server, _Params], _Result],
) -> Callable[[_Server, _Params], _Result | None]:
    """`handler`, answering nothing where it would have raised."""

    @functools.wraps(handler)
    def wrapped(ls: _Server, params: _Params) -> _Result | None:
        try:
            return handler(ls, params)
        except Exception:
            logger.exception("%s failed", handler.__name__)
            return None

    return wrapped


def contained_async(
    handler: Callable[[_Server, _Params], Awaitable[_Result]],
) -> Callable[[_Server, _Params], Awaitable[_Result | None]]:
    """The same for coroutines; a cancelled request stays cancelled."""

    @functools.wraps(handler)
    async def wrapped(ls: _Server, params: _Params) -> _Result | None:
        try:
            return await handler(ls, params)
        except Exception:
            logger.exception("%s failed", handler.__name__)
            return None

    return wrapped
