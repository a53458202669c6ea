"""The benchmark's losses in PyTorch, eager, with autograd: value and gradient with respect to the logits.

Prints one JSON object: seconds of the losses and of a copy of the logits (Tensor.copy_), measured in turns, and the
median ratio of the two. `lossc-bench --torch` runs this; it also runs alone.
"""
import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F

Z_WEIGHT = 1e-4
CLIP_LOW, CLIP_HIGH = 3e-4, 4e-4
SEGMENT_ROWS = 48


def cross_entropy(logits, batch):
    return F.cross_entropy(logits.float(), batch["labels"])


def z_loss(logits):
    return Z_WEIGHT * torch.logsumexp(logits.float(), -1).square().mean()


def gspo(logits, batch):
    """Clipped policy loss of each segment's mean ratio, weighted by the segment's rows."""
    logprobs = -F.cross_entropy(logits.float(), batch["labels"], reduction="none")
    segments, lengths = batch["segments"], batch["lengths"]
    difference = torch.zeros_like(lengths).index_add(0, segments, logprobs - batch["old_logprobs"])
    ratio = torch.exp(difference / lengths)
    clipped = ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH)
    advantages = batch["advantages"]
    loss = -torch.minimum(ratio * advantages, clipped * advantages)
    return (lengths * loss).sum() / logits.shape[0]


def reverse_kl(logits, batch):
    student = F.log_softmax(logits.float(), -1)
    teacher = F.log_softmax(batch["teacher"].float(), -1)
    return (student.exp() * (student - teacher)).sum(-1).mean()


LOSSES = {
    "ce+z": lambda x, batch: cross_entropy(x, batch) + z_loss(x),
    "gspo+z+ce": lambda x, batch: gspo(x, batch) + z_loss(x) + cross_entropy(x, batch),
    "distill+ce": lambda x, batch: reverse_kl(x, batch) + cross_entropy(x, batch),
}


def logprobs_and_entropy(logits, batch):
    with torch.no_grad():
        logprobs = F.log_softmax(logits.float(), -1)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        return logprobs.gather(1, batch["labels"][:, None]), entropy


def make_batch(args, dtype):
    generator = torch.Generator().manual_seed(1)

    def normal():
        values = torch.empty(args.rows, args.vocab).normal_(0, args.sigma, generator=generator)
        return values.to(dtype)

    logits = normal()
    labels = torch.randint(args.vocab, (args.rows,), generator=generator)
    segments = torch.arange(args.rows) // SEGMENT_ROWS
    lengths = torch.bincount(segments).float()
    old = -F.cross_entropy(logits.float(), labels, reduction="none")
    return {
        "logits": logits,
        "teacher": normal() if args.losses == "distill+ce" else None,
        "labels": labels,
        "segments": segments,
        "lengths": lengths,
        "advantages": torch.randn(len(lengths), generator=generator),
        "old_logprobs": old + 3e-4 * torch.randn(len(lengths), generator=generator)[segments],
    }


def seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--losses", choices=[*LOSSES, "logprobs+entropy"], default="ce+z")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--vocab", type=int, default=32768)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--sigma", type=float, default=2.0, help="standard deviation of the logits")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    batch = make_batch(args, {"fp32": torch.float32, "bf16": torch.bfloat16}[args.dtype])
    logits = batch["logits"]
    target = torch.empty_like(logits)

    def step():
        if args.losses == "logprobs+entropy":
            logprobs_and_entropy(logits, batch)
            return
        leaf = logits.detach().requires_grad_()
        LOSSES[args.losses](leaf, batch).backward()

    copied, stepped = [], []
    for round_number in range(-1, args.rounds):  # The first round warms up.
        times = seconds(lambda: target.copy_(logits)), seconds(step)
        if round_number >= 0:
            copied.append(times[0])
            stepped.append(times[1])
    print(json.dumps({
        "case": args.losses,
        "dtype": args.dtype,
        "vocab": args.vocab,
        "rows": args.rows,
        "threads": args.threads,
        "torch": torch.__version__,
        "seconds": statistics.median(stepped),
        "copy_seconds": statistics.median(copied),
        "ratio": statistics.median(loss / copy for loss, copy in zip(stepped, copied)),
    }))


if __name__ == "__main__":
    main()
