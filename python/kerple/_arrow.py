"""Columns as an Arrow C stream, which pandas, polars, pyarrow and others read.

https://arrow.apache.org/docs/format/CStreamInterface.html: a capsule contains a struct of
functions, and its reader gets a schema and one batch. The memory that these point to stays alive
until the reader releases it.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Mapping
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int64, c_void_p

import numpy as np


class _Schema(ctypes.Structure):
    pass


class _Array(ctypes.Structure):
    pass


class _Stream(ctypes.Structure):
    pass


_ReleaseSchema = CFUNCTYPE(None, POINTER(_Schema))
_ReleaseArray = CFUNCTYPE(None, POINTER(_Array))
_ReleaseStream = CFUNCTYPE(None, POINTER(_Stream))
_GetSchema = CFUNCTYPE(c_int, POINTER(_Stream), POINTER(_Schema))
_GetNext = CFUNCTYPE(c_int, POINTER(_Stream), POINTER(_Array))
_GetError = CFUNCTYPE(c_void_p, POINTER(_Stream))

_Schema._fields_ = [
    ("format", c_char_p), ("name", c_char_p), ("metadata", c_char_p), ("flags", c_int64), ("n_children", c_int64),
    ("children", POINTER(POINTER(_Schema))), ("dictionary", c_void_p), ("release", _ReleaseSchema), ("private", c_void_p),
]  # fmt: skip
_Array._fields_ = [
    ("length", c_int64), ("null_count", c_int64), ("offset", c_int64), ("n_buffers", c_int64), ("n_children", c_int64),
    ("buffers", POINTER(c_void_p)), ("children", POINTER(POINTER(_Array))), ("dictionary", c_void_p),
    ("release", _ReleaseArray), ("private", c_void_p),
]  # fmt: skip
_Stream._fields_ = [
    ("get_schema", _GetSchema), ("get_next", _GetNext), ("get_last_error", _GetError), ("release", _ReleaseStream),
    ("private", c_void_p),
]  # fmt: skip

_NULLABLE = 2
#: Objects that are kept alive for readers, by a number in ``private``.
_held: dict[int, object] = {}
_numbers = itertools.count(1)


def _hold(what: object) -> int:
    number = next(_numbers)
    _held[number] = what
    return number


def _release_children(of: _Schema | _Array) -> None:
    """Releases the children that the reader has not moved."""
    for at in range(of.n_children):
        child = of.children[at]
        if child.contents.release:
            child.contents.release(child)


@_ReleaseSchema
def _release_schema(schema) -> None:
    _release_children(schema.contents)
    schema.contents.release = _ReleaseSchema()
    _held.pop(schema.contents.private, None)


@_ReleaseArray
def _release_array(array) -> None:
    _release_children(array.contents)
    array.contents.release = _ReleaseArray()
    _held.pop(array.contents.private, None)


def _children(of: type, made: list) -> ctypes.Array:
    return (POINTER(of) * len(made))(*(ctypes.pointer(one) for one in made))


def _fill_schema(schema: _Schema, form: bytes, name: bytes, children: list[_Schema]) -> None:
    pointers = _children(_Schema, children)
    schema.format, schema.name, schema.metadata, schema.flags = form, name, None, _NULLABLE
    schema.n_children, schema.children = len(children), ctypes.cast(pointers, POINTER(POINTER(_Schema)))
    schema.dictionary, schema.release = None, _release_schema
    schema.private = _hold((form, name, children, pointers))


def _fill_array(array: _Array, length: int, buffers: list[np.ndarray | None], children: list[_Array]) -> None:
    pointers = _children(_Array, children)
    places = (c_void_p * len(buffers))(*(None if one is None else one.ctypes.data for one in buffers))
    array.length, array.null_count, array.offset = length, -1 if buffers[0] is not None else 0, 0
    array.n_buffers, array.buffers = len(buffers), ctypes.cast(places, POINTER(c_void_p))
    array.n_children, array.children = len(children), ctypes.cast(pointers, POINTER(POINTER(_Array)))
    array.dictionary, array.release = None, _release_array
    array.private = _hold((buffers, places, children, pointers))


def _column(values: np.ndarray) -> tuple[bytes, list[np.ndarray | None]]:
    """Format and buffers: validity bitmap, then offsets of text, then values."""
    if values.dtype.kind in "iu":
        return b"l", [None, np.ascontiguousarray(values, dtype=np.int64)]
    if values.dtype.kind == "f":
        known = ~np.isnan(values)
        absent = None if known.all() else np.packbits(known, bitorder="little")
        return b"g", [absent, np.ascontiguousarray(values, dtype=np.float64)]
    texts = ["" if text is None else str(text) for text in values]
    known = np.array([text is not None for text in values], dtype=bool)
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)]).astype(np.int64)
    joined = np.frombuffer(b"".join(encoded) or b"\0", dtype=np.uint8)
    return b"U", [None if known.all() else np.packbits(known, bitorder="little"), offsets, joined]


_PyCapsule_New = ctypes.pythonapi.PyCapsule_New
_PyCapsule_New.restype = ctypes.py_object
_NAME = b"arrow_array_stream"
_Destructor = CFUNCTYPE(None, c_void_p)
_PyCapsule_New.argtypes = [c_void_p, c_char_p, _Destructor]
_PyCapsule_GetPointer = ctypes.pythonapi.PyCapsule_GetPointer
_PyCapsule_GetPointer.restype = c_void_p
_PyCapsule_GetPointer.argtypes = [c_void_p, c_char_p]


@_Destructor
def _destroy(capsule) -> None:
    """Destructor of a capsule: releases a stream that nobody has read."""
    stream = ctypes.cast(_PyCapsule_GetPointer(capsule, _NAME), POINTER(_Stream))
    if stream.contents.release:
        stream.contents.release(stream)
    _held.pop(("capsule", ctypes.addressof(stream.contents)), None)


def stream(columns: Mapping[str, np.ndarray]) -> object:
    """A capsule ``arrow_array_stream`` with these columns, which have equal length."""
    made = {name.encode(): _column(values) for name, values in columns.items()}
    length = max((len(values) for values in columns.values()), default=0)
    sent = False

    @_GetSchema
    def get_schema(_stream, out) -> int:
        children = [_Schema() for _ in made]
        for child, (name, (form, _)) in zip(children, made.items(), strict=True):
            _fill_schema(child, form, name, [])
        _fill_schema(out.contents, b"+s", b"", children)
        out.contents.flags = 0
        return 0

    @_GetNext
    def get_next(_stream, out) -> int:
        nonlocal sent
        if sent:
            out.contents.release = _ReleaseArray()
            return 0
        sent = True
        children = [_Array() for _ in made]
        for child, (_, buffers) in zip(children, made.values(), strict=True):
            _fill_array(child, length, buffers, [])
        _fill_array(out.contents, length, [None], children)
        return 0

    @_GetError
    def get_last_error(_stream) -> None:
        return None

    @_ReleaseStream
    def release(given) -> None:
        private = given.contents.private
        given.contents.release = _ReleaseStream()
        _held.pop(private, None)

    own = _Stream(get_schema, get_next, get_last_error, release, None)
    own.private = _hold((get_schema, get_next, get_last_error, release))
    _held[("capsule", ctypes.addressof(own))] = own
    return _PyCapsule_New(ctypes.addressof(own), _NAME, _destroy)
