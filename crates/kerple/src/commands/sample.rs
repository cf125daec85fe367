//! `kerple sample RUN`

use super::music::MusicSampler;
use super::{load_to_generate, remark_on_horizon, remark_on_kernels, stop_flag_saying};
use crate::args::{SAMPLE_SEED, SampleArgs};
use crate::command_error::{CommandError, CommandResult};
use crate::output::{self, remarkln};
use kerple_data::{StreamDecoder, Tokenizer};
use kerple_lm::generate::{self, DecodingCallback, SamplingParams};
use kerple_lm::run::{RunFolder, TrainedModel};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Streams text, or the event words of music, that continues the prompt.
pub fn run(args: &SampleArgs) -> CommandResult {
    check_range(
        "--temperature",
        args.temperature,
        f64::MAX,
        "use 0 for the likeliest token each time, 1 to sample from the model's distribution",
    )?;
    check_range(
        "--top-p",
        args.top_p,
        1.0,
        "use 0.9 to sample from the likeliest tokens that hold 90 % of the probability, 1 for all tokens",
    )?;
    let run = RunFolder::new(&args.run);
    let (_, TrainedModel { plan, mut model, notes, .. }) = load_to_generate(&run, &args.hardware)?;
    if let Some(scaling) = args.rope_scaling {
        super::eval::scale(&mut model.trunk.encoding, scaling)?;
        plan.check_evaluated(model.trunk.encoding.encoding())?;
    }
    notes.iter().for_each(|note| remarkln!("note: {note}"));
    let tokenizer = run.tokenizer(&plan)?;
    let music = MusicSampler::of(&tokenizer);
    let is_music = music.is_some();
    let special = run.special_tokens_of(&tokenizer)?;
    let prompt = prompt(args, &tokenizer, music.as_ref(), special.start(&tokenizer))?;
    plan.check_tokens(prompt.iter().copied().max(), "the prompt", |token| tokenizer.name(token))?;
    generate::check(&model, prompt.len(), args.max_new_tokens).map_err(|error| {
        let refusal = CommandError::from(error);
        CommandError { hint: format!("lower --max-new-tokens or shorten the prompt; {}", refusal.hint), ..refusal }
    })?;
    remark_on_horizon(&model.trunk.encoding, prompt.len() + args.max_new_tokens);
    remark_on_kernels(&plan, args.hardware.device);
    // the seed is that of positions and features too
    let encoding_draws = plan
        .model
        .every_layer(&plan.encoding)
        .any(|layer| layer.encoding.randomized.is_some() || layer.attention.linear().is_some());
    if let Some(note) = without_effect(args, encoding_draws) {
        remarkln!("note: {note}");
    }
    let vocab_size = plan.data_info.vocab_size;
    if args.top_k >= vocab_size {
        remarkln!("note: no effect: --top-k {}; the vocabulary has {vocab_size} tokens", args.top_k);
    }
    let (temperature, top_p) = music.as_ref().map_or((0.8, 1.0), MusicSampler::temperature_and_top_p);
    let draw = SamplingParams {
        temperature: args.temperature.unwrap_or(temperature),
        top_k: args.top_k,
        top_p: args.top_p.unwrap_or(top_p),
        seed: args.seed.unwrap_or(SAMPLE_SEED),
    };
    let mut sampled = Sampled {
        decoder: tokenizer.decoder(),
        music,
        tokens: Vec::new(),
        ends: special.eos,
        stop: stop_flag_saying("stopping after this token; press Ctrl-C again to stop at once"),
    };
    if !is_music {
        // as it was written: tokens may give back another spelling
        print(&args.prompt);
    }
    sampled.begin(&prompt[1..], is_music);
    generate::generate(&model, &prompt, args.max_new_tokens, vocab_size, &draw, &mut sampled)?;
    let Sampled { decoder, music, tokens, ends, stop } = sampled;
    let drawn = tokens.len() + 1 - prompt.len();
    print(&decoder.finish());
    print("\n");
    if let Some(end) = tokens.last().filter(|token| drawn > 0 && ends.contains(token)) {
        let name =
            tokenizer.special_tokens().into_iter().find(|(_, id)| id == end).map(|(name, _)| format!(", {name}"));
        let name = name.unwrap_or_default();
        remarkln!("note: token {end}{name}, ended the text after {drawn} of {} tokens", args.max_new_tokens);
    }
    if let Some(music) = music {
        music.save(args, &tokens)?;
    }
    if stop.load(Ordering::Relaxed) {
        return Err(CommandError::stopped(
            "stopped before the end; sampled tokens are kept",
            "set the number of tokens with --max-new-tokens",
        ));
    }
    Ok(())
}

