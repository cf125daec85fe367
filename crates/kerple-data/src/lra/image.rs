//! Images with a class, pixel by pixel: grey values 0 to 255, row by row.
//!
//! Published: CIFAR-10 in grey, the first 90 % of the training images for training, the rest for
//! validation. Accepted are its binary files (`data_batch_1.bin` to `5`, `test_batch.bin`), or IDX
//! files as of MNIST and Fashion-MNIST (`train-images-idx3-ubyte`, `t10k-labels-idx1-ubyte`; plain
//! or `.gz`), which are stand-ins.

use super::check_stop;
use super::store::{self, Sequences, Store};
use crate::error::{Error, Result};
use crate::examples::{Examples, TaskInfo};
use crate::file::is_folder;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// More is not read: images are held in memory.
const LONGEST_FILE: u64 = 1 << 31;
/// A record of CIFAR-10: a label, and 1024 values each of red, green and blue.
const RECORD: usize = 1 + 3 * PIXELS;
const PIXELS: usize = 1024;

/// Keys of `task = { kind = "lra_image" }`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Image {
    /// Labels are below this.
    pub classes: usize,
}

impl Default for Image {
    fn default() -> Image {
        Image { classes: 10 }
    }
}

impl Image {
    pub(super) fn open(&self, facts: TaskInfo, path: Option<&Path>, stop: &AtomicBool) -> Result<Box<dyn Examples>> {
        let hint = "set `data.path` to a folder of CIFAR-10's binary files (data_batch_1.bin ...) \
                    or of IDX files (train-images-idx3-ubyte.gz ...)";
        let path = path.ok_or_else(|| Error::refused("lra_image needs `data.path`", hint))?;
        super::check_classes(self.classes)?;
        // the largest is read in a moment
        check_stop(stop)?;
        let inner = path.join("cifar-10-batches-bin");
        let folder = if is_folder(&inner)? { &inner } else { path };
        let (mut train, test) = match store::find(folder, "data_batch_1.bin")? {
            Some(_) => self.cifar(folder, hint)?,
            None => {
                let (train, test) = (self.idx_pair(folder, "train", hint)?, self.idx_pair(folder, "t10k", hint)?);
                if train.sides != test.sides {
                    let [[rows, columns], [own_rows, own_columns]] = [train.sides, test.sides];
                    let message = format!(
                        "the images have {own_rows} x {own_columns} pixels, but those to train on have \
                         {rows} x {columns}"
                    );
                    return Err(Error::damaged(&test.images, message, "use files of the same dataset"));
                }
                (train.sequences, test.sequences)
            }
        };
        let valid = train.split_off(train.len() * 9 / 10);
        Ok(Box::new(Store::new(facts, path, [train, valid, test], 0)?))
    }

    /// The training and test images of CIFAR-10.
    fn cifar(&self, folder: &Path, hint: &str) -> Result<(Sequences, Sequences)> {
        let mut sets = [Sequences::default(), Sequences::default()];
        let names = (1..=5).map(|number| (0, format!("data_batch_{number}.bin")));
        for (set, name) in names.chain([(1, "test_batch.bin".to_owned())]) {
            let (file, compression) = store::require(folder, &[&name], hint)?;
            let bytes = store::read(&file, compression, LONGEST_FILE)?;
            let (records, rest) = bytes.as_chunks::<RECORD>();
            if !rest.is_empty() {
                let message = format!(
                    "the file has {} bytes, which is not a multiple of {RECORD}, the size of an image",
                    bytes.len()
                );
                return Err(Error::damaged(&file, message, "download the file again"));
            }
            for (number, [label, colours @ ..]) in (1..).zip(records) {
                store::check_label(&file, || format!(", image {number}"), u32::from(*label), self.classes)?;
                let image = (0..PIXELS).map(|at| grey([0, 1, 2].map(|of| colours[of * PIXELS + at])));
                let pushed = sets[set].push(image, u32::from(*label));
                pushed.map_err(|message| Error::damaged(&file, message, "download the file again"))?;
            }
        }
        let [train, test] = sets;
        Ok((train, test))
    }

    /// Images and labels of IDX files.
    fn idx_pair(&self, folder: &Path, name: &str, hint: &str) -> Result<IdxPair> {
        let file = |end: &str| store::require(folder, &[&format!("{name}-{end}")], hint);
        let (images, labels) = (file("images-idx3-ubyte")?, file("labels-idx1-ubyte")?);
        let ([count, rows, columns], pixels) = shape::<3>(&images.0, &store::read(&images.0, images.1, LONGEST_FILE)?)?;
        let ([labelled], label) = shape::<1>(&labels.0, &store::read(&labels.0, labels.1, LONGEST_FILE)?)?;
        if labelled != count {
            let message = format!("the file has {labelled} labels, but {} has {count} images", images.0.display());
            return Err(Error::damaged(&labels.0, message, "use two files of the same dataset"));
        }
        let mut found = Sequences::default();
        for (number, (image, label)) in (1..).zip(pixels.chunks_exact((rows * columns).max(1)).zip(label)) {
            store::check_label(&labels.0, || format!(", label {number}"), u32::from(label), self.classes)?;
            let pushed = found.push(image.iter().copied(), u32::from(label));
            pushed.map_err(|message| Error::damaged(&images.0, message, hint))?;
        }
        Ok(IdxPair { images: images.0, sides: [rows, columns], sequences: found })
    }
}

/// The images and labels of two IDX files.
struct IdxPair {
    images: PathBuf,
    /// Rows and columns of an image.
    sides: [usize; 2],
    sequences: Sequences,
}

/// The grey value of a colour: weights of BT.601 on values in 0 to 1, in single precision as TensorFlow has it, back to 0 to
/// 255.
pub fn grey(colour: [u8; 3]) -> u8 {
    let [red, green, blue] = colour.map(|value| f32::from(value) * (1.0 / 255.0));
    ((0.2989 * red + 0.5870 * green + 0.1140 * blue) * 255.5) as u8
}

/// The sizes and the values of an IDX file of bytes with `N` axes.
fn shape<const N: usize>(path: &Path, bytes: &[u8]) -> Result<([usize; N], Vec<u8>)> {
    let hint = "give an IDX file of bytes, or download it again";
    let bad = |message: String| Error::damaged(path, message, hint);
    let (header, values) = bytes
        .split_at_checked(4 + 4 * N)
        .ok_or_else(|| bad(format!("the file has {} bytes, too few for a header", bytes.len())))?;
    let magic = [0, 0, 8, N as u8];
    if header[..4] != magic {
        return Err(bad(format!(
            "the file starts with {:02x?}; an IDX file with {N} axes starts with {magic:02x?}",
            &header[..4]
        )));
    }
    let mut sizes = [0; N];
    for (size, bytes) in sizes.iter_mut().zip(header[4..].as_chunks().0) {
        *size = u32::from_be_bytes(*bytes) as usize;
    }
    let expected = sizes.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
    if expected != Some(values.len()) {
        return Err(bad(format!("the header states the sizes {sizes:?}, but the file has {} values", values.len())));
    }
    Ok((sizes, values.to_vec()))
}
