//! One precision per page: rows with other numerics than most of a reproduction are excluded from
//! its tables.

use kerple_report::Run;
use kerple_run::{EvaluationRow, Numerics, Provenance};
use std::collections::{BTreeMap, BTreeSet};

/// Precision and kind of device.
type Chosen = (String, String);

fn chosen(found: Option<&Numerics>) -> Chosen {
    let (precision, device) = Numerics::chosen_or_usual(found);
    (precision.to_owned(), device.to_owned())
}

fn of_provenance(provenance: Option<&Provenance>) -> Chosen {
    chosen(provenance.map(Provenance::numerics).as_ref())
}

/// Leaves of the rows those that are, and whose run is, of the precision and kind of device that most are of; of rows that differ in
/// nothing but the instruction set the last. The number of the others.
pub(super) fn keep_one(runs: &mut [&mut Run]) -> usize {
    // updates and rows of every run: a run that was trained partly otherwise is not that of one that was not
    let trained = |run: &Run| run.trained_in().iter().map(|by| chosen(by.as_ref())).collect::<BTreeSet<Chosen>>();
    let mut counts: BTreeMap<(BTreeSet<Chosen>, Chosen), usize> = BTreeMap::new();
    for run in &*runs {
        let own = trained(run);
        let rows =
            run.evaluations.iter().map(|row| &row.provenance).chain(run.probes.iter().map(|row| &row.provenance));
        rows.for_each(|by| *counts.entry((own.clone(), of_provenance(by.as_ref()))).or_default() += 1);
    }
    let all: usize = counts.values().sum();
    let Some(((updates, rows), _)) = counts.into_iter().max_by_key(|(_, count)| *count) else { return 0 };
    let mut kept = 0;
    for run in runs {
        let is_alike = trained(run) == updates;
        run.evaluations.retain(|row| is_alike && of_provenance(row.provenance.as_ref()) == rows);
        run.probes.retain(|row| is_alike && of_provenance(row.provenance.as_ref()) == rows);
        keep_last(&mut run.evaluations);
        kept += run.evaluations.len() + run.probes.len();
    }
    all - kept
}

/// Of rows that are the same evaluation, whatever made them, the last.
fn keep_last(rows: &mut Vec<EvaluationRow>) {
    let identity = |row: &EvaluationRow| {
        let how = (row.protocol.clone(), row.split.clone(), row.text.clone(), row.nll_by_position.is_some());
        (how, row.label.clone(), row.rope_scaling.clone(), (row.window, row.documents), row.eval_len, row.step)
    };
    let mut seen = BTreeSet::new();
    rows.reverse();
    rows.retain(|row| seen.insert(identity(row)));
    rows.reverse();
}
