//! `kerple eval RUN`

mod lm_eval;

use super::{print_json, remark_on_horizon, remark_on_kernels, stop_flag_saying, write_file};
use crate::args::{Eval, Split};
use crate::failure::{Failure, Outcome};
use crate::output::{remarkln, resultln};
use crate::progress::Line;
use kerple_burn::device::Name;
use kerple_burn::positions::PositionalEncoding;
use kerple_lm::config::DataConfig;
use kerple_lm::corpus::{self, Source};
use kerple_lm::evaluate::{Evaluation, Event, OfTask, OfText, Protocol};
use kerple_lm::plan::Plan;
use kerple_lm::ranks::Ranks;
use kerple_lm::run::{RunFolder, Trained};
use kerple_records::EvaluationRow;
use std::sync::atomic::AtomicBool;

/// Evaluates a trained run and adds the rows to its `evaluation.jsonl`.
pub fn run(args: &Eval, ranks: &Ranks) -> Outcome {
    let run = RunFolder::new(&args.run);
    if run.existing_plan()?.data.task.is_some() {
        return run_task(args, &run, ranks);
    }
    let host = args.hardware.host()?.with_ranks(ranks.clone());
    let Trained { plan, state, mut model, notes } = run.load(&host.device, args.strict)?;
    notes.iter().for_each(|note| remarkln!("note: {note}"));
    let request = args.evaluation.request(plan.train_len, plan.seed, false)?;
    change(&mut model.trunk.encoding, args)?;
    let source = open(args, &run, &plan)?;
    source.check_tokenizer(&plan.facts)?;
    let split = split(args);
    let text = source.text(split)?;
    let scored = OfText::of_run(&run, &plan, &text, &request)?;
    let evaluation = Evaluation::new(&run, (&plan, state.step, &model), &scored, &host)?;
    let extent = scored.extent();
    remarkln!("{}: {}", request.protocol, request.protocol.meaning());
    match request.protocol {
        Protocol::Rolling(_) => remarkln!("text: {} documents of the {} split", extent.segments(), split.name()),
        _ => {
            remarkln!("text: {} segments of {} tokens of the {} split", extent.segments(), extent.span(), split.name())
        }
    }
    let longest = request.lengths.iter().copied().max().unwrap_or(0);
    if args.hardware.device == Name::Cpu {
        remarkln!("{}", plan.evaluation_memory(longest));
    }
    remark_on_horizon(&model.trunk.encoding, longest);
    remark_on_kernels(&plan, args.hardware.device);
    if !args.json {
        resultln!(
            "{:>8} {:>12} {:>10} {:>10} {:>9} {:>9}",
            "length",
            "perplexity",
            "nll",
            "bits/byte",
            "tokens",
            "seconds"
        );
    }
    let label = model.trunk.encoding.encoding().label();
    let rows = show(args, (&label, "window"), print_row, |stop, tell| evaluation.run(stop, tell))?;
    write_results(args, &plan, &rows)
}

/// Evaluates with another window or other rotary rates, where that is asked for.
fn change(encoding: &mut PositionalEncoding, args: &Eval) -> Outcome {
    if let Some(window) = args.window {
        if !encoding.has_one_window() {
            let hint = "leave it out, the model is evaluated with its own windows";
            return Err(Failure::misuse("--window: layers of this model have windows of their own", hint));
        }
        *encoding = encoding.with_window(Some(window));
    }
    if let Some(scaling) = args.rope_scaling {
        let scaled = encoding.with_rope_scaling(scaling);
        *encoding =
            scaled.map_err(|refusal| Failure::misuse(format!("--rope-scaling: {}", refusal.message), refusal.hint))?;
    }
    Ok(())
}

/// The data that was named, or that of the run, wherever it was last seen.
fn open(args: &Eval, run: &RunFolder, plan: &Plan) -> Result<Source, Failure> {
    Ok(match &args.data {
        Some(path) => Source::open(&DataConfig { path: path.clone(), ..plan.data.clone() })?,
        None => run.open_data(plan)?,
    })
}

fn split(args: &Eval) -> corpus::Split {
    match args.split {
        Split::Train => corpus::Split::Train,
        Split::Valid => corpus::Split::Valid,
        Split::Test => corpus::Split::Test,
    }
}

