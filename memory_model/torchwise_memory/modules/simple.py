"""The declared modules of torch.nn, with torch's constructor arguments and defaults."""

from __future__ import annotations

from torchwise_memory.modules.declared import Declared, declared
from torchwise_memory.operators.registry import REQUIRED

_INPLACE: dict[str, object] = {"inplace": False}
_REDUCTION: dict[str, object] = {"size_average": None, "reduce": None, "reduction": "mean"}
_POOL: dict[str, object] = {"kernel_size": REQUIRED, "stride": None, "padding": 0}

ACTIVATIONS: tuple[type[Declared], ...] = (
    declared("ReLU", "relu", _INPLACE),
    declared("ReLU6", "relu6", _INPLACE),
    declared("RReLU", "rrelu", {"lower": 1.0 / 8, "upper": 1.0 / 3, **_INPLACE}, training=True),
    declared("LeakyReLU", "leaky_relu", {"negative_slope": 1e-2, **_INPLACE}),
    declared("ELU", "elu", {"alpha": 1.0, **_INPLACE}),
    declared("CELU", "celu", {"alpha": 1.0, **_INPLACE}),
    declared("SELU", "selu", _INPLACE),
    declared("GELU", "gelu", {"approximate": "none"}),
    declared("SiLU", "silu", _INPLACE),
    declared("Mish", "mish", _INPLACE),
    declared("Hardswish", "hardswish", _INPLACE),
    declared("Hardsigmoid", "hardsigmoid", _INPLACE),
    declared(
        "Hardtanh",
        "hardtanh",
        {"min_val": -1.0, "max_val": 1.0, **_INPLACE, "min_value": None, "max_value": None},
        not_passed=("min_value", "max_value"),
    ),
    declared("Hardshrink", "hardshrink", {"lambd": 0.5}),
    declared("Softshrink", "softshrink", {"lambd": 0.5}),
    declared("Tanhshrink", "tanhshrink", {}),
    declared("Sigmoid", "sigmoid", {}),
    declared("Tanh", "tanh", {}),
    declared("LogSigmoid", "logsigmoid", {}),
    declared("Softplus", "softplus", {"beta": 1.0, "threshold": 20.0}),
    declared("Softsign", "softsign", {}),
    declared("Threshold", "threshold", {"threshold": REQUIRED, "value": REQUIRED, **_INPLACE}),
    declared("GLU", "glu", {"dim": -1}),
    declared("Softmax", "softmax", {"dim": None}),
    declared("Softmax2d", "softmax", {}, fixed={"dim": -3}),
    declared("Softmin", "softmin", {"dim": None}),
    declared("LogSoftmax", "log_softmax", {"dim": None}),
)

DROPOUTS: tuple[type[Declared], ...] = tuple(
    declared(name, function, {"p": 0.5, **_INPLACE}, training=True)
    for name, function in (
        ("Dropout", "dropout"),
        ("Dropout1d", "dropout1d"),
        ("Dropout2d", "dropout2d"),
        ("Dropout3d", "dropout3d"),
        ("AlphaDropout", "alpha_dropout"),
        ("FeatureAlphaDropout", "feature_alpha_dropout"),
    )
)

_MAX_POOL: dict[str, object] = {**_POOL, "dilation": 1, "return_indices": False, "ceil_mode": False}
_AVERAGE_POOL: dict[str, object] = {**_POOL, "ceil_mode": False, "count_include_pad": True}

POOLING: tuple[type[Declared], ...] = (
    *(declared(f"MaxPool{n}d", f"max_pool{n}d", _MAX_POOL) for n in (1, 2, 3)),
    declared("AvgPool1d", "avg_pool1d", _AVERAGE_POOL),
    *(declared(f"AvgPool{n}d", f"avg_pool{n}d", {**_AVERAGE_POOL, "divisor_override": None}) for n in (2, 3)),
    *(
        declared(f"AdaptiveAvgPool{n}d", f"adaptive_avg_pool{n}d", {"output_size": REQUIRED})
        for n in (1, 2, 3)
    ),
    *(
        declared(
            f"AdaptiveMaxPool{n}d",
            f"adaptive_max_pool{n}d",
            {"output_size": REQUIRED, "return_indices": False},
        )
        for n in (1, 2, 3)
    ),
    *(
        declared(
            f"LPPool{n}d",
            f"lp_pool{n}d",
            {"norm_type": REQUIRED, "kernel_size": REQUIRED, "stride": None, "ceil_mode": False},
        )
        for n in (1, 2, 3)
    ),
    *(
        declared(f"MaxUnpool{n}d", f"max_unpool{n}d", {"kernel_size": REQUIRED, "stride": None, "padding": 0})
        for n in (1, 2, 3)
    ),
)

