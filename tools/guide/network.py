"""The llama architecture in torch, with llama.cpp's tensor names as parameter names."""

from dataclasses import dataclass

import torch  # type: ignore[import-not-found, unused-ignore]
from torch.nn import functional as F  # type: ignore[import-not-found, unused-ignore]

ROPE_BASE = 10_000.0
NORM_EPSILON = 1e-5


@dataclass(frozen=True)
class Shape:
    """The dimensions of a model."""

    vocabulary: int
    width: int = 128
    layers: int = 4
    heads: int = 4
    feed_forward: int = 384

    @property
    def head_width(self) -> int:
        return self.width // self.heads


Parameters = dict[str, torch.Tensor]


def initial_parameters(shape: Shape) -> Parameters:
    """Random weights; the embedding is also the output projection."""
    width, wide = shape.width, shape.feed_forward
    parameters = {
        "token_embd.weight": torch.randn(shape.vocabulary, width) * 0.02,
        "output_norm.weight": torch.ones(width),
    }
    for layer in range(shape.layers):
        matrices = {
            "attn_q": (width, width),
            "attn_k": (width, width),
            "attn_v": (width, width),
            "attn_output": (width, width),
            "ffn_gate": (wide, width),
            "ffn_up": (wide, width),
            "ffn_down": (width, wide),
        }
        for name, (rows, columns) in matrices.items():
            scale = columns**-0.5
            if name in ("attn_output", "ffn_down"):
                scale /= (2 * shape.layers) ** 0.5
            parameters[f"blk.{layer}.{name}.weight"] = torch.randn(rows, columns) * scale
        for name in ("attn_norm", "ffn_norm"):
            parameters[f"blk.{layer}.{name}.weight"] = torch.ones(width)
    for parameter in parameters.values():
        parameter.requires_grad_()
    return parameters


def logits(
    parameters: Parameters, shape: Shape, tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """[rows, length, vocabulary] from tokens and positions [rows, length], and an additive mask."""
    x = F.embedding(tokens, parameters["token_embd.weight"])
    turn = _rotation(shape, positions)
    for layer in range(shape.layers):
        weights = {name: parameters[f"blk.{layer}.{name}.weight"] for name in _LAYER}
        x = x + _attention(weights, shape, _norm(x, weights["attn_norm"]), turn, mask)
        x = x + _feed_forward(weights, _norm(x, weights["ffn_norm"]))
    return F.linear(_norm(x, parameters["output_norm.weight"]), parameters["token_embd.weight"])


_LAYER = (
    "attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"
)  # fmt: skip


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, weight.shape, weight, NORM_EPSILON)


def _rotation(shape: Shape, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine, each [rows, 1, length, head_width / 2]."""
    exponents = torch.arange(0, shape.head_width, 2) / shape.head_width
    angles = positions[:, None, :, None] * ROPE_BASE**-exponents
    return angles.cos(), angles.sin()


def _rotate(x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotary positions on interleaved pairs, the order in which llama.cpp's llama architecture has them."""
    cosine, sine = turn
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), dim=-1).flatten(-2)


def _attention(
    weights: Parameters,
    shape: Shape,
    x: torch.Tensor,
    turn: tuple[torch.Tensor, torch.Tensor],
    mask: torch.Tensor,
) -> torch.Tensor:
    rows, length, _ = x.shape

    def heads(name: str) -> torch.Tensor:
        return F.linear(x, weights[name]).view(rows, length, shape.heads, shape.head_width).transpose(1, 2)

    query, key = _rotate(heads("attn_q"), turn), _rotate(heads("attn_k"), turn)
    mixed = F.scaled_dot_product_attention(query, key, heads("attn_v"), attn_mask=mask)
    return F.linear(mixed.transpose(1, 2).reshape(rows, length, shape.width), weights["attn_output"])


def _feed_forward(weights: Parameters, x: torch.Tensor) -> torch.Tensor:
    gated = F.silu(F.linear(x, weights["ffn_gate"])) * F.linear(x, weights["ffn_up"])
    return F.linear(gated, weights["ffn_down"])
