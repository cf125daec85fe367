//! Data of the Long Range Arena and of music: cases whose names begin with `listops`, `groove_timing` or `style_time_pitch`.

use crate::case::Case;
use crate::{AllowedError, CaseComparison, CaseResult, CaseRunner, Checked};
use kerple_data::lra::list_ops;
use kerple_data::music::groove::{self, GrooveEvent};
use kerple_data::music::{MusicPiece, Note, Track, style};
use serde_json::Value;

/// What runs a case of this name.
pub fn runner(name: &str) -> Option<CaseRunner> {
    let kinds: [(&str, CaseRunner); 3] =
        [("listops", expressions), ("groove_timing", time_shifts), ("style_time_pitch", time_pitch)];
    kinds.into_iter().find(|(kind, _)| name.starts_with(kind)).map(|(_, run)| run)
}

fn file(case: &Case) -> Checked<Value> {
    let name = case.get("file").as_str().ok_or("file is missing")?;
    case.folder.beside(name)?.ok_or_else(|| format!("{name} is missing"))
}

/// Expressions of the original generator: answers and lengths, and that they are written as it writes them.
fn expressions(case: &Case) -> CaseResult {
    let mut comparison = CaseComparison::new("expressions");
    for entry in file(case)?.as_array().into_iter().flatten() {
        let source = entry["source"].as_str().ok_or("source is missing")?;
        let tokens = list_ops::tokens(source)?;
        comparison.equal(source, list_ops::evaluate(&tokens).ok().map(u64::from), entry["target"].as_u64());
        comparison.equal(source, Some(tokens.len() as u64), entry["length"].as_u64());
        comparison.equal(source, list_ops::source(&tokens).as_deref(), Ok(source));
    }
    Ok(vec![comparison])
}

/// Time shifts of the grooves: all there are, and those between two times.
fn time_shifts(case: &Case) -> CaseResult {
    let shift = |value: &Value| -> Checked<String> {
        let parts = value.as_array().ok_or("an event is a list")?.iter();
        let words = parts.map(|part| part.as_str().map_or_else(|| part.to_string(), str::to_owned));
        Ok(words.collect::<Vec<_>>().join("_"))
    };
    let shifts = |value: &Value| value.as_array().into_iter().flatten().map(shift).collect::<Result<Vec<_>, _>>();
    let file = file(case)?;
    let mut comparison = CaseComparison::new("events");
    let known = groove::vocabulary().into_iter().filter(|event| matches!(event, GrooveEvent::TimeShift(..)));
    comparison.equal("vocabulary", known.map(|event| event.to_string()).collect::<Vec<_>>(), shifts(&file["vocab"])?);
    for entry in file["encode"].as_array().into_iter().flatten() {
        let time = |key: &str| entry[key].as_u64().ok_or_else(|| format!("{key} is missing"));
        let (from, to) = (time("old")?, time("new")?);
        let found = groove::time_shifts(from, to).map(|event| event.to_string()).collect::<Vec<_>>();
        comparison.equal(&format!("{from} to {to}"), found, shifts(&entry["events"])?);
    }
    Ok(vec![comparison])
}

fn time_pitch(case: &Case) -> CaseResult {
    let [starts, pitches, expected] = ["start", "pitch", "hist"].map(|key| case.input(key));
    let notes = starts?.into_iter().zip(pitches?);
    let notes = notes.map(|(start, pitch)| Note { start: start as u64, pitch: pitch as u8, duration: 1, velocity: 64 });
    let resolution = case.size("resolution")? as u32;
    let piece = MusicPiece {
        tracks: vec![Track { notes: notes.collect(), ..Track::default() }],
        ..MusicPiece::empty(resolution)
    };
    let relative = case.number("rtol_f64")?;
    let mut comparison = CaseComparison::new("histogram");
    let tolerance = AllowedError { absolute: 0.0, relative };
    comparison.compare("hist", &style::time_pitch(&[piece]).density, &expected?, tolerance);
    Ok(vec![comparison])
}
