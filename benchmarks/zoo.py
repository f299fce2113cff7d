"""Models of public libraries, built without weights, in the form of a user's model.

    pydlbench breakdown benchmarks/zoo.py:vision --set name=resnet50 --input 4x3x224x224
    pydlbench step benchmarks/zoo.py:language --set name=gpt2 --phase training

Each function needs only its own library: torchvision, timm or transformers. Weights are random, and
nothing is downloaded.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn

__all__ = ["ARCHITECTURES", "PICTURES", "language", "pictures", "vision"]


def vision(name: str) -> nn.Module:
    """Return an image classifier of torchvision.

    Args:
        name: a name of ``torchvision.models.list_models``.
    """
    from torchvision import models

    # By default these two warn, and initialise their weights for minutes.
    options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    model: nn.Module = models.get_model(name, weights=None, **options)
    return model


#: A small model of each of 60 families of timm.
PICTURES: Final = (
    *("botnet26t_256", "cait_xxs24_224", "coat_lite_tiny", "coatnet_pico_rw_224", "convit_tiny"),
    *("convmixer_768_32", "convnextv2_atto", "crossvit_tiny_240", "cs3darknet_s", "davit_tiny"),
    *("deit_tiny_distilled_patch16_224", "densenetblur121d", "dla46_c", "edgenext_xx_small"),
    *("efficientformer_l1", "efficientformerv2_s0", "efficientvit_b0", "efficientvit_m0"),
    *("ese_vovnet19b_slim_dw", "eva02_tiny_patch14_224", "fasternet_t0", "fastvit_t8"),
    *("focalnet_tiny_srf", "gcvit_xxtiny", "ghostnet_050", "hgnetv2_b0", "hiera_tiny_224"),
    *("hrnet_w18_small", "inception_next_atto", "lcnetv2_small", "levit_128s", "mambaout_femto"),
    *("mixer_s32_224", "mobilenetv3_small_050", "mobilevit_xxs", "mvitv2_tiny", "nf_regnet_b0"),
    *("pit_ti_224", "poolformer_s12", "pvt_v2_b0", "rdnet_tiny", "regnetz_005", "repghostnet_050"),
    *("repvgg_a0", "repvit_m0_9", "resnest14d", "resnet10t", "rexnet_100", "selecsls42"),
    *("sequencer2d_s", "shvit_s1", "skresnet18", "starnet_s050", "swiftformer_xs"),
    *("swinv2_cr_tiny_224", "tf_efficientnet_lite0", "tiny_vit_5m_224", "tnt_s_patch16_224"),
    *("vit_tiny_patch16_224", "xcit_nano_12_p16_224"),
)


def pictures(name: str, batch: int = 2, small: bool = False) -> tuple[nn.Module, torch.Tensor]:
    """Return an image classifier of timm, and images of its default size.

    Args:
        name: a name of ``timm.list_models``.
        batch: number of images.
        small: use 96 x 96 pixels if the model takes any size, for quick trials.
    """
    import timm

    model: Any = timm.create_model(name, pretrained=False)
    default = model.pretrained_cfg
    size = (3, 96, 96) if small and not default["fixed_input_size"] else default["input_size"]
    return model, torch.randn(batch, *size)


_SMALL: Final = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
}
_GROUPED: Final = {**_SMALL, "num_key_value_heads": 2}
_BOTH_SIDES: Final = {
    **{f"{side}_layers": 2 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 4 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 128 for side in ("encoder", "decoder")},
    "d_model": 64,
    "vocab_size": 100,
}
_SPECIAL: Final = {
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}

#: Architectures of transformers by model type: the class that builds it, the kind of its inputs,
#: and the settings of a small variant; without these it has the library's default size.
ARCHITECTURES: Final[dict[str, tuple[str, str, dict[str, Any]]]] = {
    "albert": ("AutoModelForMaskedLM", "tokens", {**_SMALL, "embedding_size": 32}),
    "bart": ("AutoModelForSeq2SeqLM", "pairs", {**_BOTH_SIDES, **_SPECIAL}),
    "bert": ("AutoModelForMaskedLM", "tokens", _SMALL),
    "bloom": (
        "AutoModelForCausalLM",
        "tokens",
        {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100},
    ),
    "deberta-v2": ("AutoModelForMaskedLM", "tokens", _SMALL),
    "distilbert": (
        "AutoModelForMaskedLM",
        "tokens",
        {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128, "vocab_size": 100},
    ),
    "electra": ("AutoModelForMaskedLM", "tokens", {**_SMALL, "embedding_size": 32}),
    "gemma": ("AutoModelForCausalLM", "tokens", {**_GROUPED, "head_dim": 16}),
    "gpt2": (
        "AutoModelForCausalLM",
        "tokens",
        {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100},
    ),
    "gpt_neox": ("AutoModelForCausalLM", "tokens", _SMALL),
    "llama": ("AutoModelForCausalLM", "tokens", _GROUPED),
    "mamba": (
        "AutoModelForCausalLM",
        "tokens",
        {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100, "state_size": 8},
    ),
    "mistral": ("AutoModelForCausalLM", "tokens", _GROUPED),
    "mixtral": ("AutoModelForCausalLM", "tokens", {**_GROUPED, "num_local_experts": 4}),
    "opt": (
        "AutoModelForCausalLM",
        "tokens",
        {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 128,
            "vocab_size": 100,
            "word_embed_proj_dim": 64,
        },
    ),
    "qwen2": ("AutoModelForCausalLM", "tokens", _GROUPED),
    "t5": (
        "AutoModelForSeq2SeqLM",
        "pairs",
        {
            "d_model": 64,
            "d_kv": 16,
            "d_ff": 128,
            "num_layers": 2,
            "num_heads": 4,
            "vocab_size": 100,
        },
    ),
    "vit": ("AutoModel", "images", {**_SMALL, "image_size": 64}),
    "wav2vec2": ("AutoModel", "sound", _SMALL),
    "whisper": (
        "AutoModel",
        "spectra",
        {**_BOTH_SIDES, **_SPECIAL, "max_source_positions": 50},
    ),
}


def language(
    name: str, batch: int = 2, length: int = 16, small: bool = False
) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Return an architecture of transformers and its inputs, with labels where it has a loss.

    Args:
        name: one of :data:`ARCHITECTURES`.
        batch: number of sequences.
        length: tokens of a sequence.
        small: use two narrow layers, for quick trials.
    """
    import transformers

    builder, fed, narrow = ARCHITECTURES[name]
    config = transformers.AutoConfig.for_model(name, **(narrow if small else {}))
    # No cache for the next token; decoders need a start token.
    config.use_cache = False
    if fed == "pairs":
        config.decoder_start_token_id = 0
    words = torch.randint(3, 100, (batch, length))
    inputs: dict[str, torch.Tensor] = {
        "tokens": {"input_ids": words, "labels": words},
        "pairs": {"input_ids": words, "labels": words},
        "images": {"pixel_values": torch.randn(batch, 3, 64, 64)},
        "sound": {"input_values": torch.randn(batch, 4000)},
        "spectra": {"input_features": torch.randn(batch, 80, 100), "decoder_input_ids": words},
    }[fed]
    return getattr(transformers, builder).from_config(config), inputs
