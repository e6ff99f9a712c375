"""Which module of kernels has which operators, so that a network has only those imported that it needs.

An operator may stand in several modules, with different versions. Imports nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

MICROSOFT_OPERATORS: Mapping[str, str] = {
    "contrib_arrays": "CDist DynamicTimeWarping ExpandDims GatherND Inverse Pad Range Trilu UnfoldTensor Unique",
    "contrib_attention": "Attention DecoderMaskedMultiHeadAttention MultiHeadAttention QAttention",
    "contrib_blocks": "GatherBlockQuantized MatMulBnb4 MatMulFpQ4 MatMulNBits",
    "contrib_experts": "MoE MoEGroupRouter QMoE",
    "contrib_fused": (
        "BiasGelu ConvTransposeWithDynamicPads FastGelu FusedConv FusedGemm FusedMatMul Gelu QuickGelu ScaledSiLU TransposeMatMul"
    ),
    "contrib_grouped_attention": "GroupQueryAttention SparseAttention",
    "contrib_images": "CropAndResize GridSample MaxpoolWithMask WordConvEmbedding",
    "contrib_legacy": (
        "/Affine /Crop /DynamicSlice /ImageScaler /MemcpyFromHost /MemcpyToHost /ParametricSoftplus /Scale /ScaledTanh"
    ),
    "contrib_linear_attention": ("CausalConvWithState GatedDeltaNet LinearAttention LinearAttentionGate VarlenCausalConvWithState"),
    "contrib_normalization": (
        "BranchwiseRMSNorm EmbedLayerNormalization EngramGate GatedAdd GatedRMSNorm HyperConnectionPostMix HyperConnectionPreMix "
        "QEmbedLayerNormalization /SimplifiedLayerNormalization SkipLayerNormalization SkipSimplifiedLayerNormalization"
    ),
    "contrib_packed_rows": "GatherPacked",
    "contrib_quantized": (
        "DequantizeLinear QLinearAdd QLinearConcat QLinearLeakyRelu QLinearMul QLinearSigmoid QLinearSoftmax QLinearWhere "
        "QuantizeLinear"
    ),
    "contrib_quantized_products": "DynamicQuantizeMatMul MatMulInteger16 MatMulIntegerToFloat QGemm",
    "contrib_quantized_windows": "NhwcMaxPool QLinearAveragePool QLinearConv QLinearGlobalAveragePool",
    "contrib_recurrent": "AttnLSTM DynamicQuantizeLSTM",
    "contrib_rotary": "MRotaryEmbedding RotaryEmbedding",
    "contrib_tokens": "BifurcationDetector MurmurHash3 NGramHashMapping NGramRepeatBlock VarlenNGramHashMapping",
    "tokenizer": "Tokenizer",
}
"""Module -> its operators of com.microsoft, ONNX Runtime's own domain; those that stand in ONNX's have a "/" before them."""


def _in_microsoft(operators: str) -> list[str]:
    return [name.removeprefix("/") if name.startswith("/") else f"com.microsoft:{name}" for name in operators.split()]


OPERATORS_OF_MODULES: Mapping[str, str] = {
    "activations": (
        "Celu Elu Gelu HardSigmoid HardSwish LeakyRelu Mish PRelu Relu Selu Shrink Sigmoid Softplus Softsign Swish ThresholdedRelu"
    ),
    "arithmetic": "Add BitShift Div Max Mean Min Mod Mul Pow Sub Sum",
    "attention": "Attention CausalConvWithState LinearAttention RotaryEmbedding SwiGLU",
    "casts": "BitCast Cast CastLike",
    "comparison": (
        "And BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Not Or Where Xor"
    ),
    "control_flow": "If Loop Scan SequenceMap",
    "convolution": "Conv ConvTranspose",
    "convolution_special": "Col2Im DeformConv MaxUnpool",
    "flex_attention": "ai.onnx.preview:FlexAttention",
    "generation": "ConstantOfShape EyeLike OneHot Range",
    "images": "ImageDecoder",
    "indexing": "Gather GatherElements GatherND",
    "layout": (
        "Concat ConcatFromSequence DepthToSpace Dropout Expand Flatten Identity Reshape Shape Size SpaceToDepth Split Squeeze "
        "Tile Transpose Unsqueeze"
    ),
    "legacy_arithmetic": "Add And Div Equal Greater Less Mul Or Pow Sub Xor",
    "linear": "Einsum Gemm MatMul",
    "losses": "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
    "mathematics": (
        "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Clip Cos Cosh Det Erf Exp Floor Log Neg Reciprocal Round Sign Sin Sinh Sqrt "
        "Tan Tanh"
    ),
    "ml_encoders": "ai.onnx.ml:CategoryMapper ai.onnx.ml:LabelEncoder ai.onnx.ml:OneHotEncoder",
    "ml_features": (
        "ai.onnx.ml:ArrayFeatureExtractor ai.onnx.ml:Binarizer ai.onnx.ml:FeatureVectorizer ai.onnx.ml:Imputer "
        "ai.onnx.ml:Normalizer ai.onnx.ml:Scaler"
    ),
    "ml_linear": "ai.onnx.ml:LinearClassifier ai.onnx.ml:LinearRegressor",
    "ml_maps": "ai.onnx.ml:CastMap ai.onnx.ml:DictVectorizer ai.onnx.ml:ZipMap",
    "ml_svm": "ai.onnx.ml:SVMClassifier ai.onnx.ml:SVMRegressor",
    "ml_tree_classifier": "ai.onnx.ml:TreeEnsembleClassifier",
    "ml_trees": "ai.onnx.ml:TreeEnsemble ai.onnx.ml:TreeEnsembleRegressor",
    "normalization": (
        "BatchNormalization GroupNormalization InstanceNormalization LRN LayerNormalization LpNormalization "
        "MeanVarianceNormalization RMSNormalization"
    ),
    "padding": "CenterCropPad Pad",
    "pooling": "AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool",
    "quantization": "DequantizeLinear DynamicQuantizeLinear QuantizeLinear",
    "quantized_linear": "ConvInteger MatMulInteger QLinearConv QLinearMatMul",
    "random_numbers": "Bernoulli Dropout Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
    "recurrent": "GRU LSTM RNN",
    "recurrent_legacy": "GRU LSTM RNN",
    "reductions": (
        "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare"
    ),
    "resize": "Resize Upsample",
    "scatter": "Scatter ScatterElements ScatterND TensorScatter",
    "selection": "ArgMax ArgMin NonZero TopK Unique",
    "sequences": (
        "Optional OptionalGetElement OptionalHasElement SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert "
        "SequenceLength SplitToSequence"
    ),
    "signals": "BlackmanWindow DFT HammingWindow HannWindow MelWeightMatrix STFT",
    "slicing": "Compress CumProd CumSum ReverseSequence Slice Trilu",
    "softmax": "Hardmax LogSoftmax Softmax",
    "strings": "RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer",
    **{module: " ".join(_in_microsoft(operators)) for module, operators in MICROSOFT_OPERATORS.items()},
    "training": "ai.onnx.preview.training:Adagrad ai.onnx.preview.training:Adam ai.onnx.preview.training:Momentum",
    "vision": "AffineGrid GridSample MaxRoiPool NonMaxSuppression RoiAlign",
}
"""Module -> its operators, those of other domains than ONNX's own as "domain:operator"."""


def map_modules() -> Mapping[tuple[str, str], tuple[str, ...]]:
    """Returns (domain, operator) -> the modules with its kernels."""
    modules: dict[tuple[str, str], tuple[str, ...]] = {}
    for module, operators in OPERATORS_OF_MODULES.items():
        for operator in operators.split():
            domain, _, op_type = operator.rpartition(":")
            modules[domain, op_type] = (*modules.get((domain, op_type), ()), module)
    return modules
