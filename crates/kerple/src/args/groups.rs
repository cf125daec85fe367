//! Options that several commands share, and the numbers and names that options take.

use crate::command_error::CommandError;
use crate::exhausted;
use clap::{Args, ValueEnum};
use kerple_burn::device::DeviceName;
use kerple_core::cpu::{Bf16Unit, InstructionSet};
use kerple_core::encoding::scaling::RopeScaling;
use kerple_core::precision::Precision;
use kerple_data::tasks::TaskConfig;
use kerple_lm::evaluate::{self, EvalLength, EvalRequest, Protocol, SegmentCount};
use kerple_lm::runtime::Runtime;
use kerple_lm::sweep::Shard;
use kerple_run::{DocumentMask, Within};
use std::path::PathBuf;

/// A run file and what differs from it.
#[derive(Debug, Args)]
pub struct RunFile {
    /// Run file.
    #[arg(long)]
    pub config: PathBuf,
    /// Override a key of the run file, e.g. train.steps=100.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

/// What is evaluated.
#[derive(Debug, Args)]
pub struct EvaluationOptions {
    /// Lengths to evaluate, in tokens, or octaves:STEP:MULTIPLE: the training length, what is STEP
    /// octaves longer and so on, up to MULTIPLE times the training length, e.g. octaves:0.5:32. By
    /// default 1x to 32x the training length; for tasks every half up to 12.5x.
    #[arg(long, value_delimiter = ',')]
    pub lengths: Vec<EvalLength>,
    /// segments (the default), nonoverlapping, last:COUNT, sliding:STRIDE, rolling:LENGTH, or with `eval`
    /// key:ALPHA:BETA:CONTEXT[:STRIDE] for tokens that need far context. For texts only.
    #[arg(long)]
    pub protocol: Option<String>,
    /// Number of segments of the text; the text must have that many. By default up to 320; for
    /// nonoverlapping, sliding and key as many as contain 320 training sequences. For rolling the number of
    /// documents, by default all; for a task the number of sequences of each length, by default up
    /// to 512.
    #[arg(long, value_parser = count)]
    pub n_segments: Option<usize>,
    /// Tokens per segment, the same for all lengths and at least the longest. By default as in
    /// earlier evaluations of the run, or 32 training lengths.
    #[arg(long, value_parser = count)]
    pub segment_len: Option<usize>,
    /// joined, or separate: documents do not attend to each other, and their first tokens are not
    /// scored. By default as the run was trained; not for rolling, which has one document per window.
    #[arg(long)]
    pub documents: Option<DocumentMask>,
    /// split, or document: with last:COUNT, segments are where each scored token has --segment-len
    /// tokens of its own document before it. By default anywhere in the split.
    #[arg(long)]
    pub within: Option<Within>,
    /// Record the loss at every position.
    #[arg(long)]
    pub per_position: bool,
}

impl EvaluationOptions {
    /// The request of a model trained at `train_len` on a text or a task; when none were named the lengths are 1x to 32x of it,
    /// of a task every half of it up to 12.5x.
    ///
    /// # Errors
    /// A protocol that does not exist; of a task, options that only texts have.
    pub fn request(&self, train_len: usize, seed: u64, task: bool) -> Result<EvalRequest, CommandError> {
        if task {
            self.check_task()?;
        }
        let protocol = self.protocol.as_deref().map_or(Ok(Protocol::Segments), str::parse)?;
        Ok(EvalRequest {
            lengths: match (self.lengths.is_empty(), task, protocol) {
                (false, _, _) => EvalLength::resolve(&self.lengths, train_len),
                (true, true, _) => evaluate::default_lengths(train_len),
                (true, false, Protocol::Rolling(length)) => vec![length],
                (true, false, Protocol::Key(rule)) => {
                    let lengths = default_lengths(train_len);
                    let served = lengths.iter().filter(|length| **length >= rule.context()).copied();
                    served.collect()
                }
                (true, false, _) => default_lengths(train_len),
            },
            protocol,
            // 320 segments, as the original evaluates, or what there is
            n_segments: self.n_segments.map_or(SegmentCount::UpTo(320), SegmentCount::Exactly),
            segment_len: self.segment_len,
            seed,
            per_position: self.per_position,
            documents: self.documents,
            within: self.within.unwrap_or_default(),
        })
    }

