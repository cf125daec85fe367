//! The tokenizer of a run: its definition and its special tokens.
//!
//! Training copies the tokenizer of the text into the run, so a trained model no longer needs the
//! text. Imported runs contain the tokenizer of the other program. The byte tokenizer needs no
//! file: the plan names it. Runs of earlier versions contain no tokenizer until they are trained
//! again, and use that of their text.

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

    /// The token before a text of a tokenizer: for `eval --protocol rolling`, for `sample`, and for
    /// clients of the server.
    pub fn start(&self, tokenizer: &Tokenizer) -> u32 {
        self.start.or(self.bos).unwrap_or(tokenizer.end_of_document())
    }

    /// The same as rows of evaluations write it.
    pub fn start_name(&self, tokenizer: &Tokenizer) -> String {
        match self.start(tokenizer) {
            start if start == tokenizer.end_of_document() => kerple_run::END_OF_DOCUMENT.to_owned(),
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
        // a definition that is there has its special tokens beside it, whenever writing ends
        kerple_run::write_json(&self.path().join(SPECIAL), special)?;
        if let Some(tokenizer) = tokenizer {
            let path = self.path().join(DEFINITION);
            kerple_run::files::replace(&path, tokenizer.definition().as_bytes()).map_err(Error::io(&path, "write"))?;
        }
        Ok(())
    }

    /// Keeps the tokenizer of the text that a run of this plan is trained on, unless the folder has it, or it is that of bytes.
    ///
    /// # Errors
    /// A tokenizer in the folder that is damaged, or of another run; a folder that cannot be written.
    pub fn keep_tokenizer(&self, plan: &Plan, tokenizer: &Tokenizer) -> Result<()> {
        if self.carried_tokenizer(plan)?.is_some() || tokenizer.fingerprint() == Tokenizer::byte().fingerprint() {
            return Ok(());
        }
        self.write_tokens(Some(tokenizer), &self.special_tokens_of(tokenizer)?)
    }

    /// The special tokens it carries; of a run that carries none, nothing is known.
    ///
    /// # Errors
    /// A damaged file.
    pub fn special_tokens(&self) -> Result<SpecialTokens> {
        let path = self.path().join(SPECIAL);
        Ok(if present(&path)? { kerple_run::read_json(&path)? } else { SpecialTokens::default() })
    }

    /// The same, where nothing is known those of its tokenizer.
    ///
    /// # Errors
    /// A damaged file.
    pub fn special_tokens_of(&self, tokenizer: &Tokenizer) -> Result<SpecialTokens> {
        let known = self.special_tokens()?;
        Ok(if known == SpecialTokens::default() { SpecialTokens::of(tokenizer) } else { known })
    }

    /// The tokenizer in the folder; `None` where there is none.
    ///
    /// # Errors
    /// A damaged tokenizer, or one that is not the plan's.
    pub fn carried_tokenizer(&self, plan: &Plan) -> Result<Option<Tokenizer>> {
        let path = self.path().join(DEFINITION);
        if !present(&path)? {
            return Ok(None);
        }
        let definition = kerple_run::files::read_text(&path).map_err(Error::io(&path, "read"))?;
        let tokenizer = Tokenizer::from_definition(&path, definition, self.special_tokens()?.end_of_document)?;
        if tokenizer.fingerprint() == &plan.data_info.tokenizer {
            return Ok(Some(tokenizer));
        }
        let message =
            format!("its fingerprint is {}, the plan has {}", tokenizer.fingerprint(), plan.data_info.tokenizer);
        let hint = "restore the run's own tokenizer.json and special_tokens.json: one of them was changed";
        Err(Error::damaged(&path, message, hint))
    }

    /// The tokenizer it carries, that of bytes where the plan names it, or else that of its text.
    ///
    /// # Errors
    /// A damaged tokenizer, one of another run; a run with neither.
    pub fn tokenizer(&self, plan: &Plan) -> Result<Tokenizer> {
        if let Some(tokenizer) = self.carried_tokenizer(plan)? {
            return Ok(tokenizer);
        }
        let (bytes, place) = (Tokenizer::byte(), self.path().display());
        if plan.data_info.tokenizer == *bytes.fingerprint() {
            return Ok(bytes);
        }
        if plan.data_info.tokenizer == NO_TOKENIZER {
            let message = format!("{place} has no tokenizer, only token ids");
            return Err(Error::refused(
                message,
                "import the model again with its tokenizer: kerple \
                import --tokenizer FILE",
            ));
        }
        let source = self.open_data(plan).map_err(|error| {
            let message = format!(
                "{place} contains no tokenizer.json (earlier versions did not save \
                it), and {error}"
            );
            let hint = "restore the text, or copy the run together with its tokenizer: kerple train \
                --init-from RUN --out COPY --set data.path=PATH --set train.steps=0";
            Error::refused(message, hint)
        })?;
        let of_text = source.tokenizer()?;
        let (definition, end) = (of_text.definition().to_owned(), of_text.end_of_document());
        Tokenizer::from_definition(&self.path().join(DEFINITION), definition, Some(end))
    }

    /// What the folder holds of a tokenizer, for [`RunFolder::verify`]; `None` where it holds nothing.
    ///
    /// # Errors
    /// A damaged tokenizer, one that is not the plan's, special tokens that it does not have.
    pub(super) fn verify_tokens(&self, plan: &Plan) -> Result<Option<String>> {
        let special = self.special_tokens()?;
        let Some(tokenizer) = self.carried_tokenizer(plan)? else { return Ok(None) };
        let SpecialTokens { end_of_document, bos, start, eos, pad, unknown } = special;
        let mut all = [end_of_document, bos, start, pad, unknown].into_iter().flatten().chain(eos);
        let rows = plan.model.vocab_size;
        match all.find(|id| *id as usize >= rows) {
            None => Ok(Some(format!("{DEFINITION}: {} tokens, as in the plan", tokenizer.vocab_size()))),
            Some(id) => {
                let message = format!("it contains token {id}, the model has {rows} tokens");
                Err(Error::damaged(
                    &self.path().join(SPECIAL),
                    message,
                    "restore the run's own file: \
                    this one was changed",
                ))
            }
        }
    }
}
