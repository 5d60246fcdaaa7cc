"""Operators that a TorchScript or torch.export file may call: arithmetic on tensors and the layers of networks.

A list of what is allowed, not of what is forbidden: torch registers thousands of operators, among them some that read
and write files (`aten::from_file`, `aten::save`, `image::write_file`), start threads or talk to other machines, and
every version adds more. An operator that is missing here makes a model unreadable; one that should not be here could
make it harmful. None of these takes the name of a file, an address or a function.
"""

from __future__ import annotations

_TENSOR_ARITHMETIC = """
abs absolute acos acosh add addbmm addcdiv addcmul addmm addmv addr all amax amin aminmax any argmax argmin argsort
asin asinh atan atan2 atanh baddbmm bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift
bitwise_xor bmm bucketize cdist ceil celu clamp clamp_max clamp_min clip copysign cos cosh cosine_similarity
count_nonzero cross cummax cummin cumprod cumsum deg2rad det diff digamma dist div divide dot einsum eq equal erf erfc
erfinv exp exp2 expm1 float_power floor floor_divide fmax fmin fmod frac ge greater greater_equal gt heaviside hypot
inner inverse isclose isfinite isin isinf isnan isneginf isposinf kthvalue le lerp less less_equal lgamma log log10
log1p log2 logaddexp logaddexp2 logcumsumexp logical_and logical_not logical_or logical_xor logit logsumexp lt matmul
matrix_exp matrix_power max maximum mean median min minimum mm mode mul multiply mv nan_to_num nanmean nansum ne neg
negative norm normal not_equal outer pairwise_distance positive pow prod rad2deg reciprocal remainder renorm round rsqrt
rsub searchsorted sgn sigmoid sign signbit sin sinc sinh slogdet softmax log_softmax sort sqrt square std std_mean sub
subtract sum tan tanh tensordot topk trace true_divide trunc var var_mean vdot where xlogy
linalg_cross linalg_det linalg_inv linalg_matrix_norm linalg_multi_dot linalg_norm linalg_slogdet linalg_vector_norm
angle complex conj imag polar real resolve_conj resolve_neg view_as_complex view_as_real
fft_fft fft_fft2 fft_fftfreq fft_fftn fft_fftshift fft_ifft fft_ifft2 fft_ifftn fft_ifftshift fft_irfft fft_irfft2
fft_irfftn fft_rfft fft_rfft2 fft_rfftfreq fft_rfftn special_erf special_expit special_logit special_softmax
"""
_LAYERS = """
adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
adaptive_max_pool3d affine_grid_generator alpha_dropout avg_pool1d avg_pool2d avg_pool3d batch_norm bilinear
channel_shuffle col2im constant_pad_nd conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
convolution dropout elu embedding feature_alpha_dropout feature_dropout gelu glu grid_sampler grid_sampler_2d
grid_sampler_3d group_norm gru hardshrink hardsigmoid hardswish hardtanh im2col instance_norm layer_norm leaky_relu
linear log_sigmoid lstm max_pool1d max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d
max_pool3d_with_indices mish native_batch_norm native_channel_shuffle native_dropout native_group_norm
native_layer_norm one_hot pad pixel_shuffle pixel_unshuffle prelu reflection_pad1d reflection_pad2d reflection_pad3d
relu relu6 replication_pad1d replication_pad2d replication_pad3d rms_norm rrelu scaled_dot_product_attention selu silu
softplus softshrink threshold upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d
upsample_nearest2d upsample_nearest3d upsample_trilinear3d
__interpolate __upsample __upsample_bilinear __upsample_nearest _adaptive_avg_pool2d _adaptive_avg_pool3d
_batch_norm_impl_index _conv_depthwise2d _convolution _convolution_mode _log_softmax _native_batch_norm_legit
_native_batch_norm_legit_no_training _native_multi_head_attention _safe_softmax _scaled_dot_product_attention_math
_scaled_dot_product_flash_attention_for_cpu _softmax _transformer_encoder_layer_fwd _trilinear _upsample_bicubic2d_aa
_upsample_bilinear2d_aa
_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d _weight_norm _weight_norm_interface
"""
_SHAPES = """
adjoint alias argwhere as_strided atleast_1d atleast_2d atleast_3d block_diag broadcast_tensors broadcast_to cat chunk
clone column_stack concat concatenate contiguous copy detach diag diag_embed diagonal dstack empty empty_like
empty_permuted expand expand_as eye fill flatten flip fliplr flipud full full_like gather hstack index index_add
index_copy index_fill index_put index_select lift_fresh lift_fresh_copy linspace masked_fill masked_scatter
masked_select meshgrid moveaxis movedim narrow new_empty new_full new_ones new_zeros nonzero numpy_T ones ones_like
permute ravel repeat repeat_interleave reshape reshape_as roll rot90 row_stack scalar_tensor scatter scatter_add
scatter_reduce select select_scatter slice slice_scatter split split_with_sizes squeeze stack swapaxes swapdims t take
take_along_dim tensor_split tile transpose tril tril_indices triu triu_indices type_as unbind unflatten unfold
unsqueeze view view_as vstack zero zeros zeros_like mT mH arange
_assert_tensor_metadata _reshape_alias _to_copy _unsafe_index _unsafe_view _shape_as_tensor
expand_copy permute_copy select_copy slice_copy split_copy split_with_sizes_copy squeeze_copy t_copy transpose_copy
unbind_copy unsqueeze_copy view_copy
bernoulli rand rand_like randint randn randn_like randperm random uniform
"""
_PLAIN_VALUES = """
Bool Float FloatImplicit Int IntImplicit ScalarImplicit _assert_scalar _infer_size _list_to_tensor _local_scalar_dense
_size_if_not_equal _tensor_to_list __and__ __contains__ __derive_index __getitem__ __is__ __isnot__ __not__ __or__
__range_length __round_to_zero_floordiv __xor__ _set_item _unwrap_optional append as_tensor clear cpu cuda dense_dim
device dict element_size extend floordiv format get insert is_complex is_contiguous is_floating_point is_grad_enabled
is_nonzero is_scripting item items join keys len list numel percentFormat pop result_type reverse size
sorted startswith endswith storage_offset str stride sym_constrain_range sym_constrain_range_for_size sym_is_contiguous
sym_numel sym_size sym_storage_offset sym_stride tensor to values dim warn lower upper replace strip
_get_tracing_state get_autocast_dtype has_torch_function is_autocast_cpu_enabled is_autocast_enabled
"""
ATEN = frozenset(f"{_TENSOR_ARITHMETIC} {_LAYERS} {_SHAPES} {_PLAIN_VALUES}".split())
"""Names without namespace and overload; the in-place form of each (`relu_`) is allowed as well."""

