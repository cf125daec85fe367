//! Tensors that linear attention drew or computed once: exports store them for torch; the import
//! draws them again from the seed and compares.

use super::tensors::TensorReader;
use super::weights::TensorNames;
use crate::export::drawn::{self, DrawnTensor};
use crate::layout::LayoutEntry;
use kerple_lm::plan::Plan;
use kerple_lm::{Error, Result};

/// Refuses stored draws that differ from those of the plan: a model that torch trained with others
/// would compute something else here. Returns a note about draws that are not stored.
///
/// # Errors
/// The first that differs, with its value; a tensor that cannot be read.
pub fn check(
    plan: &Plan,
    entries: &[LayoutEntry],
    found: &TensorNames,
    tensors: &dyn TensorReader,
) -> Result<Option<String>> {
    let read = |name: &str, _| values(name, entries, found, tensors);
    let mut absent = Vec::new();
    for drawn in drawn::tensors(plan, read)? {
        let (name, DrawnTensor { shape, values: ours, .. }) = (drawn.name_in_files(), drawn);
        match tensors.shape(&name) {
            None => absent.push(name),
            Some(stored) if stored != shape => {
                let message = format!("tensor `{name}` has shape {stored:?}; the plan gives it {shape:?}");
                return Err(Error::damaged(&tensors.place(&name), message, "config.json belongs to another model"));
            }
            Some(_) => {
                let theirs = tensors.read(&name)?;
                let far = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-5 * b.abs().max(1.0);
                let Some(at) = theirs.iter().zip(&ours).position(far) else { continue };
                let message = format!(
                    "tensor `{name}` differs from what seed {} produces: value {at} is {}; expected {}",
                    plan.seed, theirs[at], ours[at]
                );
                let hint = "kerple draws this tensor again, so the model would compute something \
                            else; train it from an export that stores it as a buffer, as `kerple \
                            export` now does";
                return Err(Error::damaged(&tensors.place(&name), message, hint));
            }
        }
    }
    let list = super::short::shown(&absent);
    Ok((!absent.is_empty())
        .then(|| format!("drawn again from seed {}, because the files lack them: {list}", plan.seed)))
}

/// The values of one of our tensors.
fn values(name: &str, entries: &[LayoutEntry], found: &TensorNames, tensors: &dyn TensorReader) -> Result<Vec<f32>> {
    let entry = entries.iter().find(|entry| entry.ours == name);
    let Some(entry) = entry else {
        return Err(Error::damaged(&tensors.place(""), format!("tensor `{name}` is missing"), "export the run again"));
    };
    if let Some(theirs) = entry.same() {
        return tensors.read(&found[&theirs.name]);
    }
    let theirs: Vec<Vec<f32>> =
        entry.theirs.iter().map(|theirs| tensors.read(&found[&theirs.name])).collect::<Result<_>>()?;
    Ok(entry.parts().flat_map(|rows| entry.put(&theirs, rows)).collect())
}
