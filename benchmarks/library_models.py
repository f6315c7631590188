"""A small training script for every model of the libraries in a `site-packages`, written from their text.

Nothing is imported: files are listed and searched for the classes and functions that make models. Every
script builds the model from its defaults, sums its parameters into `parameters`, takes one forward and one
backward pass and sums the gradients' elements into `gradients`.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from collections.abc import Iterator
from dataclasses import dataclass
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
                yield Case(f"torchvision: {part}", name, script, _stated_parameters(text, name))


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
        build = f"{_SMALLER}\nconfig = smaller({config[1]}())\nmodel = {name}(config)"
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
        return _audio_step(first)
    if kind == "encoder-decoders":
        return _encoder_decoder_step(forward)
    if first != "input_ids":
        return None
    labels = f'labels = torch.zeros({BATCH}, dtype=torch.int64, device="cuda")'
    pad = 'config.pad_token_id = 1 if getattr(config, "pad_token_id", None) is None else config.pad_token_id'
    return f"{pad}\n{_IDS}\n{labels}\noutput = model(input_ids=ids, labels=labels)"


def _audio_step(first: str) -> str | None:
    inputs = {
        "input_values": f'torch.rand({BATCH}, 16000, device="cuda")',
        "input_features": f'torch.rand({BATCH}, 200, getattr(config, "feature_projection_input_dim", None) or '
        'getattr(config, "num_mel_bins", 80), device="cuda")',
    }
    if first not in inputs:
        return None
    return f"""values = {inputs[first]}
if hasattr(config, "max_length") and hasattr(config, "num_mel_bins"):
    values = torch.rand({BATCH}, config.max_length, config.num_mel_bins, device="cuda")
labels = torch.ones({BATCH}, 8, dtype=torch.int64, device="cuda")
if not type(model).__name__.endswith("ForCTC"):
    labels = torch.zeros({BATCH}, dtype=torch.int64, device="cuda")
output = model({first}=values, labels=labels)"""


def _encoder_decoder_step(forward: list[str]) -> str | None:
    if "decoder_input_ids" not in forward:
        return None
    labels = f'labels = torch.randint(0, 100, ({BATCH}, {SEQUENCE}), device="cuda")'
    if forward[0] in ("input_ids", "src_tokens"):
        return f"{_IDS}\n{labels}\noutput = model({forward[0]}=ids, labels=labels)"
    if forward[0] == "input_features":
        frames = f'torch.rand({BATCH}, getattr(config, "num_mel_bins", 80), 3000, device="cuda")'
        return f"features = {frames}\n{labels}\noutput = model(input_features=features, labels=labels)"
    if forward[0] == "input_values":
        waves = f'torch.rand({BATCH}, 16000, device="cuda")'
        return f"values = {waves}\n{labels}\noutput = model(input_values=values, labels=labels)"
    return None


FINDERS = {"torchvision": torchvision, "timm": timm, "transformers": transformers}