_PRIMS = """
abs add amax amin broadcast_in_dim cat ceil clone collapse collapse_view convert_element_type cos div eq erf exp floor
full full_like ge gt iota item le log lt maximum minimum mul ne neg pow prod reciprocal reshape round rsqrt
scalar_tensor sign sin sqrt squeeze sub sum tanh transpose trunc var view_of where
"""
_INTERPRETER = """
CallFunction CallMethod Constant ConstantChunk DictConstruct GetAttr If ImplicitTensorToNum ListConstruct ListUnpack
Loop ModuleContainerIndex NumToTensor RaiseException Return SetAttr StringIndex TupleConstruct TupleIndex TupleSlice
TupleUnpack Uninitialized abs data device dtype is_cpu is_cuda is_meta is_mkldnn is_mps is_nested is_quantized
is_sparse is_xla isinstance itemsize layout max min rangelist requires_grad tolist type unchecked_cast
unchecked_unwrap_optional unwrap_optional
"""
_OTHER_NAMESPACES = {
    "prims": frozenset(_PRIMS.split()),
    "torchvision": frozenset(
        {"deform_conv2d", "nms", "ps_roi_align", "ps_roi_pool", "roi_align", "roi_pool"}
    ),
    # TorchScript's control flow, lists, calls of the file's own functions, and looks at a tensor.
    "prim": frozenset(_INTERPRETER.split()),
}
DEVICES = frozenset({"cpu", "cuda", "mps", "xpu"})
"""Kinds of device that a tensor of a model may be on."""


def allows(namespace: str, name: str) -> bool:
    """True if a model's file may call this operator; `name` has no overload."""
    if namespace == "aten":
        return name in ATEN or (name.endswith("_") and name[:-1] in ATEN)
    return name in _OTHER_NAMESPACES.get(namespace, ())
