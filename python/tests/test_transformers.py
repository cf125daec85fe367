"""Models of transformers with ``attn_implementation="kerple"`` against the same with ``"eager"``: outputs, gradients, caches."""

import copy

import pytest
import torch

pytest.importorskip("transformers")

import transformers  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import kerple.transformers  # noqa: E402, F401
from kerple.torch import dropout_mask  # noqa: E402

SIZES = dict(vocab_size=97)
CONFIGS = {
    "bloom": lambda: transformers.BloomConfig(**SIZES, hidden_size=32, n_layer=2, n_head=4, attention_dropout=0.0, hidden_dropout=0.0),
    "mpt": lambda: transformers.MptConfig(**SIZES, d_model=32, n_layers=2, n_heads=4, max_seq_len=64),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(
        **SIZES, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        attention_dropout=0.0, hidden_dropout=0.0,
    ),
    "llama": lambda: transformers.LlamaConfig(
        **SIZES, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64
    ),
    "mistral": lambda: transformers.MistralConfig(
        **SIZES, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64,
        sliding_window=5,
    ),
    "gemma2": lambda: transformers.Gemma2Config(
        **SIZES, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64,
        head_dim=8, sliding_window=5, attn_logit_softcapping=2.0, query_pre_attn_scalar=8,
    ),
    "inkling": lambda: transformers.InklingTextConfig(
        **SIZES, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        swa_num_attention_heads=4, swa_num_key_value_heads=4, swa_head_dim=8, sliding_window_size=5, d_rel=3, rel_extent=9,
        log_scaling_n_floor=6, log_scaling_alpha=0.5, local_layer_ids=[0, 2], mlp_layer_types=["dense"] * 3, intermediate_size=64,
        initializer_range=0.3, logits_mup_width_multiplier=1.0, pad_token_id=0,
    ),
}  # fmt: skip
T5 = dict(**SIZES, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0, decoder_start_token_id=0)


@pytest.fixture(autouse=True)
def _in_double(monkeypatch):
    """Models cast to float32 in norms, rotations and the softmax, whatever their type, which leaves 1e-8 of a comparison
    in float64, and turns the lowest float64 of a mask into -inf and so padded rows into NaN. float64 stays what it is here.
    """
    to_float, to, softmax = torch.Tensor.float, torch.Tensor.to, torch.nn.functional.softmax

    def is_kept(x):
        return x.dtype == torch.float64

    def kept_to(x, *given, **named):
        if is_kept(x):
            given = tuple(torch.float64 if one is torch.float32 else one for one in given)
            named |= {"dtype": torch.float64} if named.get("dtype") is torch.float32 else {}
        return to(x, *given, **named)

    def kept_softmax(x, dim=None, _stacklevel=3, dtype=None):
        return softmax(x, dim, _stacklevel, None if is_kept(x) else dtype)

    monkeypatch.setattr(torch.Tensor, "float", lambda x, *given, **named: x if is_kept(x) else to_float(x, *given, **named))
    monkeypatch.setattr(torch.Tensor, "to", kept_to)
    monkeypatch.setattr(torch.nn.functional, "softmax", kept_softmax)


def pair(config, auto=transformers.AutoModelForCausalLM):
    """The same model with both attentions, each with a config of its own, since models write their attention there."""
    torch.manual_seed(0)
    eager = auto.from_config(copy.deepcopy(config), attn_implementation="eager")
    ours = auto.from_config(copy.deepcopy(config), attn_implementation="kerple")
    assert [model.config._attn_implementation for model in (eager, ours)] == ["eager", "kerple"]
    ours.load_state_dict(eager.state_dict())
    return eager.double(), ours.double()


def padded(side, length=13):
    mask = torch.ones(3, length, dtype=torch.long)
    if side == "left":
        mask[1, :4] = 0
        mask[2, :9] = 0
    elif side == "right":
        mask[1, -4:] = 0
        mask[2, -9:] = 0
    return mask


