//! The source of training and evaluation data: a prepared text or a task.

use crate::config::{DataConfig, SamplingConfig};
use crate::error::{Error, Result};
use crate::objective::SequenceBatch;
use crate::plan::{DataInfo, NO_TOKENIZER, Plan};
use crate::sequences::BatchSource;
use crate::sequences::EvalText;
use crate::tasks::{self, TaskBatches, TaskSource};
use kerple_data::{BatchShape, Corpus, Sampling, TokenStream, Tokenizer};
use kerple_run::DocumentMask;
use std::ops::Range;
use std::sync::atomic::AtomicBool;

pub use kerple_data::Split;

/// What a run learns from.
#[derive(Debug)]
pub struct DataSource {
    content: SourceContent,
    facts: DataInfo,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one of them a run")]
enum SourceContent {
    Text(Corpus),
    Task(TaskSource),
}

impl DataSource {
    /// Opens the corpus or the task a run file names.
    ///
    /// # Errors
    /// What cannot be read, or is damaged; keys of a task out of range.
    pub fn open(config: &DataConfig) -> Result<DataSource> {
        DataSource::open_until(config, &AtomicBool::new(false))
    }

    /// As [`DataSource::open`], until `stop` is set: the files of a task may take minutes.
    ///
    /// # Errors
    /// As [`DataSource::open`]; [`kerple_data::Error::Stopped`].
    pub fn open_until(config: &DataConfig, stop: &AtomicBool) -> Result<DataSource> {
        config.check()?;
        if let Some(task) = &config.task {
            let path = (!config.path.as_os_str().is_empty()).then_some(config.path.as_path());
            let source = TaskSource::open(task, path, stop)?;
            return Ok(DataSource { facts: tasks::facts(source.facts()), content: SourceContent::Task(source) });
        }
        let corpus = Corpus::open(&config.path)?;
        let facts = DataInfo {
            vocab_size: corpus.vocab_size(),
            tokenizer: corpus.fingerprint().to_owned(),
            train_tokens: corpus.split(Split::Train).len() as u64,
            content: corpus.content().to_owned(),
        };
        Ok(DataSource { content: SourceContent::Text(corpus), facts })
    }

    /// What a plan needs to know of it.
    pub fn facts(&self) -> DataInfo {
        self.facts.clone()
    }

    /// The task, where it is one.
    pub fn task(&self) -> Option<&TaskSource> {
        match &self.content {
            SourceContent::Text(_) => None,
            SourceContent::Task(task) => Some(task),
        }
    }

    fn corpus(&self) -> Result<&Corpus> {
        match &self.content {
            SourceContent::Text(corpus) => Ok(corpus),
            SourceContent::Task(_) => {
                let message = format!("{} is a task and has no text", self.facts.tokenizer);
                Err(Error::refused(
                    message,
                    "use a run that was trained on a text, or give its text \
                    with --data",
                ))
            }
        }
    }

    /// Reads all of it and compares every checksum.
    ///
    /// # Errors
    /// A file that is damaged.
    pub fn verify(&self) -> Result<()> {
        match &self.content {
            SourceContent::Text(corpus) => {
                corpus.verify()?;
            }
            // made when it is asked for, or of files that were read whole when they were opened
            SourceContent::Task(_) => {}
        }
        Ok(())
    }

    /// Refuses data of another tokenizer than a model was trained with.
    ///
    /// # Errors
    /// Both fingerprints.
    pub fn check_tokenizer(&self, facts: &DataInfo) -> Result<()> {
        let found = self.corpus()?.fingerprint();
        if found == facts.tokenizer {
            return Ok(());
        }
        if facts.tokenizer == NO_TOKENIZER {
            let (tokens, rows) = (self.facts.vocab_size, facts.vocab_size);
            let hint = "use data whose token ids are below the model's";
            return if tokens <= rows {
                Ok(())
            } else {
                Err(Error::refused(
                    format!(
                        "the data has a vocabulary of {tokens} tokens, the model \
                    of {rows}"
                    ),
                    hint,
                ))
            };
        }
        let short = |text: &str| text.chars().take(12).collect::<String>();
        Err(Error::refused(
            format!("the data has tokenizer {}, the run was trained with {}", short(found), short(&facts.tokenizer)),
            "prepare the text with the tokenizer.json of the run's data: kerple prepare --tokenizer FILE",
        ))
    }

    /// Refuses a split with a token that has no row in a model's embedding, or no logit: a tokenizer
    /// may have more tokens than its model has rows.
    ///
    /// # Errors
    /// The token and the rows; a text that cannot be read.
    pub fn check_rows(&self, split: Split, plan: &Plan) -> Result<()> {
        let SourceContent::Text(corpus) = &self.content else { return Ok(()) };
        if corpus.vocab_size() <= plan.model.n_logits() {
            return Ok(());
        }
        let name = |token| corpus.tokenizer().ok().and_then(|tokenizer| tokenizer.name(token));
        plan.check_tokens(corpus.largest(split)?, &format!("the {} split", split.name()), name)
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// A corpus of token ids without one.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.corpus()?.tokenizer()
    }

