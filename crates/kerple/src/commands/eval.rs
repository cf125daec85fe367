//! `kerple eval RUN`

mod lm_eval;

use super::{check_target, remark_on_horizon, remark_on_kernels, stop_flag_saying, write_file};
use crate::args::{EvalArgs, SplitChoice};
use crate::command_error::{CommandError, CommandResult};
use crate::memory;
use crate::output::{print_json, remarkln, resultln};
use crate::progress::ProgressLine;
use kerple_burn::device::DeviceName;
use kerple_burn::positional_encoding::PositionalEncoding;
use kerple_core::encoding::scaling::RopeScaling;
use kerple_lm::config::DataConfig;
use kerple_lm::corpus::{self, DataSource};
use kerple_lm::evaluate::{self, EvalCheckpoint, EvalData, EvalEvent, EvalRequest, EvalRun, KeyTokenEval, Protocol};
use kerple_lm::memory_estimate::TOKENS_AT_ONCE;
use kerple_lm::plan::Plan;
use kerple_lm::ranks::Ranks;
use kerple_lm::run::{RunFolder, TrainedModel};
use kerple_lm::runtime::Runtime;
use kerple_lm::tasks;
use kerple_report::results::{LEAST_KEY_TOKENS, key_interval};
use kerple_run::{EvaluationRow, KeyEvaluator, Provenance};
use std::sync::atomic::AtomicBool;

/// Evaluates a trained run and adds the rows to its `evaluation.jsonl`.
pub fn run(args: &EvalArgs, ranks: &Ranks) -> CommandResult {
    args.lm_eval.as_deref().map_or(Ok(()), check_target)?;
    let run = RunFolder::new(&args.run);
    let runtime = args.hardware.runtime()?.with_ranks(ranks.clone());
    let TrainedModel { plan, state, mut model, notes } = run.load_any(&runtime.device, args.strict)?;
    model.compute_with(runtime.implementation);
    notes.iter().for_each(|note| remarkln!("note: {note}"));
    let of_task = plan.data.task.is_some();
    let mut request = args.evaluation.request(plan.train_len, plan.seed, of_task)?;
    change(model.encoding_mut(), args)?;
    if args.evaluation.lengths.is_empty() {
        leave_out_undefined(&mut request.lengths, model.encoding());
    }
    let source = open(args, &run, &plan)?;
    if !of_task {
        source.check_tokenizer(&plan.data_info)?;
    }
    let scored = scored(args, &source, (&plan, &run), request, &runtime)?;
    let evaluation =
        EvalRun::new(&run, EvalCheckpoint { plan: &plan, step: state.step, model: &*model }, &*scored, &runtime)?;
    scored.words().iter().for_each(|words| remarkln!("{words}"));
    let longest = scored.lengths().iter().map(|length| scored.tokens(&plan, *length)).max().unwrap_or(0);
    if args.hardware.device == DeviceName::Cpu {
        remarkln!("{}", plan.evaluation_memory(longest));
    }
    if longest > TOKENS_AT_ONCE && !plan.model.is_linear() {
        memory::return_freed();
    }
    remark_on_horizon(model.encoding(), longest);
    remark_on_kernels(&plan, args.hardware.device);
    let (unit, header, print): (_, _, fn(&EvaluationRow)) = match (of_task, args.evaluator.is_empty()) {
        (false, true) => ("window", HEADER, print_row),
        (false, false) => ("window", KEY_HEADER, print_keys),
        (true, _) => ("sequence", ANSWERS_HEADER, print_answers),
    };
    if !args.json {
        resultln!("{header}");
    }
    let label = plan.label_evaluated_as(model.encoding().encoding());
    let rows = show(args, (&label, unit, &runtime.provenance), print, |stop, tell| evaluation.run(stop, tell))?;
    remark_on_keys(&rows);
    write_results(args, &plan, &rows)
}

/// Leaves out lengths that nobody asked for and the model is not defined for.
fn leave_out_undefined(lengths: &mut Vec<usize>, encoding: &PositionalEncoding) {
    let Some((longest, encoding)) = encoding.longest() else { return };
    let left: Vec<String> = lengths.iter().filter(|length| **length > longest).map(usize::to_string).collect();
    if !left.is_empty() && left.len() < lengths.len() {
        lengths.retain(|length| *length <= longest);
        let label = encoding.label();
        remarkln!("note: {label} is defined for {longest} positions, so lengths of {} are left out", left.join(", "));
    }
}

