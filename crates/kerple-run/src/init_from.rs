//! The origin of a run's first weights, where they were not drawn at random.

use serde::{Deserialize, Serialize};

/// An architecture that other programs know, by the name that `config.json` has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelFamily {
    /// GPT-NeoX, Pythia.
    GptNeox,
    /// GPT-2.
    Gpt2,
    /// BLOOM.
    Bloom,
    /// MPT.
    Mpt,
    /// LLaMA.
    Llama,
    /// SmolLM3.
    Smollm3,
    /// Qwen3.
    Qwen3,
    /// Inkling, with dense feed-forward layers.
    Inkling,
    /// Our own.
    Kerple,
}

impl ModelFamily {
    /// All of them.
    pub const ALL: [ModelFamily; 9] = [
        ModelFamily::GptNeox,
        ModelFamily::Gpt2,
        ModelFamily::Bloom,
        ModelFamily::Mpt,
        ModelFamily::Llama,
        ModelFamily::Smollm3,
        ModelFamily::Qwen3,
        ModelFamily::Inkling,
        ModelFamily::Kerple,
    ];

    /// Its `model_type`.
    pub fn model_type(self) -> &'static str {
        match self {
            ModelFamily::GptNeox => "gpt_neox",
            ModelFamily::Gpt2 => "gpt2",
            ModelFamily::Bloom => "bloom",
            ModelFamily::Mpt => "mpt",
            ModelFamily::Llama => "llama",
            ModelFamily::Smollm3 => "smollm3",
            ModelFamily::Qwen3 => "qwen3",
            ModelFamily::Inkling => "inkling_text",
            ModelFamily::Kerple => "kerple",
        }
    }

    /// The class of its language model.
    pub fn architecture(self) -> &'static str {
        match self {
            ModelFamily::GptNeox => "GPTNeoXForCausalLM",
            ModelFamily::Gpt2 => "GPT2LMHeadModel",
            ModelFamily::Bloom => "BloomForCausalLM",
            ModelFamily::Mpt => "MptForCausalLM",
            ModelFamily::Llama => "LlamaForCausalLM",
            ModelFamily::Smollm3 => "SmolLM3ForCausalLM",
            ModelFamily::Qwen3 => "Qwen3ForCausalLM",
            ModelFamily::Inkling => "InklingForCausalLM",
            ModelFamily::Kerple => "KerpleForCausalLM",
        }
    }
}

/// What the first weights of a run were.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum InitFrom {
    /// Those of a model of another program.
    Imported {
        /// Its architecture.
        family: ModelFamily,
        /// SHA-256 of the weights in our layout.
        weights: String,
    },
    /// Those of another run, with other positions or other data.
    Run {
        /// What that run was called.
        label: String,
        /// Hash of its plan.
        plan: String,
        /// Updates it had done.
        step: u64,
        /// Its training length.
        train_len: usize,
        /// SHA-256 of the weights it had.
        weights: String,
        /// The architecture it was imported with, or began as, if it did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        family: Option<ModelFamily>,
    },
}

impl InitFrom {
    /// The architecture that the weights came with.
    pub fn family(&self) -> Option<ModelFamily> {
        match self {
            InitFrom::Imported { family, .. } => Some(*family),
            InitFrom::Run { family, .. } => *family,
        }
    }
}
