//! The settings of a transformer block, as plain data.

use crate::heads::Heads;
use kerple_core::calculus::exponentials::{Amplitude, ErrorBudget, SumTolerance};
use kerple_core::forms::{AttnTemperature, Normalizer, Selective};
use kerple_core::ops::activation::Activation;
use serde::{Deserialize, Serialize};

/// The choices in which decoders of one shape differ. The default is GPT-NeoX's sequential block, as KERPLE trains it.
///
/// | family | what differs from the default |
/// |---|---|
/// | GPT-NeoX, Pythia | `residual = "parallel"` |
/// | GPT-2 | `activation = "gelu_tanh"`, `tie_embeddings` |
/// | BLOOM | `activation = "gelu_tanh"`, `embedding_norm`, `tie_embeddings`; a flag makes it `residual = "norm_residual"` |
/// | MPT | `norm = "layer_no_bias"`, no biases, `tie_embeddings`, perhaps `clip_qkv` |
/// | the first Transformer | `residual = "post_ln"`, `activation = "relu"`, `scale_embeddings`, `dropout` |
/// | SPE's music | the same with `embedding_dropout = "before"`, `hidden_dropout`, `lm_head_bias`, `init = "small_normal"` |
/// | LLaMA | `norm = "rms"`, `norm_eps`, no biases, `glu`, `activation = "silu"`, `n_kv_heads` |
/// | Qwen3 | the same with `qk_norm` |
/// | Gemma 2 | the same with `attn_softcap = 50` |
/// | gpt-oss | the same with `sink = "learned"` |
/// | Inkling | LLaMA's with `qk_norm`, `short_conv = 4`, `embedding_norm` and `attn_scale = 1 / head_dim` |
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BlockConfig {
    /// Kind of every norm.
    pub norm: NormKind,
    /// Added to the variance in every norm.
    pub norm_eps: f64,
    /// Whether a norm of its own follows the embedding.
    pub embedding_norm: bool,
    /// How the two branches of a block are joined.
    pub residual: ResidualKind,
    /// Whether the projection to queries, keys and values has a bias.
    pub qkv_bias: bool,
    /// Whether the projection after attention has one.
    pub out_bias: bool,
    /// Whether the projections of the feed-forward branch have one.
    pub mlp_bias: bool,
    /// Key and value heads, a divisor of the query heads; as many as those when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_kv_heads: Option<usize>,
    /// Activation of the feed-forward branch.
    pub activation: Activation,
    /// Whether the feed-forward branch has a gate: `down(act(gate(x)) * up(x))`.
    pub glu: bool,
    /// Factor on `q.k`; `1 / sqrt(D)` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attn_scale: Option<f64>,
    /// Whether layer `i`, from 0, divides that factor by `i + 1`.
    pub scale_attn_by_layer: bool,
    /// Whether the features of each query and key head are divided by their root mean square and multiplied by learned scales,
    /// before they are rotated.
    #[serde(skip_serializing_if = "is_false")]
    pub qk_norm: bool,
    /// Tokens over which depthwise causal convolutions run, whose results are added to what they read: keys and values before
    /// norms and the rotation, and the output of both branches before it is added to the residual stream. Filters start at 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub short_conv: Option<usize>,
    /// Whether each key is mixed with the key before it, `(1 - m) k_t + m k_{t-1}`, with a learned share of each key head that
    /// starts at a half, before norms and the rotation.
    #[serde(skip_serializing_if = "is_false")]
    pub key_shift: bool,
    /// Scores are multiplied by `s ln(n)`, where a query sees `n` keys, with a learned `s` of each head that starts here:
    /// scalable softmax. `1 / ln(training length)` starts where scores are as without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ssmax: Option<f64>,
    /// Queries, and so scores before any bias, are multiplied by `1 + alpha ln(1 + floor((i + 1) / n))` at position i of their
    /// document, counted from 0, for `n = floor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attn_temperature: Option<AttnTemperature>,
    /// How logits become weights, see [`Normalizer`]: a name, or for stick-breaking attention a table of its choices,
    /// `normalizer = { kind = "stick_breaking", attend_current = true }`.
    #[serde(skip_serializing_if = "Normalizer::is_softmax")]
    pub normalizer: Normalizer,
    /// Selective attention: positive scores of the first head at a key are taken off the scores of all heads at that key for later
    /// queries, and where it is `inclusive` for the query itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selective_attention: Option<Selective>,
    /// The attention sink in the softmax.
    #[serde(skip_serializing_if = "SinkKind::is_default")]
    pub sink: SinkKind,
    /// The softcap: scaled scores become `attn_softcap tanh(s / attn_softcap)`, before a bias is added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attn_softcap: Option<f64>,
    /// Queries, keys and values are cut to `-clip_qkv ..= clip_qkv`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_qkv: Option<f64>,
    /// Whether the output projection is the embedding, transposed.
    pub tie_embeddings: bool,
    /// Whether it has a bias.
    #[serde(skip_serializing_if = "is_false")]
    pub lm_head_bias: bool,
    /// Kind of attention.
    #[serde(skip_serializing_if = "AttentionKind::is_softmax")]
    pub attention: AttentionKind,
    /// Whether embeddings are multiplied by the square root of the model width.
    #[serde(skip_serializing_if = "is_false")]
    pub scale_embeddings: bool,
    /// How matrices begin.
    #[serde(skip_serializing_if = "InitKind::is_default")]
    pub init: InitKind,
    /// Share of the values of both branches, and of embeddings, that a training step drops.
    #[serde(skip_serializing_if = "is_zero")]
    pub dropout: f64,
    /// Of which embeddings.
    #[serde(skip_serializing_if = "EmbeddingDropout::is_default")]
    pub embedding_dropout: EmbeddingDropout,
    /// Whether the hidden values of feed-forward branches lose as many.
    #[serde(skip_serializing_if = "is_false")]
    pub hidden_dropout: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

impl Default for BlockConfig {
    fn default() -> Self {
        BlockConfig {
            norm: NormKind::Layer,
            norm_eps: 1e-5,
            embedding_norm: false,
            residual: ResidualKind::Sequential,
            qkv_bias: true,
            out_bias: true,
            mlp_bias: true,
            n_kv_heads: None,
            activation: Activation::Gelu,
            glu: false,
            attn_scale: None,
            scale_attn_by_layer: false,
            qk_norm: false,
            short_conv: None,
            key_shift: false,
            ssmax: None,
            attn_temperature: None,
            normalizer: Normalizer::Softmax,
            selective_attention: None,
            sink: SinkKind::None,
            attn_softcap: None,
            clip_qkv: None,
            tie_embeddings: false,
            lm_head_bias: false,
            attention: AttentionKind::Softmax,
            scale_embeddings: false,
            init: InitKind::Normal,
            dropout: 0.0,
            embedding_dropout: EmbeddingDropout::Added,
            hidden_dropout: false,
        }
    }
}

impl BlockConfig {
    /// Whether nothing differs from the default; such a plan is not written down.
    pub fn is_default(&self) -> bool {
        *self == BlockConfig::default()
    }
}

/// The attention sink: an extra logit per head without a value, so that a query need not attend to
/// any key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SinkKind {
    /// There is none.
    #[default]
    None,
    /// It is 0: the softmax divides by its sum plus 1.
    OffByOne,
    /// A learned logit per head, initialised as 0.
    Learned,
}