/// What is scored: the data, or of a text the tokens that evaluators choose.
fn scored<'a>(
    args: &EvalArgs,
    source: &'a DataSource,
    (plan, run): (&Plan, &RunFolder),
    request: EvalRequest,
    runtime: &Runtime,
) -> Result<Box<dyn EvalData + 'a>, CommandError> {
    let (special, known) = (run.special_tokens()?, run.evaluations()?);
    let Protocol::Key(rule) = request.protocol else {
        if !args.evaluator.is_empty() {
            let message = format!("--evaluator: {} scores all tokens of its windows", request.protocol);
            return Err(CommandError::misuse(message, "add --protocol key:ALPHA:BETA:CONTEXT, e.g. key:2:-2:4096"));
        }
        return Ok(evaluate::of_source(source, split(args), (plan, &special), &request, &known)?);
    };
    let mut evaluators = Vec::new();
    for folder in &args.evaluator {
        let mut evaluator = RunFolder::new(folder).load_any(&runtime.device, args.strict)?;
        evaluator.model.compute_with(runtime.implementation);
        evaluator.notes.iter().for_each(|note| remarkln!("note: {}: {note}", folder.display()));
        evaluators.push(evaluator);
    }
    source.check_rows(split(args), plan)?;
    let text = source.text(split(args))?;
    let keys = KeyTokenEval::new((plan, &special), (text, &known), (rule, request), (evaluators, runtime))?;
    Ok(Box::new(keys))
}

/// How many tokens were key, and evaluators that do not use far context.
fn remark_on_keys(rows: &[EvaluationRow]) {
    let Some((row, keys)) = rows.iter().find_map(|row| Some((row, row.key_tokens.as_ref()?))) else { return };
    let (tokens, candidates) = (row.tokens, keys.candidates);
    let share = 100.0 * tokens as f64 / candidates as f64;
    remarkln!("key tokens: {tokens} of {candidates} with enough context, {share:.2} %");
    if tokens < LEAST_KEY_TOKENS {
        remarkln!("note: fewer than {LEAST_KEY_TOKENS} key tokens have no interval; evaluate more with --n-segments");
    }
    keys.evaluators.iter().filter_map(KeyEvaluator::doubt).for_each(|doubt| remarkln!("note: {doubt}"));
}

const HEADER: &str = "  length   perplexity        nll  bits/byte    tokens   seconds";
const KEY_HEADER: &str = "  length   perplexity        nll   95 % interval of perplexity    tokens   seconds";
const ANSWERS_HEADER: &str = "  length   right %        nll   answers   seconds";

/// Evaluates with another window or other rotary rates, where that is asked for.
fn change(encoding: &mut PositionalEncoding, args: &EvalArgs) -> CommandResult {
    if let Some(window) = args.window {
        if !encoding.has_one_window() {
            let hint = "omit --window to evaluate the model with its own windows";
            return Err(CommandError::misuse("--window: some layers of this model set their own window", hint));
        }
        if let Some(trained) = encoding.encoding().window.filter(|trained| *trained != window) {
            remarkln!("note: --window {window} replaces the window of {trained} that the run was trained with");
        }
        *encoding = encoding.with_window(Some(window));
    }
    args.rope_scaling.map_or(Ok(()), |scaling| scale(encoding, scaling))
}

/// Changes how an encoding turns queries and keys, as `--rope-scaling` asks for it.
pub(super) fn scale(encoding: &mut PositionalEncoding, scaling: RopeScaling) -> CommandResult {
    let scaled = encoding
        .with_rope_scaling(scaling)
        .map_err(|refusal| CommandError::misuse(format!("--rope-scaling: {}", refusal.message), refusal.hint))?;
    let trained = encoding.encoding().rope_scaling().filter(|trained| *trained != scaling.label());
    if let Some(trained) = trained {
        remarkln!("note: --rope-scaling {} replaces {trained}, which the run was trained with", scaling.label());
    }
    *encoding = scaled;
    Ok(())
}

/// The data that was named, or that of the run, wherever it was last seen.
fn open(args: &EvalArgs, run: &RunFolder, plan: &Plan) -> Result<DataSource, CommandError> {
    if let (Some(path), Some(task)) = (&args.data, &plan.data.task)
        && !task.reads_files()
    {
        let message =
            format!("--data {}: the task {} draws its sequences and reads no files", path.display(), task.name());
        return Err(CommandError::misuse(message, "omit --data; --task evaluates with other keys of the task"));
    }
    let path = args.data.as_ref().unwrap_or(&plan.data.path).clone();
    let Some(task) = &args.task else {
        return Ok(match &args.data {
            Some(_) => DataSource::open(&DataConfig { path, ..plan.data.clone() })?,
            None => run.open_data(plan)?,
        });
    };
    let Some(trained) = &plan.data.task else {
        let hint = "omit --task, or name a run of a task";
        return Err(CommandError::misuse("--task: the run was trained on a text", hint));
    };
    tasks::check_same_answers(trained, task)?;
    Ok(DataSource::open(&DataConfig { path, task: Some(task.clone()), ..plan.data.clone() })?)
}

