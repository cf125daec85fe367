//! Data of the Long Range Arena and of music: cases whose names begin with `listops`, `groove_timing` or `style_time_pitch`.

use crate::folder::{Case, Folder};
use crate::{Score, Tolerance};
use kerple_data::lra::list_ops;
use kerple_data::music::groove::{self, GrooveEvent};
use kerple_data::music::{MusicPiece, Note, Track, style};
use serde_json::Value;

type Scores = Result<Vec<Score>, String>;

/// What runs a case of this name.
pub fn runner(name: &str) -> Option<crate::Runner> {
    let kinds: [(&str, crate::Runner); 3] =
        [("listops", expressions), ("groove_timing", time_shifts), ("style_time_pitch", time_pitch)];
    kinds.into_iter().find(|(kind, _)| name.starts_with(kind)).map(|(_, run)| run)
}

fn file(folder: &Folder, case: &Case) -> Result<Value, String> {
    let name = case.get("file").as_str().ok_or("file is missing")?;
    folder.beside(name)?.ok_or_else(|| format!("{name} is missing"))
}

/// Expressions of the original generator: answers and lengths, and that they are written as it writes them.
fn expressions(folder: &Folder, case: &Case) -> Scores {
    let mut score = Score::new("expressions");
    for entry in file(folder, case)?.as_array().into_iter().flatten() {
        let source = entry["source"].as_str().ok_or("source is missing")?;
        let tokens = list_ops::tokens(source)?;
        score.equal(source, list_ops::evaluate(&tokens).ok().map(u64::from), entry["target"].as_u64());
        score.equal(source, Some(tokens.len() as u64), entry["length"].as_u64());
        score.equal(source, list_ops::source(&tokens).as_deref(), Ok(source));
    }
    Ok(vec![score])
}

/// Time shifts of the grooves: all there are, and those between two times.
fn time_shifts(folder: &Folder, case: &Case) -> Scores {
    let shift = |value: &Value| -> Result<String, String> {
        let parts = value.as_array().ok_or("an event is a list")?.iter();
        let words = parts.map(|part| part.as_str().map_or_else(|| part.to_string(), str::to_owned));
        Ok(words.collect::<Vec<_>>().join("_"))
    };
    let shifts = |value: &Value| value.as_array().into_iter().flatten().map(shift).collect::<Result<Vec<_>, _>>();
    let file = file(folder, case)?;
    let mut score = Score::new("events");
    let known = groove::vocabulary().into_iter().filter(|event| matches!(event, GrooveEvent::TimeShift(..)));
    score.equal("vocabulary", known.map(|event| event.to_string()).collect::<Vec<_>>(), shifts(&file["vocab"])?);
    for entry in file["encode"].as_array().into_iter().flatten() {
        let time = |key: &str| entry[key].as_u64().ok_or_else(|| format!("{key} is missing"));
        let (from, to) = (time("old")?, time("new")?);
        let found = groove::time_shifts(from, to).map(|event| event.to_string()).collect::<Vec<_>>();
        score.equal(&format!("{from} to {to}"), found, shifts(&entry["events"])?);
    }
    Ok(vec![score])
}

fn time_pitch(folder: &Folder, case: &Case) -> Scores {
    let [starts, pitches, expected] = ["start", "pitch", "hist"].map(|key| case.own(folder, key));
    let notes = starts?.values.into_iter().zip(pitches?.values);
    let notes = notes.map(|(start, pitch)| Note { start: start as u64, pitch: pitch as u8, duration: 1, velocity: 64 });
    let resolution = case.get("params")["resolution"].as_u64().ok_or("params.resolution is missing")? as u32;
    let piece = MusicPiece {
        tracks: vec![Track { notes: notes.collect(), ..Track::default() }],
        ..MusicPiece::empty(resolution)
    };
    let relative = case.get("rtol_f64").as_f64().ok_or("rtol_f64 is missing")?;
    let mut score = Score::new("histogram");
    let tolerance = Tolerance { absolute: 0.0, relative };
    score.compare("hist", &style::time_pitch(&[piece]).density, &expected?.values, tolerance);
    Ok(vec![score])
}
