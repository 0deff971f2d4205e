"""Allow-lists of the classes and operations that a model file may use without declaring them.

They belong to Keras, TensorFlow and PyTorch, and run no code from the file. Keras classes that do
run such code are in a separate list, `EXECUTING`. The names are listed here, so that a file can be
checked before any framework is imported. A layer or an operation of a later version is rejected
until it has been reviewed. A test compares the lists with the installed libraries.

Callers: `scan.py`.
"""

from __future__ import annotations

import re

EXECUTING = {
    "Lambda": "a Lambda layer, which contains Python code from its author",
    "__lambda__": "a lambda function, which contains Python code from its author",
    "TFSMLayer": "a TFSMLayer, which runs a SavedModel from any place on this machine",
    "TorchModuleWrapper": "a TorchModuleWrapper, which unpickles objects",
    "FlaxLayer": "a FlaxLayer, which contains objects from its author",
    "JaxLayer": "a JaxLayer, which contains functions from its author",
    "ClassMethod": "a ClassMethod layer, which calls whatever its config names",
    "InstanceMethod": "an InstanceMethod layer, which calls whatever its config names",
    "InstanceProperty": "an InstanceProperty layer, which reads whatever its config names",
}
"""Keras layers that run code from the file."""

FUNCTION_LAYERS = frozenset({"TFOpLambda", "SlicingOpLambda"})
"""Keras 2 layers that call the TensorFlow function named in their config."""

HARMLESS_FUNCTION = re.compile(
    r"__operators__\.\w+|(?:math|nn|linalg)\.\w+|cast|clip_by_value|concat|einsum|expand_dims|fill|"
    r"gather|identity|ones_like|pad|range|repeat|reshape|reverse|shape|slice|split|squeeze|stack|"
    r"strided_slice|tile|transpose|unstack|where|zeros_like|image\.(?:resize|crop_and_resize)|"
    r"compat\.v1\.(?:shape|transpose|gather|nn\.\w+)"
)
"""Functions that such a layer may call: they only compute, and take no functions or files."""

KERAS_MODULE = re.compile(r"(?:tf_)?keras(?:\.[A-Za-z0-9_]+)*")
KERAS_OPERATIONS = re.compile(r"keras\.src\.ops\.(?:numpy|nn|math|linalg|image)")
"""Keras 3 modules that contain only operations, such as the `x + y` of a model."""

FILE_ARGUMENTS = {
    "IntegerLookup": ("vocabulary", "idf_weights"),
    "StringLookup": ("vocabulary", "idf_weights"),
    "TextVectorization": ("vocabulary", "idf_weights"),
}
"""Layer arguments that may be values or the path of a file to read."""

_SPECIAL = """
__tuple__ __tensor__ __numpy__ __bytes__ __ellipsis__ __slice__ __complex__ __keras_tensor__
TensorShape TypeSpec CompositeTensor InputSpec
"""
SPECIAL = frozenset(_SPECIAL.split())
"""Names of values that Keras writes in the form of classes."""

