"""The training loop: seeded, on two CPU threads, so that a second run gives the same weights."""

import time

import torch  # type: ignore[import-not-found, unused-ignore]
from torch.nn import functional as F  # type: ignore[import-not-found, unused-ignore]

from tools.guide.network import Parameters, Shape, initial_parameters, logits
from tools.guide.samples import Sample, Sampler

THREADS = 2  # sums are split by thread: another count gives other weights
ROWS = 6
LENGTH = 512
WARM_UP = 50
LEARNING_RATE = 4e-3
IGNORED = -100

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def train(sampler: Sampler, shape: Shape, *, steps: int, seed: int) -> Parameters:
    """Weights after `steps` steps; prints the loss as it falls."""
    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)
    parameters = initial_parameters(shape)
    optimizer = _optimizer(parameters)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps))
    started = time.monotonic()
    for step in range(1, steps + 1):
        tokens, targets, positions, mask = _batch([sampler.row(LENGTH) for _ in range(ROWS)])
        loss = F.cross_entropy(
            logits(parameters, shape, tokens, positions, mask).flatten(0, 1),
            targets.flatten(),
            ignore_index=IGNORED,
        )
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step}/{steps}  loss {loss.item():.5f}  {time.monotonic() - started:.0f} s", flush=True)
    return parameters


def _optimizer(parameters: Parameters) -> torch.optim.Optimizer:
    """AdamW with weight decay on the matrices only."""
    matrices = [parameter for parameter in parameters.values() if parameter.dim() > 1]
    norms = [parameter for parameter in parameters.values() if parameter.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": norms, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.95))


def _rate(step: int, steps: int) -> float:
    """The share of the learning rate: up over the warm-up, then down to nothing in a straight line."""
    return min((step + 1) / WARM_UP, (steps - step) / (steps - WARM_UP))


def _batch(rows: list[list[Sample]]) -> Batch:
    """Tokens, next-token targets, positions and a mask that keeps the samples of a row apart."""
    shape = (len(rows), LENGTH)
    tokens, positions = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    owners, targets = torch.zeros(shape, dtype=torch.long), torch.full(shape, IGNORED)
    for row, samples in enumerate(rows):
        start = 0
        for owner, sample in enumerate(samples, start=1):
            end = start + len(sample.tokens)
            tokens[row, start:end] = torch.tensor(sample.tokens)
            positions[row, start:end] = torch.tensor(sample.positions)
            owners[row, start:end] = owner
            following = [
                token if learned else IGNORED
                for token, learned in zip(sample.tokens[1:], sample.learned[1:], strict=True)
            ]
            targets[row, start : end - 1] = torch.tensor(following)
            start = end
    seen = (owners[:, :, None] == owners[:, None, :]) & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    mask = torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))[:, None]
    return tokens, targets, positions, mask
