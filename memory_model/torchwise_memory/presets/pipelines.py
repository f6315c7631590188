"""Settings of the parts of published diffusion pipelines, from the `config.json` of their folders.

Which checkpoint has which text encoders, autoencoder and denoiser follows the repositories of the names below
on the Hugging Face hub; only fields that differ from the classes' defaults, or decide about sizes, are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from torchwise_memory.families.unet import CHECKPOINTS as DENOISERS

Settings = Mapping[str, object]

_AUTOENCODER: Settings = MappingProxyType(
    {
        "in_channels": 3,
        "out_channels": 3,
        "down_block_types": ("DownEncoderBlock2D",) * 4,
        "up_block_types": ("UpDecoderBlock2D",) * 4,
        "block_out_channels": (128, 256, 512, 512),
        "layers_per_block": 2,
        "latent_channels": 4,
        "norm_num_groups": 32,
        "sample_size": 512,
    }
)
_AUTOENCODER_XL: Settings = MappingProxyType(
    {**_AUTOENCODER, "sample_size": 1024, "scaling_factor": 0.13025, "force_upcast": True}
)


def _text_encoder(hidden: int, layers: int, heads: int, projection: int, activation: str) -> Settings:
    return MappingProxyType(
        {
            "model_type": "clip_text_model",
            "hidden_size": hidden,
            "intermediate_size": 4 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "projection_dim": projection,
            "hidden_act": activation,
            "vocab_size": 49408,
            "max_position_embeddings": 77,
        }
    )


_CLIP_L = _text_encoder(768, 12, 12, 768, "quick_gelu")
_CLIP_H = _text_encoder(1024, 23, 16, 512, "gelu")
_CLIP_G = _text_encoder(1280, 32, 20, 1280, "gelu")
_SCHEDULER: Settings = MappingProxyType(
    {
        "num_train_timesteps": 1000,
        "beta_start": 0.00085,
        "beta_end": 0.012,
        "beta_schedule": "scaled_linear",
    }
)


def _parts(name: str) -> Mapping[str, Settings]:
    is_xl = "xl" in name
    is_second = "diffusion-2" in name
    parts: dict[str, Settings] = {
        "unet": DENOISERS[name],
        "vae": _AUTOENCODER_XL if is_xl else _AUTOENCODER,
        "text_encoder": _CLIP_H if is_second else _CLIP_L,
        "scheduler": _SCHEDULER,
    }
    if is_xl:
        parts["text_encoder_2"] = _CLIP_G
    return MappingProxyType(parts)


#: Last part of a checkpoint's name -> folder -> settings.
PIPELINES: Mapping[str, Mapping[str, Settings]] = MappingProxyType(
    {
        **{name: _parts(name) for name in DENOISERS},
        "sd-vae-ft-mse": MappingProxyType({"": _AUTOENCODER}),
        "sd-vae-ft-ema": MappingProxyType({"": _AUTOENCODER}),
        "sdxl-vae-fp16-fix": MappingProxyType({"": _AUTOENCODER_XL}),
    }
)


def part_of(name: str, folder: str) -> Settings | None:
    """Settings of `folder` of a published checkpoint; None where they are not kept here."""
    return PIPELINES.get(name.rstrip("/").rpartition("/")[2].lower(), {}).get(folder)
