"""Large operations as the small ones they consist of, so that a record holds only operations with a rule.

The values are the same up to rounding. Fused attention has no second derivative; products and a softmax do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload

from gyrograd.errors import UserError


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """F.scaled_dot_product_attention."""
    if enable_gqa:
        key, value = (part.repeat_interleave(query.size(-3) // part.size(-3), -3) for part in (key, value))
    if is_causal:
        attn_mask = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool, device=query.device).tril()
    scale = query.size(-1) ** -0.5 if scale is None else scale
    return _weights(query * scale, key, attn_mask, dropout_p) @ value


def _weights(query: Tensor, key: Tensor, mask: Tensor | None, dropout_p: float) -> Tensor:
    scores = query @ key.transpose(-2, -1)
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, float("-inf"))
    elif mask is not None:
        scores = scores + mask
    weights = scores.softmax(-1)
    # As in torch, a chance above 0 drops in evaluation, too; models set it to 0 there.
    return F.dropout(weights, dropout_p) if dropout_p else weights


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,  # noqa: ARG001 - torch's parameters, in torch's order
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,  # noqa: ARG001 - a hint beside attn_mask
) -> tuple[Tensor, Tensor | None]:
    """F.multi_head_attention_forward, on sequences l x b x d as there."""
    if query.dim() != 3 or add_zero_attn or any(t is not None for t in (bias_k, bias_v, static_k, static_v)):
        raise UserError(
            "The model calls nn.MultiheadAttention without a batch axis, with extra keys (add_bias_kv, add_zero_attn) "
            "or with given keys (static_k), for which there is no rule; use a gradient method, such as 'smoothgrad'."
        )

    def heads(tokens: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        assert weight is not None
        projected = F.linear(tokens, weight, bias)
        return projected.reshape(*projected.shape[:2], num_heads, -1).permute(1, 2, 0, 3)

    parts: tuple[Tensor | None, ...] = (q_proj_weight, k_proj_weight, v_proj_weight)
    if in_proj_weight is not None and not use_separate_proj_weight:
        parts = in_proj_weight.chunk(3)
    biases = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
    q, k, v = map(heads, (query, key, value), parts, biases)
    mask = attn_mask
    if mask is not None and mask.dim() == 3:
        # torch takes one mask per image and head along one axis, b * heads.
        mask = mask.reshape(-1, num_heads, *mask.shape[1:])
    if key_padding_mask is not None:
        # torch has converted boolean masks to numbers before it calls this
        padding = key_padding_mask[:, None, None, :]
        mask = padding if mask is None else mask + padding
    weights = _weights(q * q.size(-1) ** -0.5, k, mask, dropout_p if training else 0.0)
    out = F.linear((weights @ v).permute(2, 0, 1, 3).flatten(2), out_proj_weight, out_proj_bias)
    if not need_weights:
        return out, None
    return out, weights.mean(1) if average_attn_weights else weights


def _addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float | int = 1) -> Tensor:
    # A multiplication by 1 would be one more recorded operation.
    return input + (tensor1 * tensor2 if value == 1 else value * tensor1 * tensor2)


def _addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float | int = 1, alpha: float | int = 1
) -> Tensor:
    product = mat1 @ mat2
    return (input if beta == 1 else beta * input) + (product if alpha == 1 else alpha * product)


def _glu(input: Tensor, dim: int = -1) -> Tensor:
    signal, gate = input.chunk(2, dim)
    return signal * gate.sigmoid()


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    F.scaled_dot_product_attention: attention,
    F.multi_head_attention_forward: multi_head_attention,
    F.glu: _glu,
    **dict.fromkeys((torch.addcmul, Tensor.addcmul), _addcmul),
    **dict.fromkeys((torch.addmm, Tensor.addmm, torch.baddbmm, Tensor.baddbmm), _addmm),
}
"""For a function of torch, the one that does the same in steps."""


# Models saved with torch.export call aten operators; each is replaced by the function of torch it comes from.

Called = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def as_torch_function(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Called:
    """The function of torch with its arguments, or the operator itself if there is none."""
    name = operator._opname
    if name in _OTHER_ARGUMENTS:
        function, arranged = _OTHER_ARGUMENTS[name](*args, **kwargs)
        return function, arranged, {}
    # F first: `rules.arguments` reads arguments in the order of F.
    for home in (F, torch, Tensor):
        if hasattr(home, name):
            return getattr(home, name), args, kwargs
    # hardswish_ and silu_ are operators of aten only; F has them as an argument.
    if name.endswith("_") and hasattr(F, name[:-1]):
        return getattr(F, name[:-1]), args, kwargs | {"inplace": True}
    return operator, args, kwargs


def _norm(
    norm: Any, x: Any, w: Any, b: Any, mean: Any, var: Any, own: Any, momentum: Any, eps: Any, _: Any
) -> Any:
    # aten takes weight and bias before the statistics, F after them.
    return norm, (x, mean, var, w, b, own, momentum, eps)


def _convolution(
    x: Any,
    w: Any,
    b: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    more: Any,
    groups: int,
    *_: Any,
) -> Any:
    # A traced model calls this for every convolution.
    name = f"conv{'_transpose' if transposed else ''}{w.dim() - 2}d"
    given = (stride, padding, more, groups, dilation) if transposed else (stride, padding, dilation, groups)
    return getattr(F, name), (x, w, b, *given)


def _upsample(mode: str, x: Any, size: Any, *given: Any) -> Any:
    corners, *scales = (None, *given) if mode == "nearest" else given
    # One list of factors, or one factor per axis beside the size; pixels are placed by the factors, if there are any.
    factors = scales[0] if scales and isinstance(scales[0], list | tuple) else scales
    by_factor = bool(factors) and None not in factors
    return F.interpolate, (x, None if by_factor else size, factors if by_factor else None, mode, corners)


def _slice(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    return Tensor.__getitem__, (x, (slice(None),) * (dim % x.dim()) + (slice(start, end, step),))


def _index(x: Any, indices: list[Any]) -> Any:
    return Tensor.__getitem__, (x, tuple(slice(None) if index is None else index for index in indices))


_OTHER_ARGUMENTS: dict[str, Callable[..., Any]] = {
    "batch_norm": partial(_norm, F.batch_norm),
    "instance_norm": partial(_norm, F.instance_norm),
    "_convolution": _convolution,
    # Both without their sixth argument, which allows cuDNN.
    "layer_norm": lambda *args: (F.layer_norm, args[:5]),
    "group_norm": lambda *args: (F.group_norm, args[:5]),
    "softmax": lambda x, dim, dtype=None: (torch.softmax, (x, dim, dtype)),
    **{f"upsample_nearest{n}d": partial(_upsample, "nearest") for n in (1, 2, 3)},
    "upsample_linear1d": partial(_upsample, "linear"),
    "upsample_bilinear2d": partial(_upsample, "bilinear"),
    "upsample_bicubic2d": partial(_upsample, "bicubic"),
    "upsample_trilinear3d": partial(_upsample, "trilinear"),
    "slice": _slice,
    "index": _index,
    "alias": lambda x: (Tensor.clone, (x,)),
}
