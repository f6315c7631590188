"""A small training script for every model of the libraries in a `site-packages`, written from their text.

Nothing is imported: files are listed and searched for the classes and functions that make models. Every
script builds the model from its defaults, sums its parameters into `parameters`, takes one forward and one
backward pass and sums the gradients' elements into `gradients`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

BATCH = 2
SEQUENCE = 64


@dataclass(frozen=True, slots=True)
class Case:
    """One model: `group` is the row of the table, `stated` the library's own count of its parameters."""

    group: str
    name: str
    script: str
    stated: int | None = None


def cases(site_packages: Path) -> Iterator[Case]:
    """Every model found, library by library."""
    for library, find in FINDERS.items():
        folder = site_packages / library
        if folder.is_dir():
            yield from find(folder)


_LOSS = """
def total(value):
    if torch.is_tensor(value):
        return value.float().sum() if value.requires_grad else 0
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return sum(total(part) for part in value)
    return 0
"""


def _script(imports: str, build: str, step: str, loss: str = "total(output)") -> str:
    helper = _LOSS if "total(" in loss else ""
    return f"""import torch
{imports.strip()}
{helper}
{build.strip()}
parameters = sum(p.numel() for p in model.parameters())
model.to("cuda").train()
{step.strip()}
loss = {loss}
loss.backward()
gradients = sum(p.grad.numel() for p in model.parameters() if p.grad is not None)
"""


# --------------------------------------------------------------------------- torchvision

_BUILDER = re.compile(r"^@register_model\([^)]*\)\n(?:(?:@|    |\)).*\n)*def (\w+)\(", re.MULTILINE)