impl SinkKind {
    fn is_default(&self) -> bool {
        *self == SinkKind::default()
    }
}

/// The operation from queries, keys and values to the output per head.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttentionKind {
    /// Softmax attention, exact.
    #[default]
    Softmax,
    /// Linear attention: features of queries and keys, `attention = { linear = { feature_map = "favor" } }`.
    Linear(LinearAttentionConfig),
}

impl AttentionKind {
    fn is_softmax(&self) -> bool {
        *self == AttentionKind::Softmax
    }

    /// Its plan, where it is linear.
    pub fn linear(&self) -> Option<&LinearAttentionConfig> {
        match self {
            AttentionKind::Softmax => None,
            AttentionKind::Linear(plan) => Some(plan),
        }
    }
}

/// Linear attention, see [`kerple_core::attention::linear`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LinearAttentionConfig {
    /// The feature map.
    pub feature_map: FeatureKind,
    /// Number of random features, M; even for `favor`, whose projection has half as many columns. Not used by the others.
    pub n_features: usize,
    /// Whether the lengths of random directions are drawn by themselves; as published `favor` and `relu_rf` take them of the
    /// rows of the block that directions are made of, on which they depend.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub independent_norms: bool,
    /// Random features are drawn anew every so many updates; 0: never. Evaluation has a draw of its own, always the same,
    /// which is also that of `redraw_every = 0`.
    pub redraw_every: u64,
    /// Furthest distance, in tokens, for which the kernel of an encoding is approximated within the
    /// tolerance.
    pub horizon: usize,
    /// Largest relative error of the kernel up to there: 0.01, 0.001 or 0.0001.
    pub tolerance: f64,
    /// Largest amplitude of a logarithmic kernel: 2, 4 or 8; larger ones are used as this, and brought back to it.
    pub amplitude: f64,
}

