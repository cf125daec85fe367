//! `kerple demo`: the effect that the project is about, in half a minute.

use super::report::write;
use super::{open_in_browser, step_line, stop_flag};
use crate::args::DemoArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::output::{remarkln, resultln};
use crate::progress::{Live, duration};
use kerple_core::encoding::{Encoding, Method};
use kerple_core::seed::DEFAULT_SEED;
use kerple_data::{CorpusSummary, PrepareOptions, Sources};
use kerple_lm::compare::{Comparison, SweepEvent};
use kerple_lm::config::{DataConfig, ModelConfig, Preset, RunConfig, TrainConfig};
use kerple_lm::evaluate::{self, EvalRequest, Protocol, SegmentCount};
use kerple_lm::runtime::Runtime;
use kerple_lm::sweep::Shard;
use kerple_lm::train;
use kerple_report::folder::refuse_run_or_corpus;
use kerple_report::plot::{Axis, Legend, Plot, Series};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// The one that fails beyond its training length, a fixed bias, and a learned one.
const ENCODINGS: [&str; 3] = ["rotary", "alibi", "kerple_log"];
const LENGTHS: [usize; 5] = [64, 128, 256, 512, 1024];
const TRAIN_LEN: usize = LENGTHS[0];
/// With 200 steps rotary hardly rises; with 400 all three fit into half a minute on two cores.
const STEPS: u64 = 400;
/// A small vocabulary: a token then carries enough text that 400 steps teach more than spelling.
const TOKENIZER: &str = "bpe:512";
const SEGMENTS: usize = 32;
/// Where a folder says what its text is.
const PREPARED: &str = "demo.json";
const PLOT_WIDTH: usize = 72;
const PLOT_HEIGHT: usize = 12;
/// While it runs, table, picture and progress together fit a terminal of 24 lines, which could not be redrawn otherwise.
const LIVE_PLOT_HEIGHT: usize = 8;

/// Trains three encodings on short sequences and draws their perplexity on longer ones.
pub fn run(args: &DemoArgs) -> CommandResult {
    refuse_run_or_corpus(&args.out)?;
    let (clock, stop) = (Instant::now(), stop_flag());
    let data = args.out.join("data");
    if kerple_data::is_prepared(&data) {
        check_prepared(&args.out, &data)?;
    } else {
        prepare(&args.out.join("text"), &data, &stop)?;
        let content = CorpusSummary::read(&data)?.content;
        kerple_run::write_json(&args.out.join(PREPARED), &DemoText { content })?;
    }
    let comparison = comparison(&args.out, &data);
    let mut curves = Curves::default();
    let mut live = Live::new();
    let mut doing = String::new();
    let finished = comparison.run(Shard::WHOLE, &stop, &mut |event| match event {
        SweepEvent::Run { name, index, runs, .. } => doing = format!("{}/{runs} {name}", index + 1),
        SweepEvent::Diverged { error, .. } => live.keep(&format!("{doing} failed: {error}")),
        SweepEvent::Training(train::TrainEvent::Step(step)) => {
            live.show(|| curves.text(LIVE_PLOT_HEIGHT) + &step_line(&doing, step))
        }
        SweepEvent::Evaluation(evaluate::EvalEvent::Row { row, .. }) => {
            curves.add(&row.label, row.eval_len, row.perplexity);
            live.show_now(&(curves.text(LIVE_PLOT_HEIGHT) + &doing));
        }
        SweepEvent::Training(train::TrainEvent::Note(note))
        | SweepEvent::Evaluation(evaluate::EvalEvent::Note(note)) => {
            live.keep(&format!("{doing} note: {note}"));
        }
        SweepEvent::Evaluation(evaluate::EvalEvent::Evaluating { .. }) => {}
    })?;
    live.clear();
    if !finished {
        return Err(CommandError::stopped(
            "stopped before the end; finished work is saved",
            "re-run the command to resume",
        ));
    }
    // runs that were finished before were not evaluated again
    let curves = Curves::read(&comparison)?;
    let report = write(std::slice::from_ref(&args.out), &args.out.join("report"), None)?.index;
    resultln!("{}", curves.text(PLOT_HEIGHT));
    let longest = LENGTHS[LENGTHS.len() - 1];
    resultln!(
        "Two-layer models after {STEPS} steps at {TRAIN_LEN} tokens: perplexity of the last {TRAIN_LEN} of\n\
         up to {longest} tokens of held-out text. One seed shows an effect and proves nothing;\n\
         significance tests need three seeds.\n"
    );
    resultln!("report: {}", report.display());
    resultln!(
        "next:   kerple describe kerple_log     # formula, source, a picture of its bias\n        \
                 kerple quickstart              # six encodings, two seeds; ten minutes\n        \
                 kerple quickstart --data TEXT  # the same on your own text"
    );
    remarkln!("done in {}", duration(clock.elapsed().as_secs_f64()));
    if args.open {
        open_in_browser(&report);
    }
    Ok(())
}

/// The text that a folder's runs are of, so that another prepared text in its place is not taken for it.
#[derive(PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DemoText {
    content: String,
}

