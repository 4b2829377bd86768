"""Messages between the referee and its workers, and what can stand in them."""

import ast
import itertools
import math
import os
import socket
import threading
import time
from pathlib import Path

import pytest
import torch

from autograder.inside.wire import (
    DEEPEST,
    MESSAGE_BYTES,
    MESSAGE_VALUES,
    Channel,
    ChannelError,
    WireError,
    decode,
    encode,
)


@pytest.fixture
def ends():
    here, there = socket.socketpair()
    yield Channel(here), Channel(there)
    here.close()
    there.close()


def test_messages_that_wait_together_keep_their_descriptors(ends):
    here, there = ends
    pipes = [os.pipe() for _ in range(3)]
    for number, (_, write) in enumerate(pipes):
        here.send({"order": number}, [write])
        os.close(write)
    for number, (read, _) in enumerate(pipes):
        message, descriptors = there.receive_with_descriptors()
        assert message == {"order": number}
        os.write(descriptors[0], b"%d" % number)
        os.close(descriptors[0])
        assert os.read(read, 8) == b"%d" % number
        os.close(read)


def test_a_long_message_arrives_whole_and_the_next_one_too(ends):
    here, there = ends
    here.end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 21)
    here.send(["x" * 150_000])
    here.send(7)
    assert (there.receive(1.0), there.receive(1.0)) == (["x" * 150_000], 7)


def test_nothing_comes_and_it_is_a_timeout(ends):
    with pytest.raises(TimeoutError):
        ends[1].receive(0.01)


@pytest.mark.parametrize("patience_s", [0.2, math.inf])
def test_who_does_not_read_is_waited_for_no_longer_than_said(ends, patience_s):
    ours, _ = ends
    ours.send_s = 0.5
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        ours.send("x" * (MESSAGE_BYTES - 2), timeout_s=patience_s)
    assert time.monotonic() - began < 5


def test_an_announced_giant_is_refused(ends):
    here, there = ends
    here.end.sendall(b"\xff\xff\xff\xff")
    with pytest.raises(ChannelError, match="was announced"):
        there.receive(1.0)


def test_a_message_of_very_many_values_is_refused_before_it_takes_the_memory(ends):
    here, there = ends
    send = threading.Thread(target=here.send, args=([[]] * (MESSAGE_VALUES + 1),))
    send.start()
    with pytest.raises(ChannelError, match=f"at most {MESSAGE_VALUES} may be sent"):
        there.receive(5.0)
    send.join()


# ------------------------------------------------------------------------------------------- what can be sent

NESTED = []
for _ in range(DEEPEST + 1):
    NESTED = [NESTED]
A_TENSOR = {"$": "tensor", "dtype": "float32", "shape": [1], "data": "AAAAAA=="}


def test_nested_data_with_tensors_comes_out_as_it_went_in():
    data = {"a": [1, 2.5, None, True, "text", (1, (2,), [])], 3: torch.arange(6.0).view(2, 3).T, "e": torch.empty(0, 4)}
    data |= {"b": torch.tensor([True, False]), "h": torch.ones(3, dtype=torch.bfloat16), "nan": float("nan")}
    back = decode(encode(data, tensors=True), tensors=True)
    assert list(back) == list(data) and back["a"] == data["a"] and math.isnan(back["nan"])
    for name in (3, "e", "b", "h"):
        assert back[name].dtype == data[name].dtype and torch.equal(back[name], data[name])


@pytest.mark.parametrize("value", [object(), NESTED, torch.ones(1, dtype=torch.complex64), {1: {2: lambda: 0}}, 1j])
def test_what_has_no_form_is_refused_where_it_is_encoded(value):
    with pytest.raises(TypeError):
        encode(value, tensors=True)


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1},
        {"$": "tuple", "items": 3},
        {"$": "placed", "slab": 0, "dtype": "float32", "shape": [1], "stride": [1], "at": 0},
        {"$": "dict", "items": [[[1], 2]]},
        {"$": "dict", "items": [[{"$": "tuple", "items": [[1]]}, 2]]},
        A_TENSOR | {"dtype": "complex64"},
        A_TENSOR | {"shape": [2]},
        A_TENSOR | {"shape": [-1]},
        A_TENSOR | {"shape": [True]},
        A_TENSOR | {"shape": 1},
        A_TENSOR | {"shape": [1] * 17},
        A_TENSOR | {"shape": [(1 << 62) - 1] * 500_000},
        A_TENSOR | {"dtype": "quint8", "shape": [4]},
        A_TENSOR | {"dtype": "bits8", "shape": [4]},
        A_TENSOR | {"data": "AAAAAA"},
        A_TENSOR | {"data": "Ä" * 8},
        A_TENSOR | {"data": None},
        A_TENSOR | {"dtype": "bool", "shape": [4], "data": "AAAAAg=="},
        NESTED,
    ],
)
def test_what_was_never_encoded_is_refused(value):
    with pytest.raises(ValueError):
        decode(value, tensors=True)


def test_a_dict_whose_keys_share_a_hash_is_refused_in_a_second():
    """Integers that differ by 2**61 - 1 have equal hashes, and so have tuples of them."""
    numbers = [n * (2**61 - 1) for n in range(-3, 4)]
    keys = list(itertools.islice(itertools.product(numbers, repeat=7), 60_000))
    assert len({hash(key) for key in keys}) == 1
    message = encode(dict.fromkeys(keys[:50], 1.0))
    assert len(decode(message)) == 50
    message["items"] = [[{"$": "tuple", "items": list(key)}, 1.0] for key in keys]
    start = time.process_time()
    with pytest.raises(WireError, match="keys of one hash"):
        decode(message)
    assert time.process_time() - start < 5.0


def test_a_tensor_travels_only_where_it_is_expected():
    with pytest.raises(TypeError, match="a Tensor is not plain data"):
        encode([torch.ones(2)])
    with pytest.raises(WireError, match="unknown kind"):
        decode([A_TENSOR])


# ------------------------------------------------------------------------------------------- what is never done

LOADERS = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}


def test_nothing_that_judges_submissions_unpickles():
    autograder = Path(__file__).resolve().parents[2] / "autograder"
    rooms = ("referee", "judging", "inside")
    for path in [path for room in rooms for path in (autograder / room).rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not LOADERS & {name.partition(".")[0] for name in names}, path
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            assert called not in ("torch.load", "np.load", "numpy.load"), path
