"""What travels between the referee and a worker: length-prefixed JSON; tensors lie in slabs. No pickle.

The worker is not trusted. Whatever it sends is bounded in size, parsed as JSON and nothing else, and descriptors
travel only towards it.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

MESSAGE_BYTES = 1 << 23  # largest message either way


class ChannelError(RuntimeError):
    """The other side hung up, sent too much, or sent something that is no message."""


class Channel:
    def __init__(self, end: socket.socket):
        self.end = end
        self._waiting = b""  # of later messages; of those with descriptors nothing may be read ahead

    def send(self, message: Any, descriptors: Sequence[int] = (), timeout_s: float | None = None) -> None:
        """TimeoutError when the other side does not read."""
        data = json.dumps(message).encode()
        if len(data) > MESSAGE_BYTES:
            raise ChannelError(f"a message of {len(data)} bytes; at most {MESSAGE_BYTES} may be sent")
        try:
            self.end.settimeout(None if timeout_s is None else max(1e-3, timeout_s))
            head = struct.pack("!I", len(data))
            if descriptors:
                socket.send_fds(self.end, [head], list(descriptors))
            self.end.sendall(data if descriptors else head + data)
        except TimeoutError:
            raise
        except OSError as error:
            raise ChannelError("the other side hung up") from error

    def receive(self, timeout_s: float | None = None) -> Any:
        """The next message; TimeoutError when none came in time. Descriptors that come along are closed."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        (length,) = struct.unpack("!I", self._take(4, until, 1 << 16))
        if length > MESSAGE_BYTES:
            raise ChannelError(f"a message of {length} bytes was announced; at most {MESSAGE_BYTES} may be sent")
        try:
            return json.loads(self._take(length, until, 1 << 16), parse_int=_no_giant)
        except (ValueError, RecursionError) as error:
            raise ChannelError("a message that is not JSON") from error

    def receive_with_descriptors(self) -> tuple[Any, list[int]]:
        """The worker's side: it trusts the referee, so it waits and takes descriptors."""
        try:
            head, descriptors, _, _ = socket.recv_fds(self.end, 4, 64)
        except OSError as error:
            raise ChannelError("the other side hung up") from error
        if len(head) != 4:
            raise ChannelError("the other side hung up")
        (length,) = struct.unpack("!I", head)
        return json.loads(self._take(length, None)), descriptors

    def _take(self, count: int, until: float | None, ahead: int = 0) -> bytes:
        """So many bytes, and no more than `ahead` are read at once beyond them."""
        while len(self._waiting) < count:
            left = None if until is None else until - time.monotonic()
            if left is not None and (left <= 0 or not select.select([self.end], [], [], left)[0]):
                raise TimeoutError
            try:
                piece = self.end.recv(max(count - len(self._waiting), ahead))
            except OSError as error:
                raise ChannelError("the other side hung up") from error
            if not piece:
                raise ChannelError("the other side hung up")
            self._waiting += piece
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken


# ------------------------------------------------------------------------------------------- plain data

GIANT = 1 << 63  # the first integer that may not fit into what it is compared with: no float holds 10**400


def _no_giant(digits: str) -> int:
    number = int(digits)
    if abs(number) >= GIANT:
        raise ValueError("an integer beyond 63 bits")
    return number


TAG = "$"  # {"$": kind, ...}: what JSON has no form for


def encode(value: Any) -> Any:
    """Numbers, strings, lists, tuples and dicts as JSON that `decode` turns back into the same."""
    if isinstance(value, int) and abs(value) >= GIANT:
        raise TypeError("an integer beyond 63 bits: no answer needs one")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return {TAG: "tuple", "items": [encode(v) for v in value]}
    if isinstance(value, list):
        return [encode(v) for v in value]
    if isinstance(value, dict):
        return {TAG: "dict", "items": [[encode(k), encode(v)] for k, v in value.items()]}
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:  # a numpy or torch scalar
        return encode(value.item())
    raise TypeError(f"a {type(value).__name__} is not plain data: numbers, strings, lists, tuples and dicts are")


def decode(value: Any) -> Any:
    if isinstance(value, list):
        return [decode(v) for v in value]
    if isinstance(value, dict):
        items = value.get("items")
        if value.get(TAG) == "tuple" and isinstance(items, list):
            return tuple(decode(v) for v in items)
        if value.get(TAG) == "dict" and isinstance(items, list):
            pairs = [pair for pair in items if isinstance(pair, list) and len(pair) == 2]
            return {_key(decode(k)): decode(v) for k, v in pairs}
        raise ChannelError("a message with an object of an unknown kind")
    return value


def _key(key: Any) -> Any:
    if isinstance(key, list | dict):
        raise ChannelError("a dict whose key is a list or a dict")
    return key
