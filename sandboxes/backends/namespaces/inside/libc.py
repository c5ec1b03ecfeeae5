"""Calls of the C library that Python's ``os`` does not have.

``ctypes`` would cost 6 ms and a megabyte; its core module does not.  Where a function is, is looked up once, and
inherited by forks: the look-up reads the tables of every library, which each new process would have to map again.
"""

import _ctypes

_places: dict[str, int] = {}


def place(name: str) -> int:
    """The address of a function."""
    if name not in _places:
        _places[name] = _ctypes.dlsym(_ctypes.dlopen(None, 2), name)  # type: ignore[arg-type]  # None: what is loaded
    return _places[name]


def call(name: str, *arguments: object) -> int:
    """Its result; ints are passed as C's ``int``, bytes as a pointer."""
    result: int = _ctypes.call_function(place(name), arguments)
    return result
