//! `kerple eval RUN`

use super::{default_lengths, print_json, stop_flag};
use crate::args::{Eval, Split};
use crate::failure::{Failure, Outcome};
use crate::progress::Line;
use kerple_lm::config::DataConfig;
use kerple_lm::corpus::{self, Source};
use kerple_lm::evaluate::{self, Protocol, Request, Subject, Text};
use kerple_lm::train;
use kerple_report::record::Journal;

/// Evaluates a trained run and adds the rows to its `evaluation.jsonl`.
pub fn run(args: &Eval) -> Outcome {
    let protocol: Protocol = args.protocol.parse()?;
    if args.segments == 0 {
        return Err(Failure::misuse("--segments 0 scores nothing", "use at least 1"));
    }
    if args.window == Some(0) {
        return Err(Failure::misuse("--window 0 sees nothing", "use at least 1, the token itself"));
    }
    let (plan, state, mut model) = train::load(&args.run, &kerple_lm::device())?;
    let lengths = if args.lengths.is_empty() { default_lengths(plan.train_len) } else { args.lengths.clone() };
    if lengths.contains(&0) {
        return Err(Failure::misuse("--lengths 0 is no length", "lengths are in tokens, e.g. --lengths 512,1024"));
    }
    let mut label = plan.label.clone();
    if let Some(window) = args.window {
        model.encoding = model.encoding.with_window(Some(window));
        label = model.encoding.encoding().label();
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
        lengths: lengths.clone(),
        protocol,
        segments: args.segments,
        seed: plan.seed,
        positions: args.positions,
    };
    let subject = Subject {
        label: &label,
        seed: plan.seed,
        train_len: plan.train_len,
        step: state.step,
        window: model.encoding.encoding().window,
        split: split.name(),
    };
    for length in &lengths {
        model.check_len(*length)?;
        request.windows(*length, text.len())?;
    }
    eprintln!("{}: {}", protocol, protocol.meaning());
    let mut journal = Journal::open(&args.run.join("evaluation.jsonl"))?;
    let (stop, mut line) = (stop_flag(), Line::new());
    if !args.json {
        println!(
            "{:>8} {:>12} {:>10} {:>10} {:>9} {:>9}",
            "length", "perplexity", "nll", "bits/byte", "tokens", "seconds"
        );
    }
    for length in lengths {
        let row = evaluate::evaluate(&model, &subject, &text, &request, length, &mut |done, windows| {
            line.show(|| format!("{label}  length {length}  segment {done}/{windows}"));
        })?;
        journal.push(&row)?;
        if args.json {
            print_json(&row);
        } else {
            let bits = row.bits_per_byte.map_or_else(|| "-".to_owned(), |bits| format!("{bits:.4}"));
            line.done(&format!("{label}  length {length}"));
            println!(
                "{length:>8} {:>12.4} {:>10.5} {bits:>10} {:>9} {:>9.2}",
                row.perplexity, row.nll, row.tokens, row.seconds
            );
        }
        super::unless_stopped(&mut line, &stop, "the same command again starts over with the lengths left out")?;
    }
    Ok(())
}
