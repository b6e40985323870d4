#!/usr/bin/env python3
"""Makes the files of this folder: safetensors files and models that must be refused.

`refusals.txt` has a part of the message for each. The test itself makes the files that are too large to keep here.
"""
import json
import pathlib
import shutil
import struct

HERE = pathlib.Path(__file__).parent
REFUSALS = {}


def tensor(shape=(2,), dtype="F32", offsets=(0, 8), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


def file(header, data=b"\0" * 8, length=None):
    text = header if isinstance(header, bytes) else (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def attack(name, content, words):
    """A file, or a folder of files, and the words it is refused by."""
    path = HERE / name
    if isinstance(content, dict):
        path.mkdir()
        for inner, inner_content in content.items():
            (path / inner).write_bytes(inner_content)
    else:
        path.write_bytes(content)
    REFUSALS[name] = words


def headers():
    good = {"a": tensor()}
    attack("too-short", b"\x02\0\0", "it has 3 bytes")
    attack("header-beyond-file", file("{}", b"", 1000), "its header would end at byte 1008, and the file has 10")
    attack("header-beyond-limit", file("{}", b"", 100_000_001), "100000000 is the most that the format allows")
    attack("header-endless", file("{}", b"", 2**64 - 1), "100000000 is the most that the format allows")
    attack("not-json", file("{not json"), "its header: key must be a string")
    attack("list", file("[1, 2]"), "its header does not begin with `{`")
    attack("space-first", file(" {}", b""), "its header does not begin with `{`")
    attack("empty-header", file(b"", b""), "its header does not begin with `{`")
    attack("not-utf8", file(b'{"\xff":1}'), "its header is not UTF-8")
    attack("junk-after-json", file("{}x", b""), "trailing characters")
    attack("unfinished", file('{"a":{"dtype":"F32"'), "EOF while parsing")
    attack("truncated", file(good, b"\0" * 5), 'tensor "a" ends at byte 8 of the data, and the file has 5: it is truncated')
    attack("bytes-of-nobody", file(good, b"\0" * 11), "its last 3 B belong to no tensor")
    attack("null-header", file("{}", b"\0"), "its last 1 B belong to no tensor")


def keys():
    entry = json.dumps(tensor())
    empty = json.dumps(tensor((0,), offsets=(8, 8)))
    attack("tensor-twice", file('{"a":%s,"a":%s}' % (entry, empty)), 'tensor "a" is there twice')
    attack("tensor-twice-escaped", file('{"a":%s,"\\u0061":%s}' % (entry, empty)), 'tensor "a" is there twice')
    attack("dtype-twice", file('{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}'), 'tensor "a": `dtype` is there twice')
    attack("shape-twice", file('{"a":{"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]}}'), 'tensor "a": `shape` is there twice')
    attack("offsets-twice", file('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"data_offsets":[0,8]}}'), 'tensor "a": `data_offsets` is there twice')
    attack("metadata-twice", file('{"__metadata__":{},"__metadata__":{}}', b""), "`__metadata__` is there twice")
    attack("metadata-key-twice", file('{"__metadata__":{"k":"1","k":"2"}}', b""), 'metadata "k" is there twice')
    attack("metadata-number", file('{"__metadata__":{"k":1}}', b""), 'metadata "k": invalid type: integer `1`')
    attack("metadata-list", file('{"__metadata__":[]}', b""), "expected `__metadata__` as a map of strings")
    for field in ("dtype", "shape", "data_offsets"):
        entry = tensor()
        del entry[field]
        attack(f"no-{field}", file({"a": entry}), f'tensor "a": missing field `{field}`')
    attack("tensor-null", file({"a": None}), 'tensor "a": invalid type: null')
    attack("tensor-list", file({"a": ["F32", [2], [0, 8]]}), 'tensor "a": invalid type: sequence')
    attack("name-too-long", file({"n" * 65_537: tensor()}), "is longer than 65536 bytes")
    attack("deep", file('{"a":{"x":%s}}' % ("[" * 200 + "]" * 200)), 'tensor "a": missing field `dtype`')


def figures():
    def one(words, name, data=b"\0" * 8, **figures):
        attack(name, file({"a": tensor(**figures)}, data), f'tensor "a"{words}')

    one(': dtype "F5" is not known', "dtype-unknown", dtype="F5")
    one(': dtype "f32" is not known', "dtype-lower-case", dtype="f32")
    one(": invalid type: integer `4`", "dtype-number", dtype=4)
    one(": invalid value: integer `-2`", "length-negative", shape=(-2,))
    one(": invalid type: floating point `2.5`", "length-fraction", shape=(2.5,))
    one(": invalid type: floating point", "length-beyond-u64", shape=(10**25,))
    one(": invalid type: string", "length-word", shape=("2",))
    one(" has 8 bytes, and shape [3] of dtype F32 takes 12", "length-wrong", shape=(3,))
    one(" has 8 bytes, and shape [] of dtype F32 takes 4", "scalar-too-long", shape=())
    one(" of shape [4294967296, 4294967296, 2] and dtype F32 has more than 2^64 bits", "shape-overflow", shape=(2**32, 2**32, 2))
    one(" of shape [4611686018427387904] and dtype F32 has more than 2^64 bits", "bits-overflow", shape=(2**62,))
    one(" of shape [3] and dtype F4 does not end on a whole byte", "half-a-byte", data=b"\0" * 2, shape=(3,), dtype="F4", offsets=(0, 2))
    one(": `shape` has more than 64 dimensions", "too-many-dimensions", shape=(1,) * 65)
    one(": `data_offsets` [8, 0] go backwards", "offsets-backwards", offsets=(8, 0))
    one(" ends at byte 2305843009213693951", "offsets-endless", shape=(2**61 - 1,), dtype="U8", offsets=(0, 2**61 - 1))
    one(": invalid value: integer `-8`", "offsets-negative", offsets=(-8, 0))
    one(": trailing characters", "offsets-three", offsets=(0, 8, 8))
    one(": invalid length 1", "offsets-one", offsets=(0,))
    one(" begins at byte 4 of the data, and the data begins at 0: there is a hole", "hole-at-start", offsets=(4, 12))
    both = {"a": tensor(), "b": tensor(offsets=(12, 20))}
    attack("hole", file(both, b"\0" * 20), 'tensor "b" begins at byte 12 of the data, and "a" before it ends at 8: there is a hole')
    both = {"a": tensor(), "b": tensor(offsets=(4, 12))}
    attack("overlap", file(both, b"\0" * 12), 'tensor "b" begins at byte 4 of the data, and "a" before it ends at 8: they overlap')
    both = {"a": tensor(), "b": tensor()}
    attack("same-bytes-twice", file(both), "they overlap")


def models():
    def index(places, **more):
        return json.dumps({"metadata": {"total_size": 8}, "weight_map": places, **more}).encode()

    name = "model.safetensors.index.json"
    good = file({"a": tensor()})
    other = file({"b": tensor()})
    attack("index-missing-file", {name: index({"a": "1.safetensors", "b": "2.safetensors"}), "1.safetensors": good}, "names it, but it does not exist")
    attack("index-missing-tensor", {name: index({"a": "1.safetensors", "b": "1.safetensors"}), "1.safetensors": good}, 'it says that tensor "b" is in')
    attack("index-wrong-file", {name: index({"a": "2.safetensors", "b": "1.safetensors"}), "1.safetensors": good, "2.safetensors": other}, 'it says that tensor "a" is in')
    attack("index-leaves-folder", {name: index({"a": "../truncated"})}, 'tensor "a": its file "../truncated" is not in the folder of the index')
    attack("index-leaves-midway", {name: index({"a": "x/../../truncated"})}, "is not in the folder of the index")
    attack("index-absolute", {name: index({"a": "/etc/passwd"})}, 'its file "/etc/passwd" is not in the folder of the index')
    attack("index-empty-name", {name: index({"a": ""})}, "is not a file name")
    attack("index-nul", {name: index({"a": "a\0b"})}, "is not a file name")
    attack("index-number", {name: index({"a": 1})}, 'tensor "a": invalid type: integer `1`')
    attack("index-tensor-twice", {name: b'{"weight_map":{"a":"1.safetensors","a":"1.safetensors"}}', "1.safetensors": good}, 'tensor "a" is there twice')
    attack("index-no-map", {name: b'{"metadata":{}}'}, "missing field `weight_map`")
    attack("index-not-json", {name: b"{weights}"}, "key must be a string")
    attack("index-of-a-folder", {name: index({"a": "."})}, "it is a folder, not a file")
    attack("two-files-one-tensor", {"1.safetensors": good, "2.safetensors": good}, 'tensor "a" is in')
    attack("two-indexes", {"x.safetensors.index.json": index({}), "y.safetensors.index.json": index({})}, "both")
    attack("one-bad-file", {"1.safetensors": good, "2.safetensors": file({"b": tensor()}, b"")}, 'tensor "b" ends at byte 8 of the data, and the file has 0: it is truncated')
    attack("no-weights", {"config.json": b"{}"}, "no .safetensors file is in it")


def main():
    for path in HERE.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != pathlib.Path(__file__).name:
            path.unlink()
    headers()
    keys()
    figures()
    models()
    lines = [f"{name}: {words}\n" for name, words in sorted(REFUSALS.items())]
    (HERE / "refusals.txt").write_text("".join(lines))


if __name__ == "__main__":
    main()
