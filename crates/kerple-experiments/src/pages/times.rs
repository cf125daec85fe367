//! Times of training steps or forward passes, made in turns: the median over rounds, relative to one
//! encoding in the same round.

use super::cells::missing;
use super::description::{PageDescription, PrintedTimes, TimesTable};
use super::page::PageItem;
use super::reader::ReproductionFolder;
use crate::timing::TimingRow;
use kerple_report::format::number;
use kerple_report::page::{Cell, Grid, Row};
use kerple_report::statistics::{median, median_interval};

/// How long the steps of an encoding take relative to another's in the same round: the median with its interval, which tells
/// whether it is slower or faster at all.
fn relative(row: &TimingRow, other: &TimingRow) -> Cell {
    let ratios: Vec<f64> = row.seconds.iter().zip(&other.seconds).map(|(own, other)| own / other).collect();
    let text = format!("{:.3}", median(&ratios));
    let note = median_interval(&ratios).map(|(low, high)| {
        let alike = if low <= 1.0 && high >= 1.0 { ", not distinguishable" } else { "" };
        format!("[{low:.3}, {high:.3}]{alike}")
    });
    Cell { note: note.filter(|_| row.encoding != other.encoding), ..Cell::from(text) }
}

/// The times of a table's encodings, next to those printed.
pub(super) fn times(all: &ReproductionFolder, page: &PageDescription, table: &TimesTable, item: &mut PageItem) {
    let key = |row: &TimingRow| page.methods.iter().find(|method| method.is_of(&row.encoding)).map(|m| m.key.as_str());
    let is_in = |keys: &[String], row: &TimingRow| key(row).is_some_and(|key| keys.iter().any(|other| other == key));
    let is_shown = |row: &TimingRow| !is_in(&table.without, row) && (table.only.is_empty() || is_in(&table.only, row));
    item.planned = 1;
    let Some(timing) = all.timing.as_ref().filter(|timing| timing.rows.iter().any(is_shown)) else {
        item.notes.push("not timed yet".to_owned());
        return;
    };
    item.complete = 1;
    item.notes.extend(timing.place());
    let is_reference = |row: &TimingRow| key(row) == Some(&table.reference);
    let reference = timing.rows.iter().find(|row| is_reference(row));
    let printed = |column: &PrintedTimes, row: &TimingRow| -> Cell {
        let own = key(row).and_then(|key| column.values.get(key));
        let unit = if column.relative { column.values.get(&table.reference) } else { Some(&1.0) };
        own.zip(unit).map_or_else(missing, |(own, unit)| format!("{:.3}", own / unit).into())
    };
    let row = |row: &TimingRow| {
        let seconds = median(&row.seconds);
        let time = if table.milliseconds { format!("{:.1}", 1e3 * seconds) } else { number(seconds) };
        let relative = reference.map_or_else(missing, |other| relative(row, other));
        let theirs = table.printed.iter().map(|column| printed(column, row));
        Row {
            name: row.encoding.clone(),
            colour: None,
            cells: [time.into(), relative].into_iter().chain(theirs).collect(),
        }
    };
    let rounds = timing.rows.first().map_or(0, |row| row.seconds.len());
    let caption = table
        .caption
        .replace("{rounds}", &rounds.to_string())
        .replace("{what}", if timing.forward { "forward passes" } else { "training steps" })
        .replace("{batch}", &timing.batch.to_string())
        .replace("{length}", &timing.train_len.to_string());
    let unit = if table.milliseconds { "ms" } else { "seconds" };
    let head = ["encoding".to_owned(), unit.to_owned(), format!("relative to {}", table.reference_name)];
    item.grids.push(Grid {
        caption,
        head: head.into_iter().chain(table.printed.iter().map(|column| column.head.clone())).collect(),
        rows: timing.rows.iter().filter(|row| is_reference(row) || is_shown(row)).map(row).collect(),
    });
}
