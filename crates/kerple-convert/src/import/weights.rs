//! Turns tensors into the weights of a run.

use super::tensors::{TensorReader, shown};
use super::{ModelDescription, names};
use crate::layout::{LayoutEntry, aliases};
use kerple_core::encoding::Method;
use kerple_lm::tensors::{TensorSpec, write as write_tensors};
use kerple_lm::{Error, Result};
use kerple_run::ModelFamily;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Names of tensors in the files, by their usual names.
pub type TensorNames = BTreeMap<String, String>;

/// What a tensor is called in the files.
fn name_of(family: ModelFamily, usual: &str, tensors: &dyn TensorReader) -> Option<String> {
    aliases(family, usual).into_iter().find(|name| tensors.shape(name).is_some())
}

fn missing(usual: &[String], tensors: &dyn TensorReader) -> Error {
    let place = tensors.place("");
    let message = format!("missing tensors: {}", shown(usual));
    Error::damaged(&place, message, "the folder contains a part of the model, or config.json belongs to another one")
}

fn check_shape(name: &str, shape: &[usize], makes: &str, tensors: &dyn TensorReader) -> Result<()> {
    match tensors.shape(name) {
        Some(found) if found == shape => Ok(()),
        found => {
            let stored = tensors.stored_name(name);
            let message = format!("tensor `{stored}` has shape {:?}; {makes} {shape:?}", found.unwrap_or_default());
            Err(Error::damaged(&tensors.place(name), message, "the configuration belongs to another model"))
        }
    }
}

/// Compares the tensors whose shape the configuration determines directly with those of the files,
/// before anything is built.
///
/// # Errors
/// A tensor that is missing or has another shape.
pub fn check_outline(described: &ModelDescription, tensors: &dyn TensorReader) -> Result<()> {
    let (family, model) = (described.family, &described.config.model);
    let [rows, width] = [model.padded_vocab_size, model.d_model].map(|size| size.expect("families state their sizes"));
    let outline = crate::layout::outline(family);
    let embedding = [outline.embedding, outline.head].into_iter().find_map(|name| name_of(family, name, tensors));
    let embedding = embedding.ok_or_else(|| missing(&[outline.embedding.to_owned()], tensors))?;
    let [of_rows, of_width, of_positions] = names::outline(family, &described.place);
    check_shape(&embedding, &[rows, width], &format!("{of_rows} and {of_width} give"), tensors)?;
    if let Method::Learned(learned) = &described.config.encoding.method
        && let Some(rows) = learned.positions
    {
        let usual = outline.positions.to_owned();
        let name = name_of(family, &usual, tensors).ok_or_else(|| missing(&[usual], tensors))?;
        check_shape(&name, &[rows, width], &format!("{of_positions} and {of_width} give"), tensors)?;
    }
    Ok(())
}

/// How the head and the embedding are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TiedStorage {
    /// Each is where it should be.
    AsSaid,
    /// Only the head is there, and is the embedding too.
    HeadAlone,
    /// Both are there, and are equal.
    Twice,
}

/// Whether the head is tied to the embedding: as configured, unless both are stored and differ.
///
/// # Errors
/// A file that cannot be read.
pub fn tie(described: &mut ModelDescription, tensors: &dyn TensorReader) -> Result<TiedStorage> {
    let (family, block) = (described.family, &mut described.config.model.block);
    if !block.tie_embeddings {
        return Ok(TiedStorage::AsSaid);
    }
    let outline = crate::layout::outline(family);
    let [embedding, head] = [outline.embedding, outline.head].map(|name| name_of(family, name, tensors));
    Ok(match (embedding, head) {
        (None, Some(head)) => {
            described.notes.push(format!("`{}` is missing: `{head}` serves as the embedding too", outline.embedding));
            TiedStorage::HeadAlone
        }
        (Some(embedding), Some(head)) => {
            let same = tensors.shape(&embedding) == tensors.shape(&head)
                && tensors.read(&embedding)? == tensors.read(&head)?;
            if same {
                return Ok(TiedStorage::Twice);
            }
            block.tie_embeddings = false;
            let note = format!(
                "config.json ties the head to the embedding, but `{head}` differs from \
                 `{embedding}`: keeping them separate"
            );
            described.notes.push(note);
            TiedStorage::AsSaid
        }
        (_, None) => TiedStorage::AsSaid,
    })
}

/// The entries with the embedding under the name of the head, where only that is there.
pub fn renamed(mut entries: Vec<LayoutEntry>, family: ModelFamily, tie: TiedStorage) -> Vec<LayoutEntry> {
    if tie == TiedStorage::HeadAlone {
        let outline = crate::layout::outline(family);
        let theirs = entries.iter_mut().flat_map(|entry| &mut entry.theirs);
        theirs
            .filter(|tensor| tensor.name == outline.embedding)
            .for_each(|tensor| tensor.name = outline.head.to_owned());
    }
    entries
}

/// Finds every tensor that the entries name, with its shape, and nothing else.
///
/// # Errors
/// Tensors that are missing, of another shape, or not known, by their names.
pub fn find(
    family: ModelFamily,
    entries: &[LayoutEntry],
    tie: TiedStorage,
    tensors: &dyn TensorReader,
) -> Result<TensorNames> {
    let (mut found, mut absent) = (TensorNames::new(), Vec::new());
    let wanted = || entries.iter().flat_map(|entry| &entry.theirs);
    for tensor in wanted() {
        match name_of(family, &tensor.name, tensors) {
            Some(name) => _ = found.insert(tensor.name.clone(), name),
            None => absent.push(tensor.name.clone()),
        }
    }
    if !absent.is_empty() {
        return Err(missing(&absent, tensors));
    }
    wanted()
        .try_for_each(|tensor| check_shape(&found[&tensor.name], &tensor.shape, "the configuration gives", tensors))?;
    let mut known: BTreeSet<String> = found.values().cloned().collect();
    if tie == TiedStorage::Twice {
        known.extend(name_of(family, crate::layout::outline(family).head, tensors));
    }
    let odd: Vec<String> = tensors.names().into_iter().filter(|name| !known.contains(name)).collect();
    match odd.first() {
        None => Ok(found),
        Some(first) => {
            let message = format!("a model of this kind does not have {}", shown(&odd));
            Err(Error::damaged(
                &tensors.place(first),
                message,
                "config.json belongs to another model, or this version does not know the kind",
            ))
        }
    }
}

/// Writes the weights, a part of a parameter at a time, and returns their SHA-256.
///
/// # Errors
/// What cannot be read or written; a value that is not finite, with its tensor.
pub fn write(path: &Path, entries: &[LayoutEntry], found: &TensorNames, tensors: &dyn TensorReader) -> Result<String> {
    let slots: Vec<TensorSpec> =
        entries.iter().map(|entry| TensorSpec { name: entry.ours.clone(), shape: entry.shape.clone() }).collect();
    write_tensors(path, &slots, |number, take| {
        let entry = &entries[number];
        if let Some(theirs) = entry.same() {
            return tensors.parts(&found[&theirs.name], take);
        }
        let theirs: Vec<Vec<f32>> =
            entry.theirs.iter().map(|theirs| tensors.read(&found[&theirs.name])).collect::<Result<_>>()?;
        entry.parts().try_for_each(|rows| take(entry.put(&theirs, rows)))
    })
}
