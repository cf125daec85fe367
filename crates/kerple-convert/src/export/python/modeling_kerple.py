"""Decoders trained by kerple, as a transformers model: `AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)`."""
import math

import torch
from torch import nn
from torch.nn import functional
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from .attention_kerple import Pass, Positions, Scoring, attend, attend_linear
from .configuration_kerple import KerpleConfig
from .content_kerple import content_of, content_turn, left_by, placed
from .drawn_kerple import coded, positions_drawn
from .positions_kerple import angles, follows_length, table, turned, used, waves

ACTIVATIONS = {
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": functional.relu,
    "relu2": lambda x: functional.relu(x).square(),
}


# What maps queries and keys by position.
ROTATIONS = ("rotation", "polar", "mixed_rotation")


class KerpleNorm(nn.Module):
    """Layer norm with or without a shift, or by the root mean square; in float32."""

    def __init__(self, width, eps, kind):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if kind == "layer" else None
        self.eps, self.kind = eps, kind

    def forward(self, x):
        y = x.float()
        if self.kind != "rms":
            y = y - y.mean(-1, keepdim=True)
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps) * self.weight.float()
        return (y if self.bias is None else y + self.bias.float()).to(x.dtype)


class KerpleLearned(nn.Module):
    """Learned tensors of one encoding, those of a layer under names that begin with `layer`, its number and `_`."""

    def __init__(self, config, index):
        super().__init__()
        self.inits = {}
        form = config.forms[index]
        layers = [layer for layer, plan in enumerate(config.layer_plan) if plan["form"] == index]
        for parameter in form["parameters"]:
            ends = [f"layer{layer}_" for layer in layers] if parameter["share"] == "layer" else [""]
            for prefix in ends:
                self.add(prefix, parameter)

    def add(self, prefix, parameter):
        self.register_parameter(prefix + parameter["tensor"], nn.Parameter(torch.empty(parameter["shape"])))
        self.inits[prefix + parameter["tensor"]] = parameter.get("init")

    def read(self, parameters, layer):
        """The values that formulas take, float64, by the names that formulas have for them."""
        prefix = {"model": "", "layer": f"layer{layer}_"}
        return {p["name"]: used(p, getattr(self, prefix[p["share"]] + p["tensor"])) for p in parameters}


