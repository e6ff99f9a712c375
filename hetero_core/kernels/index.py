"""Operator -> the modules that hold its kernels, so that a network imports only those that it needs.

The text is generated from the table of kernels (`ops_page`), and a test says when it is behind; an operator that is not in it yet is
found by importing all modules. An operator may stand in several modules, with different versions. Imports nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

INDEX = """\
activations: Celu Elu Gelu HardSigmoid HardSwish LeakyRelu Mish PRelu Relu Selu Shrink Sigmoid Softplus Softsign Swish
    ThresholdedRelu
arithmetic: BitShift Div Max Mean Min Mod Pow Sum
attention: Attention CausalConvWithState RotaryEmbedding SwiGLU
binary: Add And BitwiseAnd BitwiseOr BitwiseXor Greater GreaterOrEqual Less LessOrEqual Mul Or Sub Xor
casts: BitCast Cast CastLike
comparison: BitwiseNot Equal IsInf IsNaN Not Where
contrib_arrays: com.microsoft:CDist com.microsoft:DynamicTimeWarping com.microsoft:ExpandDims com.microsoft:GatherND
    com.microsoft:Inverse com.microsoft:Pad com.microsoft:Range com.microsoft:Trilu com.microsoft:UnfoldTensor
    com.microsoft:Unique
contrib_attention: com.microsoft:Attention com.microsoft:DecoderMaskedMultiHeadAttention com.microsoft:MultiHeadAttention
    com.microsoft:QAttention
contrib_blocks: com.microsoft:GatherBlockQuantized com.microsoft:MatMulBnb4 com.microsoft:MatMulFpQ4 com.microsoft:MatMulNBits
contrib_experts: com.microsoft:MoE com.microsoft:MoEGroupRouter com.microsoft:QMoE
contrib_fused: com.microsoft:BiasGelu com.microsoft:ConvTransposeWithDynamicPads com.microsoft:FastGelu com.microsoft:FusedConv
    com.microsoft:FusedGemm com.microsoft:FusedMatMul com.microsoft:Gelu com.microsoft:QuickGelu com.microsoft:ScaledSiLU
    com.microsoft:TransposeMatMul
contrib_grouped_attention: com.microsoft:GroupQueryAttention com.microsoft:SparseAttention
contrib_images: com.microsoft:CropAndResize com.microsoft:GridSample com.microsoft:MaxpoolWithMask
    com.microsoft:WordConvEmbedding
contrib_legacy: Affine Crop DynamicSlice ImageScaler MemcpyFromHost MemcpyToHost ParametricSoftplus Scale ScaledTanh
contrib_linear_attention: LinearAttention com.microsoft:CausalConvWithState com.microsoft:GatedDeltaNet
    com.microsoft:LinearAttention com.microsoft:LinearAttentionGate com.microsoft:VarlenCausalConvWithState
contrib_normalization: SimplifiedLayerNormalization com.microsoft:BranchwiseRMSNorm com.microsoft:EmbedLayerNormalization
    com.microsoft:EngramGate com.microsoft:GatedAdd com.microsoft:GatedRMSNorm com.microsoft:HyperConnectionPostMix
    com.microsoft:HyperConnectionPreMix com.microsoft:QEmbedLayerNormalization com.microsoft:SkipLayerNormalization
    com.microsoft:SkipSimplifiedLayerNormalization
contrib_packed_rows: com.microsoft:GatherPacked
contrib_quantized: com.microsoft:DequantizeLinear com.microsoft:QLinearAdd com.microsoft:QLinearConcat
    com.microsoft:QLinearLeakyRelu com.microsoft:QLinearMul com.microsoft:QLinearSigmoid com.microsoft:QLinearSoftmax
    com.microsoft:QLinearWhere com.microsoft:QuantizeLinear
contrib_quantized_products: com.microsoft:DynamicQuantizeMatMul com.microsoft:MatMulInteger16 com.microsoft:MatMulIntegerToFloat
    com.microsoft:QGemm
contrib_quantized_windows: com.microsoft:NhwcMaxPool com.microsoft:QLinearAveragePool com.microsoft:QLinearConv
    com.microsoft:QLinearGlobalAveragePool
