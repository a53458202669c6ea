#!/usr/bin/env python3
"""Writes specs and random batches for tests/gpu/run, with nothing but Python's own library:

    batch.py FOLDER

FOLDER/NAME.json and FOLDER/NAME.safetensors, small vocabularies and every type."""

import array
import json
import pathlib
import random
import struct
import sys

ROWS, SEGMENTS = 24, 5
CE = {"ce": {"type": "cross_entropy", "label_smoothing": 0.1}, "z": {"type": "z_loss", "weight": 1e-3}}
GSPO = {"policy": {"type": "gspo", "epsilon_low": 0.1, "epsilon_high": 0.2}}
DISTILL = {"distill": {"type": "distillation", "divergence": "reverse_kl", "weight": 0.5}}
GRPO = {"policy": {"type": "grpo"}, "bonus": {"type": "entropy", "direction": "maximize", "weight": 1e-2}}
DPO = {"preference": {"type": "dpo"}}
SPECS = [  # losses, metrics, logits, teacher, gradient, vocabulary, mode
    (CE, ["token_accuracy"], "bf16", None, "bf16", 4099, "overwrite"),
    (CE, [], "fp32", None, "fp16", 1023, "accumulate"),
    (CE, [], "fp16", None, "fp16", 2048, "in_place"),
    ({**GSPO, **CE}, ["entropy", "policy.clip_fraction"], "bf16", None, "bf16", 4099, "overwrite"),
    ({**GSPO, **CE}, ["policy.ratio"], "fp32", None, "fp32", 515, "overwrite"),
    ({**GSPO, **DISTILL}, ["entropy"], "bf16", "bf16", "fp32", 2050, "overwrite"),
    (DISTILL, [], "fp16", "fp32", "bf16", 1025, "overwrite"),
    (GRPO, ["policy.ratio", "policy.advantage_min"], "fp32", None, "bf16", 1000, "overwrite"),
    (DPO, ["preference.reward_margin"], "bf16", None, "fp32", 769, "overwrite"),
]
CODES = {"fp32": "F32", "bf16": "BF16", "fp16": "F16", "i64": "I64", "u8": "U8"}


def encode(dtype, values):
    if dtype == "bf16":
        halves = array.array("H")
        for bits in memoryview(array.array("f", values).tobytes()).cast("I"):
            halves.append((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)
        return halves.tobytes()
    if dtype == "fp16":
        return struct.pack(f"<{len(values)}e", *values)
    return array.array({"fp32": "f", "i64": "q", "u8": "B"}[dtype], values).tobytes()


def save(path, tensors):
    header, blobs, offset = {}, [], 0
    for name, (dtype, shape, values) in tensors.items():
        blob = encode(dtype, values)
        header[name] = {"dtype": CODES[dtype], "shape": shape, "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def batch(draw, losses, logits, teacher, gradient, vocab, mode):
    def normal(count, spread=1.0, mean=0.0):
        return [draw.gauss(mean, spread) for _ in range(count)]

    labels = [draw.randrange(vocab) if row % 9 != 4 else -100 for row in range(ROWS)]
    tensors = {
        "logits": (logits, [ROWS, vocab], normal(ROWS * vocab, 2.0)),
        "labels": ("i64", [ROWS], labels),
        "mask": ("u8", [ROWS], [1 if row % 11 != 7 else 0 for row in range(ROWS)]),
        "grad_scale": ("fp32", [], [1.5]),
    }
    types = {loss["type"] for loss in losses.values()}
    near = -8.0  # about the log-probability of a random label
    if types & {"gspo", "grpo"}:
        tensors["old_logprobs"] = ("fp32", [ROWS], normal(ROWS, 0.3, near))
        tensors["advantages"] = ("fp32", [ROWS], normal(ROWS))
    if "dpo" in types:
        tensors["ref_logprobs"] = ("fp32", [ROWS], normal(ROWS, 0.3, near))
        tensors["pairs"] = ("i64", [2, 2], [0, 1, 3, 2])
    if types & {"gspo", "dpo"}:
        tensors["cu_seqlens"] = ("i64", [SEGMENTS + 1], [0, 3, 4, 4, 15, ROWS])
    if "distillation" in types:
        tensors["teacher_logits"] = (teacher, [ROWS, vocab], normal(ROWS * vocab, 2.0))
    if mode == "accumulate":
        tensors["grad_logits"] = (gradient, [ROWS, vocab], normal(ROWS * vocab, 0.01))
    return tensors


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(1)
    for losses, metrics, logits, teacher, gradient, vocab, mode in SPECS:
        spec = {"version": 1, "logits": {"dtype": logits, "vocab": vocab}, "losses": losses, "metrics": metrics,
                "outputs": ["logprobs"] if "ce" in losses else [],
                "gradient": {"mode": mode, "dtype": gradient}}
        if teacher:
            spec["tensors"] = {"teacher_logits": {"dtype": teacher}}
        name = "_".join([*losses, logits, gradient, mode])
        (folder / f"{name}.json").write_text(json.dumps(spec, indent=1) + "\n")
        save(folder / f"{name}.safetensors", batch(draw, losses, logits, teacher, gradient, vocab, mode))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]))