class KerpleEncoding(KerpleLearned):
    """The encodings of a model: what they learn, and what was drawn or made once for layers of linear attention."""

    def __init__(self, config):
        super().__init__(config, 0)
        self.config = config
        self.draws = {}
        for index, form in enumerate(config.forms[1:], 1):
            self.add_module(form["module"], KerpleLearned(config, index))
        for layer in range(config.num_hidden_layers):
            for drawn in self.drawn(layer):
                # what was drawn is no parameter: training does not move it, and checkpoints keep it
                self.register_buffer(f"layer{layer}_" + drawn["tensor"], torch.zeros(drawn["shape"]))

    def drawn(self, layer):
        plan = self.config.layer_plan[layer]["linear"]
        return plan["drawn"] if plan else []

    def of_layer(self, layer):
        form = self.config.forms[self.config.layer_plan[layer]["form"]]
        holder = getattr(self, form["module"]) if form.get("module") else self
        return holder.read(form["parameters"], layer) | self.read(self.drawn(layer), layer)

    def absolute(self, at):
        """What is added to embeddings, [B or 1, L, M] float32; None where nothing is."""
        form, positions = self.config.forms[0], at.positions
        if form["enters"] != "embeddings":
            return None
        if form.get("drawn") is not None:
            positions = self.draw(form, None, at)[positions]
        if form["rows"] == "sinusoidal":
            return waves(form, self.config.hidden_size, positions).float()
        rows = self.positions.shape[0]
        if at.length > rows and int(positions.max()) >= rows:
            raise ValueError(f"this model has {rows} learned positions, the input has {at.length} tokens")
        return self.positions.float()[positions]

    def span(self, at):
        """Positions of the whole text: what is drawn for them, or follows their number, stands still while it grows."""
        longest = int(max(at.positions.max(), at.key_positions.max())) + 1
        if self.config.span is not None and longest > self.config.span:
            raise ValueError(f"config.span says that a text has at most {self.config.span} tokens, there are {longest}")
        return longest if self.config.span is None else self.config.span

    def draw(self, form, layer, at):
        """What stands in the place of positions, or of distances between all slots. The last draw of each layer is kept."""
        span = self.span(at)
        if self.draws.get(layer, (0, None))[0] != span:
            self.draws[layer] = (span, positions_drawn(form["drawn"], layer, span))
        drawn = self.draws[layer][1].to(at.positions.device)
        if form["drawn"]["what"] == "positions":
            return drawn
        # beyond it there is padding alone
        return torch.cat([drawn, drawn[-1:].expand(max(at.length - span, 0))])[: at.length]

    def each_layer(self, at, device):
        """What attention of each layer is told of positions; layers that share everything share it."""
        made, found = {}, []
        for layer, plan in enumerate(self.config.layer_plan):
            form, drawn = self.config.forms[plan["form"]], self.drawn(layer)
            alone = drawn or form.get("drawn") or any(parameter["share"] == "layer" for parameter in form["parameters"])
            key = layer if alone else (plan["form"], plan["linear"] is None)
            if key not in made:
                made[key] = self.positions_of(layer, at, device)
            found.append(made[key])
        return found

    def positions_of(self, layer, at, device):
        plan = self.config.layer_plan[layer]
        form, values = self.config.forms[plan["form"]], self.of_layer(layer)
        positions = Positions(form, values)
        if form.get("drawn") is not None:
            positions.drawn = self.draw(form, layer, at)
        if plan["linear"] is None and form.get("table") is not None:
            lags = torch.arange(at.length, device=device) if positions.drawn is None else positions.drawn
            positions.bias, positions.weight = table(form["table"], values, self.config.num_attention_heads, lags)
        rotation = form if form["enters"] in ROTATIONS else form.get("rotation")
        if rotation is not None:
            # keys stay unrotated in the cache where all are turned anew as the sequence grows, and where each query head turns them
            grows = follows_length(rotation) or positions.drawn is not None
            again = grows and self.config.span is None or form["enters"] == "mixed_rotation"
            length = self.span(at) if grows else at.length
            of = lambda places: angles(rotation, length, places if positions.drawn is None else positions.drawn[places])
            positions.turn = (of(at.positions), of(at.key_positions) if again else None)
        return positions


