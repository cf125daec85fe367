//! `kerple eval RUN`

use super::{print_json, stop_flag_saying};
use crate::args::{Eval, Split};
use crate::failure::{Failure, Outcome};
use crate::output::{remarkln, resultln};
use crate::progress::Line;
use kerple_lm::config::DataConfig;
use kerple_lm::corpus::{self, Source};
use kerple_lm::evaluate::{Evaluation, Event};
use kerple_lm::run::{RunFolder, Trained};
use kerple_report::record::EvaluationRow;

/// Evaluates a trained run and adds the rows to its `evaluation.jsonl`.
pub fn run(args: &Eval) -> Outcome {
    let run = RunFolder::new(&args.run);
    let Trained { plan, state, mut model, notes } = run.load(&kerple_lm::device(), args.strict)?;
    notes.iter().for_each(|note| remarkln!("note: {note}"));
    let request = args.evaluation.request(plan.train_len, plan.seed)?;
    if let Some(window) = args.window {
        model.encoding = model.encoding.with_window(Some(window));
    }
    if let Some(scaling) = &args.rope_scaling {
        model.encoding = model
            .encoding
            .with_rope_scaling(*scaling)
            .map_err(|refusal| Failure::misuse(format!("--rope-scaling: {}", refusal.message), refusal.hint))?;
    }
    let source = match &args.data {
        Some(path) => Source::open(&DataConfig { path: path.clone(), packing: plan.data.packing })?,
        None => run.open_data(&plan)?,
    };
    source.check_tokenizer(&plan.facts)?;
    let split = match args.split {
        Split::Train => corpus::Split::Train,
        Split::Valid => corpus::Split::Valid,
        Split::Test => corpus::Split::Test,
    };
    let text = source.text(split);
    let evaluation = Evaluation::new(&run, (&plan, state.step, &model), &text, &request)?;
    let extent = evaluation.extent();
    remarkln!("{}: {}", request.protocol, request.protocol.meaning());
    remarkln!("text: {} segments of {} tokens of the {} split", extent.segments(), extent.span(), split.name());
    remarkln!("{}", plan.evaluation_memory(request.lengths.iter().copied().max().unwrap_or(0)));
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
    let (label, mut line) = (model.encoding.encoding().label(), Line::new());
    let stop =
        stop_flag_saying("stopping; the lengths that are done are saved, this one is not; once more to stop at once");
    let finished = evaluation.run(&stop, &mut |event| match event {
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
    resultln!(
        "{:>8} {:>12.4} {:>10.5} {bits:>10} {:>9} {:>9.2}",
        row.length,
        row.perplexity,
        row.nll,
        row.tokens,
        row.seconds
    );
}
