//! Rows of a table by number, and the gradient of that.

use super::ROWS_PER_TASK;
use super::kept::KeptSlice;
use crate::Number;
use crate::cpu::reduce;
use crate::elements;
use crate::tiles::workers::for_each_task;

/// Most table rows a task of the backward pass owns; it looks through all ids for them.
const MOST_TABLE_ROWS: usize = 512;
/// Tasks wanted for a small table.
const ENOUGH_TASKS: usize = 8;

/// `rows[i] = table[ids[i]]`; `table` is `[V, M]`, `rows` is `[len(ids), M]`.
///
/// # Panics
/// If a slice has the wrong size, M is 0, or an id is not below V.
pub fn gather<'t, T: Number>(table: impl Into<KeptSlice<'t, T>>, ids: &[u32], m: usize, rows: &mut [T]) {
    let table = table.into();
    check_ids(table.len(), ids, m, rows.len());
    for_each_task(rows.chunks_mut(ROWS_PER_TASK * m).zip(ids.chunks(ROWS_PER_TASK)), |_, (rows, ids)| {
        for (row, id) in rows.chunks_exact_mut(m).zip(ids) {
            table.part(*id as usize * m..(*id as usize + 1) * m).write_to(row);
        }
    });
}

/// `d_table[ids[i]] += d_rows[i]`, in the order of `i`.
///
/// # Panics
/// If a slice has the wrong size, M is 0, or an id is not below V.
pub fn scatter_add<T: Number>(d_rows: &[T], ids: &[u32], m: usize, d_table: &mut [T]) {
    check_ids(d_table.len(), ids, m, d_rows.len());
    // a row of the table belongs to one task, so the split changes no sum
    let owned = (d_table.len() / m).div_ceil(ENOUGH_TASKS).clamp(1, MOST_TABLE_ROWS);
    for_each_task(d_table.chunks_mut(owned * m), |task, d_table| {
        let owned_ids = task * owned..task * owned + d_table.len() / m;
        for (id, d_row) in ids.iter().zip(d_rows.chunks_exact(m)) {
            let id = *id as usize;
            if owned_ids.contains(&id) {
                reduce::add(&mut d_table[(id - owned_ids.start) * m..][..m], d_row);
            }
        }
    });
}

fn check_ids(table_len: usize, ids: &[u32], m: usize, rows_len: usize) {
    assert!(m > 0, "m: a row of an embedding needs at least one feature");
    assert!(table_len.is_multiple_of(m), "table: {table_len} values in rows of {m}");
    assert!(
        Some(rows_len) == elements(&[ids.len(), m]),
        "rows: expected [ids, m] = [{}, {m}], got {rows_len} values",
        ids.len()
    );
    let v = table_len / m;
    if let Some(i) = ids.iter().position(|id| *id as usize >= v) {
        panic!("ids[{i}]: expected below V = {v}, got {}", ids[i]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{assert_same_at_any_threads, random, single};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn gather_and_scatter_equal_plain_loops(
            v in 1usize..2000, m in 1usize..9, picks in prop::collection::vec(0usize..10_000, 0..300), seed in 0u64..100,
        ) {
            let ids: Vec<u32> = picks.iter().map(|pick| (pick % v) as u32).collect();
            let (table, d_rows) = (random(v * m, seed), random(ids.len() * m, seed + 1));
            let (mut rows, mut d_table) = (vec![f64::NAN; ids.len() * m], table.clone());
            gather(&table, &ids, m, &mut rows);
            scatter_add(&d_rows, &ids, m, &mut d_table);
            let mut want = table.clone();
            for i in 0..ids.len() * m {
                let at = ids[i / m] as usize * m + i % m;
                prop_assert_eq!(rows[i], table[at]);
                want[at] += d_rows[i];
            }
            prop_assert_eq!(d_table, want);
        }
    }

    #[test]
    fn threads_do_not_change_bits() {
        let ids: Vec<u32> = (0..1000).map(|i| i * i % 97).collect();
        let d_rows = single(&random(1000 * 5, 1));
        assert_same_at_any_threads(|| {
            let mut d_table = vec![0.0; 100 * 5];
            scatter_add(&d_rows, &ids, 5, &mut d_table);
            d_table
        });
    }

    #[test]
    #[should_panic(expected = "ids[1]: expected below V = 3, got 3")]
    fn id_outside_of_the_table_panics() {
        gather(&[0.0f32; 6], &[0, 3], 2, &mut [0.0; 4]);
    }
}
