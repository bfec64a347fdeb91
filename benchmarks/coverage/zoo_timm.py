"""timm: the smallest member of every family, and members of families for another look.

The image is the smallest that the model takes.
"""

from __future__ import annotations

import timm
from measure import Case, Setup, noisy_input

# family (module of timm.models): smallest member, image size
FAMILIES = {
    "beit": ("beit_base_patch16_224", 64),
    "byoanet": ("halonet_h1", 256),
    "byobnet": ("mobileone_s1", 64),
    "cait": ("cait_xxs24_224", 64),
    "coat": ("coat_tiny", 64),
    "convit": ("convit_tiny", 64),
    "convmixer": ("convmixer_768_32", 64),
    "convnext": ("convnext_zepto_rms", 64),
    "cpubone": ("cpubone_nano", 64),
    "crossvit": ("crossvit_tiny_240", 64),
    "csatv2": ("csatv2", 64),
    "cspnet": ("cs3darknet_focus_s", 64),
    "davit": ("davit_tiny", 64),
    "deepseek_vit": ("deepseek_vit_412m", 112),
    "deit": ("deit_tiny_patch16_224", 64),
    "densenet": ("densenet121", 64),
    "dla": ("dla46x_c", 64),
    "dpn": ("dpn48b", 64),
    "edgenext": ("edgenext_xx_small", 64),
    "efficientformer": ("efficientformer_l1", 224),
    "efficientformer_v2": ("efficientformerv2_s0", 64),
    "efficientnet": ("mobilenetv2_035", 64),
    "efficientvim": ("efficientvim_m1", 64),
    "efficientvit_mit": ("efficientvit_b0", 64),
    "efficientvit_msra": ("efficientvit_m0", 64),
    "eva": ("vit_tiny_patch16_dinov3_qkvb", 64),
    "fasternet": ("fasternet_t0", 64),
    "fastvit": ("fastvit_t8", 64),
    "focalnet": ("focalnet_tiny_srf", 64),
    "gcvit": ("gcvit_xxtiny", 128),
    "ghostnet": ("ghostnet_050", 64),
    "hardcorenas": ("hardcorenas_b", 64),
    "hgnet": ("hgnetv2_b0", 64),
    "hiera": ("hiera_tiny_224", 64),
    "hieradet_sam2": ("sam2_hiera_tiny", 64),
    "hrnet": ("hrnet_w18_small", 64),
    "iformer": ("iformer_t", 64),
    "inception_next": ("inception_next_atto", 64),
    "inception_resnet_v2": ("inception_resnet_v2", 96),
    "inception_v3": ("inception_v3", 96),
    "inception_v4": ("inception_v4", 96),
    "lcnetv2": ("lcnetv2_small", 64),
    "levit": ("levit_128s", 64),
    "lowformer": ("lowformer_b0", 64),
    "mambaout": ("mambaout_femto", 64),
    "maxxvit": ("maxvit_pico_rw_256", 128),
    "metaformer": ("poolformerv2_s12", 64),
    "mlp_mixer": ("gmlp_ti16_224", 64),
    "mobilenetv3": ("mobilenetv3_small_050", 64),
    "mobilenetv5": ("mobilenetv5_base", 64),
    "mobilevit": ("mobilevit_xxs", 64),
    "mvitv2": ("mvitv2_tiny", 64),
    "naflexvit": ("naflexvit_base_patch16_parfac_gap", 64),
    "nasnet": ("nasnetalarge", 64),
    "nest": ("nest_tiny", 128),
    "nextvit": ("nextvit_small", 64),
    "nfnet": ("nf_regnet_b0", 64),
    "pit": ("pit_ti_224", 64),
    "pnasnet": ("pnasnet5large", 64),
    "pvt_v2": ("pvt_v2_b0", 64),
    "qwen3_vit": ("qwen3_vit_88m", 64),
    "rdnet": ("rdnet_tiny", 64),
    "regnet": ("regnetx_002", 64),
    "repghost": ("repghostnet_050", 64),
    "repvit": ("repvit_m1", 64),
    "res2net": ("res2next50", 64),
    "resnest": ("resnest14d", 64),
    "resnet": ("resnet10t", 64),
    "resnetv2": ("resnetv2_18", 64),
    "rexnet": ("rexnet_100", 64),
    "selecsls": ("selecsls42", 64),
    "senet": ("legacy_seresnet18", 64),
    "sequencer": ("sequencer2d_s", 64),
    "shvit": ("shvit_s1", 64),
    "sknet": ("skresnet18", 64),
    "starnet": ("starnet_s050", 64),
    "swiftformer": ("swiftformer_xs", 64),
    "swin_transformer": ("swin_tiny_patch4_window7_224", 128),
    "swin_transformer_v2": ("swinv2_tiny_window8_256", 128),
    "swin_transformer_v2_cr": ("swinv2_cr_tiny_224", 128),
    "tiny_vit": ("tiny_vit_5m_224", 64),
    "tnt": ("tnt_s_legacy_patch16_224", 64),
    "tresnet": ("tresnet_m", 64),
    "twins": ("twins_svt_small", 64),
    "vgg": ("vgg11", 64),
    "visformer": ("visformer_tiny", 64),
    "vision_transformer": ("vit_tiny_patch16_224", 64),
    "vision_transformer_hybrid": ("vit_tiny_r_s16_p8_224", 64),
    "vision_transformer_relpos": ("vit_srelpos_small_patch16_224", 64),
    "vision_transformer_sam": ("samvit_base_patch16_224", 64),
    "vitamin": ("vitamin_small_224", 64),
    "volo": ("volo_d1_224", 64),
    "vovnet": ("ese_vovnet19b_slim_dw", 64),
    "xception": ("legacy_xception", 64),
    "xception_aligned": ("xception41p", 64),
    "xcit": ("xcit_nano_12_p8_224", 64),
}