def torchvision(folder: Path) -> Iterator[Case]:
    for path in sorted((folder / "models").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        for name in _BUILDER.findall(text):
            size = 299 if "inception" in name else 224
            step = f'output = model(torch.rand({BATCH}, 3, {size}, {size}, device="cuda"))'
            build = f"model = models.{name}(weights=None)"
            script = _script("from torchvision import models", build, step)
            yield Case("torchvision: classification", name, script, _stated_parameters(text, name))
    yield from _torchvision_dense(folder)
    yield from _torchvision_video(folder)


def _stated_parameters(text: str, name: str) -> int | None:
    """`num_params` of the builder's first weights, where they are for the builder's own defaults."""
    if name == "googlenet":
        return None  # stated without the auxiliary heads that the builder's defaults have
    weights = re.search(rf"^class {name}_Weights\(", text, re.MULTILINE | re.IGNORECASE)
    if weights is None:
        return None
    end = text.find("\nclass ", weights.end())
    body = text[weights.end() : end if end > 0 else len(text)]
    # transformers for another size of image have other position embeddings
    if name.startswith("vit_") and re.search(r"crop_size=(384|512|518)", body.partition("num_params")[0]):
        return None
    stated = re.search(r'"num_params": (\d+)', body) or re.search(r'"num_params": (\d+)', text)
    return int(stated[1]) if stated else None


def _torchvision_dense(folder: Path) -> Iterator[Case]:
    for part in ("segmentation", "detection"):
        for path in sorted((folder / "models" / part).glob("*.py")):
            text = path.read_text(encoding="utf-8")
            for name in _BUILDER.findall(text):
                build = f"model = models.{name}(weights=None, weights_backbone=None)"
                step = f'output = model(torch.rand({BATCH}, 3, 256, 256, device="cuda"))'
                if part == "detection":
                    step = _DETECTION_STEP + (_KEYPOINTS if name.startswith("keypoint") else "")
                    step += "output = model(images, targets)"
                script = _script(f"from torchvision.models import {part} as models", build, step)
                # what the metadata states has auxiliary heads or frozen norms besides the builder's defaults
                yield Case(f"torchvision: {part}", name, script)


_DETECTION_STEP = """
images = [torch.rand(3, 320, 320, device="cuda") for _ in range(2)]
targets = [
    {
        "boxes": torch.tensor([[10.0, 20.0, 100.0, 120.0], [30.0, 30.0, 200.0, 220.0]], device="cuda"),
        "labels": torch.ones(2, dtype=torch.int64, device="cuda"),
        "masks": torch.ones(2, 320, 320, dtype=torch.uint8, device="cuda"),
    }
    for _ in range(2)
]
"""
_KEYPOINTS = """for target in targets:
    target["keypoints"] = torch.ones(2, 17, 3, device="cuda")
"""


def _torchvision_video(folder: Path) -> Iterator[Case]:
    for path in sorted((folder / "models" / "video").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        for name in _BUILDER.findall(text):
            step = f'output = model(torch.rand({BATCH}, 3, 16, 224, 224, device="cuda"))'
            build = f"model = models.{name}(weights=None)"
            script = _script("from torchvision.models import video as models", build, step)
            yield Case("torchvision: video", name, script, _stated_parameters(text, name))
    for path in sorted((folder / "models" / "optical_flow").glob("*.py")):
        for name in _BUILDER.findall(path.read_text(encoding="utf-8")):
            step = f'image = torch.rand({BATCH}, 3, 128, 128, device="cuda")\noutput = model(image, image)'
            build = f"model = models.{name}(weights=None)"
            script = _script("from torchvision.models import optical_flow as models", build, step)
            yield Case("torchvision: video", name, script)


# --------------------------------------------------------------------------- timm

_REGISTERED = re.compile(r"^@register_model\s*\ndef (\w+)\(", re.MULTILINE)
_TIMM_SIZES = re.compile(r"_(192|224|240|256|288|299|336|384|448|512|1024)\b")


def timm(folder: Path) -> Iterator[Case]:
    """The first model of every file."""
    for path in sorted((folder / "models").glob("[!_]*.py")):
        text = path.read_text(encoding="utf-8")
        found = _REGISTERED.search(text)
        if found is None:
            continue
        name = found[1]
        channels, size = _timm_input(text, name)
        imports = "import timm"
        build = f"model = timm.create_model({name!r}, pretrained=False)"
        step = f'output = model(torch.rand({BATCH}, {channels}, {size}, {size}, device="cuda"))'
        yield Case("timm (first model of a file)", f"{path.stem}: {name}", _script(imports, build, step))


def _timm_input(text: str, name: str) -> tuple[int, int]:
    """The input size of a model's first configuration, or of the file's."""
    size = r"input_size['\"]?\s*[:=]\s*\((\d+),\s*(\d+),\s*\d+\)"
    at = re.search(rf"^\s*['\"]{re.escape(name)}(?:\.[\w]+)?['\"]\s*:", text, re.MULTILINE)
    if at:
        entry = text[at.end() : at.end() + 1000]
        entry = re.split(r"^\s*['\"][\w.]+['\"]\s*:\s*_", entry, flags=re.MULTILINE)[0]
        own = re.search(size, entry)
        if own:
            return int(own[1]), int(own[2])
    in_name = _TIMM_SIZES.search(name)
    if in_name:
        return 3, int(in_name[1])
    default = re.search(rf"^def _cfg.*?{size}", text, re.MULTILINE | re.DOTALL)
    return (int(default[1]), int(default[2])) if default else (3, 224)


# --------------------------------------------------------------------------- transformers

_HEADS = {
    "transformers: causal language models": r"\w+?(?:ForCausalLM|LMHeadModel)",
    "transformers: masked language models": r"\w+?(?:ForMaskedLM|(?<!Double)WithLMHeadModel)",
    "transformers: image classifiers": r"\w+?ForImageClassification",
    "transformers: speech and audio": r"\w+?(?:ForCTC|ForAudioClassification)",
    "transformers: encoder-decoders": r"\w+?(?:ForConditionalGeneration|ForSpeechSeq2Seq)",
    "transformers: sequence classifiers": r"\w+?ForSequenceClassification",
}


def transformers(folder: Path) -> Iterator[Case]:
    """For each folder of `models` the first class of each kind of head."""
    for path in sorted(folder.glob("models/*/modeling_*.py")):
        if path.stem != f"modeling_{path.parent.name}":
            continue
        text = _text_of(path)
        done: set[str] = set()
        for group, pattern in _HEADS.items():
            if group.endswith("sequence classifiers") and done:
                continue  # its backbone is covered by another head
            case = _transformers_case(group, pattern, path, text)
            if case is not None:
                done.add(group)
                yield case


def _transformers_case(group: str, pattern: str, path: Path, text: str) -> Case | None:
    for match in re.finditer(rf"^class ({pattern})\((.*?)\):", text, re.MULTILINE):
        name = match[1]
        end = re.search(r"^(?:class|def|@|__all__)", text[match.end() :], re.MULTILINE)
        body = text[match.end() : match.end() + end.start()] if end else text[match.end() :]
        config = _config_class(body, path, name)
        forward = _parameters_of(body, "forward")
        if config is None:
            continue
        if not forward:
            forward = _inherited_forward(text, match[2])
        step = _transformers_step(group, forward, text)
        if step is None:
            continue
        vocabulary = ""
        if name.endswith("ForCTC"):
            vocabulary = "config.vocab_size = getattr(config, 'vocab_size', None) or 32\n"
        build = f"{_SMALLER}\nconfig = smaller({config[1]}())\n{vocabulary}model = {name}(config)"
        module = f"transformers.models.{path.parent.name}"
        imports = f"from {config[0]} import {config[1]}\nfrom {module}.{path.stem} import {name}"
        return Case(group, path.parent.name, _script(imports, build, step, "output.loss"))
    return None


def _inherited_forward(text: str, bases: str) -> list[str]:
    for base in re.findall(r"\w+", bases):
        at = re.search(rf"^class {base}\(.*?\):(.*?)(?=^class )", text, re.MULTILINE | re.DOTALL)
        if at and (found := _parameters_of(at[1], "forward")):
            return found
    return []


def _config_class(body: str, path: Path, model: str) -> tuple[str, str] | None:
    """(module, class) of the configuration that a model's constructor takes."""
    stem = path.parent.name
    file = path.with_name(f"configuration_{stem}.py")
    known = _classes_in(file)
    module = f"transformers.models.{stem}.configuration_{stem}"
    text = _text_of(path)
    stated = re.search(r"def __init__\(\s*self,\s*config\s*:\s*[\"']?(\w+Config)\b", body)
    stated = stated or re.search(r"^    config(?:_class)?\s*[:=]\s*(\w+Config)\b", body, re.MULTILINE)
    names = [stated[1]] if stated else []
    stem_of_model = re.sub(r"(For[A-Z]\w+|LMHeadModel|WithLMHeadModel)$", "", model)
    names += [f"{stem_of_model}Config", f"{stem_of_model}TextConfig"]
    names += re.findall(r"^    config(?:_class)?\s*[:=]\s*(\w+Config)\b", text, re.MULTILINE)[:1]
    for name in names:
        if name in ("PreTrainedConfig", "PretrainedConfig"):
            continue
        if name in known:
            return module, name
        other = re.search(rf"^from \.\.(\w+)\.(configuration_\w+) import .*\b{name}\b", text, re.MULTILINE)
        if other:
            return f"transformers.models.{other[1]}.{other[2]}", name
    return None


@cache
def _text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


@cache
def _classes_in(path: Path) -> frozenset[str]:
    return frozenset(re.findall(r"^class (\w+)", _text_of(path), re.MULTILINE))


def _parameters_of(body: str, function: str) -> list[str]:
    match = re.search(rf"^    def {function}\((.*?)\)\s*(?:->.*?)?:\n", body, re.MULTILINE | re.DOTALL)
    if match is None:
        return []
    try:
        node = ast.parse(f"def f({match[1]}): ...").body[0]
    except SyntaxError:
        return []
    assert isinstance(node, ast.FunctionDef)
    return [a.arg for a in (*node.args.args, *node.args.kwonlyargs) if a.arg != "self"]


_SMALLER = '''
LAYERS = [
    "num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers",
    "num_decoder_layers", "num_encoder_layers", "encoder_num_hidden_layers", "decoder_num_hidden_layers",
]


def smaller(config, count=4):
    """Fewer layers, with one of each kind among them."""
    for value in list(vars(config).values()):
        if hasattr(value, "model_type"):
            smaller(value)
    for name in LAYERS:
        layers = vars(config).get(name)
        patterns = [v for k, v in vars(config).items() if "layer" in k and isinstance(v, list) and v]
        first = max([min(v) + 1 for v in patterns if all(type(i) is int for i in v)] + [0])
        needed = max(count, first, vars(config).get("attn_layer_period") or 0)
        if not isinstance(layers, int) or layers <= needed or "num_kv_shared_layers" in vars(config):
            continue
        lists = {k: v for k, v in vars(config).items() if isinstance(v, list) and len(v) == layers}
        kinds = [tuple(str(v[i]) for v in lists.values()) for i in range(layers)]
        firsts = [i for i in range(layers) if kinds[i] not in kinds[:i]]
        kept = sorted(sorted(range(layers), key=lambda i: (i not in firsts, i))[:needed])
        for key, values in lists.items():
            setattr(config, key, [values[i] for i in kept])
        setattr(config, name, needed)
    return config
'''


_IDS = f'ids = torch.randint(0, 100, ({BATCH}, {SEQUENCE}), device="cuda")'
_SIZE_OF_IMAGE = """size = getattr(config, "image_size", None) or 224
if not isinstance(size, int):
    size = size[0]"""


def _transformers_step(group: str, forward: list[str], text: str) -> str | None:
    if not forward or ("labels" not in forward and "kwargs" not in forward):
        return None
    first = forward[0]
    kind = group.partition(": ")[2]
    if kind in ("causal language models", "masked language models"):
        return f"{_IDS}\noutput = model(input_ids=ids, labels=ids)" if "input_ids" in forward else None
    if kind == "image classifiers":
        channels = 'getattr(config, "num_channels", 3)'
        if first != "pixel_values":
            return None
        return f"""{_SIZE_OF_IMAGE}
pixels = torch.rand({BATCH}, {channels}, size, size, device="cuda")
labels = torch.zeros({BATCH}, dtype=torch.int64, device="cuda")
output = model(pixel_values=pixels, labels=labels)"""
    if kind == "speech and audio":
        return _audio_step(forward, text)
    if kind == "encoder-decoders":
        return _encoder_decoder_step(forward, text)
    if first != "input_ids":
        return None
    labels = f'labels = torch.zeros({BATCH}, dtype=torch.int64, device="cuda")'
    pad = 'config.pad_token_id = 1 if getattr(config, "pad_token_id", None) is None else config.pad_token_id'
    return f"{pad}\n{_IDS}\n{labels}\noutput = model(input_ids=ids, labels=labels)"


_MELS = """
def mels(config):
    for part in (config, getattr(config, "encoder_config", None), getattr(config, "audio_config", None)):
        for name in ("num_mel_bins", "feature_projection_input_dim", "input_feat_per_channel"):
            if isinstance(getattr(part, name, None), int):
                return getattr(part, name)
    return 80
"""


def _audio_step(forward: list[str], text: str) -> str | None:
    first = forward[0]
    if first not in ("input_values", "input_features"):
        return None
    shape = "16000" if first == "input_values" else "200, mels(config)"
    if first == "input_features" and "Whisper" in text:
        shape = "mels(config), 3000"
    masked = first == "input_features" and "attention_mask" in forward
    mask = f', attention_mask=torch.ones({BATCH}, 200, dtype=torch.int64, device="cuda")' if masked else ""
    if "OmniASR" in text:
        shape, mask = "1, 16000", f', padding_mask=torch.ones({BATCH}, 16000, device="cuda")'
    if "GraniteSpeech5" in text:  # frames in fours
        shape = "200, 4 * mels(config)"
    return f"""{_MELS}
values = torch.rand({BATCH}, {shape}, device="cuda")
if config.model_type == "audio-spectrogram-transformer":
    values = torch.rand({BATCH}, config.max_length, config.num_mel_bins, device="cuda")
labels = torch.ones({BATCH}, 8, dtype=torch.int64, device="cuda")
if not type(model).__name__.endswith("ForCTC"):
    labels = torch.zeros({BATCH}, dtype=torch.int64, device="cuda")
output = model({first}=values, labels=labels{mask})"""


def _encoder_decoder_step(forward: list[str], text: str) -> str | None:
    if "decoder_input_ids" not in forward:
        return None
    labels = f'labels = torch.randint(0, 100, ({BATCH}, {SEQUENCE}), device="cuda")'
    tokens = """for name in ("pad_token_id", "decoder_start_token_id"):
    if getattr(config, name, None) is None:
        setattr(config, name, 0)
"""
    labels = tokens + labels
    if forward[0] in ("input_ids", "src_tokens"):
        return f"{_IDS}\n{labels}\noutput = model({forward[0]}=ids, labels=labels)"
    if forward[0] == "input_features":
        shape = "mels(config), 3000" if "Whisper" in text else "200, mels(config)"
        frames = f'torch.rand({BATCH}, {shape}, device="cuda")'
        return (
            f"{_MELS}\nfeatures = {frames}\n{labels}\noutput = model(input_features=features, labels=labels)"
        )
    if forward[0] == "input_values":
        waves = f'torch.rand({BATCH}, 16000, device="cuda")'
        return f"values = {waves}\n{labels}\noutput = model(input_values=values, labels=labels)"
    return None


# --------------------------------------------------------------------------- diffusers

_WAN = "hidden_states=r(1, 16, 2, 32, 32), timestep=t, encoder_hidden_states=r(1, 64, 4096)"
_IDS_OF_FLUX = "img_ids=torch.zeros(256, {0}, device='cuda'), txt_ids=torch.zeros(64, {0}, device='cuda')"
_SIZES = ", ".join(f"{name}=r(1, 2)" for name in ("original_size", "target_size", "crop_coords"))

# What a release is told by in its text, and what it takes instead.
_OLDER = {
    "UNet1DModel": (("embedding_size=8", "extra_in_channels=64", "extra_in_channels=16"),),
    "QwenImageTransformer2DModel": (
        ("txt_seq_lens, device", "img_shapes=", "txt_seq_lens=[64], img_shapes="),
    ),
}

# class -> (batch, arguments of the constructor, arguments of forward). `r` makes a random tensor, `ones` a
# mask, `t` is a timestep for each sample.
_DIFFUSERS: dict[str, tuple[int, str, str]] = {
    "UNet1DModel": (2, "sample_size=1024, extra_in_channels=64", "r(2, 2, 1024), t"),
    "UNet2DModel": (2, "sample_size=64", "r(2, 3, 64, 64), t"),
    "UNet2DConditionModel": (2, "", "r(2, 4, 32, 32), t, r(2, 77, 1280)"),
    "UNet3DConditionModel": (2, "", "r(2, 4, 4, 32, 32), t, r(2, 77, 1024)"),
    "I2VGenXLUNet": (
        1,
        "",
        "r(1, 4, 4, 32, 32), t, fps=t, image_latents=r(1, 4, 4, 32, 32), image_embeddings=r(1, 1024), "
        "encoder_hidden_states=r(1, 77, 1024)",
    ),
    "Kandinsky3UNet": (2, "", "r(2, 4, 32, 32), t, r(2, 77, 4096), ones(2, 77)"),
    "UNetMotionModel": (1, "", "r(1, 4, 8, 32, 32), t, r(8, 77, 1280)"),
    "UNetSpatioTemporalConditionModel": (1, "", "r(1, 4, 8, 32, 32), t, r(1, 1, 1024), r(1, 3)"),
    "StableCascadeUNet": (
        2,
        "clip_text_in_channels=1280, clip_text_pooled_in_channels=1280, clip_image_in_channels=768",
        "r(2, 16, 32, 32), r(2), r(2, 1, 1280), clip_text=r(2, 77, 1280), clip_img=r(2, 1, 768)",
    ),
    "UVit2DModel": (
        2,
        "",
        "torch.randint(0, 99, (2, 16, 16), device='cuda'), r(2, 77, 768), r(2, 768), r(2, 5)",
    ),
    "AuraFlowTransformer2DModel": (
        2,
        "num_mmdit_layers=2, num_single_dit_layers=2",
        "r(2, 4, 64, 64), r(2, 64, 2048), t",
    ),
    "CogVideoXTransformer3DModel": (
        1,
        "num_layers=2, sample_height=32, sample_width=32",
        "r(1, 13, 16, 32, 32), r(1, 226, 4096), t",
    ),
    "ConsisIDTransformer3DModel": (
        1,
        "num_layers=2, sample_height=32, sample_width=32",
        "r(1, 13, 16, 32, 32), r(1, 226, 4096), t",
    ),
    "DiTTransformer2DModel": (2, "num_layers=2", "r(2, 4, 32, 32), t, class_labels=t"),
    "HunyuanDiT2DModel": (
        1,
        "num_layers=2, sample_size=32, in_channels=4, patch_size=2, hidden_size=1408",
        "r(1, 4, 32, 32), t.float(), encoder_hidden_states=r(1, 77, 1024), text_embedding_mask=ones(1, 77), "
        "encoder_hidden_states_t5=r(1, 256, 2048), text_embedding_mask_t5=ones(1, 256), "
        "image_meta_size=r(1, 6), style=torch.zeros(1, dtype=torch.long, device='cuda')",
    ),
    "LatteTransformer3DModel": (
        1,
        "num_layers=2, in_channels=4, patch_size=2, sample_size=32, caption_channels=4096, "
        "cross_attention_dim=1152, attention_head_dim=72, norm_type='ada_norm_single', video_length=8",
        "r(1, 4, 8, 32, 32), t, r(1, 64, 4096)",
    ),
    "PixArtTransformer2DModel": (
        2,
        "num_layers=2, sample_size=32, caption_channels=4096",
        "r(2, 4, 32, 32), r(2, 120, 4096), t, added_cond_kwargs={'resolution': None, 'aspect_ratio': None}",
    ),
    "PriorTransformer": (2, "num_layers=2", "r(2, 768), t, r(2, 768), r(2, 77, 768)"),
    "SanaTransformer2DModel": (2, "num_layers=2", "r(2, 32, 32, 32), r(2, 300, 2304), t"),
    "Transformer2DModel": (
        2,
        "in_channels=64, num_attention_heads=4, attention_head_dim=16, cross_attention_dim=64",
        "r(2, 64, 16, 16), encoder_hidden_states=r(2, 77, 64)",
    ),
    "TransformerTemporalModel": (
        2,
        "in_channels=64, num_attention_heads=4, attention_head_dim=16",
        "r(16, 64, 8, 8), num_frames=8",
    ),
    "AllegroTransformer3DModel": (
        1,
        "num_layers=2, sample_height=32, sample_width=32, sample_frames=2",
        "r(1, 4, 2, 32, 32), r(1, 64, 4096), t, attention_mask=ones(1, 2, 32, 32), "
        "encoder_attention_mask=ones(1, 64), image_rotary_emb=None",
    ),
    "ChromaTransformer2DModel": (
        1,
        "num_layers=2, num_single_layers=2",
        f"r(1, 256, 64), r(1, 64, 4096), t, {_IDS_OF_FLUX.format(3)}",
    ),
    "ChronoEditTransformer3DModel": (1, "num_layers=2", _WAN),
    "CogView3PlusTransformer2DModel": (1, "num_layers=2", f"r(1, 16, 32, 32), r(1, 64, 4096), t, {_SIZES}"),
    "CogView4Transformer2DModel": (1, "num_layers=2", f"r(1, 16, 32, 32), r(1, 64, 4096), t, {_SIZES}"),
    "CosmosTransformer3DModel": (
        1,
        "num_layers=2",
        "r(1, 16, 2, 32, 32), t, r(1, 64, 1024), fps=16, padding_mask=r(1, 1, 32, 32)",
    ),
    "EasyAnimateTransformer3DModel": (
        1,
        "num_layers=2, in_channels=16, out_channels=16, patch_size=2",
        "r(1, 16, 2, 32, 32), t, encoder_hidden_states=r(1, 64, 3584)",
    ),
    "FluxTransformer2DModel": (
        1,
        "num_layers=2, num_single_layers=2",
        f"r(1, 256, 64), r(1, 64, 4096), r(1, 768), t, {_IDS_OF_FLUX.format(3)}",
    ),
    "Flux2Transformer2DModel": (
        1,
        "num_layers=2, num_single_layers=2",
        f"r(1, 256, 128), r(1, 64, 15360), t, {_IDS_OF_FLUX.format(4)}, guidance=r(1)",
    ),
    "HunyuanVideoTransformer3DModel": (
        1,
        "num_layers=2, num_single_layers=2",
        "r(1, 16, 2, 16, 16), t, r(1, 64, 4096), ones(1, 64), r(1, 768), guidance=r(1)",
    ),
    "LTXVideoTransformer3DModel": (
        1,
        "num_layers=2",
        "r(1, 128, 128), r(1, 64, 4096), t, ones(1, 64), num_frames=2, height=8, width=8",
    ),
    "Lumina2Transformer2DModel": (
        2,
        "num_layers=2",
        "r(2, 16, 32, 32), t, r(2, 32, 1024), ones(2, 32).bool()",
    ),
    "MochiTransformer3DModel": (1, "num_layers=2", "r(1, 12, 2, 16, 16), r(1, 64, 4096), t, ones(1, 64)"),
    "PRXTransformer2DModel": (2, "", "r(2, 16, 32, 32), t, r(2, 64, 2304)"),
    "QwenImageTransformer2DModel": (
        1,
        "num_layers=2",
        "r(1, 256, 64), r(1, 64, 3584), ones(1, 64), t, img_shapes=[[(1, 16, 16)]]",
    ),
    "SanaVideoTransformer3DModel": (1, "num_layers=2", "r(1, 16, 2, 16, 16), r(1, 300, 2304), t"),
    "SD3Transformer2DModel": (2, "num_layers=2", "r(2, 16, 64, 64), r(2, 154, 4096), r(2, 2048), t"),
    "SkyReelsV2Transformer3DModel": (1, "num_layers=2", _WAN),
    "WanTransformer3DModel": (1, "num_layers=2", _WAN),
    "WanVACETransformer3DModel": (
        1,
        "num_layers=2, vace_layers=[0, 1]",
        f"{_WAN}, control_hidden_states=r(1, 96, 2, 32, 32)",
    ),
    "ControlNetModel": (2, "", "r(2, 4, 32, 32), t, r(2, 77, 1280), r(2, 3, 256, 256)"),
    "AutoencoderKL": (2, "", "r(2, 3, 64, 64)"),
    "AsymmetricAutoencoderKL": (2, "", "r(2, 3, 64, 64)"),
    "AutoencoderTiny": (2, "", "r(2, 3, 64, 64)"),
    "AutoencoderKLTemporalDecoder": (1, "", "r(4, 3, 64, 64), num_frames=4"),
    "AutoencoderKLWan": (1, "", "r(1, 3, 5, 64, 64)"),
    "AutoencoderKLCogVideoX": (1, "", "r(1, 3, 5, 64, 64)"),
    "AutoencoderDC": (1, "", "r(1, 3, 64, 64)"),
    "AutoencoderOobleck": (1, "", "r(1, 2, 8192)"),
    "VQModel": (2, "", "r(2, 3, 32, 32)"),
}
_GROUPS = {
    "unets": "U-Nets",
    "transformers": "transformers",
    "controlnets": "autoencoders and others",
    "autoencoders": "autoencoders and others",
}


def diffusers(folder: Path) -> Iterator[Case]:
    """The models with inputs in the table above, where the version has them."""
    helpers = """def r(*shape):
    return torch.rand(*shape, device="cuda")


def ones(*shape):
    return torch.ones(*shape, dtype=torch.int64, device="cuda")
"""
    for part, group in _GROUPS.items():
        for path in sorted((folder / "models" / part).glob("*.py")):
            for name in re.findall(r"^class (\w+)\(", _text_of(path), re.MULTILINE):
                if name not in _DIFFUSERS:
                    continue
                batch, options, inputs = _DIFFUSERS[name]
                for older, option, other in _OLDER.get(name, ()):
                    if older in _text_of(path):
                        options, inputs = options.replace(option, other), inputs.replace(option, other)
                imports = f"from diffusers.models.{part}.{path.stem} import {name}\n\n\n{helpers}"
                step = f't = torch.randint(0, 1000, ({batch},), device="cuda")\noutput = model({inputs})'
                yield Case(f"diffusers: {group}", name, _script(imports, f"model = {name}({options})", step))


FINDERS = {"torchvision": torchvision, "timm": timm, "transformers": transformers, "diffusers": diffusers}
