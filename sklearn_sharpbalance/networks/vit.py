"""Vision transformer."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from sklearn_sharpbalance._validation import (
    FROM_0_BELOW_1,
    POSITIVE_INTEGER,
    check_numbers,
)
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["VisionTransformer"]


class Tokens(nn.Module):
    """A class token and one token per patch, with their position embeddings."""

    def __init__(self, image_size, patch_size, in_channels, dim):
        super().__init__()
        self.image_size = image_size
        n_patches = (image_size // patch_size) ** 2
        self.patches = nn.Conv2d(in_channels, dim, patch_size, stride=patch_size)
        self.class_token = nn.Parameter(torch.empty(1, 1, dim))
        self.position = nn.Parameter(torch.empty(1, n_patches + 1, dim))
        self.reset_parameters()

    def reset_parameters(self):
        """Initialise the class token and the position embeddings."""
        nn.init.zeros_(self.class_token)
        nn.init.trunc_normal_(self.position, std=0.02)

    def forward(self, x):
        """(N, in_channels, S, S) -> (N, T, dim)."""
        if tuple(x.shape[2:]) != (self.image_size, self.image_size):
            # Some other sizes would give a result, but from wrong patches.
            raise InvalidInputError(
                f"The network takes images of {self.image_size} x "
                f"{self.image_size} pixels (image_size), got {x.shape[2]} x "
                f"{x.shape[3]}. Resize them, or change image_size."
            )
        patches = self.patches(x).flatten(2).transpose(1, 2)  # (N, T - 1, dim)
        # Not len(x): torch.export would treat the batch size as a constant.
        first = self.class_token.expand(x.shape[0], -1, -1)  # (N, 1, dim)
        return torch.cat([first, patches], dim=1) + self.position


class SelfAttention(nn.Module):
    """Multi-head self-attention; one linear layer computes query, key and value."""

    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        """(N, T, dim) -> (N, T, dim)."""
        n, t, dim = x.shape
        qkv = self.qkv(x).reshape(n, t, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (N, heads, T, dim / heads)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        return self.out(mixed.transpose(1, 2).reshape(n, t, dim))


class TransformerBlock(nn.Module):
    """Attention and a perceptron, each with a norm layer before it and a shortcut."""

    def __init__(self, dim, heads, mlp_ratio, dropout):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attention = SelfAttention(dim, heads, dropout)
        self.drop = nn.Dropout(dropout)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        width = int(mlp_ratio * dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, width),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(width, dim),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        """(N, T, dim) -> (N, T, dim)."""
        x = x + self.drop(self.attention(self.norm1(x)))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """Vision transformer with a class token; returns logits.

    The default size is that of ViT-Tiny; ViT-T/16 for ImageNet has ``image_size=224``
    and ``patch_size=16``.

    Parameters
    ----------
    image_size : int, default=32
        Height and width of an image.
    patch_size : int, default=4
        Height and width of a patch; divides ``image_size``.
    in_channels : int, default=3
        Channels of an image.
    n_classes : int, default=10
        Number of logits.
    dim : int, default=192
        Length of a token; a multiple of ``heads``.
    depth : int, default=12
        Number of blocks.
    heads : int, default=3
        Attention heads of a block.
    mlp_ratio : float, default=4.0
        Width of a block's perceptron, in multiples of ``dim``.
    dropout : float, default=0.0
        Dropout after the tokens, in attention and in the perceptrons.

    References
    ----------
    .. [1] A. Dosovitskiy et al. (2021). An image is worth 16x16 words: transformers
       for image recognition at scale. ICLR.

    Examples
    --------
    >>> net = VisionTransformer(image_size=8, patch_size=4, dim=12, depth=1)
    >>> net(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        image_size=32,
        patch_size=4,
        in_channels=3,
        n_classes=10,
        dim=192,
        depth=12,
        heads=3,
        mlp_ratio=4.0,
        dropout=0.0,
    ):
        check_numbers(
            POSITIVE_INTEGER,
            image_size=image_size,
            patch_size=patch_size,
            in_channels=in_channels,
            n_classes=n_classes,
            dim=dim,
            depth=depth,
            heads=heads,
        )
        check_numbers(FROM_0_BELOW_1, dropout=dropout)
        _check_sizes(image_size, patch_size, dim=dim, heads=heads)
        if not 1 <= mlp_ratio * dim < math.inf:
            raise InvalidInputError(
                f"mlp_ratio * dim must be at least 1, got mlp_ratio={mlp_ratio!r} and "
                f"dim={dim}: it is the width of a block's perceptron."
            )
        super().__init__()
        self.tokens = Tokens(image_size, patch_size, in_channels, dim)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(
            *(TransformerBlock(dim, heads, mlp_ratio, dropout) for _ in range(depth))
        )
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, n_classes)
        self.apply(_init_linear)

    def forward(self, x):
        """Return logits (N, n_classes) of images ``x`` (N, in_channels, H, W)."""
        tokens = self.norm(self.blocks(self.drop(self.tokens(x))))  # (N, T, dim)
        return self.head(tokens[:, 0])


def _check_sizes(image_size: int, patch_size: int, dim: int, heads: int) -> None:
    if image_size % patch_size:
        raise InvalidInputError(
            f"patch_size must divide image_size, got patch_size={patch_size} and "
            f"image_size={image_size}."
        )
    if dim % heads:
        raise InvalidInputError(
            f"heads must divide dim, got heads={heads} and dim={dim}."
        )


def _init_linear(layer: nn.Module) -> None:
    if isinstance(layer, nn.Linear):
        nn.init.trunc_normal_(layer.weight, std=0.02)
        nn.init.zeros_(layer.bias)
