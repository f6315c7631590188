"""Published models: names in their usual spellings, and parameter counts the families must give exactly."""

from __future__ import annotations

import pytest

from torchwise_memory import families, presets
from torchwise_memory.families import vision
from torchwise_memory.families.configs import decoder_shape, is_decoder
from torchwise_memory.families.decoder import Decoder, Style
from torchwise_memory.families.projections import Projections
from torchwise_memory.modules.base import Module
from torchwise_memory.presets import Preset, UnknownModelError
from torchwise_memory.runtime.world import World

ALL = presets.presets()
DECODERS = [preset for preset in ALL if is_decoder(preset.config)]
ENCODERS = [preset for preset in ALL if preset.config["model_type"] in ("bert", "roberta", "distilbert")]


def count(model: Module) -> int:
    return sum(parameter.numel for _, parameter in model.walk_parameters())


def decoder_parameters(preset: Preset, layers: int) -> int:
    model = Decoder()
    model.build(World(), decoder_shape(preset.config), Style(), Projections(), layers)
    return count(model)


@pytest.mark.parametrize("preset", DECODERS, ids=lambda preset: preset.name)
def test_decoders_have_their_published_number_of_parameters(preset: Preset) -> None:
    shape = decoder_shape(preset.config)
    # layers at the start may differ, and kinds of layers may alternate
    few = shape.dense_layers + (shape.layers - shape.dense_layers) % shape.period or shape.period
    one, two = (decoder_parameters(preset, depth) for depth in (few, few + shape.period))
    assert one + (shape.layers - few) // shape.period * (two - one) == preset.parameters


@pytest.mark.parametrize("preset", ENCODERS, ids=lambda preset: preset.name)
def test_encoders_have_their_published_number_of_parameters(preset: Preset) -> None:
    changes = {key: value for key, value in preset.config.items() if key != "model_type"}
    kind = str(preset.config["model_type"])
    extra = {"type_vocab_size": 1} if kind == "roberta" else {}
    config = families.config_of(kind, **{**extra, **changes})
    assert count(families.build(World(), "AutoModel", config)) == preset.parameters


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("vit_small_patch16_224", 22_050_664),
        ("vit_base_patch16_224", 86_567_656),
        ("vit_large_patch16_224", 304_326_632),
        ("convnext_tiny", 28_589_128),
        ("convnext_large", 197_767_336),
        ("swin_tiny_patch4_window7_224", 28_288_354),
        ("swin_base_patch4_window7_224", 87_768_224),
        ("mixer_b16_224", 59_880_472),
        ("resnet50", 25_557_032),
    ],
)
def test_image_models_have_their_published_number_of_parameters(name: str, parameters: int) -> None:
    model = vision.build(World(), name, 1000, vision.image_size(name), vision.Options(), vision.depth(name))
    assert count(model) == parameters


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("meta-llama/Llama-2-7b-hf", "llama-2-7b"),
        ("Llama 2 70B chat", "llama-2-70b"),
        ("llama2-13b", "llama-2-13b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("Llama 3.1 8B", "llama-3.1-8b"),
        ("mistralai/Mistral-7B-Instruct-v0.1", "mistral-7b-v0.1"),
        ("gemma-2b (Gemma 2)", "gemma-2-2b"),
        ("google/gemma-2-9b-it", "gemma-2-9b"),
        ("Phi-3-mini-4k-instruct", "phi-3-mini"),
        ("microsoft/phi-1_5", "phi-1.5"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("StableLM Alpha 3B", "stablelm-base-alpha-3b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("openai/gpt-oss-20b", "gpt-oss-20b"),
        ("Llama-4-Scout-17B-16E-Instruct", "llama-4-scout"),
        ("THUDM/chatglm2-6b", "chatglm3-6b"),
        ("GPT-3 175B", "gpt-3-175b"),
        ("LLaMA 60M", "llama-60m"),
        ("BLOOM-7B", "bloom-7b1"),
        ("BAAI/bge-large-en-v1.5", "bert-large-uncased"),
        ("bigscience/T0_3B", "flan-t5-xl"),
        ("bigcode/octocoder", "starcoder"),
        ("GPT-J 6B", "gpt-j-6b"),
        ("modded-nanogpt GPT-2 124M", "gpt2"),
        ("RoBERTa-large classifier", "roberta-large"),
        ("bert-large-uncased (sequence classification)", "bert-large-uncased"),
    ],
)
def test_names_resolve_in_usual_spellings(spelling: str, name: str) -> None:
    assert presets.find(spelling).name == name


def test_an_unknown_name_is_refused_with_suggestions() -> None:
    with pytest.raises(UnknownModelError, match="llama"):
        presets.find("llama-2-7bb")
    with pytest.raises(UnknownModelError):
        presets.find("no such model")
    for name in ("blip2-opt-2.7b", "llava-1.5-llama-2-7b", "Qwen2-VL-7B", "Llama 3.2 3B Vision"):
        with pytest.raises(UnknownModelError):
            presets.find(name)


def test_every_preset_is_found_by_its_own_names() -> None:
    assert len(ALL) >= 150
    for preset in ALL:
        assert presets.find(preset.name) is preset
        assert preset.source.startswith(("https://huggingface.co/", "https://arxiv.org/"))
        for alias in preset.aliases:
            assert presets.find(alias).config["model_type"] == preset.config["model_type"]
