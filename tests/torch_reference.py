#!/usr/bin/env python3
"""Compares `lossc run` with PyTorch's autograd in double precision.

Each case is a loss spec and a random batch. The losses are written with PyTorch's own functions (cross_entropy, kl_div,
clamp, logsigmoid); their gradient is autograd's. Tolerances are those of tests/tolerances.h: the first-order bound of
fp32 rounding, then one rounding to the stored type.

    torch_reference.py --lossc build/release/tools/lossc [--case NAME] [--device cpu]

Exit status 0: all right, 1: something differs, 77: PyTorch is not installed.
"""

import argparse
import json
import math
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import torch
    import torch.nn.functional as F
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

UNIT = 2.0**-24  # half an ulp of fp32 at 1
TINY = 2.0**-100  # see tests/tolerances.h: flushed subnormals
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
NAMES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


# --- files ------------------------------------------------------------------------------------------------------------


def save(path, tensors):
    """Writes a safetensors file: the length of a JSON header, the header, the bytes."""
    header, blobs, offset = {}, [], 0
    for name, tensor in tensors.items():
        raw = tensor.contiguous()
        blob = raw.view(torch.int16).numpy().tobytes() if raw.dtype == torch.bfloat16 else raw.numpy().tobytes()
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def load(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    dtypes = {name: dtype for dtype, name in NAMES.items()}
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        blob = bytearray(data[8 + length + begin:8 + length + end])
        flat = torch.frombuffer(blob, dtype=dtypes[entry["dtype"]]) if blob else torch.empty(0, dtype=dtypes[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"])
    return tensors


# --- the losses -------------------------------------------------------------------------------------------------------


def transform(z, keys):
    u = z
    if "scale" in keys and keys.get("order") != "cap_first":
        u = u * keys["scale"]
    if "softcap" in keys:
        u = keys["softcap"] * torch.tanh(u / keys["softcap"])
    if "scale" in keys and keys.get("order") == "cap_first":
        u = u * keys["scale"]
    return u / keys["temperature"] if "temperature" in keys else u


class Child:
    """One child of a spec on one batch: which rows count, the value of each row, segment or pair, its reduction."""

    KEYS = ("scale", "softcap", "temperature", "order")

    def __init__(self, name, spec, block, batch):
        self.name, self.spec, self.batch, self.type = name, spec, batch, spec["type"]
        self.weight = spec.get("weight", 1.0)
        self.keys = {**block, **{k: spec[k] for k in self.KEYS if k in spec}}
        self.reduction = spec.get("reduction", "pair_mean" if self.type == "dpo" else "token_mean")
        labels = batch["labels"]
        self.counts = (labels >= 0) & batch["mask"].bool()
        self.by_segment = self.type in ("gspo", "dpo") or self.reduction.startswith("sequence")
        if self.by_segment:
            self.counts = self.counts & (batch["segments"] >= 0)
        self.rows = self.counts.nonzero().flatten()
        self.labels = labels[self.rows]
        if self.by_segment:
            self.segment = batch["segments"][self.rows]
            self.n = torch.bincount(self.segment, minlength=batch["num_segments"]).double()
            self.length = self.n.clamp(min=1)

    def teacher(self):
        keys = {k[len("teacher_"):]: v for k, v in self.spec.items() if k in ("teacher_scale", "teacher_softcap")}
        t = transform(self.batch["teacher_logits"].double()[self.rows], keys)
        return t / self.keys.get("temperature", 1.0) / self.spec.get("teacher_temperature", 1.0)

    def row(self, name):
        return self.batch[name].double()[self.rows]

    def segment_sum(self, values):
        return torch.zeros(self.batch["num_segments"], dtype=torch.float64).index_add(0, self.segment, values)

    def clip(self, advantage, ratio):
        default = (3e-4, 4e-4) if self.type == "gspo" else (0.2, 0.2)
        low = 1 - self.spec.get("epsilon_low", default[0])
        high = 1 + self.spec.get("epsilon_high", default[1])
        self.decided = bool((torch.minimum((ratio - low).abs(), (ratio - high).abs()) > 1e-5).all())
        return torch.max(-advantage * ratio, -advantage * torch.clamp(ratio, low, high))

    def loss(self, logits):
        """The reduced, unweighted loss. Keeps what the error bound needs."""
        self.decided = True
        self.u = u = transform(logits[self.rows], self.keys)
        self.logp = F.log_softmax(u, dim=-1)
        self.label_logp = self.logp.gather(1, self.labels[:, None])[:, 0]
        value = getattr(self, self.type)()
        value.retain_grad()
        self.value = value
        if self.type == "dpo":
            return value.sum() / {"pair_mean": max(len(value), 1), "sum": 1}.get(self.reduction, self.spec.get("divisor"))
        if self.type == "gspo":
            weighted = value if self.reduction == "sequence_mean" else value * self.n
        else:
            weighted = value
            if self.reduction == "sequence_mean":
                weighted = value / self.length[self.segment]
        if self.reduction.startswith("sequence"):
            return weighted.sum() / max(int((self.n > 0).sum()), 1)
        return weighted.sum() / {"token_mean": max(len(self.rows), 1), "sum": 1, "none": 1}.get(
            self.reduction, self.spec.get("divisor"))

    def cross_entropy(self):
        return F.cross_entropy(self.u, self.labels, reduction="none", label_smoothing=self.spec.get("label_smoothing", 0.0))

    def z_loss(self):
        return torch.logsumexp(self.u, dim=-1) ** 2

    def entropy(self):
        h = torch.distributions.Categorical(logits=self.u).entropy()
        return h if self.spec.get("direction") == "minimize" else -h

    def distillation(self):
        self.logq = F.log_softmax(self.teacher(), dim=-1)
        divergence = self.spec.get("divergence", "cross_entropy")
        if divergence == "cross_entropy":
            value = F.cross_entropy(self.u, self.logq.exp(), reduction="none")
        elif divergence == "forward_kl":
            value = F.kl_div(self.logp, self.logq, reduction="none", log_target=True).sum(-1)
        else:
            value = F.kl_div(self.logq, self.logp, reduction="none", log_target=True).sum(-1)
        return value * self.keys.get("temperature", 1.0) ** 2 if self.spec.get("temperature_squared") else value

    def grpo(self):
        return self.clip(self.row("advantages"), torch.exp(self.label_logp - self.row("old_logprobs")))

    def gspo(self):
        ratio = torch.exp(self.segment_sum(self.label_logp - self.row("old_logprobs")) / self.length)
        return self.clip(self.segment_sum(self.row("advantages")) / self.length, ratio)

    def dpo(self):
        reward = self.segment_sum(self.label_logp - self.row("ref_logprobs"))
        pairs = [p for p in self.batch["pairs"].tolist() if self.n[p[0]] > 0 and self.n[p[1]] > 0]
        chosen, rejected = (torch.tensor([p[i] for p in pairs], dtype=torch.int64) for i in (0, 1))
        return -F.logsigmoid(self.spec.get("beta", 0.1) * (reward[chosen] - reward[rejected]))

    def bound(self, gradient):
        """fp32 error of this child's part of the gradient, per element of the rows that count."""
        with torch.no_grad():
            vocab = self.u.shape[1]
            x = self.u - self.u.max(dim=1, keepdim=True).values
            log_sum = torch.logsumexp(x, dim=1, keepdim=True)
            gap = (-x).max(dim=1, keepdim=True).values.clamp(max=64)
            delta = (8 + 6 * (x.abs() + gap + log_sum.abs())) * UNIT + (4 + 2 * math.sqrt(vocab)) * UNIT
            if self.keys:
                delta = delta + 32 * UNIT * self.u.abs().max(dim=1, keepdim=True).values
            p = self.logp.exp()
            part = gradient[self.rows].abs()
            if self.type in ("cross_entropy", "grpo", "gspo", "dpo"):
                # The coefficient of (p - onehot), from the label's element; its own error grows with a sequence's length.
                miss = (1 - p.gather(1, self.labels[:, None])).clamp(min=1e-12)
                coefficient = part.gather(1, self.labels[:, None]) / miss
                if self.spec.get("label_smoothing"):
                    coefficient = coefficient.clamp(min=1.0 / max(len(self.rows), 1))
                growth = 1 + (self.spec.get("beta", 0.1) * len(self.rows) if self.type == "dpo" else 0)
                return delta * growth * (part + coefficient * (p + (part > 0)))
            if self.type == "z_loss":
                return 2 * delta * part * (1 + 1 / torch.logsumexp(self.u, 1, keepdim=True).abs())
            scale = self.value.grad.abs()[:, None] * max(1.0, self.keys.get("temperature", 1.0) ** 2)
            scale = scale * max(1.0, self.keys.get("scale", 1.0)) / min(1.0, self.keys.get("temperature", 1.0))
            if self.type == "entropy":
                h = -(p * self.logp).sum(1, keepdim=True)
                return delta * (part + 4 * scale * p * (self.logp.abs() + h + gap))
            q = self.logq.exp()
            if self.spec.get("divergence") != "reverse_kl":
                return delta * (part + scale * (p + q))
            return delta * (part + 4 * scale * p * (self.logp.abs() + self.logq.abs() + gap + 1))


# --- cases ------------------------------------------------------------------------------------------------------------

CE, Z = {"type": "cross_entropy"}, {"type": "z_loss", "weight": 0.01}
GSPO = {"type": "gspo", "epsilon_low": 0.1, "epsilon_high": 0.15}
GRPO, DPO = {"type": "grpo"}, {"type": "dpo"}


def distill(divergence, **keys):
    return {"type": "distillation", "divergence": divergence, **keys}


CASES = {
    "ce": {"ce": CE},
    "ce_smoothing": {"ce": {**CE, "label_smoothing": 0.1}},
    "ce_transform": {"ce": {**CE, "scale": 1.5, "softcap": 6.0, "temperature": 0.8}},
    "ce_cap_first": {"ce": {**CE, "scale": 1.5, "softcap": 6.0, "order": "cap_first"}},
    "ce_sequence_mean": {"ce": {**CE, "reduction": "sequence_mean"}},
    "ce_sequence_sum_mean": {"ce": {**CE, "reduction": "sequence_sum_mean"}},
    "z": {"z": Z},
    "entropy_maximize": {"h": {"type": "entropy", "weight": 0.1}},
    "entropy_minimize": {"h": {"type": "entropy", "direction": "minimize"}},
    "distill_ce": {"d": distill("cross_entropy")},
    "distill_forward": {"d": distill("forward_kl", temperature=2.0, temperature_squared=True)},
    "distill_reverse": {"d": distill("reverse_kl")},
    "distill_teacher": {"d": distill("reverse_kl", teacher_temperature=1.5, teacher_scale=0.7, teacher_softcap=9.0)},
    "grpo": {"p": GRPO},
    "grpo_sequence_mean": {"p": {**GRPO, "reduction": "sequence_mean"}},
    "gspo": {"p": GSPO},
    "gspo_sequence_mean": {"p": {**GSPO, "reduction": "sequence_mean"}},
    "gspo_divisor": {"p": {**GSPO, "reduction": "divisor", "divisor": 7.0}},
    "dpo": {"d": {**DPO, "beta": 0.3}},
    "ce_z": {"ce": CE, "z": Z},
    "gspo_z_ce": {"p": GSPO, "z": Z, "ce": {**CE, "weight": 0.5}},
    "gspo_distill": {"p": GSPO, "d": distill("reverse_kl", weight=0.5)},
    "grpo_entropy_distill": {"p": GRPO, "h": {"type": "entropy", "weight": 0.05}, "d": distill("forward_kl", weight=0.5)},
    "dpo_ce": {"d": DPO, "ce": {**CE, "weight": 0.2}},
    "two_temperatures": {"ce": CE, "d": distill("forward_kl", temperature=2.0, temperature_squared=True)},
    "everything": {"ce": CE, "z": Z, "h": {"type": "entropy", "weight": 0.05}, "d": distill("cross_entropy"),
                   "t": GRPO, "s": GSPO, "pairs": DPO},
}


def make_spec(losses, dtype, gradient, teacher, vocab):
    spec = {"version": 1, "logits": {"dtype": dtype, "vocab": vocab}, "losses": losses,
            "outputs": ["logprobs", "lse"], "gradient": {"dtype": gradient}}
    if any(child["type"] == "distillation" for child in losses.values()):
        spec["tensors"] = {"teacher_logits": {"dtype": teacher}}
    return spec


def make_batch(spec, rows, segments, generator):
    """All tensors in the types that they are stored in."""
    vocab = spec["logits"]["vocab"]
    normal = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    uniform = lambda: torch.rand(rows, generator=generator)
    kinds = {child["type"] for child in spec["losses"].values()}
    batch = {"logits": (3 * normal(rows, vocab)).to(DTYPES[spec["logits"]["dtype"]])}
    labels = torch.randint(0, vocab, (rows,), generator=generator)
    batch["labels"] = torch.where(uniform() < 0.15, torch.tensor(-100), labels)
    batch["mask"] = uniform() >= 0.15
    batch["num_segments"] = segments
    ids = torch.randint(0, segments, (rows,), generator=generator)
    batch["segments"] = torch.where(uniform() < 0.1, torch.tensor(-1), ids)
    if "distillation" in kinds:
        dtype = DTYPES[spec["tensors"]["teacher_logits"]["dtype"]]
        batch["teacher_logits"] = (0.6 * batch["logits"].double() + 2 * normal(rows, vocab)).to(dtype)
    logp = F.log_softmax(batch["logits"].double(), dim=-1).gather(1, batch["labels"].clamp(min=0)[:, None])[:, 0]
    if kinds & {"grpo", "gspo"}:
        offset = normal(segments)[batch["segments"].clamp(min=0)]
        batch["old_logprobs"] = (logp - 0.2 * (offset + normal(rows))).float()
        batch["advantages"] = torch.where(uniform() < 0.1, torch.tensor(0.0), normal(rows).float())
    if "dpo" in kinds:
        batch["ref_logprobs"] = (logp + 0.5 * normal(rows)).float()
        batch["pairs"] = torch.tensor([[s, (s + 1) % segments] for s in range(0, segments, 2)])
    return batch


def stored(batch, children, by_ids):
    """The tensors of a file: names that the spec's losses do not use stay out."""
    tensors = {k: v for k, v in batch.items() if k not in ("segments", "num_segments")}
    if any(child.by_segment for child in children):
        tensors["segment_ids"] = batch["segments"].to(torch.int32 if by_ids else torch.int64)
        tensors["num_segments"] = torch.tensor(batch["num_segments"])
    return tensors


# --- running ----------------------------------------------------------------------------------------------------------


def half_ulp(values, dtype):
    digits, low = {"fp32": (23, -126), "bf16": (7, -126), "fp16": (10, -14)}[dtype]
    exponent = torch.floor(torch.log2(values.abs().clamp(min=2.0**low)))
    return 0.5 * torch.exp2(exponent - digits)


def run_lossc(args, folder, threads=None):
    environment = dict(os.environ)
    if threads is not None:
        environment["LOSSC_NUM_THREADS"] = str(threads)
    command = [args.lossc, "run", str(folder / "spec.json"), "--in", str(folder / "batch.safetensors"), "--out",
               str(folder / "result.safetensors"), "--device", args.device]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return load(folder / "result.safetensors")


def compare(name, got, right, bound, dtype, failures):
    error = (got.double() - right).abs()
    allowed = bound + half_ulp(right.abs() + bound, dtype) + TINY
    wrong = ~(error <= allowed)
    if wrong.any():
        where = tuple(wrong.nonzero()[0].tolist())
        failures.append(f"{name}{list(where)}: got {got[where].item():.9g}, PyTorch {right[where].item():.9g}, "
                        f"allowed {allowed[where].item():.2g}; {int(wrong.sum())} of {wrong.numel()} differ")
    return (error / allowed).max().item() if error.numel() else 0.0


def check(args, name, losses, dtype, gradient, teacher, vocab, rows, seed, folder):
    spec = make_spec(losses, dtype, gradient, teacher, vocab)
    for attempt in range(50):
        generator = torch.Generator().manual_seed(1000 * seed + attempt)
        batch = make_batch(spec, rows, 6, generator)
        logits = batch["logits"].double().requires_grad_()
        children = [Child(key, child, {}, batch) for key, child in losses.items()]
        values = [child.loss(logits) for child in children]
        if all(child.decided for child in children):
            break
    else:
        raise RuntimeError(f"{name}: no batch without a near tie")

    gradients = []
    for child, value in zip(children, values):
        (part,) = torch.autograd.grad(value, logits, retain_graph=True)
        value.backward(retain_graph=True)
        gradients.append(child.weight * part)
    total = sum(child.weight * value.detach() for child, value in zip(children, values))
    right = sum(gradients)
    bound = torch.zeros_like(right)
    for child, part in zip(children, gradients):
        bound[child.rows] += child.bound(part / child.weight if child.weight else part) * child.weight
    bound += len(children) * UNIT * sum(part.abs() for part in gradients)

    save(folder / "batch.safetensors", stored(batch, children, seed % 2))
    (folder / "spec.json").write_text(json.dumps(spec))
    result = run_lossc(args, folder)
    failures = []
    worst = compare("grad_logits", result["grad_logits"], right, bound, gradient, failures)
    # A value is a mean over rows; each row's error is within a row's delta times its size.
    sizes = {}
    for child, value in zip(children, values):
        with torch.no_grad():
            x = (child.u - child.u.max(dim=1, keepdim=True).values).abs().max() if len(child.rows) else torch.tensor(0.0)
            delta = (8 + 18 * x + 2 * math.sqrt(vocab) + 2 * math.sqrt(rows)) * UNIT
            magnitude = max(float(child.value.abs().sum()) / max(len(child.value), 1), 1.0)
            if child.type == "z_loss":
                magnitude = 2 * max(magnitude, math.sqrt(magnitude) * float(child.u.abs().max()))
            if child.type == "dpo":
                magnitude *= 1 + rows * child.spec.get("beta", 0.1)
            if child.reduction in ("sum", "sequence_sum_mean"):
                magnitude *= rows
            if child.keys:
                delta = delta + 32 * UNIT * child.u.abs().max()
            if child.type == "distillation":
                magnitude *= max(1.0, child.keys.get("temperature", 1.0) ** 2)
            sizes[child.name] = delta * magnitude
        compare(f"loss.{child.name}", result[f"loss.{child.name}"], value.detach(), sizes[child.name], "fp32", failures)
    compare("loss", result["loss"], total, sum(child.weight * sizes[child.name] for child in children) + UNIT * total.abs(),
            "fp32", failures)
    counts = (batch["labels"] >= 0) & batch["mask"]
    plain = F.log_softmax(batch["logits"].double(), dim=-1)
    expected = torch.where(counts, plain.gather(1, batch["labels"].clamp(min=0)[:, None])[:, 0], torch.tensor(0.0).double())
    spread = batch["logits"].double()
    spread = (spread.max(1).values - spread.min(1).values).clamp(max=64)
    row_bound = (8 + 18 * spread + 2 * math.sqrt(vocab)) * UNIT
    compare("output.logprobs", result["output.logprobs"], expected, row_bound, "fp32", failures)
    expected = torch.where(counts, torch.logsumexp(batch["logits"].double(), 1), torch.tensor(0.0).double())
    compare("output.lse", result["output.lse"], expected, row_bound, "fp32", failures)

    uncounted = torch.ones(rows, dtype=torch.bool)
    for child in children:
        uncounted[child.rows] = False
    if (result["grad_logits"][uncounted] != 0).any():
        failures.append("grad_logits: a row that does not count has a gradient")
    return failures, worst


def check_threads(args, folder):
    """The last batch of `folder` with other numbers of threads: the same bytes."""
    results = []
    for threads in (1, 2, 3, 7):
        run_lossc(args, folder, threads)
        results.append((folder / "result.safetensors").read_bytes())
    return ["results differ between numbers of threads"] if any(r != results[0] for r in results) else []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lossc", required=True, help="the lossc command")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--case", help="only this case")
    args = parser.parse_args()
    args.lossc = str(pathlib.Path(args.lossc).resolve())
    shapes = [("fp32", "fp32", "fp32", 13, 24), ("bf16", "bf16", "bf16", 701, 40), ("fp16", "fp32", "bf16", 4099, 24),
              ("fp32", "bf16", "fp16", 256, 33), ("bf16", "fp32", "fp32", 32003, 20)]
    failed = passed = seed = 0
    worst = 0.0
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for name, losses in CASES.items():
            if args.case and args.case != name:
                continue
            for dtype, gradient, teacher, vocab, rows in shapes:
                seed += 1
                label = f"{name}, {dtype} -> {gradient}, {rows} x {vocab}"
                try:
                    failures, used = check(args, name, losses, dtype, gradient, teacher, vocab, rows, seed, folder)
                    worst = max(worst, used)
                    if vocab == 701:
                        failures += check_threads(args, folder)
                except RuntimeError as error:
                    failures = [str(error)]
                failed += bool(failures)
                passed += not failures
                for line in failures:
                    print(f"FAILED {label}: {line}")
    print(f"largest gradient error: {worst:.2f} of what is allowed")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
