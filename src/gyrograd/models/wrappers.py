"""Models around models: normalisation, probability and zero-shot heads, and a check that an output is logits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gyrograd.errors import UserError, check_name
from gyrograd.models.specs import attach_spec, spec_of
from gyrograd.numerics.checks import check_logits, shape_advice
from gyrograd.types import Inputs, Logits

NORMALIZATIONS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "efficientnet_lite": ((127 / 255,) * 3, (128 / 255,) * 3),
}
"""Channel means and standard deviations of pixels in [0, 1]; cifar10 are joo2023's, efficientnet_lite is the
(x - 127) / 128 of bytes that these nets were trained with."""


Statistics = Sequence[Sequence[float | int]]
"""A pair: mean and standard deviation, one number per channel."""


def find_statistics(normalize: str | Statistics | None) -> Statistics | None:
    """The statistics of that name (`NORMALIZATIONS`), or those given."""
    if normalize is None:
        return None
    if isinstance(normalize, str):
        check_name("normalisation", normalize, NORMALIZATIONS)
        return NORMALIZATIONS[normalize]
    if len(normalize) != 2:
        raise UserError(f"normalize is {normalize}; give a name, such as 'imagenet', or a pair (mean, std).")
    return normalize


class Normalized(nn.Module):
    """A model of images in [0, 1]: subtracts the channel means, divides by the deviations, runs the core."""

    mean: Tensor
    std: Tensor

    def __init__(self, core: nn.Module, mean: Sequence[float | int], std: Sequence[float | int]) -> None:
        super().__init__()
        if len(mean) != len(std) or not mean:
            raise UserError(
                f"mean has {len(mean)} numbers and std {len(std)}; give both one number for each channel."
            )
        if not all(math.isfinite(m) for m in mean):
            raise UserError(f"mean is {list(mean)}; give finite numbers.")
        if not all(math.isfinite(s) and s > 0 for s in std):
            raise UserError(f"std is {list(std)}; give finite numbers above 0.")
        self.core = core
        # Settings, not weights: the spec holds them, so they stay out of the state dict.
        self.register_buffer("mean", torch.tensor([float(m) for m in mean]), persistent=False)
        self.register_buffer("std", torch.tensor([float(s) for s in std]), persistent=False)
        spec = spec_of(core)
        attach_spec(self, spec and spec.wrapped("normalized", mean=list(mean), std=list(std)))

    def forward(self, x: Inputs) -> Logits:
        if x.ndim < 2 or x.shape[1] != len(self.mean):
            advice = shape_advice(x) or "give mean and std one number for each channel of b c h w images"
            raise UserError(
                f"The normalisation has {len(self.mean)} channels and the input is {tuple(x.shape)}; {advice}."
            )
        # In the precision of x, which is the core's: if only the core was converted to half, these two are single.
        mean, std = (t.to(x.dtype).reshape(1, -1, *(1 for _ in x.shape[2:])) for t in (self.mean, self.std))
        logits: Logits = self.core((x - mean) / std)
        return logits


class Standardized(nn.Module):
    """A model of standardised features, u = (x - mean) / std: runs the core at mean + std u.

    Noise, attack radii and maps are then in standard deviations of each feature, which is how features of different
    units are compared. A feature that never varies has std 0: nothing moves it, and its map is zero.

    >>> import torch, gyrograd as gg
    >>> from gyrograd.models import Standardized
    >>> x = torch.randn(50, 4) * torch.tensor([1.0, 10.0, 100.0, 0.0])
    >>> model, u = Standardized.of(torch.nn.Linear(4, 3), x)
    >>> gg.attack("top_k", eps=0.1, k=1, steps=3)(model, gg.attribution("gradient"), u, 0).linf.max() <= 0.1 + 1e-6
    tensor(True)
    """

    mean: Tensor
    std: Tensor

    def __init__(self, core: nn.Module, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        if mean.shape != std.shape or not bool(mean.isfinite().all()) or not bool((std >= 0).all()):
            raise UserError(
                "mean or std is not finite, they differ in shape, or a std is below 0; give finite ones, in one shape."
            )
        self.core = core
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)
        self.train(core.training)

    @classmethod
    def of(cls, core: nn.Module, x: Inputs) -> tuple[Standardized, Inputs]:
        """The model with the statistics of these examples, and the standardised examples.

        Statistics are per feature of a table, and per channel of series and volumes (`b c *shape`).
        """
        axes = [axis for axis in range(x.ndim) if axis != 1]
        mean = x.double().mean(axes, keepdim=True)
        std = (x.double() - mean).square().mean(axes, keepdim=True).sqrt()
        std = torch.where(std > 1e-12 * mean.abs(), std, 0.0)  # rounding alone
        u = torch.where(std > 0, (x.double() - mean) / torch.where(std > 0, std, 1.0), 0.0)
        return cls(core, mean.to(x.dtype), std.to(x.dtype)), u.to(x.dtype)

    def forward(self, u: Inputs) -> Logits:
        logits: Logits = self.core(self.mean.to(u.dtype) + self.std.to(u.dtype) * u)
        return logits


class InShape(nn.Module):
    """A model of inputs `b *shape` as a model of images with one row, one channel and a pixel per feature."""

    takes_images = False

    def __init__(self, core: nn.Module, shape: Sequence[int]) -> None:
        super().__init__()
        self.core = core
        self.shape = tuple(shape)
        self.train(core.training)

    def forward(self, x: Inputs) -> Logits:
        logits: Logits = self.core(x.reshape(len(x), *self.shape))
        return logits


class Probability(nn.Module):
    """The core followed by softmax, for explaining a probability instead of a logit."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core = core
        spec = spec_of(core)
        attach_spec(self, spec and spec.wrapped("probability"))

    def forward(self, x: Inputs) -> Logits:
        logits: Logits = self.core(x)
        return logits.softmax(dim=1)


