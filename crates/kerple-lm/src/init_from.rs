//! The origin of a run's first weights, where they were not drawn at random.

use serde::{Deserialize, Serialize};

/// An architecture that other programs know, by the name that `config.json` has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
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
    /// Our own.
    Kerple,
}

impl Family {
    /// All of them.
    pub const ALL: [Family; 8] = [
        Family::GptNeox,
        Family::Gpt2,
        Family::Bloom,
        Family::Mpt,
        Family::Llama,
        Family::Smollm3,
        Family::Qwen3,
        Family::Kerple,
    ];

    /// Its `model_type`.
    pub fn model_type(self) -> &'static str {
        match self {
            Family::GptNeox => "gpt_neox",
            Family::Gpt2 => "gpt2",
            Family::Bloom => "bloom",
            Family::Mpt => "mpt",
            Family::Llama => "llama",
            Family::Smollm3 => "smollm3",
            Family::Qwen3 => "qwen3",
            Family::Kerple => "kerple",
        }
    }

    /// The class of its language model.
    pub fn architecture(self) -> &'static str {
        match self {
            Family::GptNeox => "GPTNeoXForCausalLM",
            Family::Gpt2 => "GPT2LMHeadModel",
            Family::Bloom => "BloomForCausalLM",
            Family::Mpt => "MptForCausalLM",
            Family::Llama => "LlamaForCausalLM",
            Family::Smollm3 => "SmolLM3ForCausalLM",
            Family::Qwen3 => "Qwen3ForCausalLM",
            Family::Kerple => "KerpleForCausalLM",
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
        family: Family,
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
        family: Option<Family>,
    },
}

impl InitFrom {
    /// The architecture that the weights came with.
    pub fn family(&self) -> Option<Family> {
        match self {
            InitFrom::Imported { family, .. } => Some(*family),
            InitFrom::Run { family, .. } => *family,
        }
    }
}
