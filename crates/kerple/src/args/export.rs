//! Arguments of `kerple export`.

use clap::{Args, ValueEnum};
use kerple_convert::ModelFamily;
use kerple_convert::export::ExportPrecision;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Run folder.
    pub run: PathBuf,
    /// Output folder.
    #[arg(long)]
    pub out: PathBuf,
    /// Architecture. By default the first built-in one of transformers that expresses the model,
    /// else kerple's own, with its Python code next to the weights.
    #[arg(long, value_enum, value_name = "ARCHITECTURE")]
    pub arch: Option<Architecture>,
    /// Type of the stored weights; parameters of encodings stay f32 in kerple's own architecture.
    #[arg(long, value_enum, default_value = "f32")]
    pub dtype: DtypeChoice,
    /// Rows of sinusoids to store, so that a model that adds them can be exported as gpt2; longer
    /// inputs fail there.
    #[arg(long, value_name = "N", value_parser = super::groups::count)]
    pub positions: Option<usize>,
    /// Largest size of a weight file in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 50_000_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub max_shard_size: u64,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

/// `model_type` of `config.json`.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Architecture {
    Kerple,
    GptNeox,
    Gpt2,
    Llama,
    Qwen3,
    Smollm3,
    #[value(name = "inkling_text")]
    Inkling,
    Bloom,
    Mpt,
}

impl From<Architecture> for ModelFamily {
    fn from(architecture: Architecture) -> ModelFamily {
        match architecture {
            Architecture::Kerple => ModelFamily::Kerple,
            Architecture::GptNeox => ModelFamily::GptNeox,
            Architecture::Gpt2 => ModelFamily::Gpt2,
            Architecture::Llama => ModelFamily::Llama,
            Architecture::Qwen3 => ModelFamily::Qwen3,
            Architecture::Smollm3 => ModelFamily::Smollm3,
            Architecture::Inkling => ModelFamily::Inkling,
            Architecture::Bloom => ModelFamily::Bloom,
            Architecture::Mpt => ModelFamily::Mpt,
        }
    }
}

/// Type of stored weights.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum DtypeChoice {
    F32,
    Bf16,
    F16,
}

impl From<DtypeChoice> for ExportPrecision {
    fn from(stored: DtypeChoice) -> ExportPrecision {
        match stored {
            DtypeChoice::F32 => ExportPrecision::F32,
            DtypeChoice::Bf16 => ExportPrecision::Bf16,
            DtypeChoice::F16 => ExportPrecision::F16,
        }
    }
}