fn check_range(option: &str, value: Option<f64>, most: f64, hint: &str) -> CommandResult {
    let Some(value) = value.filter(|value| !(value.is_finite() && (0.0..=most).contains(value))) else { return Ok(()) };
    let limit = if most == f64::MAX { "at least 0".to_owned() } else { format!("between 0 and {most}") };
    Err(CommandError::misuse(format!("{option} {value} is out of range, it must be {limit}"), hint))
}

/// Options that change nothing with the one that takes the likeliest token each time.
fn without_effect(args: &SampleArgs, encoding_draws: bool) -> Option<String> {
    let top_k = Some(args.top_k).filter(|count| *count > 0);
    // each with the value that takes the likeliest token; there is none for the seed
    let options = [
        ("--temperature", args.temperature.map(|value| value.to_string()), "0"),
        ("--top-k", top_k.map(|value| value.to_string()), "1"),
        ("--top-p", args.top_p.map(|value| value.to_string()), "0"),
        ("--seed", args.seed.filter(|_| !encoding_draws).map(|value| value.to_string()), ""),
    ];
    let given = options.into_iter().filter_map(|(option, value, likeliest)| Some((option, value?, likeliest)));
    let mut given: Vec<(String, bool)> =
        given.map(|(option, value, likeliest)| (format!("{option} {value}"), value == likeliest)).collect();
    let (likeliest, _) = given.remove(given.iter().position(|(_, is_likeliest)| *is_likeliest)?);
    let others: Vec<String> = given.into_iter().map(|(option, _)| option).collect();
    (!others.is_empty()).then(|| format!("no effect with {likeliest}: {}", others.join(", ")))
}

/// The tokens to go on from, after the one that is in front of a text.
fn prompt(
    args: &SampleArgs,
    tokenizer: &Tokenizer,
    music: Option<&MusicSampler>,
    first: u32,
) -> Result<Vec<u32>, CommandError> {
    let mut prompt = vec![first];
    let Some(music) = music else {
        let options = [("--prompt-midi", &args.prompt_midi), ("--midi", &args.midi), ("--svg", &args.svg)];
        if let Some((option, _)) = options.iter().find(|(_, file)| file.is_some()) {
            return Err(CommandError::misuse(
                format!("{option}: this run was trained on text, not on music"),
                "omit the option; to train on MIDI files, prepare them with `kerple prepare \
                    --tokenizer remi`",
            ));
        }
        prompt.extend(tokenizer.encode(&args.prompt)?);
        return Ok(prompt);
    };
    prompt.extend(music.prompt(args, tokenizer)?);
    Ok(prompt)
}

/// What has been sampled so far.
struct Sampled<'t> {
    decoder: StreamDecoder<'t>,
    music: Option<MusicSampler>,
    tokens: Vec<u32>,
    ends: Vec<u32>,
    stop: Arc<AtomicBool>,
}

impl Sampled<'_> {
    /// Takes the prompt.
    fn begin(&mut self, prompt: &[u32], show: bool) {
        for token in prompt {
            self.add(*token, show);
        }
    }

    fn add(&mut self, token: u32, show: bool) {
        if show {
            print(&self.decoder.push(token));
        }
        self.tokens.push(token);
        if let Some(music) = &mut self.music {
            music.take(token);
        }
    }
}

impl DecodingCallback for Sampled<'_> {
    fn allows(&self, token: u32) -> bool {
        self.music.as_ref().is_none_or(|music| music.allows(token))
    }

    fn take(&mut self, token: u32) -> bool {
        self.add(token, true);
        !self.stop.load(Ordering::Relaxed) && !self.ends.contains(&token)
    }
}

fn print(text: &str) {
    output::result(format_args!("{text}"));
}