contrib_recurrent: com.microsoft:AttnLSTM com.microsoft:DynamicQuantizeLSTM
contrib_rotary: com.microsoft:MRotaryEmbedding com.microsoft:RotaryEmbedding
contrib_tokens: com.microsoft:BifurcationDetector com.microsoft:MurmurHash3 com.microsoft:NGramHashMapping
    com.microsoft:NGramRepeatBlock com.microsoft:VarlenNGramHashMapping
control_flow: If Loop Scan SequenceMap
convolution: Conv ConvTranspose
convolution_special: Col2Im DeformConv MaxUnpool
flex_attention: ai.onnx.preview:FlexAttention
generation: ConstantOfShape EyeLike OneHot Range
images: ImageDecoder
indexing: Gather GatherElements GatherND
layout: Concat ConcatFromSequence DepthToSpace Dropout Expand Flatten Identity Reshape Shape Size SpaceToDepth Split Squeeze
    Tile Transpose Unsqueeze
legacy_arithmetic: Add And Div Equal Greater Less Mul Or Pow Sub Xor
linear: Einsum Gemm MatMul
losses: NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss
mathematics: Abs Acos Acosh Asin Asinh Atan Atanh Ceil Clip Cos Cosh Det Erf Exp Floor Log Neg Reciprocal Round Sign Sin Sinh
    Sqrt Tan Tanh
ml_encoders: ai.onnx.ml:CategoryMapper ai.onnx.ml:LabelEncoder ai.onnx.ml:OneHotEncoder
ml_features: ai.onnx.ml:ArrayFeatureExtractor ai.onnx.ml:Binarizer ai.onnx.ml:FeatureVectorizer ai.onnx.ml:Imputer
    ai.onnx.ml:Normalizer ai.onnx.ml:Scaler
ml_linear: ai.onnx.ml:LinearClassifier ai.onnx.ml:LinearRegressor
ml_maps: ai.onnx.ml:CastMap ai.onnx.ml:DictVectorizer ai.onnx.ml:ZipMap
ml_svm: ai.onnx.ml:SVMClassifier ai.onnx.ml:SVMRegressor
ml_tree_classifier: ai.onnx.ml:TreeEnsembleClassifier
ml_trees: ai.onnx.ml:TreeEnsemble ai.onnx.ml:TreeEnsembleRegressor
normalization: BatchNormalization GroupNormalization InstanceNormalization LRN LayerNormalization LpNormalization
    MeanVarianceNormalization RMSNormalization
padding: CenterCropPad Pad
pooling: AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool
quantization: DequantizeLinear DynamicQuantizeLinear QuantizeLinear
quantized_linear: ConvInteger MatMulInteger QLinearConv QLinearMatMul
random_numbers: Bernoulli Dropout Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike
recurrent: GRU LSTM RNN
reductions: ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare
resize: Resize Upsample
scatter: Scatter ScatterElements ScatterND TensorScatter
selection: ArgMax ArgMin NonZero TopK Unique
sequences: Optional OptionalGetElement OptionalHasElement SequenceAt SequenceConstruct SequenceEmpty SequenceErase
    SequenceInsert SequenceLength SplitToSequence
signals: BlackmanWindow DFT HammingWindow HannWindow MelWeightMatrix STFT
slicing: Compress CumProd CumSum ReverseSequence Slice Trilu
softmax: Hardmax LogSoftmax Softmax
strings: RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer
tokenizer: com.microsoft:Tokenizer
training: ai.onnx.preview.training:Adagrad ai.onnx.preview.training:Adam ai.onnx.preview.training:Momentum
vision: AffineGrid GridSample MaxRoiPool NonMaxSuppression RoiAlign
"""
"""Module, colon, its operators; those of other domains than ONNX's own as "domain:operator"; an indented line goes on."""


def map_modules() -> Mapping[tuple[str, str], tuple[str, ...]]:
    """Returns (domain, operator) -> the modules with its kernels."""
    modules: dict[tuple[str, str], tuple[str, ...]] = {}
    module = ""
    for line in INDEX.splitlines():
        if not line.startswith(" "):
            module, _, line = line.partition(": ")
        for operator in line.split():
            domain, _, op_type = operator.rpartition(":")
            modules[domain, op_type] = (*modules.get((domain, op_type), ()), module)
    return modules
