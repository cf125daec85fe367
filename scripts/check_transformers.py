"""Holds exported models to kerple's own numbers, with the real transformers library.

    python scripts/check_transformers.py [--bin target/release] [--work FOLDER] [--only NAME]

For every encoding, and for blocks that differ, a tiny model is trained for a few steps, exported, loaded, and compared: logits at one
and eight times the training length, a pass in single steps with a cache, padding on the left and on the right, greedy
generation alone and in a batch, the loss of labels, saving and loading again, bf16, and tuples. A model whose positions are taken
away must differ, so that agreement means something. Then models that transformers makes with random weights and options that
are seldom used are imported, and their logits compared; without the option they must differ. Exit code 1 when anything is off.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer
from transformers.utils import logging

ROOT = Path(__file__).resolve().parent.parent
TRAIN, LONG, PROMPT, NEW = 32, 256, 20, 12
# of logits whose spread is about 3; sums of f32 in other orders
TOLERANCE = 1e-4
SPE = '{ kind = "sine_spe", num_sines = 3, num_realizations = 8 }'
# encodings that go by the length of a sequence, or draw for it
BY_LENGTH = ("scaling = \"ntk\"", "randomized")


def linear(features, **keys):
    keys = ", ".join(f"{key} = {value}" for key, value in keys.items())
    return {"model.block.attention": f'{{ linear = {{ feature_map = "{features}", n_features = 32{", " + keys if keys else ""} }} }}'}


# name: encoding, other keys of the run file, what the folder must be
CASES = {
    **{kind: (f'"{kind}"', {}, "kerple") for kind in (
        "sinusoidal", "alibi", "t5", "kerple_log", "kerple_power", "kerple_bias_weight", "kerple_weight", "kerple_power_original",
        "kerple_log3", "gaussian_bias", "stretched_bias", "gaussian_weight", "stretched_weight", "fire", "dape", "sandwich", "bam",
        "transformer_xl", "shaw", "cope", "kernel", "xpos")},
    "none": ('"none"', {}, "gpt_neox"),
    "rotary": ('"rotary"', {}, "gpt_neox"),
    "learned": ('{ kind = "learned", positions = 256 }', {}, "gpt2"),
    "rotary_pct": ('{ kind = "rotary", pct = 0.4 }', {"model.block.residual": '"parallel"'}, "gpt_neox"),
    "rotary_odd": ('{ kind = "rotary", width = 7 }', {}, "gpt_neox"),
    "rotary_linear": ('{ kind = "rotary", scaling = { kind = "linear", factor = 8.0 } }', {}, "gpt_neox"),
    "rotary_yarn": ('{ kind = "rotary", scaling = { kind = "yarn", factor = 8.0, ramp = "index" } }', {}, "gpt_neox"),
    "rotary_llama3": ('{ kind = "rotary", scaling = "llama3" }', {}, "gpt_neox"),
    "rotary_ntk": ('{ kind = "rotary", scaling = { kind = "ntk", factor = 8.0 } }', {}, "kerple"),
    "rotary_yarn_turns": ('{ kind = "rotary", scaling = { kind = "yarn", factor = 8.0 } }', {}, "kerple"),
    "rotary_by_length": ('{ kind = "rotary", scaling = "ntk" }', {}, "kerple"),
    "rotary_keep": ('{ kind = "rotary", keep = 0.5 }', {}, "kerple"),
    "rotary_listed": ('{ kind = "rotary", width = 4, frequencies = [1.0, 0.0] }', {}, "kerple"),
    "bam_offset": ('{ kind = "bam", theta_mu = 0.3 }', {}, "kerple"),
    "rotary_window": ('{ kind = "rotary", window = 24 }', {}, "kerple"),
    "log_window": ('{ kind = "kerple_log", window = 24 }', {}, "kerple"),
    "log_inside": ('{ kind = "kerple_log", scale = "inside" }', {}, "kerple"),
    **{f"{kind}_reach": (f'{{ kind = "{kind}", reach = 24{keys} }}', {}, "kerple") for kind, keys in {
        "kerple_log": ', scale = "inside"', "alibi": "", "t5": "", "bam": ", theta_mu = 0.3"}.items()},
    "log_capped": ('{ kind = "kerple_log", distance_cap = 20 }', {}, "kerple"),
    "t5_capped_randomized": ('{ kind = "t5", distance_cap = 20, randomized = 300 }', {}, "kerple"),
    "log_reach_randomized": ('{ kind = "kerple_log", reach = 24, randomized = 300 }', {}, "kerple"),
    "log_layer": ('{ kind = "kerple_log", share = "layer" }', {}, "kerple"),
    "log_clamped": ('{ kind = "kerple_log", clamp = "forward_only" }', {}, "kerple"),
    "expression": ('{ kind = "kernel", bias = "-(-log(b, a))^0.5 + s*power(a, 1)", weight = "exp(1, a~0.1, p)" , keep = "smooth" }', {}, "kerple"),
    "expression_log": ('{ kind = "kernel", bias = "-log(1 - log3(b, a, p))" }', {}, "kerple"),
    "dape_v2": ('{ kind = "dape", base = "alibi", kernel = 3, variant = "add_residual" }', {}, "kerple"),
    "dape_closed": ('{ kind = "dape", base = "kerple_log", kernel = 3, edge = "closed" }', {}, "kerple"),
    "dape_fire": ('{ kind = "dape", base = "fire", variant = "concat", kernel = 5 }', {}, "kerple"),
    "dape_rotary": ('{ kind = "dape", base = "rotary" }', {}, "kerple"),
    "dape_none": ('{ kind = "dape", base = "none" }', {}, "kerple"),
    "dape_t5": ('{ kind = "dape", base = "t5", variant = "bias_only" }', {}, "kerple"),
    "shaw_values": ('{ kind = "shaw", values = true }', {}, "kerple"),
    "llama": ('"rotary"', {"model.block.norm": '"rms"', "model.block.norm_eps": "1e-6", "model.block.glu": "true", "model.block.activation": '"silu"',
        "model.block.qkv_bias": "false", "model.block.out_bias": "false", "model.block.mlp_bias": "false", "model.block.n_kv_heads": "2", "model.head_dim": "24", "model.d_model": "64"}, "llama"),
    "grouped": ('"kerple_log"', {"model.block.n_kv_heads": "2", "model.block.qk_norm": "true", "model.block.key_shift": "true", "model.block.sink": '"learned"',
        "model.block.attn_softcap": "20.0", "model.block.glu": "true", "model.block.activation": '"relu2"', "model.block.tie_embeddings": "true"}, "kerple"),
    "first": ('"t5"', {"model.block.residual": '"post_ln"', "model.block.activation": '"relu"', "model.block.scale_embeddings": "true",
        "model.block.embedding_norm": "true", "model.block.lm_head_bias": "true", "model.block.sink": '"off_by_one"', "model.block.ssmax": "0.3"}, "kerple"),
    "normed": ('"alibi"', {"model.block.residual": '"norm_residual"', "model.block.norm": '"layer_no_bias"', "model.block.clip_qkv": "1.5",
        "model.block.attn_scale": "0.3", "model.block.scale_attn_by_layer": "true", "model.block.activation": '"quick_gelu"'}, "kerple"),
    "mixed_layers": ('"kerple_log"', {"model.layers.other.at": "[1]", "model.layers.other.encoding": '"rotary"', "model.layers.other.window": "16"}, "kerple"),
    "fox": ('"fox"', {}, "kerple"),
    "inkling": ('{ kind = "inkling", rank = 4, reach = 20, log_scale = { floor = 16.0, alpha = 0.5 } }', {}, "kerple"),
    "inkling_window": ('{ kind = "inkling", rank = 3, window = 12 }', {"model.block.n_kv_heads": "2", "model.block.attn_softcap": "20.0"}, "kerple"),
    "inkling_model": ('{ kind = "inkling", rank = 4, reach = 20 }', {"model.block.norm": '"rms"', "model.block.norm_eps": "1e-6", "model.block.glu": "true",
        "model.block.activation": '"silu"', "model.block.qkv_bias": "false", "model.block.out_bias": "false", "model.block.mlp_bias": "false",
        "model.block.qk_norm": "true", "model.block.embedding_norm": "true", "model.block.short_conv": "4", "model.block.attn_scale": "0.0625",
        "model.layers.near": '{ at = [0], encoding = { kind = "inkling", rank = 4, window = 12 }, n_heads = 6, n_kv_heads = 3, head_dim = 8, attn_scale = 0.125 }'},
        "inkling_text"),
    "fox_grouped": ('{ kind = "fox", gate = "bias_only", window = 24 }', {"model.block.n_kv_heads": "2", "model.block.sink": '"learned"'}, "kerple"),
    "fox_spans": ('{ kind = "fox", spans = [2, 64] }', {}, "kerple"),
    "fox_fixed": ('{ kind = "fox", gate = "fixed", spans = [2, 64] }', {}, "kerple"),
    # by rows of the layer, or by learned numbers
    **{kind: (f'"{kind}"', {}, "kerple") for kind in (
        "kerple_positions", "wall", "selective_rope", "rotary_positions", "pope", "fope", "grape_ap", "path")},
    **{f"positions_{kernel}": (f'{{ kind = "kerple_positions", kernel = "{kernel}"{keys} }}', {}, "kerple") for kernel, keys in {
        "power": ", step_min = 0.05", "log3": ', step = "softplus", step_min = 0.1', "spline": ', step = "exp", knots = 6, window = 24',
        "table": ", entries = 40, grid = 0.5, step_max = 3.0"}.items()},
    "positions_grouped": ('"kerple_positions"', {"model.block.n_kv_heads": "2", "model.block.key_shift": "true"}, "kerple"),
    "wall_grouped": ('{ kind = "wall", scalar_gate = true, rank = 5, g_max = 0.86 }', {"model.block.n_kv_heads": "2", "model.block.qk_norm": "true"}, "kerple"),
    "wall_bounded": ('{ kind = "wall", gate = "bounded", gate_heads = "kv", order = "rope_then_channel_decay", window = 24 }', {"model.block.n_kv_heads": "2"}, "kerple"),
    "selective_grouped": ('{ kind = "selective_rope", rank = 4, gate = true, decay = true, scalar_gate = true }', {"model.block.n_kv_heads": "2"}, "kerple"),
    "selective_bare": ('{ kind = "selective_rope", bias = false }', {"model.block.n_kv_heads": "2", "model.block.key_shift": "true"}, "kerple"),
    "turned_grouped": ('{ kind = "rotary_positions", step = "softplus", window = 24 }', {"model.block.n_kv_heads": "2"}, "kerple"),
    "pope_grouped": ('{ kind = "pope", width = 5, clamp_delta = true }', {"model.block.n_kv_heads": "2", "model.block.qk_norm": "true"}, "kerple"),
    "pope_randomized": ('{ kind = "pope", randomized = 300 }', {}, "kerple"),
    "fope_grouped": ('{ kind = "fope", zero_pad = false }', {"model.block.n_kv_heads": "2", "model.block.key_shift": "true"}, "kerple"),
    "grape_grouped": ('{ kind = "grape_ap", features = 4, relative = true, window = 24 }', {"model.block.n_kv_heads": "2", "model.block.qk_norm": "true"}, "kerple"),
    "grape_randomized": ('{ kind = "grape_ap", relative = true, randomized = 300 }', {}, "kerple"),
    "path_fox": ('{ kind = "path", gate = true, gate_scale = "inside", conv = 2, window = 40 }', {"model.block.n_kv_heads": "2", "model.block.attn_softcap": "20.0"}, "kerple"),
    "content_layers": ('"fox"', {"model.layers.other.at": "[1]", "model.layers.other.encoding": '"path"'}, "kerple"),
    "temperature": ('"rotary"', {"model.block.attn_temperature": "{ floor = 8.0, alpha = 0.5 }"}, "kerple"),
    "sink_tokens": ('{ kind = "kerple_log", window = 16, sink_tokens = 3 }', {"model.block.ssmax": "0.3"}, "kerple"),
    "softpick": ('"kerple_log"', {"model.block.normalizer": '"softpick"'}, "kerple"),
    "breaking": ('"none"', {"model.block.normalizer": '"stick_breaking"'}, "kerple"),
    "breaking_own": ('{ kind = "kerple_log", window = 16, sink_tokens = 3 }',
        {"model.block.normalizer": '{ kind = "stick_breaking", attend_current = true, remainder = false }', "model.block.n_kv_heads": "2"}, "kerple"),
    "favor": ('"none"', linear("favor"), "kerple"),
    "favor_fox": ('"fox"', linear("favor"), "kerple"),
    "favor_jax": ('"rotary"', linear("favor_jax"), "kerple"),
    "relu_rf": ('"sinusoidal"', linear("relu_rf"), "kerple"),
    "elu_log": ('"kerple_log"', linear("elu", horizon=4096), "kerple"),
    "relu_power": ('"kerple_power"', linear("relu", horizon=4096), "kerple"),
    "elu_alibi": ('"alibi"', linear("elu"), "kerple"),
    "spe": (SPE, linear("favor"), "kerple"),
    "conv_spe": ('{ kind = "conv_spe", kernel_size = [9], num_realizations = 7 }', linear("favor"), "kerple"),
    "conv_spe_plane": ('{ kind = "conv_spe", kernel_size = [2, 3], size = [16, 16], gated = false, noise = "shared" }', linear("elu"), "kerple"),
    **{f"{kind}_randomized": (f'{{ kind = "{kind}", randomized = 300{keys} }}', {}, "kerple") for kind, keys in {
        "rotary": "", "sinusoidal": "", "learned": ", positions = 300", "alibi": "", "kerple_bias_weight": "", "fire": "", "shaw": "",
        "transformer_xl": ""}.items()},
    "dape_randomized": ('{ kind = "dape", base = "rotary", randomized = 300 }', {}, "kerple"),
    "favor_randomized": ('{ kind = "rotary", randomized = 300 }', linear("favor"), "kerple"),
    "layers_randomized": ('"kerple_log"', {"model.layers.other.at": "[1]", "model.layers.other.encoding": '{ kind = "t5", randomized = 300 }'}, "kerple"),
    **{f"{kind}_bf16": (f'{{ kind = "{kind}", emulate = "bf16"{keys} }}', {}, "kerple") for kind, keys in {
        "rotary": "", "sinusoidal": "", "alibi": ", bias_max = 7.0", "t5": "", "sandwich": "", "kerple_log": ", scale = \"inside\"", "kerple_bias_weight": "",
        "kerple_power_original": "", "fox": ', gate = "fixed", spans = [3, 60]',
        "kernel": ', bias = "-(-log(b, a))^0.5 + s*power(a, 1) - log(1 - log3(b, a, p))", weight = "exp(1, a~0.1, p)*gauss(c, a~0.001)"'}.items()},
}


INKLING = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=12, swa_num_attention_heads=4,
    swa_num_key_value_heads=4, swa_head_dim=8, sliding_window_size=10, d_rel=4, rel_extent=20, intermediate_size=72, conv_kernel_size=3,
    layer_types=["hybrid_sliding", "hybrid_sliding", "hybrid"], mlp_layer_types=["dense"] * 3, logits_mup_width_multiplier=2.0, unpadded_vocab_size=250)
# what is beside the text model
TOWERS = dict(vision_config=dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2), audio_config=dict(n_mel_bins=4, mel_vocab_size=4))

# name: architecture, sizes, and what the model has that it would not have by default
IMPORTS = {
    "inkling_dense": ("inkling_text", INKLING, dict(log_scaling_n_floor=8, log_scaling_alpha=0.5)),
    # saved with the names of the released checkpoint
    "inkling_released": ("inkling_mm_model", INKLING, dict(log_scaling_n_floor=8, log_scaling_alpha=0.5)),
    "gpt2_no_scale": ("gpt2", dict(n_embd=32, n_layer=3, n_head=4, n_positions=64), dict(scale_attn_weights=False)),
    "gpt2_scale_by_layer": ("gpt2", dict(n_embd=32, n_layer=3, n_head=4, n_positions=64), dict(scale_attn_by_inverse_layer_idx=True)),
    "gpt2_both_scales": ("gpt2", dict(n_embd=32, n_layer=3, n_head=4, n_positions=64, scale_attn_weights=False), dict(scale_attn_by_inverse_layer_idx=True)),
    "gpt2_relu": ("gpt2", dict(n_embd=32, n_layer=2, n_head=4, n_positions=64, n_inner=72), dict(activation_function="relu")),
    "mpt_clip_qkv": ("mpt", dict(d_model=32, n_layers=2, n_heads=4, max_seq_len=64), dict(attn_config=dict(clip_qkv=0.3))),
    "mpt_softmax_scale": ("mpt", dict(d_model=48, n_layers=2, n_heads=6, max_seq_len=64), dict(attn_config=dict(softmax_scale=0.7))),
    "bloom_post_norm": ("bloom", dict(hidden_size=32, n_layer=2, n_head=4), dict(apply_residual_connection_post_layernorm=True)),
    "neox_sequential": ("gpt_neox", dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=72), dict(use_parallel_residual=False)),
    "neox_rotary_share": ("gpt_neox", dict(hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=72),
        dict(rope_parameters=dict(rope_type="default", rope_theta=500.0, partial_rotary_factor=0.5))),
    "llama_biases": ("llama", dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=12,
        intermediate_size=72, attention_bias=True, mlp_bias=True), dict(rms_norm_eps=0.3)),
}


class Off(Exception):
    pass


def expect(holds, what):
    if not holds:
        raise Off(what)


def near(a, b, what, most=TOLERANCE):
    gap = (a.double() - b.double()).abs().max().item()
    expect(gap <= most, f"{what}: off by {gap:.2e}, at most {most:.0e} allowed")
    return gap


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise Off(f"{' '.join(str(part) for part in command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def load(folder, **options):
    model, about = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, output_loading_info=True, **options)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        expect(not about.get(key), f"loading: {key} {about.get(key)}")
    return model.eval()


class Check:
    def __init__(self, options, work):
        self.bin, self.work = Path(options.bin), work
        (work / "run.toml").write_text(
            f'[data]\npath = "{work}/data"\n[model]\nn_layers = 2\nn_heads = 4\nhead_dim = 16\nd_hidden = 96\n'
            f"[train]\ntrain_len = {TRAIN}\nbatch_size = 8\nsteps = 40\nlearning_rate = 2e-2\nwarmup_ratio = 0.1\neval_interval = 40\nsave_interval = 40\n"
        )
        # a text that does not change, so that a model's rounding does not either
        shutil.copy(ROOT / "LICENSE-APACHE", work / "text.txt")
        run(self.bin / "kerple", "prepare", "--input", work / "text.txt", "--split", "0.6,0.2,0.2", "--out", work / "data")

    def case(self, name):
        encoding, keys, family = CASES[name]
        runs, folder = self.work / "runs" / name, self.work / "export" / name
        sets = [part for key, value in {"encoding": encoding, **keys}.items() for part in ("--set", f"{key}={value}")]
        run(self.bin / "kerple", "train", "--config", self.work / "run.toml", "--out", runs, *sets)
        said = json.loads(run(self.bin / "kerple", "export", runs, "--out", folder, "--json"))
        expect(said["model_type"] == family, f"went out as {said['model_type']}, not {family}")
        wanted = self.reference(name, runs, TRAIN), self.reference(name, runs, LONG)
        model = load(folder)
        gaps = [near(model(ids).logits, logits, f"logits at {ids.shape[1]}") for ids, logits, _ in wanted]
        by_length = any(word in part for part in (encoding, *keys.values()) for word in BY_LENGTH)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # rows that depend on what follows them are others in steps
            if name != "dape_closed":
                model.config.span = LONG if by_length else None
                self.passes(model, wanted[1][0])
                model.config.span = None
                self.generates(model, wanted[1], by_length)
        self.tuples_and_loss(model, *wanted[0][:2])
        if "bf16" in name:
            self.rounds(model, *wanted[1][:2], gaps[1])
        if family == "kerple":
            self.learns(model, wanted[1][0])
            self.matters(model, wanted[1][0], wanted[1][1])
            self.saves(model, folder, wanted[0])
        self.tokens(folder)
        return max(gaps), wanted[1][1].std().item()

    def imported(self, name):
        kind, sizes, option = IMPORTS[name]

        def make(**keys):
            text = dict(vocab_size=257, bos_token_id=0, eos_token_id=0, **sizes, **keys)
            if kind == "inkling_mm_model":
                return AutoModelForImageTextToText.from_config(AutoConfig.for_model(kind, text_config=text, **TOWERS)).eval()
            return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **text)).eval()

        model, plain, folder, runs = make(**option), make(), self.work / "models" / name, self.work / "imported" / name
        with torch.no_grad():
            for value in model.parameters():
                value.add_(0.1 * torch.randn_like(value))
        plain.load_state_dict(model.state_dict())
        model.save_pretrained(folder)
        run(self.bin / "kerple", "import", folder, "--out", runs)
        ids, logits, _ = self.reference(name, runs, 48)
        with torch.no_grad():
            wanted, other = model(ids).logits, plain(ids).logits
        gap = near(logits, wanted, "logits")
        expect((other - wanted).abs().max() > 100 * TOLERANCE, f"without {option} logits are the same: nothing was compared")
        return gap, wanted.std().item()

    def reference(self, name, runs, length):
        """Tokens of the text, kerple's logits there, and what it says next."""
        text = (self.work / "text.txt").read_bytes()
        ids = torch.tensor([list(text[at : at + length]) for at in (1000, 3000)])
        tokens, out = self.work / f"{name}-{length}.tokens", self.work / f"{name}-{length}.logits"
        save_file({"input_ids": ids}, tokens)
        run(self.bin / "examples" / "logits", runs, tokens, out, PROMPT, NEW)
        found = load_file(out)
        return ids, found["logits"], found["greedy"]

    def passes(self, model, ids):
        """A prefix and single steps with a cache; padding on either side."""
        with torch.no_grad():
            out = model(ids[:, :5], use_cache=True)
            parts = [out.logits]
            for at in range(5, 60):
                out = model(ids[:, at : at + 1], past_key_values=out.past_key_values, use_cache=True)
                parts.append(out.logits)
            near(torch.cat(parts, 1), model(ids[:, :60]).logits, "single steps with a cache")
            long, short = ids[:1, :60], ids[1:, :50]
            filler = torch.full((1, 10), 7)
            mask = torch.ones(2, 60, dtype=torch.long)
            mask[1, :10] = 0
            positions = (mask.cumsum(1) - 1).clamp(min=0)
            both = model(torch.cat([long, torch.cat([filler, short], 1)]), attention_mask=mask, position_ids=positions).logits
            alone = [model(part).logits[0] for part in (long, short)]
            near(both[0], alone[0], "beside a padded sequence")
            near(both[1, 10:], alone[1], "padding on the left")
            both = model(torch.cat([long, torch.cat([short, filler], 1)]), attention_mask=mask.flip(1)).logits
            near(both[1, :50], alone[1], "padding on the right")

    def generates(self, model, wanted, by_length=False):
        """Greedy text; where positions go by the length of the text so far, each token is computed without a cache."""
        ids, logits, greedy = wanted
        options = {"use_cache": not by_length, "max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        prompt = ids[:1, :PROMPT]
        found = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)[0, PROMPT:]
        expect(found.tolist() == greedy.tolist(), f"greedy: {found.tolist()}, kerple has {greedy.tolist()}")
        if by_length:
            return
        padded = torch.cat([torch.full((1, 4), 7), prompt[:, : PROMPT - 4]], 1)
        mask = torch.ones(2, PROMPT, dtype=torch.long)
        mask[1, :4] = 0
        both = model.generate(torch.cat([prompt, padded]), attention_mask=mask, **options)
        short = prompt[:, : PROMPT - 4]
        alone = model.generate(short, attention_mask=torch.ones_like(short), **options)
        expect(both[0, PROMPT:].tolist() == greedy.tolist(), "greedy in a batch")
        expect(both[1, PROMPT:].tolist() == alone[0, PROMPT - 4 :].tolist(), "greedy with padding on the left")

    def tuples_and_loss(self, model, ids, logits):
        with torch.no_grad():
            near(model(ids, return_dict=False)[0], logits, "a tuple")
            loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))
            near(model(ids, labels=ids).loss, loss, "the loss of labels", 1e-5)
            near(model(ids, logits_to_keep=3).logits, logits[:, -3:], "the last logits")

    def learns(self, model, ids):
        """Every parameter has a gradient, and all of it is finite; the encoding's is not all 0."""
        if any(name.endswith("_near") for name, _ in model.named_buffers()):
            return  # the decay of linear attention is kept as it is
        model(ids, labels=ids).loss.backward()
        own = {name: value.grad for name, value in model.named_parameters()}
        off = [name for name, grad in own.items() if grad is None or not grad.isfinite().all()]
        expect(not off, f"gradients of {off}")
        still = [name for name, grad in own.items() if ".encoding." in name and not grad.any()]
        expect(not still, f"gradients of {still} are 0")
        model.zero_grad()

    def without(self, positions):
        """The same as if every token stood at one place."""
        if positions.form["enters"] == "code":
            # codes are features of attention too; at a frequency of 0, or under an empty filter, all positions have one
            still = {name: torch.full_like(positions.values[name], -1e3) for name in ("freqs",) if name in positions.values}
            still |= {name: torch.zeros_like(positions.values[name]) for name in ("query", "key") if name in positions.values}
            return type(positions)(positions.form, positions.values | still)
        kept = {name: value for name, value in positions.values.items() if name == "omega"}
        return type(positions)({"enters": "nowhere"}, kept)

    def matters(self, model, ids, logits):
        """Without its positions the model is another one."""
        keep = model.config.forms, model.model.encoding.each_layer, model.model.encoding.absolute
        if all(form["enters"] == "nowhere" for form in keep[0]):
            return
        each = keep[1]

        def plain(at, device):
            return [self.without(one) for one in each(at, device)]

        model.model.encoding.each_layer, model.model.encoding.absolute = plain, lambda at: None
        with torch.no_grad():
            gap = (model(ids).logits - logits).abs().max().item()
        model.model.encoding.each_layer, model.model.encoding.absolute = keep[1:]
        expect(gap > 100 * TOLERANCE, f"taking its positions away moves logits by {gap:.1e} alone: nothing was compared")

    def rounds(self, model, ids, logits, gap_of_rounded):
        """With exact formulas the model is another one."""
        found = []

        def walk(part):
            parts = part.values() if isinstance(part, dict) else part if isinstance(part, list) else []
            found.extend([part] if isinstance(part, dict) and part.get("emulate") else [])
            for inner in parts:
                walk(inner)

        walk(model.config.forms)
        for form in found:
            form["emulate"] = None
        with torch.no_grad():
            gap = (model(ids).logits - logits).abs().max().item()
        for form in found:
            form["emulate"] = "bf16"
        expect(found and gap > 10 * gap_of_rounded, f"exact formulas move logits by {gap:.1e} alone: nothing was compared")

    def saves(self, model, folder, wanted):
        """Saved by transformers and loaded again; made without memory and filled; loaded in bf16."""
        again = folder.with_name(folder.name + "-again")
        model.save_pretrained(again)
        with torch.no_grad():
            expect(torch.equal(load(again)(wanted[0]).logits, model(wanted[0]).logits), "saved and loaded again")
            with torch.device("meta"):
                hollow = type(model)(model.config)
            expect(all(value.is_meta for value in hollow.state_dict().values()), "numbers are computed where there is no memory")
            hollow = hollow.to_empty(device="cpu").eval()
            hollow.load_state_dict(model.state_dict())
            expect(torch.equal(hollow(wanted[0]).logits, model(wanted[0]).logits), "made on the meta device and filled")
            half = load(folder, dtype=torch.bfloat16)
            kept = {name: value.dtype for name, value in half.named_parameters() if ".encoding." in name}
            expect(set(kept.values()) <= {torch.float32}, f"bf16: {kept}")
            expect(half.lm_head.weight.dtype == torch.bfloat16, "bf16: the head")
            spread = wanted[1].std().item()
            near(half(wanted[0]).logits.float(), wanted[1], "bf16", spread)

    def tokens(self, folder):
        # without this word it asks a person who is not there
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
        text = "Ā tab\tand \u00e9, \U0001f600\r\n  end"
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        expect(ids == list(text.encode()), f"tokens are not bytes: {ids}")
        expect(tokenizer.decode(ids) == text, "text of tokens")
        expect(tokenizer.eos_token_id == 0 and AutoConfig.from_pretrained(folder, trust_remote_code=True).eos_token_id == 0, "the end token")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "target" / "release"))
    parser.add_argument("--work", help="folder to keep; a temporary one when left out")
    parser.add_argument("--only", action="append", help="names of cases")
    options = parser.parse_args()
    work = Path(options.work or tempfile.mkdtemp(prefix="kerple-check-"))
    work.mkdir(parents=True, exist_ok=True)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # models are so small that threads cost more than they bring
    failed, begun, names = [], time.time(), options.only or [*CASES, *IMPORTS]
    try:
        check = Check(options, work)
        for name in names:
            try:
                gap, spread = check.case(name) if name in CASES else check.imported(name)
                print(f"{name:22} within {gap:.1e} of logits with deviation {spread:.2f}", flush=True)
            except Off as off:
                failed.append(name)
                print(f"{name:22} OFF  {off}", flush=True)
    finally:
        if not options.work:
            shutil.rmtree(work, ignore_errors=True)
    print(f"{len(names) - len(failed)} of {len(names)} agree, {time.time() - begun:.0f} s")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