class ZeroShot(nn.Module):
    """A zero-shot classifier, as CLIP is used: an image encoder and one text embedding per class.

    A logit is `scale` times the cosine between the image's features and the embedding of a class. `encoder` is a module
    that returns features `b d` (or an object that has them as `image_embeds` or `pooler_output`), or a whole CLIP with
    `encode_image` (open_clip) or `get_image_features` (transformers). The embeddings are constants, `k d`, made once
    with the text encoder; their lengths do not matter.

    >>> import torch, gyrograd as gg
    >>> from gyrograd.models import ZeroShot
    >>> encoder = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 16))
    >>> model = ZeroShot(encoder, torch.randn(5, 16)).eval()
    >>> gg.attribution("lrp")(model, torch.rand(2, 3, 8, 8), 0).shape
    torch.Size([2, 3, 8, 8])
    """

    embeddings: Tensor

    def __init__(self, encoder: nn.Module, embeddings: Tensor, scale: float = 100.0) -> None:
        super().__init__()
        if embeddings.ndim != 2 or not embeddings.is_floating_point() or len(embeddings) < 2:
            raise UserError(
                f"The text embeddings have shape {tuple(embeddings.shape)}; give one row of numbers for each class, "
                "k x d."
            )
        if not math.isfinite(scale) or scale <= 0:
            raise UserError(f"scale is {scale}; give the factor of the logits, such as 100.")
        self.core = encoder
        self.scale = scale
        lengths = embeddings.detach().norm(dim=1, keepdim=True)
        if not bool((lengths > 0).all()) or not bool(lengths.isfinite().all()):
            raise UserError("A text embedding is zero or not finite; encode the prompts of each class again.")
        self.register_buffer("embeddings", embeddings.detach() / lengths)

    def forward(self, x: Inputs) -> Logits:
        features = self._features(x)
        if features.shape != (len(x), self.embeddings.shape[1]):
            raise UserError(
                f"The encoder returned features of shape {tuple(features.shape)} for {len(x)} images and the text "
                f"embeddings have {self.embeddings.shape[1]} numbers; use the projection that both share."
            )
        return self.scale * F.linear(F.normalize(features, dim=-1), self.embeddings.to(features.dtype))

    def extra_repr(self) -> str:
        return f"scale={self.scale}"

    def _features(self, x: Inputs) -> Tensor:
        encode = self.core
        for name in ("encode_image", "get_image_features"):
            encode = getattr(self.core, name, encode)
        out = encode(x)
        for name in ("image_embeds", "pooler_output"):
            if not isinstance(out, Tensor) and isinstance(getattr(out, name, None), Tensor):
                out = getattr(out, name)
        if not isinstance(out, Tensor):
            raise UserError(
                f"The encoder returned a {type(out).__name__}; give one that returns its features, b x d."
            )
        return out


def logits_of(model: nn.Module, x: Inputs) -> Logits:
    """`model(x)`, which must be one row of finite numbers per input.

    Reading the values waits for an accelerator: for the start of a run, not for inner loops.
    """
    out = check_logits(model(x), x)
    if not out.isfinite().all():
        raise UserError(
            "The model returned NaN or infinite logits; check its weights and that the images are in [0, 1]."
        )
    return out
