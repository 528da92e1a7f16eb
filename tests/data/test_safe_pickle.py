import pickle
from pathlib import Path

import numpy as np
import pytest

from biprune.data.safe_pickle import read_arrays

SOURCE = Path("data_batch_1")


class Malicious:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_come_back(protocol, order):
    array = np.asarray(np.arange(12, dtype=np.uint8).reshape(3, 4), order=order)
    content = pickle.dumps({b"data": array, b"labels": [1, 2, 3]}, protocol=protocol)
    arrays = read_arrays(content, source=SOURCE)
    np.testing.assert_array_equal(arrays[b"data"], array)
    assert arrays[b"labels"] == [1, 2, 3]


def test_python_2_pickle():
    """Written as Python 2 and numpy 1 did: byte strings, the old module name, integer flags."""
    content = (
        b"\x80\x02}q\x00(U\x04dataq\x01"
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x01K\x03\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89U\x03\x07\x08\x09tb"
        b"U\x06labelsq\x02]K\x05au."
    )
    arrays = read_arrays(content, source=SOURCE)
    np.testing.assert_array_equal(arrays[b"data"], [[7, 8, 9]])
    assert arrays[b"labels"] == [5]


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_call_is_refused_and_not_executed(tmp_path, protocol):
    import os

    marker = tmp_path / "executed"
    attack = Malicious(os.system, f"touch {marker}")
    content = pickle.dumps({b"data": attack}, protocol=protocol)
    with pytest.raises(ValueError, match=r"Refused to read data_batch_1: it asks for \w+\.system"):
        read_arrays(content, source=SOURCE)
    assert not marker.exists()


@pytest.mark.parametrize("function", [eval, getattr, __import__])
def test_builtins_are_refused(function):
    content = pickle.dumps({b"data": Malicious(function, "1")}, protocol=2)
    with pytest.raises(ValueError, match=f"asks for __builtin__.{function.__name__}"):
        read_arrays(content, source=SOURCE)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([{}, None], dtype=object), "dtype 'O8'"),
        (np.zeros(3, np.float32), "dtype 'f4'"),
        (np.zeros(3, [("a", "u1")]), "dtype 'V1'"),
    ],
)
def test_only_bytes(array, message):
    with pytest.raises(ValueError, match=message):
        read_arrays(pickle.dumps({b"data": array}, protocol=2), source=SOURCE)


def test_codecs_other_than_latin1_are_refused():
    import _codecs

    content = pickle.dumps({b"data": Malicious(_codecs.encode, "x", "idna")}, protocol=2)
    with pytest.raises(ValueError, match="encoded as 'idna'"):
        read_arrays(content, source=SOURCE)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a pickle",
        pickle.dumps({b"data": np.zeros(9, np.uint8)}, protocol=2)[:-20],
        pickle.dumps([1, 2], protocol=2),
    ],
    ids=["empty", "text", "truncated", "list"],
)
def test_damage(content):
    with pytest.raises(ValueError, match="Refused to read data_batch_1"):
        read_arrays(content, source=SOURCE)
