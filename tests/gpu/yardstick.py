#!/usr/bin/env python3
"""What PyTorch's element-wise operations need for the bytes of a fused loss: the yardstick of `lossc bench`.

    yardstick.py ROWSxVOCAB...

Events round one operation on bf16; before each, 512 MB are read, so that the second-level cache holds nothing of it;
two runs to warm up, then the median of 9. A loss of one pass is held against the fastest of copy_, mul(out=) and mul_;
one with a seam against a read and that. Exit status 77 where PyTorch or a GPU is missing."""

import statistics
import sys

try:
    import torch
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

REPEATS, WARM_UP = 9, 2


def time(flush, work):
    times = []
    for repeat in range(WARM_UP + REPEATS):
        flush.sum()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        if repeat >= WARM_UP:
            times.append(begin.elapsed_time(end))
    return statistics.median(times)


def main(sizes):
    if not torch.cuda.is_available():
        print("skipped: PyTorch finds no GPU")
        return 77
    flush = torch.ones(128 << 20, dtype=torch.float32, device="cuda")
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}; milliseconds")
    print("rows x vocab         copy_  mul(out=)   mul_  fastest   GB/s    read  read + fastest")
    for size in sizes:
        rows, vocab = map(int, size.split("x"))
        x = torch.randn(rows, vocab, dtype=torch.bfloat16, device="cuda")
        out = torch.empty_like(x)
        one = time(flush, lambda: out.copy_(x))
        two = time(flush, lambda: torch.mul(x, 1.0, out=out))
        three = time(flush, lambda: x.mul_(1.0))
        words = x.view(-1)[: x.numel() // 2 * 2].view(torch.int32)
        reads = [time(flush, work) for work in (lambda: words.amax(), lambda: x.amax(dim=-1), lambda: x.sum(dim=-1))]
        best, read = min(one, two, three), min(reads)
        gb_per_s = 2 * x.numel() * x.element_size() / best * 1e-6
        print(f"{rows:5} x {vocab:<7}  {one:10.4f} {two:10.4f} {three:6.4f}  {best:7.4f}  {gb_per_s:5.0f}  {read:6.4f}"
              f"  {read + best:14.4f}")
        del x, out, words
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
