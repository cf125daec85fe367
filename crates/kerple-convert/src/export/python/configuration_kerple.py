"""The configuration of a kerple model: sizes, blocks, and the positional encoding as data."""
from transformers import PretrainedConfig


class KerpleConfig(PretrainedConfig):
    """What config.json holds.

    `encoding` is the `[encoding]` table of the run, `block` its `[model.block]` table. `forms` says what the modelling code
    computes: one entry for the model's encoding, and one for each other that stands in some layers. An entry has
    `enters` (`nowhere`, `embeddings`, `rotation`, `polar`, `mixed_rotation`, `scores`, `map`, `gates`, `relative`, `decays`, `turns`, `path`,
    `reflections` or `code`), the constants of its formula, and `parameters`: the learned tensors, each with `name`, `shape`, `share` (`model` or `layer`), range and start. `layer_plan` has an entry a
    layer: `form` (which of them), `window` (keys in sight, or null), `sink_tokens` (first tokens that stay in sight under a window, or null),
    `normalizer` (what takes the softmax's place, or null) and `linear` (linear attention's plan, or null).

    `span` matters where positions are drawn, or rotary rates follow the length: it is how many tokens a text will have in the end,
    so that single steps with a cache are those of one pass over so many. Without it every call goes by its own length.
    """

    model_type = "kerple"
    keys_to_ignore_at_inference = ["past_key_values"]

    def __init__(
        self,
        vocab_size=256,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=None,
        head_dim=None,
        intermediate_size=None,
        layer_norm_eps=1e-5,
        max_position_embeddings=128,
        train_len=128,
        block=None,
        encoding=None,
        forms=None,
        layer_plan=None,
        initializer_range=0.02,
        use_cache=True,
        span=None,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        tie_word_embeddings=False,
        **kwargs,
    ):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads or num_attention_heads
        self.head_dim = head_dim or hidden_size // num_attention_heads
        self.intermediate_size = intermediate_size or 4 * hidden_size
        self.layer_norm_eps = layer_norm_eps
        self.max_position_embeddings = max_position_embeddings
        self.train_len = train_len
        self.block = block or {}
        self.encoding = encoding or {"kind": "none"}
        self.forms = forms or [{"enters": "nowhere", "parameters": []}]
        self.layer_plan = layer_plan or [{"form": 0, "window": None, "linear": None}] * num_hidden_layers
        self.initializer_range = initializer_range
        self.use_cache = use_cache
        self.span = span
        super().__init__(
            bos_token_id=bos_token_id,
            eos_token_id=eos_token_id,
            pad_token_id=pad_token_id,
            tie_word_embeddings=tie_word_embeddings,
            **kwargs,
        )
