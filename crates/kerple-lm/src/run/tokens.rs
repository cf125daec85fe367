//! The tokenizer that a run carries: its definition, and tokens with a meaning of their own.
//!
//! Runs that began with the weights of another program have no text whose tokenizer they could use.

use super::RunFolder;
use crate::checkpoint::present;
use crate::error::{Error, Result};
use crate::plan::{NO_TOKENIZER, Plan};
use kerple_data::Tokenizer;
use serde::{Deserialize, Serialize};

/// The definition, a `tokenizer.json`.
const DEFINITION: &str = "tokenizer.json";
/// See [`SpecialTokens`].
const SPECIAL: &str = "special_tokens.json";

/// Ids of tokens with a meaning of their own, where they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SpecialTokens {
    /// Ends a document of a text that is learned from.
    pub end_of_document: Option<u32>,
    /// In front of a text, where `start` does not say another one.
    pub bos: Option<u32>,
    /// In front of a text, where the tokenizer's files say another token than the model's: theirs is what lm-evaluation-harness
    /// takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<u32>,
    /// Ends what is generated.
    pub eos: Vec<u32>,
    /// Fills up short sequences.
    pub pad: Option<u32>,
    /// What the vocabulary does not have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<u32>,
}

impl SpecialTokens {
    /// Those of a tokenizer of prepared text.
    pub fn of(tokenizer: &Tokenizer) -> SpecialTokens {
        let end = tokenizer.end_of_document();
        SpecialTokens { end_of_document: Some(end), eos: vec![end], ..SpecialTokens::default() }
    }

    /// What stands in front of a text of a tokenizer: for `eval --protocol rolling`, for `sample`, and for clients of the server.
    pub fn start(&self, tokenizer: &Tokenizer) -> u32 {
        self.start.or(self.bos).unwrap_or(tokenizer.end_of_document())
    }

    /// The same as rows of evaluations write it.
    pub fn start_in_words(&self, tokenizer: &Tokenizer) -> String {
        match self.start(tokenizer) {
            start if start == tokenizer.end_of_document() => kerple_records::END_OF_DOCUMENT.to_owned(),
            start => format!("bos {start}"),
        }
    }
}

impl RunFolder {
    /// Keeps a tokenizer, where there is one, and its special tokens.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn write_tokens(&self, tokenizer: Option<&Tokenizer>, special: &SpecialTokens) -> Result<()> {
        if let Some(tokenizer) = tokenizer {
            let path = self.path().join(DEFINITION);
            kerple_files::replace(&path, tokenizer.definition().as_bytes()).map_err(Error::io(&path, "write"))?;
        }
        Ok(kerple_records::write_json(&self.path().join(SPECIAL), special)?)
    }

    /// The special tokens it carries; of a run that carries none, nothing is known.
    ///
    /// # Errors
    /// A damaged file.
    pub fn special_tokens(&self) -> Result<SpecialTokens> {
        let path = self.path().join(SPECIAL);
        Ok(if present(&path)? { kerple_records::read_json(&path)? } else { SpecialTokens::default() })
    }

    /// The same, where nothing is known those of its tokenizer.
    ///
    /// # Errors
    /// A damaged file.
    pub fn special_tokens_of(&self, tokenizer: &Tokenizer) -> Result<SpecialTokens> {
        let known = self.special_tokens()?;
        Ok(if known == SpecialTokens::default() { SpecialTokens::of(tokenizer) } else { known })
    }

    /// The tokenizer it carries, or else that of its text.
    ///
    /// # Errors
    /// A damaged tokenizer, one of another run; a run with neither.
    pub fn tokenizer(&self, plan: &Plan) -> Result<Tokenizer> {
        let path = self.path().join(DEFINITION);
        if !present(&path)? {
            if plan.facts.tokenizer == NO_TOKENIZER {
                let message = format!("{} has no tokenizer: its tokens are numbers", self.path().display());
                return Err(Error::refused(
                    message,
                    "import the model again, with the tokenizer.json that belongs to it",
                ));
            }
            let source = self.open_data(plan)?;
            let of_text = source.tokenizer()?;
            let (definition, end) = (of_text.definition().to_owned(), of_text.end_of_document());
            return Ok(Tokenizer::from_definition(&path, definition, Some(end))?);
        }
        let definition = kerple_files::read_text(&path).map_err(Error::io(&path, "read"))?;
        let tokenizer = Tokenizer::from_definition(&path, definition, self.special_tokens()?.end_of_document)?;
        if tokenizer.fingerprint() == &plan.facts.tokenizer {
            return Ok(tokenizer);
        }
        let message = format!("its fingerprint is {}, the plan says {}", tokenizer.fingerprint(), plan.facts.tokenizer);
        Err(Error::damaged(&path, message, "the file was changed; put the run's own tokenizer back"))
    }
}
