"""What the consistency regulariser adds to a training step of a vision transformer: seconds, and as a ratio.

    python benchmarks/consistency_cost.py

Three kinds of steps in turn, so that a busy machine slows all of them: plain cross-entropy, as in FedAvg; with the
regulariser in one pass; with the regulariser in three passes. The median of each is compared with the plain one's.
"""

from statistics import median
from time import perf_counter

import torch
from torch.nn.functional import cross_entropy

from medpfl.algorithms.vit_heads.consistency import _three_passes, consistency_term, sub_network_logits
from medpfl.core.declarations import Heads
from medpfl.models import build_model, logits

CASES = (("vit-tiny", 28, (32,)), ("vit-tiny", 64, (32,)), ("vit-tiny", 64, (4, 8)), ("vit-small", 224, (8,)))
"""Model, edge length of the images, and the batch: images, or bags of so many slices for attention pooling."""


def steps(name: str, size: int, batch: tuple[int, ...], repeats: int) -> dict[str, float]:
    """Median seconds of each kind of step."""
    torch.manual_seed(0)
    pooling = "attention" if len(batch) == 2 else "mean"
    model = build_model(name, in_channels=1, num_classes=11, image_size=size, pooling=pooling)
    heads = Heads(0.6).counts(model)
    personal = {path: count for path, (count, _) in heads.items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, foreach=True)
    x, y = torch.randn(*batch, 1, size, size), torch.randint(0, 11, batch[:1])
    one_pass = sub_network_logits(model, heads)
    kinds = {
        "plain": lambda: (logits(model(x)), None, None),
        "one pass": lambda: one_pass(x),
        "three passes": lambda: _three_passes(model, personal, x),
    }
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for repeat in range(repeats + 2):
        for kind, forward in kinds.items():
            started = perf_counter()
            optimizer.zero_grad()
            whole, shared, own = forward()
            loss = cross_entropy(whole, y)
            (loss if shared is None else loss + consistency_term(shared, own, 4.0)).backward()
            optimizer.step()
            if repeat >= 2:  # the first steps warm caches
                seconds[kind].append(perf_counter() - started)
    return {kind: median(values) for kind, values in seconds.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("| model | pixels | batch | plain step | with the regulariser | ratio | in three passes | ratio |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, size, batch in CASES:
        s = steps(name, size, batch, repeats=5 if name == "vit-small" else 30)
        plain, one, three = s["plain"], s["one pass"], s["three passes"]
        print(
            f"| {name} | {size} | {' x '.join(map(str, batch))} | {1e3 * plain:.0f} ms | {1e3 * one:.0f} ms | "
            f"{one / plain:.2f} | {1e3 * three:.0f} ms | {three / plain:.2f} |"
        )