    /// Refuses options that only texts have.
    fn check_task(&self) -> Result<(), CommandError> {
        let protocol = self.protocol.as_ref().map(|protocol| ("--protocol", format!(" {protocol}")));
        let segment_len = self.segment_len.map(|len| ("--segment-len", format!(" {len}")));
        let within = self.within.map(|within| ("--within", format!(" {within}")));
        let per_position = self.per_position.then(|| ("--per-position", String::new()));
        let Some((option, value)) = protocol.or(segment_len).or(within).or(per_position) else { return Ok(()) };
        let message = format!("{option}{value}: the data is a task, whose sequences are scored by their answers");
        Err(CommandError::misuse(message, format!("omit {option}, which is for texts")))
    }
}

/// What models run on.
#[derive(Debug, Args)]
pub struct Hardware {
    /// Where models run: cpu, cuda, vulkan, metal or wgpu, cuda:1 for the second device of a kind,
    /// wgpu:software for tests; `kerple devices` lists them. The device is not part of a plan,
    /// which gives the same run on all devices up to rounding.
    #[arg(long, default_value = "cpu")]
    pub device: DeviceName,
    /// Precision of the inputs of matrix products, which accumulate in f32: f32, or rounded to tf32
    /// or bf16, which GPUs with matrix units multiply faster, and processors with AMX the bf16 of
    /// linear layers (AVX512-BF16 does too, not always faster). Everything else is f32: weights
    /// (in `kerple sample` and `kerple serve` on CPUs bf16 too), optimizer state, norms, softmax,
    /// losses, positions. The precision is not part of a plan; sessions.jsonl records it.
    #[arg(long, value_name = "PRECISION", default_value = "f32")]
    pub precision: Precision,
}

impl Hardware {
    /// The device in this machine, and this program.
    ///
    /// # Errors
    /// A device that is not there, or that this program was built without.
    pub fn runtime(&self) -> Result<Runtime, CommandError> {
        let cpu = Runtime::cpu(Some(env!("KERPLE_COMMIT").to_owned()));
        if self.device == DeviceName::Cpu {
            self.check_cpu_precision(Bf16Unit::current())?;
            return Ok(cpu.with_precision(self.precision));
        }
        let opened = self.device.open()?;
        exhausted::tell_of(self.device);
        Ok(cpu.on(self.device, opened).with_precision(self.precision))
    }

    /// The same to generate with. A processor may hold matrices as `bf16` whether or not it has instructions for them.
    ///
    /// # Errors
    /// As [`Hardware::runtime`].
    pub fn runtime_to_generate(&self) -> Result<Runtime, CommandError> {
        match self.holds_short_matrices() && Bf16Unit::current() == Bf16Unit::Portable {
            true => Hardware { device: self.device, precision: Precision::F32 }.runtime(),
            false => self.runtime(),
        }
    }

    /// Whether models that generate hold their matrices as `bf16`.
    pub fn holds_short_matrices(&self) -> bool {
        self.device == DeviceName::Cpu && self.precision == Precision::Bf16
    }

    /// Refuses precisions that this processor is not faster with.
    fn check_cpu_precision(&self, unit: Bf16Unit) -> Result<(), CommandError> {
        match self.precision {
            Precision::Bf16 if unit > Bf16Unit::Portable => Ok(()),
            Precision::Bf16 if Bf16Unit::detected() > unit => Err(CommandError::misuse(
                format!("--precision bf16: {} has no instructions for it", InstructionSet::current().name()),
                "omit --simd, or --precision",
            )),
            Precision::Bf16 => self.check_exact("this CPU has neither AVX512-BF16 nor AMX, or may not use them"),
            _ => self.check_exact("the CPU has no instructions for tf32"),
        }
    }

    /// Its options, and whether they are given.
    pub fn given(&self) -> [(&'static str, bool); 2] {
        [("--device", self.device != DeviceName::Cpu), ("--precision", self.precision != Precision::F32)]
    }

    /// Refuses precisions below `f32`, with a reason.
    ///
    /// # Errors
    /// When they are asked for.
    pub fn check_exact(&self, why: &str) -> Result<(), CommandError> {
        match self.precision {
            Precision::F32 => Ok(()),
            shorter => Err(CommandError::misuse(
                format!("--precision {shorter}: {why}"),
                "omit --precision, or choose a GPU with --device",
            )),
        }
    }

    /// The same for a command that may only write scripts or pages, on a machine without the device.
    ///
    /// # Errors
    /// As [`Hardware::host`], where models run.
    pub fn runtime_where(&self, models_run: bool) -> Result<Runtime, CommandError> {
        match models_run {
            true => self.runtime(),
            false => Hardware { device: DeviceName::Cpu, precision: Precision::F32 }.runtime(),
        }
    }
}

/// How runs are divided among processes.
#[derive(Debug, Args)]
pub struct Sharing {
    /// Take only every N-th run, starting from the I-th, counted from 0; copy the folders of all
    /// shards together to merge them.
    #[arg(long, value_name = "I/N")]
    pub shard: Option<Shard>,
    /// Train nothing; write scripts for a Slurm job array of N tasks, K at a time, and for a job
    /// that makes the pages.
    #[arg(long, value_name = "N[%K]", conflicts_with = "shard")]
    pub slurm: Option<SlurmArray>,
}

/// Tasks of a job array, and how many run at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlurmArray {
    pub tasks: usize,
    pub at_once: Option<usize>,
}

impl std::str::FromStr for SlurmArray {
    type Err = String;