    /// Training sequences of a plan.
    ///
    /// # Errors
    /// Too few tokens for a sequence.
    pub fn batches(&self, plan: &Plan) -> Result<SourceBatches<'_>> {
        let corpus = match &self.content {
            SourceContent::Text(corpus) => corpus,
            SourceContent::Task(task) => return Ok(SourceBatches::Task(task.batches(plan))),
        };
        [Split::Train, Split::Valid].into_iter().try_for_each(|split| self.check_rows(split, plan))?;
        let sampling = match plan.data.sampling {
            SamplingConfig::Random => Sampling::Random,
            SamplingConfig::Megatron => Sampling::Megatron { steps: plan.steps },
        };
        let shape = BatchShape { batch: plan.train.batch_size, seq_len: plan.train_len };
        let train = kerple_data::TextBatches::new(corpus.split(Split::Train), sampling, shape, plan.seed)?;
        let valid = corpus.split(Split::Valid).clone();
        let starts = kerple_data::random_segments(valid.len(), plan.train_len, plan.train.eval_sequences, plan.seed);
        let (starts, tokenizer) = (starts.to_vec(), corpus.tokenizer().ok());
        let (documents, len) = (plan.data.documents, plan.train_len);
        let remark = (!documents.is_joined() && corpus.split(Split::Train).documents() < 2).then(|| {
            "the training split is one document, so data.documents = \"separate\" changes nothing; prepare the text with \
                its documents in files of their own"
                .to_owned()
        });
        Ok(SourceBatches::Text(CorpusBatches { train, valid, starts, len, documents, remark, tokenizer }))
    }

    /// A split to evaluate on.
    ///
    /// # Errors
    /// A task, which has no text.
    pub fn text(&self, split: Split) -> Result<CorpusText<'_>> {
        Ok(CorpusText { corpus: self.corpus()?, split })
    }
}

/// Training and validation sequences of whatever a run learns from.
pub enum SourceBatches<'a> {
    /// Windows of a text.
    Text(CorpusBatches<'a>),
    /// Examples of a task.
    Task(TaskBatches<'a>),
}

impl SourceBatches<'_> {
    fn inner(&self) -> &dyn BatchSource {
        match self {
            SourceBatches::Text(batches) => batches,
            SourceBatches::Task(batches) => batches,
        }
    }
}

impl BatchSource for SourceBatches<'_> {
    fn batch(&self, step: u64, rows: Range<usize>) -> Result<SequenceBatch> {
        self.inner().batch(step, rows)
    }

    fn validation_rows(&self) -> usize {
        self.inner().validation_rows()
    }

    fn tokenizer(&self) -> Option<&Tokenizer> {
        self.inner().tokenizer()
    }

    fn remark(&self) -> Option<&str> {
        self.inner().remark()
    }

    fn validation(&self, rows: Range<usize>) -> Result<SequenceBatch> {
        self.inner().validation(rows)
    }
}

/// Training and validation sequences of a corpus.
pub struct CorpusBatches<'a> {
    train: kerple_data::TextBatches,
    valid: TokenStream,
    /// Where the validation sequences begin.
    starts: Vec<usize>,
    len: usize,
    documents: DocumentMask,
    remark: Option<String>,
    tokenizer: Option<&'a Tokenizer>,
}

impl CorpusBatches<'_> {
    fn sequences(&self, batch: kerple_data::TextBatch) -> SequenceBatch {
        match self.documents {
            DocumentMask::Joined => batch.into(),
            DocumentMask::Separate => SequenceBatch::of_documents(batch),
        }
    }
}

impl BatchSource for CorpusBatches<'_> {
    fn batch(&self, step: u64, rows: Range<usize>) -> Result<SequenceBatch> {
        Ok(self.sequences(self.train.batch(step, rows)?))
    }

    fn validation_rows(&self) -> usize {
        self.starts.len()
    }

    fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer
    }

    fn remark(&self) -> Option<&str> {
        self.remark.as_deref()
    }

    fn validation(&self, rows: Range<usize>) -> Result<SequenceBatch> {
        Ok(self.sequences(kerple_data::TextBatch::at(&self.valid, &self.starts[rows], self.len)?))
    }
}

/// A split of a corpus, to evaluate on.
#[derive(Clone, Copy, Debug)]
pub struct CorpusText<'a> {
    corpus: &'a Corpus,
    split: Split,
}

impl CorpusText<'_> {
    /// The position of each document, its end-of-document token included.
    pub fn documents(&self) -> impl Iterator<Item = Range<usize>> {
        let tokens = self.corpus.split(self.split);
        (0..tokens.documents()).map(|number| tokens.document(number))
    }
}

impl EvalText for CorpusText<'_> {
    fn split(&self) -> &'static str {
        self.split.name()
    }

    fn checksum(&self) -> String {
        self.corpus.checksum(self.split).to_owned()
    }

    fn len(&self) -> usize {
        self.corpus.split(self.split).len()
    }

    fn read(&self, range: Range<usize>) -> Result<Vec<u32>> {
        self.corpus.split(self.split).read(range)
    }

    fn bytes(&self, range: Range<usize>) -> Option<u64> {
        self.corpus.bytes_in(self.split, range).ok()
    }

    fn documents(&self) -> Vec<Range<usize>> {
        CorpusText::documents(self).collect()
    }

    fn tokenizer(&self) -> Option<&Tokenizer> {
        self.corpus.tokenizer().ok()
    }
}