impl Default for LinearAttentionConfig {
    fn default() -> Self {
        LinearAttentionConfig {
            feature_map: FeatureKind::Favor,
            n_features: 128,
            independent_norms: false,
            redraw_every: 20,
            horizon: 1 << 20,
            tolerance: 1e-3,
            amplitude: 4.0,
        }
    }
}

impl LinearAttentionConfig {
    /// Features of rows of this width.
    pub fn width(&self, rows: usize) -> usize {
        match self.feature_map {
            FeatureKind::Favor | FeatureKind::FavorJax | FeatureKind::ReluRf => self.n_features,
            FeatureKind::Relu | FeatureKind::Elu => rows,
        }
    }

    /// What sums of exponentials must do; `None` for a tolerance or an amplitude that there is no grid for.
    pub fn demand(&self) -> Option<ErrorBudget> {
        let tolerance = match self.tolerance {
            0.01 => SumTolerance::Hundredth,
            0.001 => SumTolerance::Thousandth,
            0.0001 => SumTolerance::TenThousandth,
            _ => return None,
        };
        let amplitude = match self.amplitude {
            2.0 => Amplitude::Two,
            4.0 => Amplitude::Four,
            8.0 => Amplitude::Eight,
            _ => return None,
        };
        Some(ErrorBudget { horizon: self.horizon, tolerance, amplitude })
    }
}

/// Features of linear attention. All are positive, or not negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeatureKind {
    /// FAVOR+ with exponentials of both signs (fast-transformers), random.
    #[default]
    Favor,
    /// FAVOR+ with positive exponentials and a floor (Performer, JAX), random.
    FavorJax,
    /// `relu(x) + 0.001`, the Linear Transformer-ReLU.
    Relu,
    /// `relu(x Omega)`, generalised random features.
    ReluRf,
    /// `elu(x) + 1`
    Elu,
}

/// Which embeddings lose values to dropout. With the first choice encodings are trained unlike each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EmbeddingDropout {
    /// Those with an encoding added to them, and none where it enters elsewhere.
    #[default]
    Added,
    /// All, before an encoding is added.
    Before,
    /// All, with what an encoding adds.
    After,
}

impl EmbeddingDropout {
    fn is_default(&self) -> bool {
        *self == EmbeddingDropout::default()
    }
}

/// How rows are normalised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// Layer norm with scale and shift.
    #[default]
    Layer,
    /// Layer norm with scale only.
    LayerNoBias,
    /// By the root mean square, with scale only.
    Rms,
}

impl NormKind {
    /// Trained values of one norm, in multiples of the model width.
    pub fn vectors(self) -> usize {
        match self {
            NormKind::Layer => 2,
            NormKind::LayerNoBias | NormKind::Rms => 1,
        }
    }
}

/// How attention and feed-forward are joined; `n1` and `n2` are their norms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResidualKind {
    /// `x += attention(n1(x)); x += mlp(n2(x))`
    #[default]
    Sequential,
    /// `x += attention(n1(x)) + mlp(n2(x))`
    Parallel,
    /// `h = n1(x); x = h + attention(h); h = n2(x); x = h + mlp(h)`
    NormResidual,
    /// `x = n1(x + attention(x)); x = n2(x + mlp(x))`, post-norm (Vaswani et al. 2017, arXiv:1706.03762). Computed as
    /// `norm_residual` with every norm in front of the branch that follows it: the first branch has none, and the last is the norm
    /// of the model's result.
    PostLn,
}