_LAYERS = """
AbstractRNNCell Activation ActivityRegularization AdaptiveAveragePooling1D AdaptiveAveragePooling2D
AdaptiveAveragePooling3D AdaptiveMaxPooling1D AdaptiveMaxPooling2D AdaptiveMaxPooling3D Add
AdditiveAttention AlphaDropout Attention AugMix AutoContrast Average AveragePooling1D
AveragePooling2D AveragePooling3D AvgPool1D AvgPool2D AvgPool3D BatchNormalization
BatchNormalizationV1 BatchNormalizationV2 Bidirectional CategoryEncoding CenterCrop Concatenate
ContrastLimitedAdaptiveHistogramEqualization Conv1D Conv1DTranspose Conv2D Conv2DTranspose Conv3D
Conv3DTranspose ConvLSTM1D ConvLSTM2D ConvLSTM3D Convolution1D Convolution1DTranspose Convolution2D
Convolution2DTranspose Convolution3D Convolution3DTranspose Cropping1D Cropping2D Cropping3D
CuDNNGRU CuDNNLSTM CutMix Dense DenseFeatures DepthwiseConv1D DepthwiseConv2D Discretization Dot
Dropout ELU EinsumDense Embedding Equalization Flatten GRU GRUCell GaussianDropout GaussianNoise
GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D GlobalAvgPool1D
GlobalAvgPool2D GlobalAvgPool3D GlobalMaxPool1D GlobalMaxPool2D GlobalMaxPool3D GlobalMaxPooling1D
GlobalMaxPooling2D GlobalMaxPooling3D GroupNormalization GroupQueryAttention HashedCrossing Hashing
Identity InputLayer IntegerLookup LSTM LSTMCell LayerNormalization LeakyReLU LocallyConnected1D
LocallyConnected2D Masking MaxNumBoundingBoxes MaxPool1D MaxPool2D MaxPool3D MaxPooling1D
MaxPooling2D MaxPooling3D Maximum MelSpectrogram Minimum MixUp MultiHeadAttention Multiply
Normalization PReLU Permute Pipeline RMSNormalization RNN RandAugment RandomBrightness
RandomColorDegeneration RandomColorJitter RandomContrast RandomCrop RandomElasticTransform
RandomErasing RandomFlip RandomFourierFeatures RandomGaussianBlur RandomGrayscale RandomHeight
RandomHue RandomInvert RandomPerspective RandomPosterization RandomRotation RandomSaturation
RandomSharpness RandomShear RandomTranslation RandomWidth RandomZoom ReLU RepeatVector Rescaling
Reshape Resizing ReversibleEmbedding STFTSpectrogram SeparableConv1D SeparableConv2D
SeparableConvolution1D SeparableConvolution2D SimpleRNN SimpleRNNCell Softmax Solarization
SpatialDropout1D SpatialDropout2D SpatialDropout3D SpectralNormalization StackedRNNCells
StringLookup Subtract SyncBatchNormalization TextVectorization ThresholdedReLU TimeDistributed
UnitNormalization UpSampling1D UpSampling2D UpSampling3D ZeroPadding1D ZeroPadding2D ZeroPadding3D
"""
_MODELS = "Functional Model Sequential"
_OTHERS = """
Constant GlorotNormal GlorotUniform HeNormal HeUniform IdentityInitializer LecunNormal LecunUniform
Ones Orthogonal OrthogonalInitializer RandomNormal RandomUniform STFT STFTInitializer
TruncatedNormal VarianceScaling Zeros
L1 L1L2 L2 OrthogonalRegularizer
MaxNorm MinMaxNorm NonNeg RadialConstraint UnitNorm
AWQDTypePolicy DTypePolicy DTypePolicyMap FloatDTypePolicy GPTQDTypePolicy Int4DTypePolicy Policy
QuantizedDTypePolicy QuantizedFloat8DTypePolicy
CosineDecay CosineDecayRestarts ExponentialDecay InverseTimeDecay PiecewiseConstantDecay
PolynomialDecay
"""

LAYERS = frozenset(_LAYERS.split())
CLASSES = LAYERS | frozenset(_MODELS.split()) | frozenset(_OTHERS.split())
"""Keras classes that a config may name."""

_FUNCTIONS = """
celu elu exponential gelu glu hard_shrink hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu
linear log_sigmoid log_softmax mish relu relu6 selu sigmoid silu swish soft_shrink softmax softplus
softsign sparse_plus sparse_sigmoid sparsemax squareplus tanh tanh_shrink threshold constant
glorot_normal glorot_uniform he_normal he_uniform identity lecun_normal lecun_uniform ones
orthogonal random_normal random_uniform truncated_normal variance_scaling zeros l1 l1_l2 l2 max_norm
min_max_norm non_neg unit_norm
"""
FUNCTIONS = frozenset(_FUNCTIONS.split())
"""Keras functions that a config may name: activations, and weight initializers."""

# --- TensorFlow ----------------------------------------------------------------------------------

CHECKPOINT_OPERATIONS = frozenset(["MergeV2Checkpoints", "RestoreV2", "SaveV2", "ShardedFilename"])
"""Operations that write and read weight files; every SavedModel has two functions made of them."""

