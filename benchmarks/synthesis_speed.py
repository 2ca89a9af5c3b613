"""Seconds of one federated impression: 160 images of 32x32, 5 ADMM iterations of 10 steps, the paper's network.

    python benchmarks/synthesis_speed.py

Also the share of the arithmetic limit that it reaches: the multiplications of all passes at the speed of a large matrix
product on the same machine.
"""

from statistics import median
from time import perf_counter

import torch
from torch.utils.flop_counter import FlopCounterMode

from medpfl.algorithms.fedimpres.settings import ImpressionSettings
from medpfl.algorithms.fedimpres.synthesis import synthesise
from medpfl.models import build_model

REPEATS = 3


def main() -> None:
    """Measures and prints."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build_model("impression-cnn", in_channels=3, num_classes=8, image_size=32).to(device)
    model(torch.randn(32, 3, 32, 32, device=device))  # running statistics
    start = torch.randn(160, 3, 32, 32)
    synthesise(model, start[:16], ImpressionSettings(admm_iterations=1, inner_steps=1))  # warms up
    seconds = []
    for _ in range(REPEATS):
        began = perf_counter()
        synthesise(model, start, ImpressionSettings())
        seconds.append(perf_counter() - began)
    with FlopCounterMode(display=False) as counter:
        synthesise(model, start, ImpressionSettings())
    flop = counter.get_total_flops()
    speed = _matrix_speed(device)
    each = ", ".join(f"{s:.1f}" for s in seconds)
    print(f"{device}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"one impression: {median(seconds):.1f} s (each: {each})")
    print(
        f"{flop / 1e12:.2f} TFLOP; at {speed / 1e9:.0f} GFLOP/s of a large matrix product {flop / speed:.1f} s: "
        f"{flop / speed / median(seconds):.0%} of the limit reached"
    )


def _matrix_speed(device: torch.device) -> float:
    a, b = torch.randn(2048, 2048, device=device), torch.randn(2048, 2048, device=device)
    best = float("inf")
    for _ in range(8):
        began = perf_counter()
        (a @ b).sum().item()
        best = min(best, perf_counter() - began)
    return 2 * 2048**3 / best


if __name__ == "__main__":
    main()
