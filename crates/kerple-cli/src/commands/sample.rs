//! `kerple sample RUN`

use super::stop_flag_saying;
use crate::args::Sample;
use crate::failure::{Failure, Outcome};
use crate::output::remarkln;
use kerple_lm::generate::{self, Draw};
use kerple_lm::run::{RunFolder, Trained};
use std::io::Write;
use std::sync::atomic::Ordering;

/// Streams text that goes on from the prompt.
pub fn run(args: &Sample) -> Outcome {
    if !(args.temperature.is_finite() && args.temperature >= 0.0) {
        return Err(Failure::misuse(
            format!("--temperature {} is out of range, it must be at least 0", args.temperature),
            "0 always takes the likeliest token, 1 samples from the model's distribution",
        ));
    }
    let run = RunFolder::new(&args.run);
    let Trained { plan, model, notes, .. } = run.load(&kerple_lm::device(), false)?;
    notes.iter().for_each(|note| remarkln!("note: {note}"));
    let source = run.open_data(&plan)?;
    let tokenizer = source.tokenizer()?;
    let mut prompt = vec![tokenizer.end_of_document()];
    prompt.extend(tokenizer.encode(&args.prompt).map_err(kerple_lm::Error::from)?);
    generate::check(&model, prompt.len(), args.tokens)?;
    let mut out = std::io::stdout().lock();
    let mut print = |text: &str| {
        // a closed pipe ends the stream without fuss
        if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
            std::process::exit(0);
        }
    };
    print(&args.prompt);
    let stop = stop_flag_saying("stopping after this token; once more to stop at once");
    let mut decoder = tokenizer.decoder();
    let draw = Draw { temperature: args.temperature, top_k: args.top_k, seed: args.seed };
    generate::generate(&model, &prompt, args.tokens, plan.facts.vocab_size, &draw, &mut |token| {
        print(&decoder.push(token));
        !stop.load(Ordering::Relaxed) && token != tokenizer.end_of_document()
    })?;
    print(&decoder.finish());
    print("\n");
    Ok(())
}