_OPERATIONS = """
_Arg _Retval Assert AssignAddVariableOp AssignSubVariableOp AssignVariableOp Const ControlTrigger
Enter Exit Identity IdentityN If LoopCond Merge NextIteration NoOp PartitionedCall Placeholder
PlaceholderWithDefault PreventGradient ReadVariableOp SparseToDense StatefulPartitionedCall
StatelessCase StatelessIf StatelessWhile StopGradient Switch SymbolicGradient DisableCopyOnRead
OptionalFromValue OptionalGetValue OptionalHasValue OptionalNone VarHandleOp VarIsInitializedOp
VariableShape While EmptyTensorList TensorListConcatV2 TensorListElementShape TensorListFromTensor
TensorListGather TensorListGetItem TensorListLength TensorListPopBack TensorListPushBack
TensorListReserve TensorListResize TensorListScatterV2 TensorListSetItem TensorListSplit
TensorListStack TensorArrayV3 TensorArrayCloseV3 TensorArrayConcatV3 TensorArrayGatherV3
TensorArrayGradV3 TensorArrayReadV3 TensorArrayScatterV3 TensorArraySizeV3 TensorArraySplitV3
TensorArrayWriteV3 AccumulatorNumAccumulated StackPopV2 StackPushV2 StackV2 StackCloseV2 Abs Acos
Acosh Add AddN AddV2 All Angle Any ApproximateEqual ArgMax ArgMin Asin Asinh Atan Atan2 Atanh
BatchMatMul BatchMatMulV2 BatchMatMulV3 Bincount BitwiseAnd BitwiseOr BitwiseXor Bucketize Cast Ceil
CheckNumerics CheckNumericsV2 ClipByValue Complex ComplexAbs Conj Cos Cosh Cross Cumprod Cumsum
CumulativeLogsumexp DenseBincount Digamma Div DivNoNan Einsum Equal Erf Erfc Erfinv EuclideanNorm
Exp Expm1 Floor FloorDiv FloorMod Greater GreaterEqual HistogramFixedWidth Igamma Igammac Imag Inv
Invert IsFinite IsInf IsNan LeftShift Less LessEqual Lgamma LinSpace Log Log1p LogicalAnd LogicalNot
LogicalOr MatMul Max Maximum Mean Min Minimum Mod Mul MulNoNan Ndtri Neg NextAfter NotEqual
Polygamma Pow Prod Range Real RealDiv Reciprocal RightShift Rint Round Rsqrt SegmentMax SegmentMean
SegmentMin SegmentProd SegmentSum Sigmoid Sign Sin Sinh Sqrt Square SquaredDifference Sub Sum Tan
Tanh TruncateDiv TruncateMod UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd
UnsortedSegmentSum Xdivy Xlog1py Xlogy Zeta BatchToSpace BatchToSpaceND Bitcast BroadcastArgs
BroadcastGradientArgs BroadcastTo Concat ConcatOffset ConcatV2 DeepCopy DepthToSpace Diag DiagPart
DynamicPartition DynamicStitch EditDistance Empty EnsureShape ExpandDims ExtractImagePatches Fill
Gather GatherNd GatherV2 GuaranteeConst InplaceAdd InplaceUpdate InvertPermutation ListDiff
LowerBound MatrixBandPart MatrixDiag MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 MatrixDiagV2
MatrixDiagV3 MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3 MirrorPad MirrorPadGrad OneHot OnesLike
Pack Pad PadV2 ParallelConcat ParallelDynamicStitch Rank ResourceGather ResourceGatherNd
ResourceScatterAdd ResourceScatterMax ResourceScatterMin ResourceScatterMul ResourceScatterNdAdd
ResourceScatterNdUpdate ResourceScatterSub ResourceScatterUpdate ResourceStridedSliceAssign Reshape
Reverse ReverseSequence ReverseV2 Roll ScatterNd Select SelectV2 Shape ShapeN Size Slice Snapshot
SpaceToBatch SpaceToBatchND SpaceToDepth Split SplitV Squeeze StridedSlice StridedSliceGrad
TensorScatterAdd TensorScatterMax TensorScatterMin TensorScatterSub TensorScatterUpdate
TensorStridedSliceUpdate Tile TopK TopKV2 Transpose Unique UniqueV2 UniqueWithCounts
UniqueWithCountsV2 Unpack UnravelIndex UpperBound Where ZerosLike AvgPool AvgPool3D AvgPool3DGrad
AvgPoolGrad BiasAdd BiasAddGrad BiasAddV1 Conv2D Conv2DBackpropFilter Conv2DBackpropInput Conv3D
Conv3DBackpropFilterV2 Conv3DBackpropInputV2 CudnnRNN CudnnRNNBackprop CudnnRNNBackpropV3
CudnnRNNCanonicalToParams CudnnRNNParamsSize CudnnRNNParamsToCanonical CudnnRNNV2 CudnnRNNV3
DepthwiseConv2dNative DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput
Dilation2D Dilation2DBackpropFilter Dilation2DBackpropInput Elu EluGrad FractionalAvgPool
FractionalMaxPool FusedBatchNorm FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3
FusedBatchNormV2 FusedBatchNormV3 InTopK InTopKV2 L2Loss LRN LRNGrad LeakyRelu LeakyReluGrad
LogSoftmax MaxPool MaxPool3D MaxPool3DGrad MaxPool3DGradGrad MaxPoolGrad MaxPoolGradGrad
MaxPoolGradGradV2 MaxPoolGradV2 MaxPoolGradWithArgmax MaxPoolV2 MaxPoolWithArgmax NthElement Relu
Relu6 Relu6Grad ReluGrad RsqrtGrad Selu SeluGrad SigmoidGrad Softmax SoftmaxCrossEntropyWithLogits
Softplus SoftplusGrad Softsign SoftsignGrad SparseSoftmaxCrossEntropyWithLogits SqrtGrad TanhGrad
CTCGreedyDecoder CTCLoss CTCLossV2 InvGrad ReciprocalGrad Cholesky CholeskyGrad Eig
LogMatrixDeterminant Lu MatrixDeterminant MatrixExponential MatrixInverse MatrixLogarithm
MatrixSolve MatrixSolveLs MatrixSquareRoot MatrixTriangularSolve Qr SelfAdjointEigV2 Svd
AdjustContrastv2 AdjustHue AdjustSaturation CropAndResize CropAndResizeGradBoxes
CropAndResizeGradImage ExtractGlimpse HSVToRGB ImageProjectiveTransformV2 ImageProjectiveTransformV3
NonMaxSuppressionV3 NonMaxSuppressionV4 NonMaxSuppressionV5 RGBToHSV ResizeArea ResizeBicubic
ResizeBicubicGrad ResizeBilinear ResizeBilinearGrad ResizeNearestNeighbor ResizeNearestNeighborGrad
SampleDistortedBoundingBoxV2 ScaleAndTranslate ScaleAndTranslateGrad CombinedNonMaxSuppression FFT
FFT2D FFT3D IFFT IFFT2D IFFT3D IRFFT IRFFT2D IRFFT3D RFFT RFFT2D RFFT3D Multinomial
ParameterizedTruncatedNormal RandomGamma RandomPoisson RandomPoissonV2 RandomShuffle
RandomStandardNormal RandomUniform RandomUniformInt RngReadAndSkip RngSkip StatefulRandomBinomial
StatefulStandardNormal StatefulStandardNormalV2 StatefulTruncatedNormal StatefulUniform
StatefulUniformFullInt StatefulUniformInt StatelessMultinomial StatelessRandomBinomial
StatelessRandomGammaV2 StatelessRandomGammaV3 StatelessRandomGetAlg StatelessRandomGetKeyCounter
StatelessRandomGetKeyCounterAlg StatelessRandomNormal StatelessRandomNormalV2 StatelessRandomPoisson
StatelessRandomUniform StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2
StatelessRandomUniformInt StatelessRandomUniformIntV2 StatelessRandomUniformV2 StatelessShuffle
StatelessTruncatedNormal StatelessTruncatedNormalV2 TruncatedNormal NonDeterministicInts
RaggedBincount RaggedCross RaggedGather RaggedRange RaggedTensorFromVariant RaggedTensorToSparse
RaggedTensorToTensor RaggedTensorToVariant RaggedTensorToVariantGradient SparseAdd SparseBincount
SparseConcat SparseCross SparseCrossHashed SparseCrossV2 SparseFillEmptyRows SparseFillEmptyRowsGrad
SparseReorder SparseReshape SparseSegmentMean SparseSegmentMeanGrad SparseSegmentSqrtN
SparseSegmentSqrtNGrad SparseSegmentSum SparseSegmentSumGrad SparseSlice SparseSliceGrad
SparseSoftmax SparseTensorDenseAdd SparseTensorDenseMatMul AsString DecodeBase64 EncodeBase64
HashTableV2 LookupTableExportV2 LookupTableFindV2 LookupTableImportV2 LookupTableInsertV2
LookupTableSizeV2 MutableHashTableV2 ReduceJoin RegexFullMatch RegexReplace StaticRegexFullMatch
StaticRegexReplace StringFormat StringJoin StringLength StringLower StringNGrams StringSplit
StringSplitV2 StringStrip StringToHashBucket StringToHashBucketFast StringToHashBucketStrong
StringToNumber StringUpper Substr UnicodeDecodeWithOffsets UnicodeTranscode UnsortedSegmentJoin
FakeQuantWithMinMaxArgs FakeQuantWithMinMaxArgsGradient FakeQuantWithMinMaxVars
FakeQuantWithMinMaxVarsGradient FakeQuantWithMinMaxVarsPerChannel
FakeQuantWithMinMaxVarsPerChannelGradient QuantizeAndDequantizeV2 QuantizeAndDequantizeV3
QuantizeAndDequantizeV4 _FusedConv2D _FusedMatMul
"""
OPERATIONS = frozenset(_OPERATIONS.split())
"""Operations that only compute, without access to files, processes or the network."""