# family, member, image size
FURTHER = [
    ("byoanet", "halonet26t", 256),
    ("byoanet", "lambda_resnet26t", 64),
    ("byoanet", "sebotnet33ts_256", 64),
    ("byobnet", "bat_resnext26ts", 256),
    ("byobnet", "gcresnet33ts", 64),
    ("byobnet", "resnet50_clip", 64),
    ("byobnet", "regnetz_b16_evos", 64),
    ("convnext", "convnextv2_atto", 64),
    ("cspnet", "cs3se_edgenet_x", 64),
    ("densenet", "densenetblur121d", 64),
    ("dla", "dla60_res2net", 64),
    ("efficientnet", "efficientnet_b0_g16_evos", 64),
    ("efficientnet", "efficientnet_cc_b0_4e", 64),
    ("efficientnet", "tf_efficientnet_lite0", 64),
    ("efficientvit_mit", "efficientvit_l1", 64),
    ("eva", "eva02_tiny_patch14_224", 64),
    ("eva", "vit_small_patch16_rope_mixed_224", 64),
    ("gemma4_vit", "gemma4_vit_167m", 96),
    ("ghostnet", "ghostnetv2_100", 64),
    ("ghostnet", "ghostnetv3_050", 64),
    ("levit", "levit_conv_128s", 64),
    ("maxxvit", "coatnet_nano_cc_224", 128),
    ("maxxvit", "coatnet_rmlp_nano_rw_224", 128),
    ("metaformer", "caformer_s18", 64),
    ("mlp_mixer", "resmlp_12_224", 64),
    ("mobilenetv3", "mobilenetv4_hybrid_medium", 64),
    ("mobilevit", "mobilevitv2_050", 64),
    ("nfnet", "test_nfnet", 64),
    ("resnet", "resnetblur50", 64),
    ("resnetv2", "resnetv2_50d_frn", 64),
    ("twins", "twins_pcpvt_small", 64),
    ("vision_transformer", "test_vit3", 64),
    ("vision_transformer_relpos", "vit_relpos_small_patch16_224", 64),
    ("xcit", "xcit_nano_12_p16_224", 64),
]

# Families built for one image size; they are told ours.
FIXED_SIZE = {
    "beit", "byoanet", "byobnet", "cait", "coat", "convit", "deit", "efficientformer_v2",
    "efficientvit_msra", "eva", "gcvit", "hiera", "levit", "maxxvit", "mlp_mixer", "nest",
    "pit", "swin_transformer", "swin_transformer_v2", "swin_transformer_v2_cr", "tnt",
    "visformer", "vision_transformer", "vision_transformer_hybrid", "vision_transformer_relpos",
    "vitamin", "volo",
}  # fmt: skip


def cases() -> list[Case]:
    """One case per family, then the further members."""
    first = [_case(family, name, size) for family, (name, size) in FAMILIES.items()]
    return first + [_case(family, name, size, further=True) for family, name, size in FURTHER]


def _case(family: str, name: str, size: int, *, further: bool = False) -> Case:
    def build() -> Setup:
        options = {"img_size": size} if family in FIXED_SIZE else {}
        return noisy_input(timm.create_model(name, **options), 1, 3, size, size)

    return Case("timm", family, name, build, further)
