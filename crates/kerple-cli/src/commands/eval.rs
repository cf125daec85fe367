//! `kerple eval RUN`

use super::{amount, default_lengths, print_json, stop_flag};
use crate::args::{Eval, Split};
use crate::failure::{Failure, Outcome};
use crate::progress::Line;
use kerple_lm::config::DataConfig;
use kerple_lm::corpus::{self, Source};
use kerple_lm::evaluate::{Evaluation, Event, Protocol, Request};
use kerple_lm::train;
use kerple_report::record::EvaluationRow;

/// Evaluates a trained run and adds the rows to its `evaluation.jsonl`.
pub fn run(args: &Eval) -> Outcome {
    let protocol: Protocol = args.protocol.parse()?;
    if args.window == Some(0) {
        return Err(Failure::misuse("--window 0 sees nothing", "use at least 1, the token itself"));
    }
    let (plan, state, mut model) = train::load(&args.run, &kerple_lm::device())?;
    let lengths = if args.lengths.is_empty() { default_lengths(plan.train_len) } else { args.lengths.clone() };
    if let Some(window) = args.window {
        model.encoding = model.encoding.with_window(Some(window));
    }
    let path = args.data.clone().unwrap_or_else(|| plan.data.path.clone());
    let source = Source::open(&DataConfig { path, packing: plan.data.packing })?;
    source.check_tokenizer(&plan.facts)?;
    let split = match args.split {
        Split::Train => corpus::Split::Train,
        Split::Valid => corpus::Split::Valid,
        Split::Test => corpus::Split::Test,
    };
    let text = source.text(split);
    let request = Request {
        lengths,
        protocol,
        segments: amount(args.segments),
        span: args.span,
        seed: plan.seed,
        positions: args.positions,
    };
    let evaluation = Evaluation::new(&args.run, (&plan, state.step, &model), &text, &request)?;
    let extent = evaluation.extent();
    eprintln!("{protocol}: {}", protocol.meaning());
    eprintln!("text: {} segments of {} tokens of the {} split", extent.segments(), extent.span(), split.name());
    if !args.json {
        println!(
            "{:>8} {:>12} {:>10} {:>10} {:>9} {:>9}",
            "length", "perplexity", "nll", "bits/byte", "tokens", "seconds"
        );
    }
    let (label, mut line) = (model.encoding.encoding().label(), Line::new());
    let finished = evaluation.run(&stop_flag(), &mut |event| match event {
        Event::Evaluating { length, done, windows } => {
            line.show(|| format!("{label}  length {length}  window {done}/{windows}"));
        }
        Event::Row { row, .. } if args.json => print_json(row),
        Event::Row { row, fresh } => {
            let known = if fresh { "" } else { "  (evaluated before)" };
            line.done(&format!("{label}  length {}{known}", row.length));
            print_row(row);
        }
    })?;
    if finished {
        return Ok(());
    }
    line.done("stopped");
    let hint = "the same command again goes on with the lengths that are missing";
    Err(Failure::failed("stopped before the end; the lengths that were done are saved", hint))
}

fn print_row(row: &EvaluationRow) {
    let bits = row.bits_per_byte.map_or_else(|| "-".to_owned(), |bits| format!("{bits:.4}"));
    println!(
        "{:>8} {:>12.4} {:>10.5} {bits:>10} {:>9} {:>9.2}",
        row.length, row.perplexity, row.nll, row.tokens, row.seconds
    );
}
