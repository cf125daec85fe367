//! Tables of encodings at a step, for `kernels.json`.

use kerple_burn::positional_encoding::PositionalEncoding;
use kerple_core::forms::DistanceTable;
use kerple_run::KernelSnapshot;

/// Distances at which learned kernels are recorded: all up to 64, then about 30 for each factor of ten, to 20480.
fn recorded_distances() -> Vec<u64> {
    let mut distances: Vec<u64> = (0..=64).collect();
    let mut d = 64.0f64;
    while d < 20_480.0 {
        d *= 1.08;
        distances.push((d as u64).min(20_480));
    }
    distances.dedup();
    distances
}

/// The kernels of a model after `step` updates: a row for each head, layer by layer where each layer has its own. `None`
/// where nothing is a function of the distance alone.
pub fn snapshot(encoding: &PositionalEncoding, step: u64) -> Option<KernelSnapshot> {
    let distances = recorded_distances();
    let len = 20_481;
    let sets = encoding.sets();
    let tables: Vec<_> = sets.iter().map(|layers| encoding.table(layers[0], len)).collect();
    let pick = |rows: fn(&DistanceTable) -> &Option<Vec<f64>>| {
        let rows = tables.iter().flat_map(&rows).flat_map(|rows| rows.chunks(len));
        let picked = rows.map(|row| distances.iter().map(|d| row[*d as usize]).collect()).collect::<Vec<Vec<f64>>>();
        (!picked.is_empty()).then_some(picked)
    };
    let effective = |row: &[f64]| row.iter().position(|value| *value < -2.0).map(|d| d as u64);
    let biases = tables.iter().flat_map(|table| &table.bias).flat_map(|rows| rows.chunks(len));
    let effective_length = biases.map(effective).collect();
    let (bias, weight) = (pick(|table| &table.bias), pick(|table| &table.weight));
    let of_bias = tables.iter().zip(&sets).filter(|(table, _)| table.bias.is_some());
    let of_rows =
        of_bias.flat_map(|(table, layers)| vec![layers.iter().map(|layer| *layer as u64).collect(); table.heads]);
    let layers = if sets.len() > 1 { of_rows.collect() } else { Vec::new() };
    let snapshot = KernelSnapshot { step, distances, layers, bias, weight, effective_length };
    (snapshot.bias.is_some() || snapshot.weight.is_some()).then_some(snapshot)
}