def compare(eager, ours, real, inputs):
    """Logits at real tokens, and all gradients of a loss of them."""
    out = [model(**inputs).logits for model in (eager, ours)]
    torch.testing.assert_close(out[1][real], out[0][real], rtol=0, atol=1e-9)
    up = torch.randn_like(out[0][real])
    for model, logits in zip((eager, ours), out, strict=True):
        model.zero_grad()
        (logits[real] * up).sum().backward()
    for (name, one), two in zip(eager.named_parameters(), ours.parameters(), strict=True):
        if one.grad is None:
            assert two.grad is None or not two.grad.any(), name
            continue
        torch.testing.assert_close(
            two.grad, one.grad, rtol=1e-8, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("side", ["none", "left", "right"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_outputs_and_gradients_equal_eager(kind, side):
    eager, ours = pair(CONFIGS[kind]())
    mask = padded(side)
    inputs = dict(input_ids=torch.randint(97, mask.shape), use_cache=False)
    if side != "none":
        inputs["attention_mask"] = mask
    eager.train()
    ours.train()
    compare(eager, ours, mask.bool(), inputs)


@pytest.mark.parametrize("side", ["none", "right", "left"])
def test_t5_equals_eager(side):
    eager, ours = pair(transformers.T5Config(**T5), transformers.AutoModelForSeq2SeqLM)
    mask = padded(side)
    inputs = dict(input_ids=torch.randint(97, mask.shape), decoder_input_ids=torch.randint(97, (3, 6)), use_cache=False)
    if side != "none":
        inputs["attention_mask"] = mask
    compare(eager, ours, torch.ones(3, 6, dtype=torch.bool), inputs)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("side", ["none", "left"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_what_is_generated_equals_eager(kind, side, cache):
    if cache == "static" and kind == "bloom" and side == "left":
        side = "none"
    if cache == "static" and kind == "inkling":
        pytest.skip("eager itself fails: its bias has fewer keys than its static cache")
    eager, ours = pair(CONFIGS[kind]())
    mask = padded(side)
    options = dict(max_new_tokens=12, do_sample=False, pad_token_id=0, eos_token_id=None, disable_compile=True)
    if cache == "static":
        options["cache_implementation"] = "static"
    ids = torch.randint(1, 97, mask.shape)
    found = []
    for model in (eager, ours):
        try:
            found.append(model.eval().generate(ids, attention_mask=mask, **options))
        except ValueError as error:
            if model is eager:
                pytest.skip(f"this cache is none of the model's: {error}")
            raise
    assert found[0].shape == (3, 25) and torch.equal(*found)


def test_t5_generates_the_same():
    eager, ours = pair(transformers.T5Config(**T5), transformers.AutoModelForSeq2SeqLM)
    ids, mask = torch.randint(1, 97, (3, 13)), padded("right")
    options = dict(attention_mask=mask, max_new_tokens=12, do_sample=False, eos_token_id=None)
    assert torch.equal(*(model.eval().generate(ids, **options) for model in (eager, ours)))


def test_other_implementations_are_what_they_were():
    for kind in ("bloom", "mpt"):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(CONFIGS[kind](), attn_implementation="eager").eval()
        out = model(torch.randint(97, (2, 7)), output_attentions=True)
        assert out.attentions[0].shape == (2, 4, 7, 7)


def test_gradient_checkpointing_is_the_same():
    for kind, config, auto in [
        ("llama", CONFIGS["llama"](), transformers.AutoModelForCausalLM),
        ("t5", transformers.T5Config(**T5), transformers.AutoModelForSeq2SeqLM),
    ]:
        _, model = pair(config, auto)
        ids = torch.randint(97, (2, 9))
        losses, gradients = [], []
        for checkpoint in (False, True):
            if checkpoint:
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            model.train().zero_grad()
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            losses.append(loss.detach())
            gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        assert torch.equal(*losses), kind
        assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True)), kind


@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_reentrant_checkpoints_keep_masks_and_biases(kind):
    """They hand detached tensors on to layers."""
    if kind == "t5":
        eager, ours = pair(transformers.T5Config(**T5), transformers.AutoModelForSeq2SeqLM)
    else:
        eager, ours = pair(DROPPED["gpt2"]())
    ids, mask = torch.randint(97, (3, 13)), padded("right")
    for model in (eager, ours):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=True))
        for module in model.train().modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        model(input_ids=ids, attention_mask=mask, labels=ids.where(mask.bool(), -100), use_cache=False).loss.backward()
    for (name, one), two in zip(eager.named_parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(two.grad, one.grad, rtol=1e-8, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")


def test_bloom_without_a_causal_mask_equals_eager():
    eager, ours = pair(CONFIGS["bloom"]())
    for model in (eager, ours):
        model.config.is_causal = False
    compare(eager, ours, torch.ones(3, 13, dtype=torch.bool), dict(input_ids=torch.randint(97, (3, 13)), use_cache=False))


@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_modernbert_equals_eager(side):
    config = transformers.ModernBertConfig(
        **SIZES, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48, local_attention=6, global_attn_every_n_layers=3,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
    )  # fmt: skip
    eager, ours = pair(config, transformers.AutoModelForMaskedLM)
    mask = padded(side)
    compare(eager.eval(), ours.eval(), mask.bool(), dict(input_ids=torch.randint(3, 97, mask.shape), attention_mask=mask))


def refused(match, config=None, training=True, **inputs):
    _, model = pair(config or CONFIGS["llama"]())
    with pytest.raises(ValueError, match=match):
        model.train(training)(torch.randint(97, (2, 7)), **inputs)


PACKED = torch.tensor([[0, 1, 2, 0, 1, 0, 1, 2, 3, 4, 5, 6, 7], [3, 4, 5, 6, 7, 8, 0, 0, 1, 2, 3, 4, 5]])
SEPARATE = ("llama", "mistral", "gemma2", "gpt_neox")


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("kind", SEPARATE)
def test_packed_positions_are_the_documents_of_eager(kind, checkpointing):
    eager, ours = pair(CONFIGS[kind]())
    inputs = dict(input_ids=torch.randint(97, PACKED.shape), position_ids=PACKED, use_cache=False)
    for model in (eager, ours):
        model.train()
        if checkpointing:
            model.gradient_checkpointing_enable(dict(use_reentrant=False))
    compare(eager, ours, torch.ones(PACKED.shape, dtype=torch.bool), inputs)


def test_the_librarys_mask_of_packed_positions_is_read_and_not_compared(monkeypatch):
    library = pytest.importorskip("transformers", minversion="5.0").masking_utils
    causal, ours = library.causal_mask_function, kerple.transformers
    packed = lambda inner, positions: library.packed_sequence_compatibility_function(  # noqa: E731
        inner, positions, library.find_packed_sequence_indices(positions)
    )
    of = {None: packed(causal, PACKED), 3: packed(library.sliding_window_causal_mask_function(3), PACKED)}
    for window, function in of.items():
        assert torch.equal(ours._packed(function, 2, 13, window), ours._documents(function, 2, 13, window))
    # another window or shape, a mask that is not packed, and documents that are not those of the positions
    ids = library.find_packed_sequence_indices(PACKED)
    foreign = [library.packed_sequence_compatibility_function(causal, PACKED, x) for x in (ids.roll(1, 1), ids.flip(1), ids * 0)]
    for function, sizes, window in ((of[3], (2, 13), 4), (of[3], (2, 13), None), (of[None], (2, 13), 3), (of[None], (1, 13), None),
                                    (causal, (2, 13), None), *((x, (2, 13), None) for x in foreign)):  # fmt: skip
        assert ours._packed(function, *sizes, window) is None
    monkeypatch.setattr(ours, "_sees", lambda *_: pytest.fail("pairs were compared"))
    monkeypatch.setattr(ours, "_documents", ours._sees)
    assert torch.equal(ours.mask(2, 13, 13, mask_function=of[None]).documents, ids)
    assert torch.equal(ours.mask(2, 13, 13, mask_function=of[3], local_size=3).documents, ids)


@pytest.mark.parametrize("kind", SEPARATE)
def test_packed_documents_equal_themselves_alone(kind):
    _, ours = pair(CONFIGS[kind]())
    ids, lengths = torch.randint(97, (1, 13)), [3, 2, 8]
    alone = torch.cat([ours(part, use_cache=False).logits for part in ids.split(lengths, 1)], 1)
    packed = ours(ids, position_ids=PACKED[:1], use_cache=False).logits
    torch.testing.assert_close(packed, alone, rtol=0, atol=1e-12)
    cumulative = torch.tensor([0, 3, 5, 13], dtype=torch.int32)
    told = dict(cu_seq_lens_q=cumulative, cu_seq_lens_k=cumulative, max_length_q=8, max_length_k=8)
    packed = ours(ids, position_ids=PACKED[:1], use_cache=False, **told).logits
    torch.testing.assert_close(packed, alone, rtol=0, atol=1e-12)


def test_cumulative_lengths_must_fit():
    _, ours = pair(CONFIGS["llama"]())
    ids = torch.randint(97, (2, 13))
    of = lambda *cu: dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), torch.tensor(cu))  # noqa: E731
    with pytest.raises(ValueError, match="of 2 rows"):
        ours(ids, use_cache=False, **of(0, 13))
    with pytest.raises(ValueError, match="begin with 0 and end there"):
        ours(ids[:1], use_cache=False, **of(0, 12))
    with pytest.raises(ValueError, match="cu_seq_lens beside an attention mask that hides keys"):
        ours(ids[:1], use_cache=False, attention_mask=padded("right")[1:2], **of(0, 9, 13))
    with pytest.raises(ValueError, match="not the documents of position_ids"):
        ours(ids[:1], use_cache=False, position_ids=PACKED[:1], **of(0, 4, 13))


def test_documents_that_see_each_other_are_named():
    eager, ours = pair(CONFIGS["llama"]())
    inputs = dict(input_ids=torch.randint(97, (1, 13)), position_ids=PACKED[:1], attention_mask=torch.ones(1, 13))
    with pytest.warns(UserWarning, match="positions restart at token 3 but documents see each other"):
        found = ours(**inputs, use_cache=False).logits
    torch.testing.assert_close(found, eager(**inputs, use_cache=False).logits, rtol=0, atol=1e-9)


class Reads(TorchDispatchMode):
    """Counts how often values of tensors are read, for which the host would wait on a GPU."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket.__name__ in ("_local_scalar_dense", "equal", "nonzero", "is_nonzero")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("given", ["nothing", "padding", "positions", "documents"])
def test_layers_read_no_values(given):
    inputs = {
        "nothing": {}, "padding": dict(attention_mask=padded("left")), "positions": dict(position_ids=torch.arange(13)[None].expand(3, -1)),
        "documents": dict(position_ids=PACKED[:1], **dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), torch.tensor([0, 3, 5, 13]))),
    }[given]  # fmt: skip
    counts = []
    for layers in (1, 4):
        config = CONFIGS["llama"]()
        config.num_hidden_layers = layers
        _, model = pair(config)
        with Reads() as reads:
            model(torch.randint(97, (1 if given == "documents" else 3, 13)), use_cache=False, **inputs)
        counts.append(reads.count)
    assert counts[0] == counts[1], "a pass reads what masks say once"


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_trainer_in_bfloat16(kind, tmp_path):
    pytest.importorskip("accelerate")
    config = CONFIGS[kind]()
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="kerple")
    before = [p.detach().clone() for p in model.parameters()]
    rows = [dict(input_ids=row, labels=row) for row in torch.randint(97, (1, 12)).expand(8, -1)]
    options = dict(per_device_train_batch_size=4, max_steps=4, learning_rate=1e-2, logging_steps=1, report_to=[], save_strategy="no")
    trainer = transformers.Trainer(
        model, transformers.TrainingArguments(str(tmp_path), bf16=True, use_cpu=True, disable_tqdm=True, **options), train_dataset=rows
    )
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert len(losses) == 4 and losses[-1] < losses[0] - 0.3, losses
    assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


#: With the dropout of attention weights as their configs name it.
DROPPED = {
    "gpt2": lambda: transformers.GPT2Config(**SIZES, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0),
    "bloom": lambda: transformers.BloomConfig(**SIZES, hidden_size=32, n_layer=2, n_head=4, attention_dropout=0.25, hidden_dropout=0.0),
    "mpt": lambda: transformers.MptConfig(**SIZES, d_model=32, n_layers=2, n_heads=4, max_seq_len=64),
    "llama": lambda: transformers.LlamaConfig(
        **SIZES, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64, attention_dropout=0.25
    ),
}  # fmt: skip


@pytest.fixture
def masked_dropout(monkeypatch):
    """Dropout of attention weights in eager models by the mask of a seed, drawn as kerple draws it."""
    rates = []

    def dropout(x, p=0.5, training=True, inplace=False):
        if not training or p == 0:
            return x
        assert x.dim() == 4, "only attention weights are dropped here"
        rates.append(p)
        return x * dropout_mask(torch.randint(2**63 - 1, (1,)), p, *x.shape) / (1 - p)

    monkeypatch.setattr(torch.nn.functional, "dropout", dropout)
    return rates


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("side", ["none", "left"])
@pytest.mark.parametrize("kind", DROPPED)
def test_dropout_in_training_is_that_of_eager_with_the_same_mask(masked_dropout, kind, side, checkpointing):
    eager, ours = pair(DROPPED[kind]())
    mask = padded(side)
    inputs = dict(input_ids=torch.randint(97, mask.shape), use_cache=False)
    if side != "none":
        inputs["attention_mask"] = mask
    results = []
    for model in (eager.train(), ours.train()):
        for module in model.modules():  # the config's field takes whole numbers only
            if hasattr(module, "attn_dropout_p"):
                module.attn_dropout_p = 0.3
        if checkpointing and model is ours:  # draws the same mask again
            model.gradient_checkpointing_enable(dict(use_reentrant=False))
        torch.manual_seed(7)
        logits = model(**inputs).logits[mask.bool()]
        logits.square().sum().backward()
        results.append([logits.detach(), *(x.grad for x in model.parameters() if x.grad is not None)])
    assert len(masked_dropout) == 2 and masked_dropout[0] > 0.05, "two layers"
    assert len(results[0]) == len(results[1])
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-8 * (1 + want.abs().max().item()))
    evaluated = ours.eval()(**inputs).logits[mask.bool()]
    torch.testing.assert_close(evaluated, eager.eval()(**inputs).logits[mask.bool()], rtol=0, atol=1e-9)
    assert (evaluated - results[1][0]).abs().max() > 1e-3, "evaluation drops nothing"


TEXT = dict(
    **SIZES, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64, head_dim=8
)  # fmt: skip
VISION = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4)
IMAGES = {
    "gemma3": lambda: transformers.Gemma3Config(
        text_config=transformers.Gemma3TextConfig(**TEXT, sliding_window=5, layer_types=["sliding_attention", "full_attention"]),
        vision_config=VISION, image_token_index=96, boi_token_index=95, eoi_token_index=94, mm_tokens_per_image=4,
    ),
    "paligemma": lambda: transformers.PaliGemmaConfig(
        text_config=dict(**TEXT, model_type="gemma"), vision_config=dict(**VISION, model_type="siglip_vision_model"),
        image_token_index=96, projection_dim=32,
    ),
}  # fmt: skip


@pytest.mark.parametrize("side", ["none", "right"])
@pytest.mark.parametrize("kind", IMAGES)
def test_prefixes_and_images_equal_eager(kind, side):
    eager, ours = pair(IMAGES[kind](), transformers.AutoModelForImageTextToText)
    ids, mask = torch.randint(90, (3, 13)), padded(side)
    if kind == "gemma3":  # two images side by side between text, and one at the end
        types = torch.tensor([[0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 0, 0]] * 2 + [[0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1]])
    else:  # prefixes of several lengths
        types = (torch.arange(13) >= torch.tensor([[4], [9], [1]])).long()
    inputs = dict(input_ids=ids, token_type_ids=types, use_cache=False)
    if side != "none":
        inputs["attention_mask"] = mask
    for model in (eager, ours):
        model.train()
    compare(eager, ours, mask.bool(), inputs)


def test_masks_that_are_no_intervals_are_refused():
    from transformers.masking_utils import and_masks, causal_mask_function, or_masks

    with_hole = and_masks(causal_mask_function, lambda b, h, q, k: k != 3)
    ahead = or_masks(causal_mask_function, lambda b, h, q, k: k == q + 2)
    for rule in (with_hole, ahead):
        with pytest.raises(ValueError, match="nor one interval of keys per query"):
            kerple.transformers.mask(2, 7, 7, mask_function=rule)


def test_models_that_compute_with_their_mask_are_refused():
    from kerple.transformers import attend, mask

    sight, q, computes = mask(1, 4, 4), torch.zeros(1, 1, 4, 2), "computes with its attention mask"
    uses = [
        lambda x: x[:, :, :2], lambda x: x + q, lambda x: q + x, lambda x: ~x, lambda x: x & True, lambda x: x.masked_fill(q > 0, 0.0),
        lambda x: x.expand(2, -1, -1, -1),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(ValueError, match=computes):
            use(sight)
    for made in (torch.cat([sight, sight], -1), torch.nn.functional.pad(sight, (0, 1))):
        with pytest.raises(ValueError, match=computes):
            attend(torch.nn.Identity(), q, q, q, made)
    assert attend(torch.nn.Identity(), q, q, q, sight.to(torch.float64).contiguous().detach())[0].shape == (1, 4, 1, 2)
    assert sight.shape == (1, 1, 0, 0) and sight.dim() == 4 and "Sight" in repr(sight)


@pytest.mark.parametrize("kind", ["llama", "mpt", "bloom"])
def test_masks_of_other_tokens_are_refused(kind):
    """More or fewer columns than tokens would be taken for the first ones, and queries would be at other positions."""
    _, model = pair(CONFIGS[kind]())
    ids = torch.randint(97, (2, 7))
    for columns in (5, 9):
        with pytest.raises(ValueError, match=f"an attention mask of {columns} columns for 7 keys; give it one column per token"):
            model(ids, attention_mask=torch.ones(2, columns), use_cache=False)


def test_masks_of_other_shapes_are_refused():
    for shape in ((1, 7), (2, 7, 7)):
        refused(r"an attention mask of shape \(.*\) for 2 sequences; use one of \[B, K\] with B = 2", attention_mask=torch.ones(shape, dtype=torch.long))


def test_what_is_not_computed_is_refused_by_name():
    refused("hides keys between others", attention_mask=torch.tensor([[1, 1, 0, 1, 1, 1, 1]] * 2))
    refused("masks of pairs", attention_mask=torch.zeros(2, 1, 7, 7, dtype=torch.double))
    refused("output_attentions", CONFIGS["bloom"](), output_attentions=True)
