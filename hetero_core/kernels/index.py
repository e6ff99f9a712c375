"""Operator -> the modules that hold its kernels, so that a network imports only those that it needs.

The text is generated from the table of kernels (`ops_page`), and a test says when it is behind; an operator that is not in it yet is
found by importing all modules. An operator may stand in several modules, with different versions. Imports nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

INDEX = """\
attention: Attention CausalConvWithState LinearAttention RotaryEmbedding SwiGLU ai.onnx.preview:FlexAttention
    com.microsoft:Attention com.microsoft:CausalConvWithState com.microsoft:DecoderMaskedMultiHeadAttention
    com.microsoft:GatedDeltaNet com.microsoft:GroupQueryAttention com.microsoft:LinearAttention
    com.microsoft:LinearAttentionGate com.microsoft:MRotaryEmbedding com.microsoft:MultiHeadAttention com.microsoft:QAttention
    com.microsoft:RotaryEmbedding com.microsoft:SparseAttention com.microsoft:VarlenCausalConvWithState
casts: BitCast Cast CastLike
control_flow: If Loop Scan SequenceMap
convolution: AveragePool Conv ConvTranspose GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool
elementwise: Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Ceil Celu Clip Cos
    Cosh Det Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish IsInf IsNaN LeakyRelu Less
    LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh
    Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor
fused: com.microsoft:BiasGelu com.microsoft:ConvTransposeWithDynamicPads com.microsoft:FastGelu com.microsoft:FusedConv
    com.microsoft:FusedGemm com.microsoft:FusedMatMul com.microsoft:Gelu com.microsoft:MoE com.microsoft:MoEGroupRouter
    com.microsoft:QMoE com.microsoft:QuickGelu com.microsoft:ScaledSiLU com.microsoft:TransposeMatMul
indexing: Affine ArgMax ArgMin Crop DynamicSlice Gather GatherElements GatherND ImageScaler MemcpyFromHost MemcpyToHost NonZero
    ParametricSoftplus Scale ScaledTanh Scatter ScatterElements ScatterND TensorScatter TopK Unique com.microsoft:CDist
    com.microsoft:DynamicTimeWarping com.microsoft:ExpandDims com.microsoft:GatherND com.microsoft:Inverse com.microsoft:Pad
    com.microsoft:Range com.microsoft:Trilu com.microsoft:UnfoldTensor com.microsoft:Unique
layout: CenterCropPad Compress Concat ConcatFromSequence ConstantOfShape CumProd CumSum DepthToSpace Dropout Expand EyeLike
    Flatten Identity OneHot Optional OptionalGetElement OptionalHasElement Pad Range Reshape ReverseSequence SequenceAt
    SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength Shape Size Slice SpaceToDepth Split
    SplitToSequence Squeeze Tile Transpose Trilu Unsqueeze
linear: Einsum Gemm MatMul
ml_features: ai.onnx.ml:ArrayFeatureExtractor ai.onnx.ml:Binarizer ai.onnx.ml:CastMap ai.onnx.ml:CategoryMapper
    ai.onnx.ml:DictVectorizer ai.onnx.ml:FeatureVectorizer ai.onnx.ml:Imputer ai.onnx.ml:LabelEncoder ai.onnx.ml:Normalizer
    ai.onnx.ml:OneHotEncoder ai.onnx.ml:Scaler ai.onnx.ml:ZipMap
ml_models: ai.onnx.ml:LinearClassifier ai.onnx.ml:LinearRegressor ai.onnx.ml:SVMClassifier ai.onnx.ml:SVMRegressor
ml_trees: ai.onnx.ml:TreeEnsemble ai.onnx.ml:TreeEnsembleClassifier ai.onnx.ml:TreeEnsembleRegressor
normalization: BatchNormalization GroupNormalization InstanceNormalization LRN LayerNormalization LpNormalization
    MeanVarianceNormalization RMSNormalization SimplifiedLayerNormalization com.microsoft:BranchwiseRMSNorm
    com.microsoft:EmbedLayerNormalization com.microsoft:EngramGate com.microsoft:GatedAdd com.microsoft:GatedRMSNorm
    com.microsoft:HyperConnectionPostMix com.microsoft:HyperConnectionPreMix com.microsoft:QEmbedLayerNormalization
    com.microsoft:SkipLayerNormalization com.microsoft:SkipSimplifiedLayerNormalization
quantization: ConvInteger DequantizeLinear DynamicQuantizeLinear MatMulInteger QLinearConv QLinearMatMul QuantizeLinear
    com.microsoft:DequantizeLinear com.microsoft:DynamicQuantizeMatMul com.microsoft:GatherBlockQuantized
    com.microsoft:GatherPacked com.microsoft:MatMulBnb4 com.microsoft:MatMulFpQ4 com.microsoft:MatMulInteger16
    com.microsoft:MatMulIntegerToFloat com.microsoft:MatMulNBits com.microsoft:NhwcMaxPool com.microsoft:QGemm
    com.microsoft:QLinearAdd com.microsoft:QLinearAveragePool com.microsoft:QLinearConcat com.microsoft:QLinearConv
    com.microsoft:QLinearGlobalAveragePool com.microsoft:QLinearLeakyRelu com.microsoft:QLinearMul com.microsoft:QLinearSigmoid
    com.microsoft:QLinearSoftmax com.microsoft:QLinearWhere com.microsoft:QuantizeLinear
random_numbers: Bernoulli Dropout Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike
recurrent: GRU LSTM RNN com.microsoft:AttnLSTM com.microsoft:DynamicQuantizeLSTM
reductions: Hardmax LogSoftmax NegativeLogLikelihoodLoss ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean
    ReduceMin ReduceProd ReduceSum ReduceSumSquare Softmax SoftmaxCrossEntropyLoss
resize: Resize Upsample
signals: BlackmanWindow DFT HammingWindow HannWindow MelWeightMatrix STFT
texts: RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer com.microsoft:BifurcationDetector
    com.microsoft:MurmurHash3 com.microsoft:NGramHashMapping com.microsoft:NGramRepeatBlock com.microsoft:Tokenizer
    com.microsoft:VarlenNGramHashMapping
training: ai.onnx.preview.training:Adagrad ai.onnx.preview.training:Adam ai.onnx.preview.training:Momentum
vision: AffineGrid Col2Im DeformConv GridSample ImageDecoder MaxRoiPool MaxUnpool NonMaxSuppression RoiAlign
    com.microsoft:CropAndResize com.microsoft:GridSample com.microsoft:MaxpoolWithMask com.microsoft:WordConvEmbedding
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
