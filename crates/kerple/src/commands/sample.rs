//! `kerple sample RUN`

use super::{read_piece, remark_on_horizon, remark_on_kernels, stop_flag_saying, write_file};
use crate::args::Sample;
use crate::failure::{Failure, Outcome};
use crate::output::{self, remarkln};
use kerple_data::music::{MusicPiece, Rules, Vocabulary};
use kerple_data::{StreamDecoder, Tokenizer};
use kerple_lm::generate::{self, DecodingCallback, SamplingParams};
use kerple_lm::run::{RunFolder, TrainedModel};
use kerple_report::plot::{PianoRoll, Sound};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Streams text, or the event words of music, that continues the prompt.
pub fn run(args: &Sample) -> Outcome {
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
    let runtime = args.hardware.runtime()?;
    let TrainedModel { plan, model, notes, .. } = run.load(&runtime.device, false)?;
    let model = model.with_engine(runtime.engine);
    notes.iter().for_each(|note| remarkln!("note: {note}"));
    let tokenizer = run.tokenizer(&plan)?;
    let music = tokenizer.music_vocabulary();
    let special = run.special_tokens_of(&tokenizer)?;
    let prompt = prompt(args, &tokenizer, special.start(&tokenizer))?;
    plan.check_tokens(prompt.iter().copied().max(), "the prompt", |token| tokenizer.name(token))?;
    generate::check(&model, prompt.len(), args.max_new_tokens)?;
    remark_on_horizon(&model.trunk.encoding, prompt.len() + args.max_new_tokens);
    remark_on_kernels(&plan, args.hardware.device);
    let (temperature, top_p) = music.map_or((0.8, 1.0), |music| music.representation().sampling());
    let draw = SamplingParams {
        temperature: args.temperature.unwrap_or(temperature),
        top_k: args.top_k,
        top_p: args.top_p.unwrap_or(top_p),
        seed: args.seed,
    };
    let mut sampled = Sampled {
        decoder: tokenizer.decoder(),
        rules: music.map(Vocabulary::rules),
        tokens: Vec::new(),
        ends: special.eos,
        stop: stop_flag_saying("stopping after this token; press Ctrl-C again to stop at once"),
    };
    if music.is_none() {
        // as it was written: tokens may give back another spelling
        print(&args.prompt);
    }
    sampled.begin(&prompt[1..], music.is_some());
    generate::generate(&model, &prompt, args.max_new_tokens, plan.data_info.vocab_size, &draw, &mut sampled)?;
    let Sampled { decoder, tokens, stop, .. } = sampled;
    print(&decoder.finish());
    print("\n");
    if let Some(music) = music {
        save(args, &music.piece(&tokens))?;
    }
    if stop.load(Ordering::Relaxed) {
        return Err(Failure::stopped(
            "stopped before the end; sampled tokens are kept",
            "set the number of tokens with --max-new-tokens",
        ));
    }
    Ok(())
}

fn check_range(option: &str, value: Option<f64>, most: f64, hint: &str) -> Outcome {
    let Some(value) = value.filter(|value| !(value.is_finite() && (0.0..=most).contains(value))) else { return Ok(()) };
    let limit = if most == f64::MAX { "at least 0".to_owned() } else { format!("between 0 and {most}") };
    Err(Failure::misuse(format!("{option} {value} is out of range, it must be {limit}"), hint))
}

/// The tokens to go on from, after the one that is in front of a text.
fn prompt(args: &Sample, tokenizer: &Tokenizer, first: u32) -> Result<Vec<u32>, Failure> {
    let mut prompt = vec![first];
    let Some(music) = tokenizer.music_vocabulary() else {
        let options = [("--prompt-midi", &args.prompt_midi), ("--midi", &args.midi), ("--svg", &args.svg)];
        if let Some((option, _)) = options.iter().find(|(_, file)| file.is_some()) {
            return Err(Failure::misuse(
                format!("{option}: this run was trained on text, not on music"),
                "omit the option; to train on MIDI files, prepare them with `kerple prepare \
                    --tokenizer remi`",
            ));
        }
        prompt.extend(tokenizer.encode(&args.prompt)?);
        return Ok(prompt);
    };
    let mut tokens = match &args.prompt_midi {
        None => tokenizer.encode(&args.prompt)?,
        Some(path) => {
            let piece = read_piece(path).and_then(|piece| music.tokens(&piece))?;
            piece[..music.prompt_len(&piece, args.bars)].to_vec()
        }
    };
    if tokens.first() != Some(&music.begin()) {
        tokens.insert(0, music.begin());
    }
    prompt.extend(tokens);
    Ok(prompt)
}

/// What has been sampled so far.
struct Sampled<'t> {
    decoder: StreamDecoder<'t>,
    rules: Option<Rules>,
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
        if let Some(rules) = &mut self.rules {
            rules.take(token);
        }
    }
}

impl DecodingCallback for Sampled<'_> {
    fn allows(&self, token: u32) -> bool {
        self.rules.as_ref().is_none_or(|rules| rules.allows(token))
    }

    fn take(&mut self, token: u32) -> bool {
        self.add(token, true);
        !self.stop.load(Ordering::Relaxed) && !self.ends.contains(&token)
    }
}

fn print(text: &str) {
    output::result(format_args!("{text}"));
}

/// Writes the music where it was asked for.
fn save(args: &Sample, piece: &MusicPiece) -> Outcome {
    if let Some(path) = &args.midi {
        piece.write(path)?;
    }
    if let Some(path) = &args.svg {
        let title = format!("{}, seed {}", args.run.display(), args.seed);
        write_file(path, &roll(title, piece).file())?;
    }
    Ok(())
}

/// A picture of a piece, time in beats.
fn roll(title: String, piece: &MusicPiece) -> PianoRoll {
    let beats = |ticks: u64| ticks as f64 / f64::from(piece.resolution);
    let tracks = piece.tracks.iter().enumerate();
    let sounds = tracks.flat_map(|(voice, track)| {
        track.notes.iter().map(move |note| Sound {
            start: beats(note.start),
            duration: beats(note.duration),
            pitch: note.pitch,
            voice,
        })
    });
    PianoRoll {
        title,
        voices: piece.tracks.iter().map(|track| track.name.clone()).collect(),
        sounds: sounds.collect(),
        rule: None,
    }
}