_RANDOM_OPERATIONS = """
Multinomial ParameterizedTruncatedNormal RandomGamma RandomPoisson RandomPoissonV2 RandomShuffle
RandomStandardNormal RandomUniform RandomUniformInt SampleDistortedBoundingBoxV2 TruncatedNormal
FractionalAvgPool FractionalMaxPool NonDeterministicInts
"""
RANDOM_OPERATIONS = frozenset(_RANDOM_OPERATIONS.split())
"""Operations that draw random numbers from an internal state, which other code cannot set."""

# --- PyTorch -------------------------------------------------------------------------------------

TORCH_GLOBAL = re.compile(
    r"torch\.nn\.modules\.\w+\.\w+|torch\.nn\.functional\.(?:relu|gelu|silu|elu|tanh|sigmoid)|torch\.nn\.parameter\.(?:Parameter|Buffer)|torch\.Size|"
    r"torch\._utils\._rebuild_(?:tensor|tensor_v2|tensor_v3|parameter|parameter_with_state)|"
    r"torch\.\w+Storage|torch\.storage\.(?:Typed|Untyped)Storage|torch\.Tensor|torch\.device|"
    r"torch\.(?:b?float|int|uint|complex|bool|double|half|long|short|q?u?int)\w*|"
    r"collections\.(?:OrderedDict|Counter|defaultdict)|(?:__builtin__|builtins)\.(?:set|frozenset)|"
    r"torch\.serialization\._get_layout"
)
"""Names that a PyTorch file may use: layers and tensors. PyTorch's loader checks them once more."""