    fn from_str(text: &str) -> Result<SlurmArray, String> {
        let (tasks, at_once) = text.split_once('%').map_or((text, None), |(tasks, most)| (tasks, Some(most)));
        Ok(SlurmArray { tasks: count(tasks)?, at_once: at_once.map(count).transpose()? })
    }
}

/// `1x, 2x, ... 32x` of the training length.
pub fn default_lengths(train_len: usize) -> Vec<usize> {
    (0..6).map(|octave| train_len.saturating_mul(1 << octave)).collect()
}

/// Largest count an option takes: products of a few of them stay far from the end of 64 bits in floating point, and no
/// machine holds as many tokens.
const MOST: usize = 1 << 40;

/// A number of things, from 1 on.
pub fn count(text: &str) -> Result<usize, String> {
    match text.trim().parse::<usize>() {
        Ok(0) => Err("it must be at least 1".to_owned()),
        Ok(number) if number <= MOST => Ok(number),
        Err(error) if *error.kind() != std::num::IntErrorKind::PosOverflow => {
            Err("it must be a whole number of at least 1".to_owned())
        }
        _ => Err(format!("it must be at most {MOST}")),
    }
}

/// A scaling of rotary rates: a name, or keys as a run file's inline table.
pub fn rope_scaling(text: &str) -> Result<RopeScaling, String> {
    #[derive(serde::Deserialize)]
    struct ScalingTable {
        scaling: RopeScaling,
    }
    let value = if text.trim_start().starts_with('{') { text.to_owned() } else { format!("{:?}", text.trim()) };
    let line: ScalingTable =
        toml::from_str(&format!("scaling = {value}")).map_err(|error| error.message().to_owned())?;
    Ok(line.scaling)
}

/// A task: a name, or its name and keys as a run file's inline table.
pub fn task(text: &str) -> Result<TaskConfig, String> {
    #[derive(serde::Deserialize)]
    struct TaskTable {
        task: TaskConfig,
    }
    let value = if text.trim_start().starts_with('{') { text.to_owned() } else { format!("{:?}", text.trim()) };
    let line: TaskTable = toml::from_str(&format!("task = {value}")).map_err(|error| error.message().to_owned())?;
    line.task.check().map_err(|error| error.to_string())?;
    Ok(line.task)
}

/// Which part of the prepared text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SplitChoice {
    /// The training split.
    Train,
    /// The validation split.
    Valid,
    /// The test split.
    Test,
}

/// Instruction sets, widest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SimdChoice {
    /// AVX-512.
    Avx512,
    /// AVX2 with fused multiply-add.
    Avx2,
    /// Instructions that every CPU of the architecture has.
    Portable,
}

impl SimdChoice {
    /// The set of this name.
    pub fn set(self) -> InstructionSet {
        match self {
            SimdChoice::Avx512 => InstructionSet::Avx512,
            SimdChoice::Avx2 => InstructionSet::Avx2,
            SimdChoice::Portable => InstructionSet::Portable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_say_how_many_run_at_once() {
        assert_eq!("8".parse(), Ok(SlurmArray { tasks: 8, at_once: None }));
        assert_eq!("8%2".parse(), Ok(SlurmArray { tasks: 8, at_once: Some(2) }));
        for text in ["", "0", "8%", "8%0", "%2"] {
            assert!(text.parse::<SlurmArray>().is_err(), "{text}");
        }
    }

    #[test]
    fn scalings_are_names_or_tables() {
        let label = |text: &str| rope_scaling(text).map(|scaling| scaling.label());
        assert_eq!(label("yarn"), Ok("yarn".to_owned()));
        assert_eq!(label(r#"{ kind = "linear", factor = 4 }"#), Ok("linear.factor4".to_owned()));
        for (text, says) in
            [("yarm", "unknown scaling `yarm`"), ("{ kind = 3", ""), (r#"{ kind = "ntk", f = 3 }"#, "f")]
        {
            assert!(label(text).unwrap_err().contains(says), "{text}: {:?}", label(text));
        }
    }

    #[test]
    fn counts_have_limits() {
        assert_eq!(count("7"), Ok(7));
        assert_eq!(count(&MOST.to_string()), Ok(MOST));
        assert!(count("0").unwrap_err().contains("at least 1"));
        for text in [&(MOST + 1).to_string(), "18446744073709551615", "18446744073709551616"] {
            assert!(count(text).unwrap_err().contains("at most"), "{text}");
        }
        for text in ["", "x", "-1", "1.5"] {
            assert!(count(text).unwrap_err().contains("whole number"), "{text}");
        }
    }
}
