"""Kinds of causal models that transformers has: each gives what ``eager`` gives, or is refused by its name."""

import pytest
import torch

transformers = pytest.importorskip("transformers")

import kerple.transformers as ours  # noqa: E402

SIZES = dict(
    vocab_size=97, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
    head_dim=8, n_embd=32, n_layer=2, n_head=4, n_layers=2, n_heads=4, d_model=32, n_positions=64, n_inner=48, rotary_dim=4,
    max_position_embeddings=64, num_layers=2, num_heads=4, ffn_dim=48, word_embed_proj_dim=32, embedding_size=32,
    attention_types=[[["global", "local"], 1]], num_experts=4, num_local_experts=4, num_experts_per_tok=2,
    moe_intermediate_size=16, is_decoder=True, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    decoder_layers=1, encoder_layers=1, decoder_attention_heads=4, encoder_attention_heads=4, decoder_ffn_dim=48, encoder_ffn_dim=48,
)  # fmt: skip
TAKEN = """apertus arcee bert bitnet bloom cohere cohere2 ctrl diffllama electra exaone4 gemma gemma2 gemma3_text glm glm4
gpt2 gpt_bigcode gpt_neox gpt_oss granite helium jetmoe lfm2 llama llama4_text ministral mistral mixtral mpt nemotron olmo olmo2 olmo3
opt persimmon phi phi3 qwen2 qwen2_moe qwen3 qwen3_moe recurrent_gemma roberta seed_oss smollm3 starcoder2""".split()
REFUSED = """bart biogpt codegen doge falcon gpt_neo gptj mamba openai-gpt rembert roformer rwkv stablelm xlm
xlnet""".split()


def config(kind):
    of = transformers.CONFIG_MAPPING[kind]
    known = {*of().to_dict(), *of.attribute_map}
    return of(**{name: value for name, value in SIZES.items() if name in known})


def build(kind, implementation):
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config(kind), attn_implementation=implementation).eval()


@pytest.mark.parametrize("kind", TAKEN)
def test_taken_kinds_give_what_eager_gives(kind):
    if kind not in transformers.CONFIG_MAPPING:
        pytest.skip(f"this version of transformers has no {kind}")
    eager, model = build(kind, "eager"), build(kind, "kerple")
    model.load_state_dict(eager.state_dict())
    ids = torch.randint(3, 90, (2, 12))
    with torch.no_grad():
        want, got = (one(input_ids=ids, use_cache=False).logits for one in (eager, model))
    # f32 over two layers
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5 * max(1.0, float(want.abs().max())))


@pytest.mark.parametrize("kind", REFUSED)
def test_other_kinds_are_refused_by_name(kind):
    if kind not in transformers.CONFIG_MAPPING:
        pytest.skip(f"this version of transformers has no {kind}")
    with pytest.raises(ValueError, match=f"attn_implementation='kerple'.* kind {kind} .*attn_implementation='eager'"):
        build(kind, "kerple")


def test_a_mask_is_compared_at_every_pair():
    from transformers.masking_utils import blockwise_overlay, causal_mask_function, or_masks

    for length, size, at in ((300, 4, 20), (1000, 16, 501), (5000, 64, 4001)):
        with pytest.raises(ValueError, match="neither causal"):
            ours.mask(1, length, length, mask_function=lambda b, h, q, k: (k <= q) & ~((q == at) & (k == at - 2)))  # noqa: B023
        assert ours.mask(1, length, length, mask_function=lambda b, h, q, k: k <= q).causal
        # a block of tokens that see each other leaves one interval for each
        block = torch.full((1, length), -1)
        block[0, at : at + size] = 0
        sight = ours.mask(1, length, length, mask_function=or_masks(causal_mask_function, blockwise_overlay(block)))
        ends = torch.arange(1, length + 1)
        ends[at : at + size] = at + size
        assert not sight.causal and torch.equal(sight.intervals[0], torch.zeros(1, length, dtype=torch.int64))
        assert torch.equal(sight.intervals[1], ends[None])


def test_a_window_is_recognised_by_what_it_is():
    from transformers.masking_utils import sliding_window_causal_mask_function as window

    assert ours._is_window(window(5), 5) and not ours._is_window(window(5), 6)
    assert ours.mask(1, 9, 9, mask_function=window(5), local_size=5).window == 5
    # the function decides, whatever the size beside it
    sight, at = ours.mask(1, 9, 9, mask_function=window(5), local_size=6), torch.arange(9)
    assert sight.window is None and torch.equal(sight.intervals[0][0], (at - 4).clamp(min=0))
    assert torch.equal(sight.intervals[1][0], at + 1)


def test_an_encoding_without_a_seed_is_made_on_the_meta_device(tmp_path):
    class Config(transformers.PretrainedConfig):
        model_type = "seedless"

    class Model(transformers.PreTrainedModel):
        config_class = Config

        def __init__(self, config):
            super().__init__(config)
            from kerple.torch import KerpleLog, LinearAttention

            self.attend, self.linear = KerpleLog(heads=2, head_dim=4), LinearAttention("sine_spe", heads=2, head_dim=4)
            self.post_init()

        def _init_weights(self, module):
            pass

    model = Model(Config())
    model.save_pretrained(tmp_path)
    again, x = Model.from_pretrained(tmp_path), torch.randn(1, 2, 5, 4)
    for name in ("attend", "linear"):
        assert torch.equal(getattr(again, name).eval()(x, x, x), getattr(model, name).eval()(x, x, x)), name