/// Evaluates until the end or until it is stopped, and prints every row; a length consists of so many units.
fn show(
    args: &Eval,
    (label, unit): (&str, &str),
    print: fn(&EvaluationRow),
    evaluate: impl FnOnce(&AtomicBool, &mut dyn FnMut(Event)) -> kerple_lm::Result<bool>,
) -> Result<Vec<EvaluationRow>, Failure> {
    let stop =
        stop_flag_saying("stopping; the lengths that are done are saved, this one is not; once more to stop at once");
    let (mut line, mut rows) = (Line::new(), Vec::new());
    let finished = evaluate(&stop, &mut |event| match event {
        Event::Evaluating { length, done, windows } => {
            line.show(|| format!("{label}  length {length}  {unit} {done}/{windows}"));
        }
        Event::Note(note) => line.done(&format!("note: {note}")),
        Event::Row { row, .. } if args.json => {
            print_json(row);
            rows.push(row.clone());
        }
        Event::Row { row, fresh } => {
            rows.push(row.clone());
            let known = if fresh { "" } else { "  (evaluated before)" };
            line.done(&format!("{label}  length {}{known}", row.length));
            print(row);
        }
    })?;
    if finished {
        return Ok(rows);
    }
    line.done("stopped");
    let hint = "the same command again goes on with the lengths that are missing";
    Err(Failure::stopped("stopped before the end; the lengths that were done are saved", hint))
}

/// The same for a run of a task: right answers by length.
fn run_task(args: &Eval, run: &RunFolder, ranks: &Ranks) -> Outcome {
    let host = args.hardware.host()?.with_ranks(ranks.clone());
    let mut trained = run.load_solver(&host.device, args.strict)?;
    trained.notes.iter().for_each(|note| remarkln!("note: {note}"));
    change(trained.model.encoding_mut(), args)?;
    let source = open(args, run, &trained.plan)?;
    let Some(task) = source.task() else { unreachable!("the plan has a task") };
    let request = args.evaluation.request(trained.plan.train_len, trained.plan.seed, true)?.answers(split(args), task);
    let scored = OfTask::new(task, &request);
    let solver = (&trained.plan, trained.state.step, trained.model.as_ref());
    let evaluation = Evaluation::new(run, solver, &scored, &host)?;
    let facts = task.facts();
    let longest = request.lengths.iter().copied().max().unwrap_or(0);
    remark_on_horizon(trained.model.encoding(), trained.plan.sequence_of(longest));
    remark_on_kernels(&trained.plan, args.hardware.device);
    remarkln!("{}: {} sequences of each length, chance is {:.1} %", facts.name, request.examples, 100.0 * facts.chance);
    if !args.json {
        resultln!("{:>8} {:>9} {:>10} {:>9} {:>9}", "length", "right %", "nll", "answers", "seconds");
    }
    let label = trained.model.encoding().encoding().label();
    let rows = show(args, (&label, "sequence"), print_answers, |stop, tell| evaluation.run(stop, tell))?;
    write_results(args, &trained.plan, &rows)
}

/// Writes the rows as the harness would, where that is asked for.
fn write_results(args: &Eval, plan: &Plan, rows: &[EvaluationRow]) -> Outcome {
    let Some(path) = &args.lm_eval else { return Ok(()) };
    let results = lm_eval::results(&args.run, plan, rows);
    write_file(path, &(serde_json::to_string_pretty(&results).expect("results are plain data") + "\n"))
}

fn print_answers(row: &EvaluationRow) {
    let right = row.answers.as_ref().map_or(f64::NAN, |answers| 100.0 * answers.accuracy);
    resultln!("{:>8} {right:>9.2} {:>10.5} {:>9} {:>9.2}", row.length, row.nll, row.tokens, row.seconds);
}

fn print_row(row: &EvaluationRow) {
    let bits = row.bits_per_byte.map_or_else(|| "-".to_owned(), |bits| format!("{bits:.4}"));
    resultln!(
        "{:>8} {:>12.4} {:>10.5} {bits:>10} {:>9} {:>9.2}",
        row.length,
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