fn check_prepared(out: &Path, data: &Path) -> CommandResult {
    let recorded = std::fs::read(out.join(PREPARED)).ok();
    let recorded: Option<DemoText> = recorded.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    if recorded == Some(DemoText { content: CorpusSummary::read(data)?.content }) {
        return Ok(());
    }
    let message = format!("{} is prepared text, but not that of the demo", data.display());
    let hint =
        format!("choose another folder with --out, or remove {} to prepare the demo's text there", data.display());
    Err(CommandError::misuse(message, hint))
}

/// Tokens of the text that the program includes.
fn prepare(text: &Path, out: &Path, stop: &Arc<AtomicBool>) -> CommandResult {
    kerple_data::peps::write(text, 0..=u32::MAX)?;
    let options = PrepareOptions {
        tokenizer: TOKENIZER.to_owned(),
        stop: Some(stop.clone()),
        ..PrepareOptions::new(Sources::paths(&[text.to_owned()]), out)
    };
    kerple_data::prepare(&options, &mut |_| {})?;
    Ok(())
}

fn comparison(out: &Path, data: &Path) -> Comparison {
    Comparison {
        config: RunConfig {
            seed: DEFAULT_SEED,
            data: DataConfig::text(data),
            encoding: Encoding::from(Method::KerpleLog(Default::default())),
            model: ModelConfig { preset: Preset::Tiny, ..ModelConfig::default() },
            train: TrainConfig {
                train_len: TRAIN_LEN,
                batch_size: 16,
                steps: STEPS,
                learning_rate: 3e-3,
                warmup_ratio: 0.05,
                eval_interval: 0,
                save_interval: STEPS,
                keep_last_n: 1,
                ..TrainConfig::default()
            },
        },
        layers: None,
        encodings: ENCODINGS.iter().filter_map(|kind| Method::named(kind)).map(Encoding::from).collect(),
        seeds: 1,
        request: EvalRequest {
            lengths: LENGTHS.to_vec(),
            protocol: Protocol::Last(TRAIN_LEN),
            n_segments: SegmentCount::UpTo(SEGMENTS),
            segment_len: LENGTHS.last().copied(),
            seed: 0,
            per_position: true,
            documents: None,
            within: Default::default(),
        },
        rope_scalings: Vec::new(),
        out: out.to_owned(),
        runs: out.join("runs"),
        runtime: Runtime::cpu(Some(env!("KERPLE_COMMIT").to_owned())),
    }
}

/// Perplexity by length, one curve per encoding, in the order in which they were evaluated.
#[derive(Default)]
struct Curves(Vec<Curve>);

struct Curve {
    label: String,
    points: BTreeMap<u64, f64>,
}

impl Curves {
    /// What the evaluations of all runs found.
    fn read(comparison: &Comparison) -> Result<Curves, CommandError> {
        let mut curves = Curves::default();
        let protocol = comparison.request.protocol.to_string();
        for encoding in &comparison.encodings {
            let rows = comparison.folder(&encoding.label(), comparison.config.seed).evaluations()?;
            let of_demo = rows.iter().filter(|row| {
                row.protocol == protocol
                    && row.label == encoding.label()
                    && row.window.is_none()
                    && LENGTHS.contains(&(row.eval_len as usize))
            });
            of_demo.for_each(|row| curves.add(&row.label, row.eval_len, row.perplexity));
        }
        Ok(curves)
    }

    /// Adds a point, or replaces the one at this length.
    fn add(&mut self, label: &str, length: u64, perplexity: f64) {
        let at = self.0.iter().position(|curve| curve.label == label).unwrap_or_else(|| {
            self.0.push(Curve { label: label.to_owned(), points: BTreeMap::new() });
            self.0.len() - 1
        });
        self.0[at].points.insert(length, perplexity);
    }

    /// The table, and below it the picture once there is a line to draw.
    fn text(&self, plot_height: usize) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        let lengths = LENGTHS.map(|length| format!("{length:>9}")).concat();
        let mut text = format!("perplexity {lengths}\n");
        for Curve { label, points } in &self.0 {
            let cells: String = points.values().map(|perplexity| format!("{perplexity:>9.2}")).collect();
            text += &format!("{label:<11}{cells}\n");
        }
        if self.0.iter().any(|curve| curve.points.len() > 1) {
            text += "\n";
            text += &self.plot().text(PLOT_WIDTH, plot_height);
        }
        text + "\n"
    }

    fn plot(&self) -> Plot {
        let values = self.0.iter().flat_map(|curve| curve.points.values().copied());
        let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
        let series = self.0.iter().enumerate().map(|(colour, curve)| {
            let points = curve.points.iter().map(|(length, perplexity)| (*length as f64, *perplexity));
            Series::line(&curve.label, colour, points)
        });
        Plot {
            title: "perplexity by length".to_owned(),
            description: String::new(),
            x: Axis::lengths("tokens, training length at the left", &LENGTHS.map(|length| length as u64)),
            y: Axis::linear("", low, high),
            series: series.collect(),
            rule: None,
            legend: Legend::Ends,
            titled: true,
        }
    }
}