/// How matrices begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InitKind {
    /// N(0, 0.02^2), those that write to the residual stream N(0, (0.02 / sqrt(2 layers))^2).
    #[default]
    Normal,
    /// N(0, 0.01^2), and scales of norms N(1, 0.01^2): SPE's music.
    SmallNormal,
    /// A normal cut at two standard deviations, of standard deviation `1 / sqrt(inputs)` before the cut; that of embeddings
    /// is 0.02.
    FanIn,
    /// Uniform within `sqrt(6 / (inputs + outputs))` of 0, outputs those of one of queries, keys and values; embeddings are
    /// N(0, 1). Glorot and Bengio 2010.
    Xavier,
    /// N(0, 2 / (5 width)), those that write to the residual stream N(0, (2 / (layers sqrt(width)))^2): `small_init` (Nguyen and
    /// Salazar 2019, arXiv:1910.05895) and `wang_init` of GPT-NeoX.
    SmallWang,
}

/// Standard deviation of [`InitKind::SmallNormal`].
const SMALL_STD: f64 = 0.01;

impl InitKind {
    /// Standard deviations of normal matrices and of those that write to the residual stream, in a model of this width.
    pub fn deviations(self, d_model: usize, layers: usize) -> [f64; 2] {
        const STD: f64 = 0.02;
        let (width, layers) = (d_model as f64, layers as f64);
        match self {
            InitKind::SmallWang => [(0.4 / width).sqrt(), 2.0 / (layers * width.sqrt())],
            InitKind::SmallNormal => [SMALL_STD; 2],
            InitKind::Normal | InitKind::FanIn | InitKind::Xavier => [STD, STD / (2.0 * layers).sqrt()],
        }
    }

    /// Standard deviation of embeddings, where `usual` is that of other matrices.
    pub fn embedding_std(self, usual: f64) -> f64 {
        match self {
            InitKind::Normal | InitKind::SmallNormal | InitKind::FanIn | InitKind::SmallWang => usual,
            InitKind::Xavier => 1.0,
        }
    }

    /// Standard deviation around 1 of the scales of norms, where they are not all 1.
    pub fn norm_std(self) -> Option<f64> {
        match self {
            InitKind::SmallNormal => Some(SMALL_STD),
            InitKind::Normal | InitKind::FanIn | InitKind::Xavier | InitKind::SmallWang => None,
        }
    }

    fn is_default(&self) -> bool {
        *self == InitKind::default()
    }
}

/// Sizes of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Width of the residual stream, M.
    pub d_model: usize,
    /// Query heads, H.
    pub n_heads: usize,
    /// Features per head, D.
    pub head_dim: usize,
    /// Inner width of the feed-forward branch, F.
    pub d_hidden: usize,
}

impl BlockSizes {
    /// The heads of a block of this plan.
    pub fn heads(&self, plan: &BlockConfig) -> Heads {
        let (heads, head_dim) = (self.n_heads, self.head_dim);
        Heads::square(heads, plan.n_kv_heads.unwrap_or(heads), head_dim)
    }

    /// Trained values of a block of this plan, each with two norms.
    pub fn parameters(&self, plan: &BlockConfig) -> usize {
        let (m, f, heads) = (self.d_model, self.d_hidden, self.heads(plan));
        let bias = |has: bool, width: usize| if has { width } else { 0 };
        let attention = m * heads.packed() + bias(plan.qkv_bias, heads.packed());
        let out = heads.inner() * m + bias(plan.out_bias, m);
        let inward = (m * f + bias(plan.mlp_bias, f)) * if plan.glu { 2 } else { 1 };
        let down = f * m + bias(plan.mlp_bias, m);
        let of_heads = bias(plan.qk_norm, 2 * heads.head_dim)
            + bias(plan.key_shift, heads.kv_heads)
            + bias(plan.ssmax.is_some(), heads.heads)
            + bias(plan.sink == SinkKind::Learned, heads.heads);
        let convolved = plan.short_conv.unwrap_or(0) * 2 * (heads.kv_heads * heads.head_dim + m);
        2 * plan.norm.vectors() * m + attention + of_heads + convolved + out + inward + down
    }
}