TORCH_CALL = re.compile(
    r"torch\.ops\.higher_order\.(?:cond|while_loop|map_impl|scan|"
    r"wrap_with_set_grad_enabled|wrap_with_autocast)|torch\.sym_(?:int|float|max|min|not|ite|sqrt)|"
    r"_operator\.(?:add|sub|mul|truediv|floordiv|mod|pow|neg|eq|ne|lt|le|gt|ge|and_|or_|getitem)|"
    r"math\.(?:ceil|floor|trunc|sqrt)"
)
"""Calls allowed in the graph of an exported program, beside the listed operations of aten."""

TORCH_EXPRESSION = re.compile(
    r"(?:\s|[0-9.]+|[-+*/(),<>=&|~%]|"
    r"\bSymbol\('\w+'(?:, (?:positive|nonnegative|integer|real|finite|zero)=(?:True|False))*\)|"
    r"\b(?:[suz]\d+|u_\w*\d+|zf\d+|zuf\d+|Max|Min|Mod|PythonMod|FloorDiv|CleanDiv|CeilDiv|Where|"
    r"ModularIndexing|CeilToInt|FloorToInt|TruncToInt|TruncToFloat|PowByNatural|FloatPow|"
    r"FloatTrueDiv|IntTrueDiv|ToFloat|RoundToInt|Eq|Ne|Lt|Le|Gt|Ge|And|Or|Not|True|False|oo|"
    r"int_oo|inf|Add|Mul|Pow|Integer|Rational|Float|Equality|Unequality|GreaterThan|LessThan|"
    r"StrictGreaterThan|StrictLessThan)\b)*"
)
"""Computed sizes. PyTorch passes them to a function that evaluates them as Python."""

TORCH_GUARD = re.compile(
    r"(?:\s|[0-9]+|[-+*/()<>=!&|~%]|L(?:\['\w+'\]|\[\d+\])+|\[\d+\]|"
    r"\.(?:size|stride|storage_offset|numel|dim)\(\)|"
    r"\b(?:and|or|not|Max|Min|Mod|PythonMod|FloorDiv|True|False)\b)*"
)
"""Conditions on the input sizes of an exported program; PyTorch compiles them as Python."""

TORCH_NAME = re.compile(r"[\w.]*")
"""Names in an exported program; PyTorch writes them into Python code."""
