"""Reads and writes safetensors files as numpy arrays: a second, plain implementation for tests.

bf16 has no numpy type: such arrays are `BFloat16`, fp32 values that are written as bf16 (they must be exact), and are
read as fp32.
"""

import json
import struct

import numpy as np

DTYPES = {
    "F32": np.float32,
    "F16": np.float16,
    "F64": np.float64,
    "I32": np.int32,
    "I64": np.int64,
    "U8": np.uint8,
    "BOOL": np.bool_,
}


class BFloat16:
    """fp32 values, to be stored as bf16."""

    def __init__(self, values):
        self.values = to_bf16(values)


def to_bf16(values):
    """The nearest bf16 numbers (ties to even), as fp32."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(values), np.float32(np.nan), rounded.view(np.float32))


def save(path, tensors, metadata=None):
    header, blobs, offset = {}, [], 0
    if metadata:
        header["__metadata__"] = metadata
    for name, array in tensors.items():
        if isinstance(array, BFloat16):
            dtype, shape = "BF16", array.values.shape
            blob = (np.ascontiguousarray(array.values, np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
        else:
            array = np.asarray(array)
            dtype = next(key for key, value in DTYPES.items() if value == array.dtype)
            shape, blob = array.shape, np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def load(path):
    with open(path, "rb") as file:
        content = file.read()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    data = content[8 + length :]
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        if entry["dtype"] == "BF16":
            array = (np.frombuffer(data[begin:end], "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            array = np.frombuffer(data[begin:end], DTYPES[entry["dtype"]])
        tensors[name] = array.reshape(entry["shape"])
    return tensors


def metadata(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(length)).get("__metadata__", {})