class KerpleAttention(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        block, self.layer = config.block, layer
        self.heads, self.groups, self.dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        packed = (self.heads + 2 * self.groups) * self.dim
        self.query_key_value = nn.Linear(config.hidden_size, packed, bias=block.get("qkv_bias", True))
        self.dense = nn.Linear(self.heads * self.dim, config.hidden_size, bias=block.get("out_bias", True))
        if block.get("qk_norm"):
            self.q_norm = KerpleNorm(self.dim, config.layer_norm_eps, "rms")
            self.k_norm = KerpleNorm(self.dim, config.layer_norm_eps, "rms")
        if block.get("key_shift"):
            self.key_shift = nn.Parameter(torch.zeros(self.groups))
        if block.get("ssmax") is not None:
            self.growth = nn.Parameter(torch.full((self.heads,), float(block["ssmax"])))
        if block.get("sink") == "learned":
            self.sinks = nn.Parameter(torch.zeros(self.heads))
        self.block, self.plan = block, config.layer_plan[layer]
        self.sink_tokens = self.plan.get("sink_tokens") or 0
        self.scale = block.get("attn_scale") or self.dim**-0.5
        if block.get("attn_scale") is not None:
            self.scale = block["attn_scale"]
        if block.get("scale_attn_by_layer"):
            self.scale /= layer + 1

    def split(self, x):
        """Queries [B, H, L, D], keys and values [B, G, L, D]."""
        batch, length, _ = x.shape
        if self.heads == self.groups:
            return x.view(batch, length, self.heads, 3, self.dim).permute(3, 0, 2, 1, 4)
        parts = x.view(batch, length, -1, self.dim).split([self.heads, self.groups, self.groups], 2)
        return [part.transpose(1, 2) for part in parts]

    def shifted(self, projected, at, cache):
        """Keys mixed with those before them; a cache keeps projected keys as features of the keys."""
        start = at.length - projected.shape[2]
        if cache is not None and start > 0:
            first = cache.layers[self.layer].keys[..., start - 1 : start, -self.dim :].to(projected.dtype)
        else:
            first = torch.zeros_like(projected[..., :1, :])
        before = torch.cat([first, projected], 2)[..., :-1, :].masked_fill((at.positions <= 0)[:, None, :, None], 0)
        share = self.key_shift.float().sigmoid().to(projected.dtype)[:, None, None]
        return projected * (1 - share) + before * share

    def prepared(self, x, at, positions, cache):
        """Queries, keys and values as they are before their rotation, and projected keys where a cache needs them."""
        packed = self.query_key_value(x)
        if self.block.get("clip_qkv") is not None:
            packed = packed.clamp(-self.block["clip_qkv"], self.block["clip_qkv"])
        q, k, v = self.split(packed)
        projected = None
        if self.block.get("key_shift"):
            projected, k = k, self.shifted(k, at, cache)
        if self.block.get("qk_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        if self.block.get("ssmax") is not None:
            seen = at.positions + 1
            seen = seen if self.plan["window"] is None else seen.clamp(max=self.plan["window"] + self.sink_tokens)
            logs = seen.clamp(min=1).double().log().float()[:, None, :, None]
            q = (q.float() * logs * self.growth.float()[:, None, None]).to(q.dtype)
        if self.block.get("attn_temperature") is not None:
            floor, alpha = self.block["attn_temperature"]["floor"], self.block["attn_temperature"]["alpha"]
            factor = 1 + alpha * torch.log1p(((at.positions.double() + 1) / floor).floor())
            q = (q.float() * factor.float()[:, None, :, None]).to(q.dtype)
        if positions.form.get("map") == "transformer_xl":
            q = q + positions.values["u"].to(q.dtype)[:, None]
        return q, k, v, projected

    def relative(self, x, at, positions):
        """Rows [B, H, L, R] of a relative bias and its profiles, and the factor of queries and rows, [B or 1, 1, L, 1]."""
        form, weight, profiles = positions.form, positions.values["weight"].float(), positions.values["profiles"].float()
        rows = (x.float() @ weight).view(*x.shape[:2], self.heads, form["rank"]).transpose(1, 2)
        factor = torch.ones(1, 1, 1, 1, device=x.device)
        if form["log_scale"] is not None:
            floor, alpha = form["log_scale"]["floor"], form["log_scale"]["alpha"]
            factor = (1 + alpha * ((at.positions.double() + 1) / floor).clamp(min=1).log()).float()[:, None, :, None]
        return (rows * factor, profiles), factor

    def of_each(self, k):
        """A key for each query head that reads it."""
        return k.repeat_interleave(self.heads // self.groups, 1)

    def with_earlier(self, k, v, left, projected, cache):
        """Keys, values and what tokens have left, with those of earlier calls.

        A cache keeps what tokens leave as features of their keys, which are of single precision then.
        """
        if cache is None:
            return k, v, left
        dtype, width = k.dtype, k.shape[-1]
        packed = torch.cat([k.float(), *left.values()], -1) if left else k
        packed = packed if projected is None else torch.cat([packed, projected.to(packed.dtype)], -1)
        packed, values = cache.update(packed, v, self.layer)
        widths = [width, *(part.shape[-1] for part in left.values())]
        k, *parts = packed[..., : sum(widths)].split(widths, -1)
        return k.to(dtype), values.to(v.dtype), dict(zip(left, parts))

    def forward(self, x, at, positions, cache):
        q, k, v, projected = self.prepared(x, at, positions, cache)
        relative = None
        if positions.form["enters"] == "relative":
            relative, factor = self.relative(x, at, positions)
            q = (q.float() * factor).to(q.dtype)
        form, values = positions.form, positions.values
        turn, turn_keys = positions.turn or (None, None)
        if turn is not None:
            q = placed(q, turn, form, values, True)
            k = placed(k, turn, form, values, False) if turn_keys is None else k
        if form["enters"] == "code":
            # a cache keeps codes of keys, of single precision
            q, k = (coded(part, self.plan["linear"], values, at.positions, part is q) for part in (q, k))
        left = left_by(x, form, values, self.heads, self.groups)
        k, v, left = self.with_earlier(k, v, left, projected, cache)
        if turn_keys is not None:
            k = placed(self.of_each(k), turn_keys, form, values, False)
        if form["enters"] == "turns":
            cos, sin = content_turn(left, form, values, at, self.heads)
            q = turned(q, *(part[:, :, -q.shape[2] :] for part in (cos, sin)))
            k = turned(self.of_each(k), cos, sin)
        content = content_of(left, positions, at, self.heads) if left else None
        if self.plan["linear"] is not None:
            a = attend_linear(q, k, v, at, self.plan["linear"], values, content and content.gate_cumsum)
        else:
            sinks = None
            if self.block.get("sink", "none") != "none":
                sinks = self.sinks if self.block["sink"] == "learned" else torch.zeros(self.heads, device=x.device)
            scoring = Scoring(
                self.scale,
                self.block.get("attn_softcap"),
                sinks,
                self.plan["window"],
                self.sink_tokens,
                self.plan.get("normalizer"),
                content,
                relative,
            )
            a = attend(q, k, v, at, positions, scoring)
        return self.dense(a.transpose(1, 2).reshape(*x.shape[:2], self.heads * self.dim))


class KerpleMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        block, bias = config.block, config.block.get("mlp_bias", True)
        self.dense_h_to_4h = nn.Linear(config.hidden_size, config.intermediate_size, bias=bias)
        self.dense_gate = nn.Linear(config.hidden_size, config.intermediate_size, bias=bias) if block.get("glu") else None
        self.dense_4h_to_h = nn.Linear(config.intermediate_size, config.hidden_size, bias=bias)
        self.activation = ACTIVATIONS[block.get("activation", "gelu")]

    def forward(self, x):
        hidden = self.dense_h_to_4h(x)
        if self.dense_gate is None:
            return self.dense_4h_to_h(self.activation(hidden))
        return self.dense_4h_to_h(self.activation(self.dense_gate(x)) * hidden)


class KerpleLayer(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        kind, eps = config.block.get("norm", "layer"), config.layer_norm_eps
        self.residual = config.block.get("residual", "sequential")
        first = self.residual != "post_ln" or layer > 0
        self.input_layernorm = KerpleNorm(config.hidden_size, eps, kind) if first else nn.Identity()
        self.attention = KerpleAttention(config, layer)
        self.post_attention_layernorm = KerpleNorm(config.hidden_size, eps, kind)
        self.mlp = KerpleMLP(config)

    def forward(self, x, at, positions, cache):
        normed = self.input_layernorm(x)
        attended = self.attention(normed, at, positions, cache)
        if self.residual == "parallel":
            return x + attended + self.mlp(self.post_attention_layernorm(x))
        normed_base = self.residual in ("norm_residual", "post_ln")
        x = (normed if normed_base else x) + attended
        normed = self.post_attention_layernorm(x)
        return (normed if normed_base else x) + self.mlp(normed)


class KerplePreTrainedModel(PreTrainedModel):
    config_class = KerpleConfig
    base_model_prefix = "model"
    _no_split_modules = ["KerpleLayer"]
    _keep_in_fp32_modules_strict = ["encoding"]

    def _init_weights(self, module):
        std = self.config.initializer_range
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(0.0, std)
            if getattr(module, "bias", None) is not None:
                module.bias.data.zero_()
        elif isinstance(module, KerpleNorm):
            module.weight.data.fill_(1.0)
            if module.bias is not None:
                module.bias.data.zero_()
        elif isinstance(module, KerpleAttention):
            if hasattr(module, "key_shift"):
                module.key_shift.data.zero_()
            if hasattr(module, "growth"):
                module.growth.data.fill_(float(self.config.block["ssmax"]))
            if hasattr(module, "sinks"):
                module.sinks.data.zero_()
        elif isinstance(module, (KerpleLearned, KerpleEncoding)):
            for name, start in module.inits.items():
                begin(getattr(module, name).data, start)


def begin(value, start):
    """Fills a tensor as a parameter of an encoding begins: a number, a range, gates of given spans, or normal draws, around ones or not."""
    if isinstance(start, list):
        value.uniform_(*start)
    elif isinstance(start, dict) and "spans" in start:
        first, last = (math.log(span) for span in start["spans"])
        tokens = torch.linspace(first, last, value.numel(), dtype=torch.float64).exp()
        value.copy_(-torch.expm1(1.0 / tokens).log())
    elif isinstance(start, dict):
        value.normal_(start.get("mean", 0.0), start.get("std", 1.0))
        if "rows" in start:
            columns = torch.arange(start["columns"], device=value.device)
            rows = columns * -(-start["rows"] // start["columns"])
            value[..., rows[rows < start["rows"]], columns[rows < start["rows"]]] += 1.0
    else:
        value.fill_(0.0 if start is None else float(start))


class KerpleModel(KerplePreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        width = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        kind = config.block.get("norm", "layer")
        if config.block.get("embedding_norm"):
            self.embed_layer_norm = KerpleNorm(width, config.layer_norm_eps, kind)
        self.encoding = KerpleEncoding(config)
        self.layers = nn.ModuleList([KerpleLayer(config, layer) for layer in range(config.num_hidden_layers)])
        self.final_layer_norm = KerpleNorm(width, config.layer_norm_eps, kind)
        self.post_init()

    def get_input_embeddings(self):
        return self.embed_tokens

    def set_input_embeddings(self, value):
        self.embed_tokens = value

    def place(self, x, attention_mask, position_ids, start):
        """Where the new positions of this call stand."""
        new, device = x.shape[1], x.device
        length, mask = start + new, None
        key_positions = torch.arange(length, device=device)[None]
        if attention_mask is not None:
            if attention_mask.dim() != 2:
                raise ValueError("kerple models take masks of two dimensions: static caches, which make others, are not supported")
            if attention_mask.shape[1] != length:
                raise ValueError(f"attention_mask has {attention_mask.shape[1]} columns, there are {length} keys")
            mask = attention_mask.to(device).bool()
            key_positions = (mask.long().cumsum(1) - 1).clamp(min=0)
            mask = None if bool(mask.all()) else mask
        positions = key_positions[:, start:] if position_ids is None else position_ids.to(device).view(-1, new)
        return Pass(start, length, positions, key_positions, mask)

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        past_key_values=None,
        inputs_embeds=None,
        use_cache=None,
        return_dict=None,
        output_hidden_states=None,
        output_attentions=None,
        **kwargs,
    ):
        if self.config.output_attentions if output_attentions is None else output_attentions:
            raise ValueError("kerple models keep no attention weights: leave output_attentions out")
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        use_cache = self.config.use_cache and not self.training if use_cache is None else use_cache
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        cache = past_key_values if isinstance(past_key_values, Cache) else None
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        at = self.place(x, attention_mask, position_ids, 0 if cache is None else cache.get_seq_length())
        if self.config.block.get("scale_embeddings"):
            x = x * math.sqrt(self.config.hidden_size)
        if self.config.block.get("embedding_norm"):
            x = self.embed_layer_norm(x)
        rows = self.encoding.absolute(at)
        if rows is not None:
            x = (x.float() + rows).to(x.dtype)
        hidden = []
        for layer, positions in zip(self.layers, self.encoding.each_layer(at, x.device)):
            if wanted:
                hidden.append(x)
            x = layer(x, at, positions, cache)
        x = self.final_layer_norm(x)
        # as in other models: what each layer reads, and the last one after the norm
        hidden = (*hidden, x) if wanted else None
        if return_dict is False:
            return tuple(part for part in (x, cache if use_cache else None, hidden) if part is not None)
        past = cache if use_cache else None
        return BaseModelOutputWithPast(last_hidden_state=x, past_key_values=past, hidden_states=hidden)


class KerpleForCausalLM(KerplePreTrainedModel, GenerationMixin):
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config):
        super().__init__(config)
        self.model = KerpleModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.block.get("lm_head_bias", False))
        self.post_init()

    def get_input_embeddings(self):
        return self.model.embed_tokens

    def set_input_embeddings(self, value):
        self.model.embed_tokens = value

    def get_output_embeddings(self):
        return self.lm_head

    def set_output_embeddings(self, value):
        self.lm_head = value

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        past_key_values=None,
        inputs_embeds=None,
        labels=None,
        use_cache=None,
        logits_to_keep=0,
        return_dict=None,
        output_hidden_states=None,
        output_attentions=None,
        **kwargs,
    ):
        found = self.model(
            input_ids,
            attention_mask,
            position_ids,
            past_key_values,
            inputs_embeds,
            use_cache,
            return_dict=True,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
        )
        x = found.last_hidden_state
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) and logits_to_keep > 0 else slice(None)
        x = x[:, logits_to_keep] if isinstance(logits_to_keep, torch.Tensor) else x[:, keep]
        logits = self.lm_head(x)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size)
        if return_dict is False:
            parts = (loss, logits, found.past_key_values, found.hidden_states)
            return tuple(part for part in parts if part is not None)
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, past_key_values=found.past_key_values, hidden_states=found.hidden_states
        )
