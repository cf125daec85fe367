//! Curves as columns of comma-separated values.

use super::{RawCurve, ReadOptions, check_counts, refused, text};
use crate::curve::{CurvePrecision, Support};
use kerple_data::quotes::QuoteScanner;
use kerple_run::Result;
use std::path::Path;

/// Reads `distance,NAME,..`.
pub(super) fn read(path: &Path, options: &ReadOptions) -> Result<Vec<RawCurve>> {
    let text = text(path)?;
    let header = text.lines().next().unwrap_or_default();
    // counted before anything is taken apart
    let columns = header.bytes().filter(|byte| *byte == b',').count();
    check_counts(path, columns.saturating_sub(usize::from(options.weights.is_some())), text.lines().count())?;
    let damaged = |line: u64, what: String| {
        refused(path, format!("line {line}: {what}"), "give a number in each cell, or leave it empty")
    };
    if let Some((line, what)) = quote_problem(&text) {
        return Err(damaged(line, what));
    }
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
    let names: Vec<String> =
        reader.headers().map_err(|error| damaged(1, error.to_string()))?.iter().map(str::to_owned).collect();
    if names.first().map(String::as_str) != Some("distance") || names.len() < 2 {
        let found: String = header.chars().take(40).collect();
        let what = match names.first().map_or("", String::as_str) {
            "" => "the header is missing".to_owned(),
            "distance" => "the header has no curve after `distance`".to_owned(),
            _ => format!("the header begins with `{found}`"),
        };
        let hint = match header.contains([';', '\t']) && columns == 0 {
            true => "separate cells by commas, write decimals with a point, and begin with `distance`",
            false => "begin it with `distance`, then a name for each curve",
        };
        return Err(refused(path, what, hint));
    }
    if let Some(number) = names.iter().position(String::is_empty) {
        return Err(refused(path, format!("column {} has no name", number + 1), "give each curve a name"));
    }
    let mut distances = Vec::new();
    let mut values: Vec<Vec<Option<f64>>> = vec![Vec::new(); names.len() - 1];
    for record in reader.records() {
        let record = record.map_err(|error| {
            cells(path, &error, names.len())
                .unwrap_or_else(|| damaged(error.position().map_or(0, csv::Position::line), error.to_string()))
        })?;
        let line = record.position().map_or(0, csv::Position::line);
        let number = |column: usize| {
            let cell = &record[column];
            let read = cell.parse::<f64>();
            read.map_err(|_| damaged(line, format!("`{}` of `{}` is not a number", short(cell), short(&names[column]))))
        };
        if record[0].is_empty() {
            return Err(refused(path, format!("line {line} has no distance"), "give a distance, or remove the line"));
        }
        distances.push(number(0)?);
        for (column, values) in values.iter_mut().enumerate() {
            let is_empty = record[column + 1].is_empty();
            values.push(if is_empty { None } else { Some(number(column + 1)?) });
        }
    }
    let mut columns: Vec<(String, Vec<Option<f64>>)> = names.into_iter().skip(1).zip(values).collect();
    let weights = match &options.weights {
        None => None,
        Some(key) => {
            let at = columns.iter().position(|(name, _)| name == key);
            let at = at.ok_or_else(|| {
                refused(path, format!("no column is called `{key}`"), "name the column of weights with --weights")
            })?;
            let weights = columns.remove(at).1;
            let has_value = |row: usize| columns.iter().any(|(_, values)| values[row].is_some());
            if let Some(row) = (0..weights.len()).find(|row| weights[*row].is_none() && has_value(*row)) {
                let what = format!("the value at distance {} has no weight in `{}`", distances[row], short(key));
                return Err(refused(path, what, "give a weight, 0 to leave the value out"));
            }
            Some(weights.into_iter().map(|weight| weight.unwrap_or(0.0)).collect::<Vec<f64>>())
        }
    };
    let curve = |(name, values)| RawCurve {
        name,
        support: Support::Distances(distances.clone()),
        values,
        weights: weights.clone(),
        precision: CurvePrecision::F64,
        place: None,
    };
    Ok(columns.into_iter().map(curve).collect())
}

/// A line that has more or fewer cells than the header.
fn cells(path: &Path, error: &csv::Error, columns: usize) -> Option<kerple_run::Error> {
    let csv::ErrorKind::UnequalLengths { pos, len, .. } = error.kind() else { return None };
    let line = pos.as_ref().map_or(0, csv::Position::line);
    let hint = match *len as usize > columns {
        true => "write decimals with a point, and one value for each name of the header",
        false => "give a value for each name of the header; a cell may be empty, but not its comma",
    };
    Some(refused(path, format!("line {line} has {len} cells, and the header {columns}"), hint))
}

/// What is wrong with the quotes of a text, and on which line.
fn quote_problem(text: &str) -> Option<(u64, String)> {
    let mut quotes = QuoteScanner::new(b',');
    if let Some(stray) = text.bytes().find_map(|byte| quotes.step(byte)) {
        return Some((stray.line, stray.to_string()));
    }
    quotes.open_since().map(|line| (line, "a quote is never closed".to_owned()))
}

fn short(text: &str) -> String {
    text.chars().take(40).collect()
}