SHAPES: tuple[type[Declared], ...] = (
    declared("PixelShuffle", "pixel_shuffle", {"upscale_factor": REQUIRED}),
    declared("PixelUnshuffle", "pixel_unshuffle", {"downscale_factor": REQUIRED}),
    declared("ChannelShuffle", "channel_shuffle", {"groups": REQUIRED}),
    declared(
        "Upsample",
        "interpolate",
        {
            "size": None,
            "scale_factor": None,
            "mode": "nearest",
            "align_corners": None,
            "recompute_scale_factor": None,
        },
    ),
    declared(
        "UpsamplingNearest2d", "interpolate", {"size": None, "scale_factor": None}, fixed={"mode": "nearest"}
    ),
    declared(
        "UpsamplingBilinear2d",
        "interpolate",
        {"size": None, "scale_factor": None},
        fixed={"mode": "bilinear", "align_corners": True},
    ),
    declared("Unfold", "unfold", {"kernel_size": REQUIRED, "dilation": 1, "padding": 0, "stride": 1}),
    declared(
        "Fold",
        "fold",
        {"output_size": REQUIRED, "kernel_size": REQUIRED, "dilation": 1, "padding": 0, "stride": 1},
    ),
    declared(
        "LocalResponseNorm", "local_response_norm", {"size": REQUIRED, "alpha": 1e-4, "beta": 0.75, "k": 1.0}
    ),
    declared("CosineSimilarity", "cosine_similarity", {"dim": 1, "eps": 1e-8}),
    declared("PairwiseDistance", "pairwise_distance", {"p": 2.0, "eps": 1e-6, "keepdim": False}),
)

LOSSES: tuple[type[Declared], ...] = (
    declared(
        "CrossEntropyLoss",
        "cross_entropy",
        {
            "weight": None,
            "size_average": None,
            "ignore_index": -100,
            "reduce": None,
            "reduction": "mean",
            "label_smoothing": 0.0,
        },
        buffers=("weight",),
    ),
    declared(
        "NLLLoss",
        "nll_loss",
        {"weight": None, "size_average": None, "ignore_index": -100, "reduce": None, "reduction": "mean"},
        buffers=("weight",),
    ),
    declared(
        "NLLLoss2d",
        "nll_loss",
        {"weight": None, "size_average": None, "ignore_index": -100, "reduce": None, "reduction": "mean"},
        buffers=("weight",),
    ),
    declared("MSELoss", "mse_loss", _REDUCTION),
    declared("L1Loss", "l1_loss", _REDUCTION),
    declared("SmoothL1Loss", "smooth_l1_loss", {**_REDUCTION, "beta": 1.0}),
    declared("HuberLoss", "huber_loss", {"reduction": "mean", "delta": 1.0}),
    declared("BCELoss", "binary_cross_entropy", {"weight": None, **_REDUCTION}, buffers=("weight",)),
    declared(
        "BCEWithLogitsLoss",
        "binary_cross_entropy_with_logits",
        {"weight": None, **_REDUCTION, "pos_weight": None},
        buffers=("weight", "pos_weight"),
    ),
    declared("KLDivLoss", "kl_div", {**_REDUCTION, "log_target": False}),
    declared(
        "PoissonNLLLoss",
        "poisson_nll_loss",
        {
            "log_input": True,
            "full": False,
            "size_average": None,
            "eps": 1e-8,
            "reduce": None,
            "reduction": "mean",
        },
    ),
    declared("GaussianNLLLoss", "gaussian_nll_loss", {"full": False, "eps": 1e-6, "reduction": "mean"}),
    declared("CosineEmbeddingLoss", "cosine_embedding_loss", {"margin": 0.0, **_REDUCTION}),
    declared("HingeEmbeddingLoss", "hinge_embedding_loss", {"margin": 1.0, **_REDUCTION}),
    declared("MarginRankingLoss", "margin_ranking_loss", {"margin": 0.0, **_REDUCTION}),
    declared("SoftMarginLoss", "soft_margin_loss", _REDUCTION),
    declared("MultiLabelMarginLoss", "multilabel_margin_loss", _REDUCTION),
    declared(
        "MultiLabelSoftMarginLoss",
        "multilabel_soft_margin_loss",
        {"weight": None, **_REDUCTION},
        buffers=("weight",),
    ),
    declared(
        "MultiMarginLoss",
        "multi_margin_loss",
        {"p": 1, "margin": 1.0, "weight": None, **_REDUCTION},
        buffers=("weight",),
    ),
    declared(
        "TripletMarginLoss",
        "triplet_margin_loss",
        {"margin": 1.0, "p": 2.0, "eps": 1e-6, "swap": False, **_REDUCTION},
    ),
    declared(
        "TripletMarginWithDistanceLoss",
        "triplet_margin_with_distance_loss",
        {"distance_function": None, "margin": 1.0, "swap": False, "reduction": "mean"},
    ),
    declared("CTCLoss", "ctc_loss", {"blank": 0, "reduction": "mean", "zero_infinity": False}),
)

SIMPLE = (*ACTIVATIONS, *DROPOUTS, *POOLING, *SHAPES, *LOSSES)