fn split(args: &EvalArgs) -> corpus::Split {
    match args.split {
        SplitChoice::Train => corpus::Split::Train,
        SplitChoice::Valid => corpus::Split::Valid,
        SplitChoice::Test => corpus::Split::Test,
    }
}

/// Evaluates until the end or until it is stopped, and prints every row; a length consists of so many units.
fn show(
    args: &EvalArgs,
    (label, unit, provenance): (&str, &str, &Provenance),
    print: fn(&EvaluationRow),
    evaluate: impl FnOnce(&AtomicBool, &mut dyn FnMut(EvalEvent)) -> kerple_lm::Result<bool>,
) -> Result<Vec<EvaluationRow>, CommandError> {
    let stop = stop_flag_saying(
        "stopping; finished lengths are saved, this one is not; press Ctrl-C again \
            to stop at once",
    );
    let (mut line, mut rows) = (ProgressLine::new(), Vec::new());
    let finished = evaluate(&stop, &mut |event| match event {
        EvalEvent::Evaluating { length, done, windows } => {
            line.show(|| format!("{label}  length {length}  {unit} {done}/{windows}"));
        }
        EvalEvent::Note(note) => line.done(&format!("note: {note}")),
        EvalEvent::Row { row, .. } if args.json => {
            print_json(row);
            rows.push(row.clone());
        }
        EvalEvent::Row { row, fresh } => {
            rows.push(row.clone());
            let by = evaluate::provenance_difference(row, provenance).map_or(String::new(), |by| format!(" {by}"));
            let known = if fresh { String::new() } else { format!("  (evaluated before{by})") };
            line.done(&format!("{label}  length {}{known}", row.eval_len));
            print(row);
        }
    })?;
    if finished {
        return Ok(rows);
    }
    line.done("stopped");
    let hint = "re-run the command to evaluate the missing lengths";
    Err(CommandError::stopped("stopped before the end; finished lengths are saved", hint))
}

/// Writes the rows as the harness would, where that is asked for.
fn write_results(args: &EvalArgs, plan: &Plan, rows: &[EvaluationRow]) -> CommandResult {
    let Some(path) = &args.lm_eval else { return Ok(()) };
    let results = lm_eval::results(&args.run, plan, rows);
    write_file(path, &(serde_json::to_string_pretty(&results).expect("results are plain data") + "\n"))
}

fn print_answers(row: &EvaluationRow) {
    let right = row.task.as_ref().map_or(f64::NAN, |task| 100.0 * task.score());
    resultln!("{:>8} {right:>9.2} {:>10.5} {:>9} {:>9.2}", row.eval_len, row.nll, row.tokens, row.seconds);
}

fn print_keys(row: &EvaluationRow) {
    let interval = row.key_tokens.as_ref().and_then(|keys| key_interval(&keys.segments));
    let interval = interval.map_or_else(|| "-".to_owned(), |[low, high]| format!("{low:.4} to {high:.4}"));
    let EvaluationRow { eval_len, perplexity, nll, tokens, seconds, .. } = row;
    resultln!("{eval_len:>8} {perplexity:>12.4} {nll:>10.5} {interval:>29} {tokens:>9} {seconds:>9.2}");
}

fn print_row(row: &EvaluationRow) {
    let bits = row.bits_per_byte.map_or_else(|| "-".to_owned(), |bits| format!("{bits:.4}"));
    resultln!(
        "{:>8} {:>12.4} {:>10.5} {bits:>10} {:>9} {:>9.2}",
        row.eval_len,
        row.perplexity,
        row.nll,
        row.tokens,
        row.seconds
    );
    if let (Some(rolled), Some(bytes)) = (&row.rolling, row.bytes) {
        resultln!(
            "word perplexity {:.4}, byte perplexity {:.4}; {} documents, {} words, {bytes} bytes",
            rolled.word_perplexity,
            rolled.byte_perplexity,
            rolled.documents,
            rolled.words
        );
    }
}
