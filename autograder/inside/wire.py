"""What travels between the referee and a worker: length-prefixed JSON, both ways. No pickle.

The worker is not trusted. Whatever it sends is bounded in size, parsed as JSON and nothing else, and descriptors
travel only towards it. What JSON has no form for is an object with its kind under "$":

    {"$": "tuple", "items": [...]}
    {"$": "dict", "items": [[key, value], ...]}
    {"$": "tensor", "dtype": "float32", "shape": [2, 3], "data": "base64"}   only where the reader allows tensors

Three more kinds stand for arguments and results of one call, and only `worker.py` and `room.py` make and read them:
"placed" is a tensor in a slab (see slabs.py), "raw" a returned tensor in the mailbox, "served" an object of the
referee that the worker may ask.
"""

from __future__ import annotations

import base64
import json
import math
import select
import socket
import struct
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from autograder.inside.own_time import OwnTime

MESSAGE_BYTES = 1 << 23  # largest message either way
MESSAGE_VALUES = 1 << 18  # in a message towards the referee: an empty list is 3 bytes in JSON, and 64 in Python
SEND_S = 20.0  # for a worker to read a message, if nothing shorter is said
TAG = "$"
GIANT = 1 << 63  # the first integer that may not fit into what it is compared with: no float holds 10**400
DEEPEST = 50  # levels of lists, tuples and dicts
ALIKE = 64  # keys of one hash: a dict of so many is made in no time, and one of 100,000 in minutes
DIMENSIONS, LONGEST = 16, 1 << 31  # of a tensor: more than any answer has
NUMBERS = ("float64", "float32", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
# Types that can be computed with. torch has more, and some of them end a process that looks at their elements. In a
# sandbox that hides torch there are none.
TYPES = {name: getattr(torch, name) for name in NUMBERS if hasattr(torch, name)}


class ChannelError(RuntimeError):
    """The other side hung up, sent too much, or sent something that is no message."""


class WireError(ValueError):
    """A message whose content is not what `encode` makes."""


# ------------------------------------------------------------------------------------------- messages


class Channel:
    def __init__(self, end: socket.socket, send_s: float | None = SEND_S):
        """send_s: for the other side to read a message; None waits for ever, as a worker may for the referee."""
        self.end, self.send_s = end, send_s
        self._waiting = b""  # of later messages; of those with descriptors nothing may be read ahead

    def send(self, message: Any, descriptors: Sequence[int] = (), timeout_s: float = math.inf) -> None:
        """TimeoutError when the other side does not read: a part of the message may be sent, so nothing can follow."""
        try:
            data = json.dumps(message).encode()
        except RecursionError as error:
            raise ChannelError("a message that is nested too deeply") from error
        if len(data) > MESSAGE_BYTES:
            raise ChannelError(f"a message of {len(data)} bytes; at most {MESSAGE_BYTES} may be sent")
        try:
            self.end.settimeout(None if self.send_s is None else min(self.send_s, max(1e-3, timeout_s)))
            head = struct.pack("!I", len(data))
            if descriptors:
                socket.send_fds(self.end, [head], list(descriptors))
            self.end.sendall(data if descriptors else head + data)
        except TimeoutError:
            raise
        except OSError as error:
            raise ChannelError("the other side hung up") from error

    def receive(self, limit: float | OwnTime | None = None) -> Any:
        """The next message; TimeoutError when none came in time. Descriptors that come along are closed."""
        limit = OwnTime(limit) if isinstance(limit, int | float) else limit
        (length,) = struct.unpack("!I", self._take(4, limit, 1 << 16))
        if length > MESSAGE_BYTES:
            raise ChannelError(f"a message of {length} bytes was announced; at most {MESSAGE_BYTES} may be sent")
        text = self._take(length, limit, 1 << 16)
        values = sum(map(text.count, (b",", b"[", b"{")))
        if values > MESSAGE_VALUES:
            raise ChannelError(f"a message of {values} values came; at most {MESSAGE_VALUES} may be sent")
        try:
            return json.loads(text, parse_int=_no_giant)
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

    def _take(self, count: int, limit: OwnTime | None, ahead: int = 0) -> bytes:
        """So many bytes, and no more than `ahead` are read at once beyond them."""
        while len(self._waiting) < count:
            if limit is not None:
                self._wait(limit)
            try:
                piece = self.end.recv(max(count - len(self._waiting), ahead))
            except OSError as error:
                raise ChannelError("the other side hung up") from error
            if not piece:
                raise ChannelError("the other side hung up")
            self._waiting += piece
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken

    def _wait(self, limit: OwnTime) -> None:
        while (left := limit.left()) > 0:
            if select.select([self.end], [], [], left)[0]:
                return
        raise TimeoutError


def _no_giant(digits: str) -> int:
    number = int(digits)
    if abs(number) >= GIANT:
        raise ValueError("an integer beyond 63 bits")
    return number


# ------------------------------------------------------------------------------------------- their content


def encode(value: Any, tensors: bool = False, depth: int = 0) -> Any:
    """Numbers, strings, lists, tuples, dicts and (if allowed) tensors as JSON. TypeError for anything else.

    A number of NumPy, and a tensor without dimensions where tensors are not allowed, travels as a plain number.
    """
    if depth > DEEPEST:
        raise TypeError("data that is nested too deeply")
    if isinstance(value, int) and abs(value) >= GIANT:
        raise TypeError("an integer beyond 63 bits: no answer needs one")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [encode(one, tensors, depth + 1) for one in value]
    if isinstance(value, tuple):
        return {TAG: "tuple", "items": [encode(one, tensors, depth + 1) for one in value]}
    if isinstance(value, dict):
        items = [[encode(key, False, depth + 1), encode(one, tensors, depth + 1)] for key, one in value.items()]
        return {TAG: "dict", "items": items}
    if tensors and isinstance(value, torch.Tensor):
        if name_of(value.dtype) not in TYPES:
            raise TypeError(f"a tensor of {name_of(value.dtype)} does not travel")
        data = base64.b64encode(to_bytes(value)).decode()
        return {TAG: "tensor", "dtype": name_of(value.dtype), "shape": list(value.shape), "data": data}
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return encode(value.item(), tensors, depth)
    raise TypeError(f"a {type(value).__name__} is not plain data: numbers, strings, lists, tuples and dicts are")


def decode(value: Any, tensors: bool = False, depth: int = 0) -> Any:
    """The data again. WireError for anything that `encode` does not make: it may come from a submission's process."""
    if depth > DEEPEST:
        raise WireError("data that is nested too deeply")
    if isinstance(value, list):
        return [decode(one, tensors, depth + 1) for one in value]
    if not isinstance(value, dict):
        return value
    kind, items = value.get(TAG), value.get("items")
    if kind == "tensor" and tensors:
        return _tensor(value)
    if kind == "tuple" and isinstance(items, list):
        return tuple(decode(one, tensors, depth + 1) for one in items)
    if kind == "dict" and isinstance(items, list):
        pairs = [pair for pair in items if isinstance(pair, list) and len(pair) == 2]
        keys = [_key(decode(key, False, depth + 1)) for key, _ in pairs]
        if max(Counter(map(hash, keys)).values(), default=0) > ALIKE:
            raise WireError(f"a dict with more than {ALIKE} keys of one hash")
        return {key: decode(one, tensors, depth + 1) for key, (_, one) in zip(keys, pairs, strict=True)}
    raise WireError("an object of an unknown kind")


def _key(key: Any) -> Any:
    """A key that Python takes: a tuple may hold a list."""
    try:
        hash(key)
    except TypeError:
        raise WireError("a dict whose key is a list or a dict") from None
    return key


def _tensor(value: dict) -> torch.Tensor:
    dtype, shape, data = TYPES.get(str(value.get("dtype"))), value.get("shape"), value.get("data")
    if dtype is None or not is_shape(shape) or not isinstance(data, str):
        raise WireError("a tensor without type, shape or data")
    return from_bytes(base64.b64decode(data, validate=True), dtype, shape)


def name_of(dtype: torch.dtype) -> str:
    """float32 for torch.float32."""
    return str(dtype).removeprefix("torch.")


def is_shape(value: Any) -> bool:
    """Whether this can be the shape of a tensor. The product of its sizes is then a number that is soon found."""
    return (
        isinstance(value, list)
        and len(value) <= DIMENSIONS
        and all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < LONGEST for n in value)
    )


def to_bytes(tensor: torch.Tensor) -> bytes:
    """The elements row by row."""
    raw = tensor.detach().cpu().contiguous().reshape(-1)
    return raw.view(torch.uint8).numpy().tobytes() if raw.numel() else b""


def from_bytes(data: bytes, dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    """The tensor that lies there row by row; `dtype` is one of TYPES and `shape` a shape."""
    raw = bytearray(data)
    if len(raw) != math.prod(shape) * dtype.itemsize:
        raise WireError(f"a tensor of shape {shape} with {len(raw)} bytes")
    if dtype == torch.bool and any(byte > 1 for byte in raw):
        raise WireError("a truth value that is neither")
    return torch.frombuffer(raw, dtype=dtype).reshape(shape) if raw else torch.empty(shape, dtype=dtype)
